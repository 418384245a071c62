"""The gate tried on its own baseline, and the noise floor that its tolerances come from."""

from __future__ import annotations

import tomllib
from dataclasses import replace

import numpy as np
import pytest
from simulated_runs import KINDS, STEP_NS, Truth, metric, run, side

from dflash_bench.errors import UsageError
from dflash_bench.gate.calibration import Floor, noise_floor, policy_toml
from dflash_bench.gate.decision import Answer, run_gate
from dflash_bench.gate.policy import MetricPolicy, OnInconclusive, Policy, RankScope, load_policy
from dflash_bench.gate.self_test import halves, injure, self_test
from dflash_bench.metrics.summary import figure
from dflash_bench.model import Better, Metric, Sides, Statistic, Unit
from dflash_bench.stats.noise import noise

QUIET = Truth("step.period", STEP_NS, drift=0.002 * STEP_NS, jitter=0.02 * STEP_NS, steps=200)
LEAD = Truth("step.lead", 40_000.0, drift=5_000.0, jitter=100_000.0, steps=200)
WATCHED = Policy(metrics={"step.period": MetricPolicy(), "step.lead": MetricPolicy()})


def baseline(num=5, seed=0):
    rng = np.random.default_rng(seed)
    return [run([metric(rng, QUIET), metric(rng, LEAD)], f"r{k}", seed=0, steps=200) for k in range(num)]


def test_a_sound_baseline_passes_against_itself_and_fails_when_made_worse():
    trials = self_test(baseline(), WATCHED, {})
    assert [t.name for t in trials] == ["baseline against itself", "step.period made worse", "step.lead made worse"]
    assert [t.got for t in trials] == [Answer.PASS, Answer.FAIL, Answer.FAIL]
    assert all(t.is_passed for t in trials)


def test_a_stated_regression_below_the_tolerance_is_not_seen_and_the_trial_says_so():
    (_, trial) = self_test(baseline(), WATCHED, {}, {"step.period": 0.001})
    assert trial.got is not Answer.FAIL
    assert not trial.is_passed


def test_a_stated_regression_of_ten_percent_is_seen():
    (_, trial) = self_test(baseline(), WATCHED, {}, {"step.period": 0.10})
    assert trial.is_passed


def test_a_baseline_of_one_run_is_found_too_thin():
    trials = self_test(baseline(1), WATCHED, {})
    assert not trials[0].is_passed


def test_what_is_not_watched_cannot_be_injected():
    with pytest.raises(UsageError, match=r"dp\.wait is not among"):
        self_test(baseline(), WATCHED, {}, {"dp.wait": 0.1})


def test_halves_share_out_the_steps_and_lose_none():
    (one,), (other,) = halves(baseline(1))
    whole = baseline(1)[0].find("step.period", None)
    a, b = one.find("step.period", None), other.find("step.period", None)
    assert sorted([*a.block, *b.block]) == list(whole.block)
    assert len(a.block) == len(b.block) == 100
    assert a.block[:20].tolist() == list(range(20)), "stretches of consecutive steps, not every other step"
    assert "seed" not in one.info.settings


@pytest.mark.parametrize(
    ("statistic", "values", "better", "size", "wanted"),
    [
        (Statistic.MEDIAN, [1.0, 2.0, 3.0], Better.LOWER, 5.0, [6.0, 7.0, 8.0]),
        (Statistic.MEDIAN, [1.0, 2.0, 3.0], Better.HIGHER, 5.0, [-4.0, -3.0, -2.0]),
        (Statistic.MEAN, [1.0, 1.0, 0.0, 0.0], Better.HIGHER, 0.25, [0.0, 1.0, 0.0, 0.0]),
        (Statistic.MEAN, [1.0, 1.0, 0.0, 0.0], Better.LOWER, 0.5, [1.0, 1.0, 1.0, 1.0]),
    ],
)
def test_worse_by_hand(statistic, values, better, size, wanted):
    whole = run([Metric("x", None, Unit.NS, statistic, np.array(values))])
    assert injure(whole, "x", size, better).metrics[0].values.tolist() == wanted
    assert whole.metrics[0].values.tolist() == values, "the copy is changed, not the baseline"


def test_only_allocation_steps_get_dearer_when_their_extra_cost_does():
    is_alloc = np.array([True, False, True, False])
    cost = Metric("alloc.step_cost", None, Unit.NS, Statistic.MEDIAN_DIFFERENCE, np.array([5.0, 1, 5, 1]), is_alloc)
    worse = injure(run([cost]), "alloc.step_cost", 10.0, Better.LOWER).metrics[0]
    assert worse.values.tolist() == [15.0, 1, 15, 1]
    assert figure(worse) - figure(cost) == 10.0


# ── calibration ──────────────────────────────────────────────────────────────────────────────────────────────────────


def test_the_noise_floor_is_the_spread_between_runs():
    rng = np.random.default_rng(1)
    runs = side(rng, KINDS["rate"], 200)
    (found,) = noise_floor(runs, Policy(metrics={"tokens.per_s": MetricPolicy()}), 5)
    assert found.spread == pytest.approx(10.0 / 1450.0, rel=0.25)
    assert found.drift == pytest.approx(1.97 * found.spread * 2**0.5 / 2, rel=0.02)
    assert found.tolerance > 2 * found.spread


def test_the_worst_rank_counts():
    rng = np.random.default_rng(2)
    loud = Truth("step.period", STEP_NS, drift=0.05 * STEP_NS, jitter=0.01 * STEP_NS)
    runs = [run([metric(rng, QUIET, rank=0), metric(rng, loud, rank=1)], str(k)) for k in range(10)]
    quiet = [run([m for m in r.metrics if m.rank == 0], r.info.run) for r in runs]
    both, alone = (noise_floor(each, WATCHED, 5)[0].spread for each in (runs, quiet))
    assert both > 5 * alone


def test_too_few_runs_say_nothing_of_the_noise():
    with pytest.raises(UsageError, match="too few runs to tell the noise: 3; 4 at least"):
        noise_floor(baseline(3), WATCHED, 5)


def test_the_written_policy_is_read_back_and_lets_the_same_arm_pass(tmp_path):
    """Calibrated on ten runs, the gate passes most pairs of arms that are alike, and hardly ever fails one."""
    rng = np.random.default_rng(3)
    truths = KINDS["time"], KINDS["lead"]

    def arm(num):
        return tuple(run([metric(rng, t) for t in truths], str(k)) for k in range(num))

    text = policy_toml(noise_floor(arm(10), WATCHED, 5), WATCHED, 5, "two lines\nof words")
    assert set(tomllib.loads(text)["metrics"]) == {"step.period", "step.lead"}
    path = tmp_path / "gate.toml"
    path.write_text(text)
    policy = load_policy(path)
    assert policy.repeats == 5
    outcomes = [run_gate(Sides(arm(5), arm(5), is_baseline=True), policy).outcome for _ in range(40)]
    assert outcomes.count(Answer.FAIL) <= 2
    assert outcomes.count(Answer.PASS) >= 30


def test_exact_counts_that_never_varied_get_no_tolerance():
    runs = [run([Metric("retracted", 0, Unit.COUNT, Statistic.VALUE, np.array([3.0]))], str(k)) for k in range(4)]
    (found,) = noise_floor(runs, Policy(metrics={"retracted": MetricPolicy()}), 5)
    assert found.tolerance == 0
    assert '"retracted" = {}  # the same in all 4 runs' in policy_toml([found], Policy(), 5, "")


def test_exact_counts_do_not_make_the_gate_less_sensitive_to_the_rest():
    """They take no part in the correction for many comparisons, so they must not widen the tolerances either."""
    rng = np.random.default_rng(4)
    exact = Metric("retracted", 0, Unit.COUNT, Statistic.VALUE, np.array([0.0]))
    watched = Policy(metrics={"step.period": MetricPolicy(), "retracted": MetricPolicy()})
    alone = [run([metric(rng, QUIET)], str(k)) for k in range(10)]
    beside = [run([*r.metrics, exact], r.info.run) for r in alone]
    assert noise_floor(beside, watched, 5)[0] == noise_floor(alone, watched, 5)[0]


def test_calibration_leaves_the_rest_of_the_policy_as_it_was(tmp_path):
    watched = Policy(
        metrics={
            "step.period": MetricPolicy(ranks=RankScope.EACH, repeats=4),
            "step.lead": MetricPolicy(ranks=(0, 2), inconclusive=OnInconclusive.PASS),
            "retracted": MetricPolicy(ranks=RankScope.EACH),
            "launch.backpressure": MetricPolicy(direction=Better.LOWER),
        },
        budget=7,
    )
    floors = [Floor(name, noise(name), 5, 0.01, 0.02, 0.03, None) for name in watched.metrics]
    path = tmp_path / "gate.toml"
    path.write_text(policy_toml(floors, watched, 5, ""))
    found = load_policy(path)
    assert (found.budget, found.repeats) == (7, 5)
    for name, own in watched.metrics.items():
        is_exact = name == "retracted"
        wanted = own if is_exact else replace(own, relative=0.03, drift=0.02)
        assert found.metrics[name] == wanted
