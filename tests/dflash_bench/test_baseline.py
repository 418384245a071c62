"""Baselines: keyed, whole, shared by two writers, and never taken for what they are not."""

from __future__ import annotations

import json
import subprocess
import sys
from dataclasses import replace

import numpy as np
import pytest
from simulated_runs import KINDS, Truth, judge_both, metric, run

from dflash_bench.baseline.file import read_baseline
from dflash_bench.baseline.folder import all_in, find, prune, save
from dflash_bench.baseline.key import BaselineKey
from dflash_bench.errors import DataError, SchemaError, UsageError
from dflash_bench.metrics.measure import pool
from dflash_bench.model import Metric, Statistic, Unit

STACK = {"version.torch": "2.13.0", "version.python": "3.11.7", "seed": 0, "steps": 60}


def made(name="r0", seed=0, **settings):
    """A run of two ranks with times, leads and shares, pooled as measuring does."""
    rng = np.random.default_rng(seed)
    own = [metric(rng, KINDS[kind], rank=rank) for kind in ("time", "lead", "share") for rank in (0, 1)]
    is_alloc = np.arange(60) % 3 == 0
    cost = [
        Metric(
            "alloc.step_cost",
            r,
            Unit.NS,
            Statistic.MEDIAN_DIFFERENCE,
            rng.integers(1, 9, 60) * 1e5,
            is_alloc,
            np.arange(60),
        )
        for r in (0, 1)
    ]
    own = [replace(m, values=np.rint(m.values)) for m in own] + cost
    pooled = [pool([a, b], None) for a, b in zip(own[::2], own[1::2], strict=True)]
    return run([*own, *pooled], name, **{**STACK, **settings})


def test_a_baseline_gives_its_runs_back_sample_by_sample(tmp_path):
    runs = [made("r0", 0), made("r1", 1)]
    path, _ = save(tmp_path, runs)
    found = read_baseline(path).run_metrics()
    assert [r.info.run for r in found] == ["r0", "r1"]
    for before, after in zip(runs, found, strict=True):
        assert {(m.name, m.rank) for m in before.metrics} == {(m.name, m.rank) for m in after.metrics}
        for m in before.metrics:
            same = after.find(m.name, m.rank)
            assert same.values.tolist() == m.values.tolist()
            assert same.block.tolist() == m.block.tolist()
            assert (same.group is None) == (m.group is None)
            assert (same.unit, same.statistic) == (m.unit, m.statistic)


def test_what_is_judged_from_a_baseline_equals_what_is_judged_from_the_runs(tmp_path):
    runs, others = [made(f"r{k}", k) for k in range(4)], [made(f"c{k}", 10 + k) for k in range(4)]
    path, _ = save(tmp_path, runs)
    assert judge_both(read_baseline(path).run_metrics(), others).each == judge_both(runs, others).each


def test_the_file_lies_where_its_key_says_and_reads_like_a_list(tmp_path):
    path, _ = save(tmp_path, [made()])
    assert path.relative_to(tmp_path).parts[0] == "simulated"
    assert path.name.startswith("made-up-control-w2-")
    raw = json.loads(path.read_text())
    assert raw["key"]["stack"] == {"python": "3.11.7", "torch": "2.13.0"}
    assert set(raw["runs"][0]["samples"]) == {
        f"{name}@{rank}"
        for name in ("step.period", "step.lead", "launch.run_ahead_fraction", "alloc.step_cost")
        for rank in (0, 1)
    }
    assert all("\n" not in m["values"] for m in raw["runs"][0]["samples"].values())


def test_the_same_run_is_not_saved_twice_and_another_adds_few_lines(tmp_path):
    path, _ = save(tmp_path, [made("r0", 0)])
    before = path.read_text()
    save(tmp_path, [made("r0", 0)])
    assert path.read_text() == before
    save(tmp_path, [made("r1", 1)])
    kept = [line for line in before.splitlines() if line in path.read_text().splitlines()]
    assert len(kept) >= len(before.splitlines()) - 3, "the first run's lines stay as they were"


def test_old_runs_live_on_in_the_history(tmp_path):
    for k in range(4):
        path, after = save(tmp_path, [made(f"r{k}", k)], keep=2)
    assert [r.run for r in after.runs] == ["r2", "r3"]
    assert [e.run for e in read_baseline(path).history] == ["r0", "r1", "r2", "r3"]
    (session,) = read_baseline(path).sessions()
    assert session.day == after.history[0].created_utc[:10]
    assert len(read_baseline(path).figures()["step.period", 0]) == 1, (
        "runs of one session are one draw of what sessions do"
    )


def test_pruning_keeps_the_newest(tmp_path):
    path, _ = save(tmp_path, [made(f"r{k}", k) for k in range(4)])
    after = prune(path, keep=1, keep_history=2)
    assert [r.run for r in read_baseline(path).runs] == [r.run for r in after.runs]
    assert [r.run for r in after.runs] == ["r3"]
    assert [e.run for e in after.history] == ["r2", "r3"]
    assert prune(path, keep=0, keep_history=0).runs == ()


def test_runs_of_two_keys_are_not_mixed(tmp_path):
    other = made("r1", 1, **{"version.torch": "2.11.0"})
    with pytest.raises(UsageError, match="2 baselines"):
        save(tmp_path, [made(), other])
    assert not list(tmp_path.iterdir())


def test_an_interrupted_run_is_no_baseline(tmp_path):
    with pytest.raises(UsageError, match="interrupted"):
        save(tmp_path, [made(interrupted=True)])


def test_a_run_with_a_planted_delay_is_no_baseline(tmp_path):
    with pytest.raises(UsageError, match="r0 was delayed on purpose"):
        save(tmp_path, [made(delay="1:150"), made("r1")])


def test_without_a_baseline_the_command_to_type_is_named(tmp_path):
    with pytest.raises(UsageError, match="no baseline") as caught:
        find(tmp_path, made("mine").info)
    assert caught.value.hint == f"dflash-bench baseline save mine --baselines {tmp_path}"


@pytest.mark.parametrize(
    ("change", "told"),
    [
        ({"device": "H300"}, "device simulated, not H300"),
        ({"arm": "topup"}, "arm control, not topup"),
        ({"workload": "long"}, "workload made-up, not long"),
        ({"world": 8}, "world 2, not 8"),
        ({"settings": {**STACK, "version.torch": "2.11.0"}}, "torch 2.13.0, not 2.11.0"),
    ],
)
def test_a_baseline_of_another_key_is_named_but_never_used(tmp_path, change, told):
    save(tmp_path, [made()])
    with pytest.raises(UsageError) as caught:
        find(tmp_path, replace(made("mine").info, **change))
    assert f"is of {told}" in caught.value.text


def test_a_run_that_does_not_say_what_it_is_has_no_baseline():
    with pytest.raises(UsageError, match="workload and arm"):
        BaselineKey.of(replace(made().info, workload=None, arm=None))


@pytest.mark.parametrize(
    ("text", "error"),
    [
        ("not json", DataError),
        ('{"format_version": 99}', SchemaError),
        ('{"format_version": 1, "key": {}}', DataError),
        ("[]", DataError),
        ('{"name": "something else"}', DataError),
    ],
)
def test_a_damaged_file_is_named(tmp_path, text, error):
    path = tmp_path / "x.json"
    path.write_text(text)
    with pytest.raises(error, match=r"x\.json"):
        read_baseline(path)


WRITER = """
import sys
sys.path[:0] = sys.argv[3].split(":")
from pathlib import Path
from test_baseline import made
from dflash_bench.baseline.folder import save
for k in range(5):
    save(Path(sys.argv[1]), [made(f"{sys.argv[2]}{k}", k)], keep=20)
"""


def test_two_writers_at_once_lose_nothing(tmp_path):
    """Two processes save five runs each into one file; all ten are in it, and no partial file is left."""
    from pathlib import Path

    here = Path(__file__).parent
    writers = [
        subprocess.Popen([sys.executable, "-c", WRITER, str(tmp_path), name, f"{here}:{here.parent}"]) for name in "ab"
    ]
    assert [w.wait(120) for w in writers] == [0, 0]
    ((path, found),) = all_in(tmp_path)
    assert {r.run for r in found.runs} == {f"{name}{k}" for name in "ab" for k in range(5)}
    assert len(found.history) == 10
    assert not list(path.parent.glob(".*.partial"))


def test_a_baseline_of_a_usual_run_is_small(tmp_path):
    """400 steps on 2 ranks take well under a hundred bytes a step, all metrics of this run together."""
    rng = np.random.default_rng(0)
    truth = Truth("step.period", 1e7, drift=5e4, jitter=2e5, steps=400)
    one = [replace(m, values=np.rint(m.values)) for m in (metric(rng, truth, rank=r) for r in (0, 1))]
    path, _ = save(tmp_path, [run(one, **STACK)])
    assert path.stat().st_size < 400 * 2 * 10 + 2_000


def test_a_creep_over_twenty_nights_is_told_by_the_history(tmp_path):
    """Half a percent a night, where nights stray by one: with commits and days, on the terminal and as JSON."""
    import json

    from typer.testing import CliRunner

    from dflash_bench.cli import app

    rng = np.random.default_rng(0)
    for night in range(20):
        times = 1.005**night * (1 + 0.01 * rng.standard_normal())
        own = made(f"n{night:02}", night, commit=f"c{night:02}", job=str(night))
        metrics = tuple(replace(m, values=1e7 * times + 0 * m.values) for m in own.metrics if m.name == "step.period")
        path, after = save(tmp_path, [replace(own, metrics=metrics)])
    assert len(after.sessions()) == 20
    found = CliRunner().invoke(app, ["baseline", "history", str(path), "--json"])
    (course,) = (c for c in json.loads(found.stdout) if c["metric"] == "step.period")
    assert len(course["sessions"]) == 20
    assert course["sessions"][3]["commit"] == "c03"
    assert course["creep"]["slope"] > 0
    shown = CliRunner().invoke(app, ["baseline", "history", str(path), "--metric", "step.*"]).stdout
    assert "a session" in shown
