"""Verdicts keep their promises on runs with known truth: correlated steps, heavy tails, drift between runs.

Each kind of metric gets a stock of simulated runs; a trial deals two arms of five from it. Same arm twice: a verdict
other than "unchanged" or "inconclusive" is false. One arm moved by twice the tolerance: it must be found.
"""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from simulated_runs import KINDS, judge_both, metric, side

from dflash_bench.metrics.registry import spec
from dflash_bench.stats.judgement import Verdict
from dflash_bench.stats.noise import Allowance
from dflash_bench.stats.power import planned_detectable
from dflash_bench.stats.repeats import Repeat, repeats
from dflash_bench.stats.rules import MetricRule, Rules
from dflash_bench.stats.shift import shift
from dflash_bench.stats.verdict import conclude

STOCK, TRIALS, REPEATS = 300, 1_000, 5
FALSE = (Verdict.IMPROVED, Verdict.REGRESSED)


def stock(kind, num=STOCK):
    rng = np.random.default_rng(11)
    return [repeats([metric(rng, KINDS[kind])])[0] for _ in range(num)]


def dealt(rng, runs, num_base, num_candidate, moved=0.0):
    """Two arms of different runs from the stock, the second one moved."""
    chosen = [runs[k] for k in rng.choice(len(runs), num_base + num_candidate, replace=False)]
    arms = chosen[:num_base], [Repeat(r.figure + moved, r.noise) for r in chosen[num_base:]]
    return tuple(sorted(arm, key=lambda r: r.figure) for arm in arms)


def tolerance_of(runs):
    """What calibration would set for five repeats of these runs."""
    return planned_detectable(float(np.std([r.figure for r in runs])), REPEATS, 0.05)


@pytest.fixture(scope="module", params=list(KINDS))
def kind(request):
    return request.param


@pytest.fixture(scope="module")
def runs(kind):
    return stock(kind)


@pytest.fixture(scope="module")
def trials(runs):
    """1,000 comparisons of an arm with itself."""
    rng = np.random.default_rng(1)
    return [shift(*dealt(rng, runs, REPEATS, REPEATS), 0.0, seed=k) for k in range(TRIALS)]


def test_a_95_percent_interval_covers_the_truth_in_95_percent_of_trials(trials):
    assert 0.93 <= np.mean([t.interval.low <= 0 <= t.interval.high for t in trials]) <= 0.97


@pytest.mark.parametrize("share_of_calibrated", [0.0, 0.25, 1.0])
def test_at_most_5_percent_false_verdicts_in_1000_trials(kind, runs, trials, share_of_calibrated):
    """Whatever the tolerance: none at all, one far below the noise, and the calibrated one."""
    tolerance = share_of_calibrated * tolerance_of(runs)
    better = spec(KINDS[kind].name).better
    found = [conclude(t, tolerance, better, t.p, 0.05)[0] for t in trials]
    assert sum(v in FALSE for v in found) <= 0.05 * TRIALS


def test_five_repeats_find_twice_the_tolerance_nine_times_in_ten(kind, runs):
    rng, tolerance = np.random.default_rng(2), tolerance_of(runs)
    better = spec(KINDS[kind].name).better
    found = [
        conclude(t, tolerance, better, t.p, 0.05)[0]
        for k in range(300)
        for t in [shift(*dealt(rng, runs, REPEATS, REPEATS, 2 * tolerance), 0.0, seed=k)]
    ]
    right = Verdict.REGRESSED if better == "lower" else Verdict.IMPROVED
    assert found.count(right) >= 0.90 * len(found)
    assert found.count(Verdict.UNCHANGED) == 0


def test_with_the_default_tolerance_and_the_published_drift_twice_the_tolerance_is_found():
    """Runs that stray by up to 3 % (95 %), a tolerance of 3 %: +6 % is found by five repeats."""
    truth = replace(KINDS["time"], drift=0.03 / 1.96 * 1e7, jitter=1e5)
    rng = np.random.default_rng(3)
    made = [repeats([metric(rng, truth)])[0] for _ in range(STOCK)]
    found = [shift(*dealt(rng, made, REPEATS, REPEATS, 6e5), 0.0, seed=k) for k in range(300)]
    verdicts = [conclude(t, 3e5, spec("step.period").better, t.p, 0.05)[0] for t in found]
    assert verdicts.count(Verdict.REGRESSED) >= 0.90 * len(verdicts)


def test_a_machine_that_warms_up_meets_arms_that_take_turns_alike():
    """The level rises by 3 % over the session, on top of all other noise: hardly a false verdict comes of it."""
    rng, made = np.random.default_rng(7), stock("time")
    rise = np.linspace(0, 3e5, 2 * REPEATS)
    verdicts, covered = [], 0
    for k in range(TRIALS):
        chosen = rng.choice(STOCK, len(rise), replace=False)
        turns = [Repeat(made[j].figure + up, made[j].noise) for j, up in zip(chosen, rise, strict=True)]
        arms = [tuple(sorted(turns[first::2], key=lambda r: r.figure)) for first in (0, 1)]
        found = shift(*arms, 0.0, seed=k)
        verdicts.append(conclude(found, 0.0, spec("step.period").better, found.p, 0.05)[0])
        covered += found.interval.low <= 0 <= found.interval.high
    assert sum(v in FALSE for v in verdicts) <= 0.05 * TRIALS
    assert covered >= 0.93 * TRIALS


@pytest.mark.parametrize(("num_base", "num_candidate"), [(3, 3), (4, 4), (5, 1), (8, 4), (10, 10)])
@pytest.mark.parametrize("tails", [5, 1_000])
def test_other_numbers_of_runs_are_as_honest(num_base, num_candidate, tails):
    rng = np.random.default_rng(4)

    def arm(num):
        return tuple(
            sorted((Repeat(f, np.zeros(1)) for f in rng.standard_t(tails, num).tolist()), key=lambda r: r.figure)
        )

    found = [shift(arm(num_base), arm(num_candidate), 0.0, seed=k) for k in range(TRIALS)]
    # a single run has no mean for its heavy tail to vanish in: 92 % is what any interval from the others' spread gives
    least = 0.91 if num_candidate == 1 else 0.925
    assert least <= np.mean([t.interval.low <= 0 <= t.interval.high for t in found]) <= 0.975


def test_single_pairs_give_no_false_verdict_while_runs_stray_no_further_than_stated():
    """Runs up to 3 % off, evenly: two runs of one arm are up to 6 % apart, and hardly a verdict comes of it."""
    rng, truth = np.random.default_rng(5), replace(KINDS["time"], drift=0.0)
    pairs = [[metric(rng, truth, shift=rng.uniform(-3e5, 3e5)) for _ in range(2)] for _ in range(300)]
    found = [shift(repeats([a]), repeats([b]), 3e5) for a, b in pairs]
    verdicts = [conclude(t, 3e5, spec("step.period").better, t.p, 0.05)[0] for t in found]
    assert sum(v in FALSE for v in verdicts) <= 0.05 * len(pairs)
    assert np.mean([t.interval.low <= 0 <= t.interval.high for t in found]) >= 0.95


@pytest.mark.soak
@pytest.mark.parametrize("name", list(KINDS))
def test_fresh_runs_through_the_whole_of_judge(name):
    """The same promises with every trial's runs made anew and judged from their samples."""
    rng, truth = np.random.default_rng(6), KINDS[name]
    spread = float(np.std([r.figure for r in stock(name)]))
    tolerance = planned_detectable(spread, REPEATS, 0.05)
    rules = Rules({truth.name: MetricRule(Allowance(0.0, tolerance))})
    # a share of 80 % has no room for twice the tolerance above it
    is_raised = spec(truth.name).statistic != "mean"
    shift_by = 2 * tolerance if is_raised else -2 * tolerance
    # 1,000 trials tell a coverage to 0.7 points: where trials are cheap there are more
    trials = 4 * TRIALS if spec(truth.name).statistic == "value" else TRIALS
    same = [judge_both(side(rng, truth, 5), side(rng, truth, 5), rules).each[0] for _ in range(trials)]
    moved = [judge_both(side(rng, truth, 5), side(rng, truth, 5, shift_by), rules).each[0] for _ in range(TRIALS)]
    assert sum(j.verdict in FALSE for j in same) <= 0.05 * trials
    assert 0.93 <= np.mean([j.interval.low <= 0 <= j.interval.high for j in same]) <= 0.97
    right = Verdict.REGRESSED if is_raised == (spec(truth.name).better == "lower") else Verdict.IMPROVED
    assert sum(j.verdict is right for j in moved) >= 0.90 * TRIALS
