"""Verdicts where a person meets them: in ``compare``, on real captures and on several runs of an arm."""

from __future__ import annotations

import json

import numpy as np
import pytest
from simulated_runs import KINDS, STEP_NS, Truth, compare_both, run, side

from dflash_bench.report.as_json import comparison_json
from dflash_bench.report.comparison import comparison_report
from dflash_bench.report.sheets import Detail
from dflash_bench.stats.judgement import Verdict

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
    found = verdicts["range.kv_alloc", 0]
    assert found["verdict"] == "inconclusive"
    assert "too few events" in found["reason"]


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


@pytest.mark.parametrize(("num", "shift", "is_told"), [(1, 0.3, True), (1, 0.0, False), (5, 0.3, False)])
def test_a_verdict_from_single_runs_is_told_to_rest_on_a_stated_drift(num, shift, is_told):
    """On a busy machine runs stray further than stated: whoever reads the verdict must know what it rests on."""
    rng = np.random.default_rng(2)
    found, _ = compare_both(side(rng, QUIET, num), side(rng, QUIET, num, shift * STEP_NS))
    told = [f.text for f in found.findings if f.code == "stated_drift"]
    assert bool(told) == is_told
    assert all("1 verdict" in text and "--repeats 5" in text for text in told)


def test_the_report_heads_with_verdicts_reasons_and_how_they_were_reached():
    rng = np.random.default_rng(1)
    found, judgements = compare_both(side(rng, KINDS["time"], 1), side(rng, KINDS["time"], 1))
    report = comparison_report(found, judgements, Detail(is_full=True))
    assert any(line.startswith("verdicts: 1 inconclusive") for line in report.lines)
    assert [sheet.title for sheet in report.sheets[:2]] == ["", "Verdicts"]
    sheet = report.sheets[1]
    (row,) = sheet.rows
    assert row[sheet.columns.index("verdict")] == "inconclusive"
    assert row[sheet.columns.index("reason")]
    assert "1 repeat sees ≥" in row[sheet.columns.index("power")]


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
