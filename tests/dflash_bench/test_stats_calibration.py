"""Verdicts keep their promises on runs with known truth: correlated steps, heavy tails, drift between runs.

One side twice: *improved* and *regressed* are false. One side moved by twice what is tolerated: it must be found.
"""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from simulated_runs import KINDS, judge_both, metric, run, side

from dflash_bench.metrics.registry import spec
from dflash_bench.metrics.summary import figure
from dflash_bench.model import Verdict
from dflash_bench.stats.noise import Allowance
from dflash_bench.stats.power import planned_detectable
from dflash_bench.stats.rules import MetricRule, Rules
from dflash_bench.stats.shift import of_runs

FALSE = (Verdict.IMPROVED, Verdict.REGRESSED)
STOCK, TRIALS = 200, 800


@pytest.fixture(scope="module", params=list(KINDS))
def kind(request):
    return request.param


@pytest.fixture(scope="module")
def figures(kind):
    rng = np.random.default_rng(11)
    return np.array([figure(metric(rng, KINDS[kind])) for _ in range(STOCK)])


def test_intervals_cover_and_shifts_are_found(figures):
    rng = np.random.default_rng(3)
    deals = [rng.choice(STOCK, 10, replace=False) for _ in range(TRIALS)]
    same = [of_runs(figures[d[:5]], figures[d[5:]]) for d in deals]
    assert 0.93 <= np.mean([s.interval().low <= 0 <= s.interval().high for s in same]) <= 0.98
    size = planned_detectable(float(figures.std()), 5, 0.05)
    moved = [of_runs(figures[d[:5]], figures[d[5:]] + size) for d in deals]
    assert np.mean([s.p <= 0.05 for s in moved]) >= 0.80


def test_a_machine_that_warms_up_meets_sides_that_take_turns_alike():
    """The level rises by 3 % over the session, on top of all other noise: hardly a false verdict comes of it."""
    rng, rise, rare = np.random.default_rng(7), np.linspace(0, 3.0, 10), 0
    for _ in range(TRIALS):
        turns = rng.standard_normal(10) + rise
        rare += of_runs(turns[0::2], turns[1::2]).p <= 0.05
    assert rare <= 0.06 * TRIALS


@pytest.mark.soak
@pytest.mark.parametrize("name", list(KINDS))
def test_fresh_runs_through_the_whole_of_judge(name):
    """The same promises with every trial's runs made anew and judged from their samples."""
    rng, truth, trials = np.random.default_rng(6), KINDS[name], 1000
    spread = float(np.std([figure(metric(rng, truth)) for _ in range(300)]))
    tolerance = planned_detectable(spread, 5, 0.05)
    rules = Rules({truth.name: MetricRule(Allowance(0.0, tolerance))})
    # a share of 80 % has no room for twice the tolerance above it
    is_raised = spec(truth.name).statistic != "mean"
    shift_by = 2 * tolerance if is_raised else -2 * tolerance
    same = [judge_both(side(rng, truth, 5), side(rng, truth, 5), rules).each[0] for _ in range(trials)]
    moved = [judge_both(side(rng, truth, 5), side(rng, truth, 5, shift_by), rules).each[0] for _ in range(trials)]
    assert sum(j.verdict in FALSE for j in same) <= 0.05 * trials
    assert 0.93 <= np.mean([j.interval.low <= 0 <= j.interval.high for j in same]) <= 0.97
    right = Verdict.REGRESSED if is_raised == (spec(truth.name).better == "lower") else Verdict.IMPROVED
    assert sum(j.verdict is right for j in moved) >= 0.90 * trials


def test_single_pairs_of_a_busy_host_give_no_verdict():
    """A host that is 8 % faster or slower from run to run: one run a side is described, whatever it shows."""
    rng, truth = np.random.default_rng(5), replace(KINDS["time"], drift=0.08e7)
    for _ in range(100):
        pair = [[run([metric(rng, truth)])] for _ in range(2)]
        assert judge_both(*pair).each[0].verdict is Verdict.DESCRIBED
