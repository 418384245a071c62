"""Our own loop, annotated from outside while it writes its own ranges: the two must tell the same of every call."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from dflash_bench.annotate.check import check_table
from dflash_bench.annotate.environment import annotating
from dflash_bench.annotate.sinks import SinkKind
from dflash_bench.annotate.table import read_table, table_file
from dflash_bench.capture.recorder import FOLDER_VARIABLE, ORIGIN_VARIABLE, Origin
from dflash_bench.ingest.sources import IngestOptions, ingest
from dflash_bench.layout import Events
from dflash_bench.metrics.measure import measure
from dflash_bench.run.launch import SINK, SINK_VARIABLE

pytest.importorskip("torch")
TABLE = read_table(table_file("loop"))
NAMES = sorted({name for entry in TABLE.ranges for name in entry.names})
INSIDE = {"prepare_for_decode", "kv_alloc", "process_result"}
"""Whose own range stands inside the function; the others' stands around the call."""


@pytest.fixture(scope="module")
def both(tmp_path_factory):
    """(by its own ranges, from outside): the profile of each."""
    out, profiles = tmp_path_factory.mktemp("out"), tmp_path_factory.mktemp("profiles")
    variables = annotating(table_file("loop"), SinkKind.RECORDER) | {
        SINK_VARIABLE: SINK,
        FOLDER_VARIABLE: str(out),
        ORIGIN_VARIABLE: str(Origin.now()),
        "OMP_NUM_THREADS": "1",
    }
    line = [sys.executable, "-m", "dflash_prep.loop", "--arm", "control", "--workload", "smoke", "--steps", "60"]
    done = subprocess.run(
        [*line, "--out", str(out)], env={**os.environ, **variables}, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr
    (outside,) = out.glob("pid*.sqlite")
    found = []
    for name, file in (("own", out / "rank0.sqlite"), ("outside", outside)):
        (profile,) = ingest([file], IngestOptions(profiles=profiles, run=name))
        found.append(profile)
    return tuple(found)


def intervals(profile, name: str) -> list[tuple[int, int]]:
    (process,) = [each for each in profile.info.processes if each.num_ranges]
    rows = profile.events(Events.RANGES, process).to_pylist()
    return sorted((row["start_ns"], row["end_ns"]) for row in rows if row["name"] == name)


@pytest.mark.parametrize("name", NAMES)
def test_each_call_is_the_same_range_by_both(both, name):
    own, outside = (intervals(profile, name) for profile in both)
    assert len(own) == len(outside) > 0
    for mine, theirs in zip(own, outside, strict=True):
        outer, inner = (theirs, mine) if name in INSIDE else (mine, theirs)
        assert outer[0] <= inner[0] <= inner[1] <= outer[1]


def test_the_figures_that_count_are_equal(both):
    own, outside = (measure(profile) for profile in both)
    for metric in ("alloc.step_share", "step.period", "range.prepare_for_decode", "range.kv_alloc"):
        mine, theirs = own.find(metric, 0), outside.find(metric, 0)
        assert mine is not None
        assert theirs is not None
        assert mine.n == theirs.n
    assert (own.find("alloc.step_share", 0).values == outside.find("alloc.step_share", 0).values).all()


def test_the_process_is_the_same_rank_by_both(both):
    ranks = [[(p.rank, p.world) for p in profile.info.processes if p.num_ranges] for profile in both]
    assert ranks == [[(0, 1)], [(0, 1)]]


def test_every_target_of_the_table_is_in_our_sources():
    found = check_table(TABLE, Path(__file__).parents[3] / "impl", None)
    assert [each for each in found if each.problem] == []
