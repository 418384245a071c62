"""The gate tried on its own baseline, and the noise floor that its tolerances come from."""

from __future__ import annotations

import numpy as np
import pytest
from simulated_runs import KINDS, STEP_NS, Truth, metric, run, side

from dflash_bench.errors import UsageError
from dflash_bench.gate.calibration import Floor, noise_floor, policy_toml
from dflash_bench.gate.decision import Answer, run_gate
from dflash_bench.gate.policy import MetricPolicy, OnInconclusive, Policy, RankScope, load_policy
from dflash_bench.gate.self_test import Trial, injure, self_test
from dflash_bench.metrics.registry import spec
from dflash_bench.metrics.summary import figure
from dflash_bench.model import Better, Metric, Sides, Statistic, Unit

QUIET = Truth("step.period", STEP_NS, drift=0.002 * STEP_NS, jitter=0.02 * STEP_NS, steps=200)
LEAD = Truth("step.lead", 40_000.0, drift=5_000.0, jitter=100_000.0, steps=200)
WATCHED = Policy(metrics={"step.period": MetricPolicy(), "step.lead": MetricPolicy()})


def baseline(num=6, seed=0):
    rng = np.random.default_rng(seed)
    return [run([metric(rng, QUIET), metric(rng, LEAD)], f"r{k}", seed=0, steps=200) for k in range(num)]


def test_a_sound_baseline_passes_against_itself_and_fails_when_made_worse():
    trials = self_test(baseline(), WATCHED, {})
    assert trials[0].name == "the same code"
    assert {t.name for t in trials[1:]} == {"step.period made worse", "step.lead made worse"}
    assert trials[0].failed == 0
    assert all(t.failed == t.deals == 20 for t in trials[1:])
    assert all(t.is_passed for t in trials)


def test_a_stated_regression_below_the_tolerance_is_not_seen_and_the_trial_says_so():
    (_, trial) = self_test(baseline(), WATCHED, {}, {"step.period": 0.001})
    assert trial.failed == 0
    assert not trial.is_passed


def test_a_stated_regression_of_ten_percent_is_seen():
    (_, trial) = self_test(baseline(), WATCHED, {}, {"step.period": 0.10})
    assert trial.is_passed


def test_a_gate_that_cries_wolf_does_not_pass():
    assert not Trial("the same code", 3, 20, must_fail=False, text="").is_passed
    assert Trial("the same code", 2, 20, must_fail=False, text="").is_passed
    assert not Trial("made worse", 17, 20, must_fail=True, text="").is_passed


def test_a_baseline_of_too_few_runs_to_deal_is_told():
    with pytest.raises(UsageError, match="two sides of 3, and there are 5"):
        self_test(baseline(5), WATCHED, {})


def test_what_is_not_watched_cannot_be_injected():
    with pytest.raises(UsageError, match=r"dp\.wait is not among"):
        self_test(baseline(), WATCHED, {}, {"dp.wait": 0.1})


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
    assert found.tolerance == pytest.approx(0.03), "what is acceptable, no noise says"
    assert found.detectable == found.tolerance, "quieter than the tolerance asks for"
    assert found.needed == 3


def test_the_worst_rank_counts_and_a_loud_one_needs_more_runs():
    rng = np.random.default_rng(2)
    loud = Truth("step.period", STEP_NS, drift=0.05 * STEP_NS, jitter=0.01 * STEP_NS)
    runs = [run([metric(rng, QUIET, rank=0), metric(rng, loud, rank=1)], str(k)) for k in range(10)]
    quiet = [run([m for m in r.metrics if m.rank == 0], r.info.run) for r in runs]
    (both,), (alone,) = (noise_floor(each, WATCHED, 5) for each in (runs, quiet))
    assert both.spread > 5 * alone.spread
    assert both.needed is None or both.needed > alone.needed


def test_too_few_runs_say_nothing_of_the_noise():
    with pytest.raises(UsageError, match="too few runs to tell the noise: 3; 4 at least"):
        noise_floor(baseline(3), WATCHED, 5)


def test_what_the_table_says_is_seen_is_seen(tmp_path):
    """A side made worse by what five runs see of each metric fails nine times in ten, and the same code hardly ever."""
    rng = np.random.default_rng(3)
    strict = Policy(metrics={"step.period": MetricPolicy(relative=0.001)})
    truth = KINDS["time"]
    (floor,) = noise_floor(side(rng, truth, 60), strict, 5)
    shift = floor.detectable * STEP_NS
    worse = [run_gate(Sides(tuple(side(rng, truth, 5)), tuple(side(rng, truth, 5, shift))), strict) for _ in range(60)]
    same = [run_gate(Sides(tuple(side(rng, truth, 5)), tuple(side(rng, truth, 5))), strict) for _ in range(60)]
    assert sum(d.outcome is Answer.FAIL for d in worse) >= 46
    assert sum(d.outcome is Answer.FAIL for d in same) <= 6


def test_exact_counts_that_never_varied_see_every_difference():
    runs = [run([Metric("retracted", 0, Unit.COUNT, Statistic.VALUE, np.array([3.0]))], str(k)) for k in range(4)]
    (found,) = noise_floor(runs, Policy(metrics={"retracted": MetricPolicy()}), 5)
    assert (found.tolerance, found.detectable, found.needed) == (0, 0, 1)
    assert '"retracted" = {}  # the same in all 4 runs' in policy_toml([found], Policy(), 5, "")


def test_exact_counts_do_not_make_the_gate_less_sensitive_to_the_rest():
    rng = np.random.default_rng(4)
    exact = Metric("retracted", 0, Unit.COUNT, Statistic.VALUE, np.array([0.0]))
    watched = Policy(metrics={"step.period": MetricPolicy(), "retracted": MetricPolicy()})
    alone = [run([metric(rng, QUIET)], str(k)) for k in range(10)]
    beside = [run([*r.metrics, exact], r.info.run) for r in alone]
    found = {f.metric: f for f in noise_floor(beside, watched, 5)}
    assert found["step.period"] == noise_floor(alone, watched, 5)[0]


def test_calibration_leaves_the_policy_as_it_was(tmp_path):
    watched = Policy(
        metrics={
            "step.period": MetricPolicy(relative=0.02, ranks=RankScope.EACH, repeats=4),
            "step.lead": MetricPolicy(ranks=(0, 2), inconclusive=OnInconclusive.PASS),
            "retracted": MetricPolicy(ranks=RankScope.EACH),
            "launch.backpressure": MetricPolicy(direction=Better.LOWER, absolute=3.0),
        },
        budget=7,
    )
    floors = [Floor(name, spec(name).noise, 5, 0.5, 0.03, 0.9, None) for name in watched.metrics]
    path = tmp_path / "gate.toml"
    path.write_text(policy_toml(floors, watched, 5, "two lines\nof words"))
    found = load_policy(path)
    assert (found.budget, found.repeats) == (7, 5)
    assert found.metrics == watched.metrics, "a noisy machine widens nothing"
