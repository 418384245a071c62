"""Verdicts where a person meets them: in ``compare``, on real captures and on several runs of an arm."""

from __future__ import annotations

import json

import numpy as np
import pytest
from simulated_runs import KINDS, STEP_NS, Truth, compare_both, metric, run, side

from dflash_bench.model import Verdict
from dflash_bench.report.as_json import comparison_json
from dflash_bench.report.comparison import comparison_report
from dflash_bench.report.sheets import Detail

QUIET = Truth("step.period", STEP_NS, drift=0.002 * STEP_NS, jitter=0.02 * STEP_NS)


@pytest.fixture(scope="module")
def verdicts(h200, tmp_path_factory):
    """(metric, rank) → verdict of sync → nosync, as ``compare --json`` prints it."""
    from typer.testing import CliRunner

    from dflash_bench.cli import app

    profiles = tmp_path_factory.mktemp("profiles")
    sides = [tmp_path_factory.mktemp(arm) for arm in ("sync", "nosync")]
    for folder, arm in zip(sides, ("sync", "nosync"), strict=True):
        for rank in (0, 1):
            (folder / f"{arm}_rank{rank}.sqlite").symlink_to(h200 / f"h200x2_{arm}_rank{rank}.sqlite")
    words = ["compare", *map(str, sides), "--json", "--profiles", str(profiles)]
    found = CliRunner().invoke(app, words, catch_exceptions=False)
    assert found.exit_code == 0, found.stderr
    return {(v["metric"], v["rank"]): v for v in json.loads(found.stdout)["verdicts"]}


@pytest.mark.parametrize(
    "metric", ["step.lead", "launch.run_ahead_fraction", "alloc.step_share", "dp.alloc_on_critical_path"]
)
def test_removing_the_syncs_improves_what_it_was_meant_to_improve(verdicts, metric):
    """#31468 and #47685 on two H200s, one run of each arm: far beyond what two runs may differ by."""
    assert verdicts[metric, None]["verdict"] == "improved"


def test_what_two_allocations_cost_is_left_open(verdicts):
    """Without syncs the pages are topped up, and two allocations are left in 200 steps."""
    assert verdicts["alloc.step_cost", 0]["verdict"] == "described"


def test_of_a_host_that_runs_ahead_nothing_is_called_regressed(verdicts):
    assert not [key for key, v in verdicts.items() if v["verdict"] == "regressed"]


def test_every_verdict_says_its_power_and_every_open_one_its_reason(verdicts):
    assert all(v["power"] for v in verdicts.values())
    assert all(v["reason"] for v in verdicts.values())


def test_several_runs_of_each_arm_are_compared_as_arms():
    rng = np.random.default_rng(0)
    base, candidate = side(rng, QUIET, 5), side(rng, QUIET, 5, -0.05 * STEP_NS)
    found, judgements = compare_both(base, candidate)
    (change,) = found.changes
    (judged,) = judgements.each
    assert judged.verdict is Verdict.IMPROVED
    assert (change.base, change.candidate, change.interval) == (judged.base, judged.candidate, judged.interval)
    assert change.base == pytest.approx(STEP_NS, rel=0.01)


def test_a_host_that_was_slower_in_one_run_is_a_finding():
    rng = np.random.default_rng(2)

    def one(times, name):
        truths = [Truth(f"cost.{part}", times * 5e5, drift=0.0, jitter=1e4) for part in "abcdef"]
        return run([metric(rng, truth, rank=0) for truth in truths], name)

    found, _ = compare_both([one(1, "b1"), one(1, "b2"), one(1.47, "b3")], [one(1, f"c{k}") for k in range(3)])
    (slow,) = (f for f in found.findings if f.code == "host_speed")
    assert "× 1.47 slower in b3" in slow.text


def test_the_report_heads_with_verdicts_reasons_and_how_they_were_reached():
    rng = np.random.default_rng(1)
    found, judgements = compare_both(side(rng, KINDS["time"], 1), side(rng, KINDS["time"], 1))
    report = comparison_report(found, judgements, Detail(is_full=True))
    assert any(line.startswith("verdicts: 1 described") for line in report.lines)
    assert [sheet.title for sheet in report.sheets[:2]] == ["", "Verdicts"]
    sheet = report.sheets[1]
    (row,) = sheet.rows
    assert row[sheet.columns.index("verdict")] == "described"
    assert row[sheet.columns.index("reason")]


def test_runs_of_two_devices_get_figures_but_no_verdict():
    from dataclasses import replace

    rng = np.random.default_rng(2)
    base, candidate = side(rng, QUIET, 1), side(rng, QUIET, 1)
    other = [replace(r, info=replace(r.info, device="H300")) for r in candidate]
    found, judgements = compare_both(base, other)
    assert judgements is None
    assert found.changes[0].difference is not None
    assert [f.code for f in found.findings] == ["different_device"]
    assert json.loads(comparison_json(found, judgements))["verdicts"] is None


def test_what_is_not_judged_keeps_its_figures():
    from dflash_bench.metrics.measurements import metric as measured

    both = [run([measured("coverage.open_ranges", 0, np.array([k]))]) for k in (1, 4)]
    found, judgements = compare_both(both[:1], both[1:])
    assert judgements.each == ()
    assert found.changes[0].difference == 3
