"""What verdicts are worth on real duets: windows of four processes on an H200, each judged by itself."""

from __future__ import annotations

import pytest
from benchmarks.duet_windows import duets
from h200_duets import PROCESSES, arm_of, made_worse

from dflash_bench.gate.decision import Answer, decide
from dflash_bench.gate.policy import Policy
from dflash_bench.model import Verdict
from dflash_bench.stats.verdict import judge

MOVED = (Verdict.IMPROVED, Verdict.REGRESSED)


@pytest.fixture(scope="module")
def arms():
    return {name: [arm_of(p, name) for p in PROCESSES] for name in ("control", "again", "topup", "plus55us")}


def verdicts(sides):
    return {j.metric: j for j in judge(sides).each if j.rank in (None, 0)}


def answers(sides):
    return [decide(each, Policy(), Policy().error_rate).outcome for each in sides]


def test_the_same_code_is_never_called_better_or_worse(arms):
    """Forty windows of ten pairs, of four processes, none of which shares data with another."""
    found = duets(arms["control"], arms["again"], 10, 1, is_crossed=False)
    assert len(found) == 40
    assert not [j for sides in found for j in judge(sides).each if j.verdict in MOVED]


def test_top_up_is_better_in_preparation_and_changes_no_step_in_ten_of_ten(arms):
    found = duets(arms["control"], arms["topup"], 20, 2, is_crossed=False)
    assert len(found) == 10
    for each in map(verdicts, found):
        assert each["cost.prepare_for_decode"].verdict is Verdict.IMPROVED
        assert each["alloc.step_share"].verdict is Verdict.IMPROVED
        period = each["step.period"]
        assert period.verdict is Verdict.UNCHANGED
        assert -0.005 <= period.percent.low <= period.percent.high <= 0.005


def some(sides, every, is_soak):
    return sides if is_soak else sides[::every]


@pytest.mark.parametrize("is_soak", [False, pytest.param(True, marks=pytest.mark.soak)])
def test_the_gate_passes_the_same_code_and_fails_what_is_planted(arms, is_soak):
    """At its defaults, on duets of two processes × 30 pairs: under a minute of decoding."""
    base, again = arms["control"], arms["again"]
    same = answers(some(duets(base, again, 30, 2, is_crossed=True), 9, is_soak))
    assert same.count(Answer.FAIL) == 0
    assert same.count(Answer.PASS) >= 0.8 * len(same)
    worse = [made_worse(run, "cost.prepare_for_decode", 0.15) for run in again]
    longer = [made_worse(run, "step.period", 0.06) for run in again]
    for planted in (arms["plus55us"], worse, longer):
        found = answers(some(duets(base, planted, 30, 2, is_crossed=True), 9, is_soak))
        assert found.count(Answer.FAIL) >= 0.9 * len(found)
