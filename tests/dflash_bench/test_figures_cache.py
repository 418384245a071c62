"""Figures kept beside a profile: the same as measured anew, and never those of another profile, reading or code."""

from __future__ import annotations

import json
import os
from dataclasses import replace

import numpy as np
import pytest

from dflash_bench.ingest.sources import IngestOptions, ingest
from dflash_bench.metrics import cache, measure
from dflash_bench.metrics.reading import Reading
from dflash_bench.metrics.summary import figure, summarise
from dflash_bench.profile import open_profile


@pytest.fixture
def profile(tmp_path, h200, monkeypatch):
    monkeypatch.setattr(cache, "LEAST_ROWS", 0)
    (found,) = ingest([h200 / f"h200x2_nosync_rank{k}.sqlite" for k in (0, 1)], IngestOptions(tmp_path / "p", run="x"))
    return found


@pytest.fixture
def times(monkeypatch):
    """How often a profile was measured."""
    count = []
    real = measure._measure

    def counted(*args):
        count.append(args)
        return real(*args)

    monkeypatch.setattr(measure, "_measure", counted)
    return count


def same(one, other):
    assert [(m.name, m.rank) for m in one.metrics] == [(m.name, m.rank) for m in other.metrics]
    for a, b in zip(one.metrics, other.metrics, strict=True):
        for name in ("values", "group", "block", "pair"):
            left, right = getattr(a, name), getattr(b, name)
            assert (left is None) == (right is None)
            assert left is None or (left.dtype == right.dtype and np.array_equal(left, right))
        assert (a.unit, a.statistic, a.num_samples, a.coverage) == (b.unit, b.statistic, b.num_samples, b.coverage)
        assert figure(a) == figure(b)
    assert (one.tables, one.findings, one.info) == (other.tables, other.findings, other.info)


def test_a_second_look_is_the_same_to_the_last_digit_and_measures_nothing(profile, times):
    first = measure.measure(profile)
    second = measure.measure(open_profile(profile.path))
    assert len(times) == 1
    same(first, second)
    for metric in second.metrics:
        anew = summarise(replace(metric, known=None))
        known = summarise(metric)
        assert (known.p50, known.p90, known.p99, known.mean, known.total) == (
            anew.p50, anew.p90, anew.p99, anew.mean, anew.total,
        )  # fmt: skip


def test_samples_that_were_changed_have_no_summary_of_others(profile):
    measure.measure(profile)
    found = measure.measure(profile).find("step.period", 0)
    assert figure(replace(found, values=found.values * 2)) == 2 * figure(found)


@pytest.mark.parametrize("change", ["bytes", "same size and time", "file gone", "run.json"])
def test_a_change_of_the_profile_is_measured_anew(profile, times, change):
    measure.measure(profile)
    path = next(profile.path.glob("marks/*/*.parquet"))
    before = path.stat()
    content = path.read_bytes()
    if change == "file gone":
        path.unlink()
    elif change == "run.json":
        run = json.loads((profile.path / "run.json").read_text())
        (profile.path / "run.json").write_text(json.dumps({**run, "workload": "other"}))
    else:
        path.write_bytes(content)
        if change == "same size and time":
            os.utime(path, ns=(before.st_atime_ns, before.st_mtime_ns))
    measure.measure(open_profile(profile.path))
    assert len(times) == 2


@pytest.mark.parametrize(
    "reading",
    [
        Reading(step="re:decode_.*"),
        Reading(agreement="x"),
        Reading(first=3),
        Reading(prepare="verify"),
        Reading(last=9),
    ],
)
def test_another_reading_is_measured_anew(profile, times, reading):
    measure.measure(profile)
    measure.measure(profile, reading)
    assert len(times) == 2
    measure.measure(profile, reading)
    measure.measure(profile)
    assert len(times) == 2


def test_other_code_measures_anew(profile, times, monkeypatch):
    measure.measure(profile)
    monkeypatch.setattr(cache, "_code", lambda: "of another version")
    measure.measure(profile)
    assert len(times) == 2


@pytest.mark.parametrize("damage", [b"", b"dflash-bench figures 1\n", b"\x00" * 4000])
def test_a_damaged_file_is_as_none(profile, times, damage):
    first = measure.measure(profile)
    (path,) = (profile.path / "figures").iterdir()
    path.write_bytes(damage)
    same(first, measure.measure(profile))
    assert len(times) == 2
    path.write_bytes(path.read_bytes()[:-100])
    same(first, measure.measure(profile))
    assert len(times) == 3


def test_a_folder_that_cannot_be_written_is_measured_each_time(profile, times):
    (profile.path / "figures").write_text("in the way")
    same(measure.measure(profile), measure.measure(profile))
    assert len(times) == 2
    assert [p.name for p in profile.path.glob(".*")] == []


def test_only_the_newest_readings_are_kept(profile):
    for k in range(12):
        measure.measure(profile, Reading(first=k))
    assert len(list((profile.path / "figures").iterdir())) == 8


def test_small_runs_leave_nothing_beside_them(profile, monkeypatch):
    monkeypatch.setattr(cache, "LEAST_ROWS", 10**9)
    measure.measure(profile)
    assert not (profile.path / "figures").exists()
