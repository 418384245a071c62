"""The gate's decision: what passes, what fails, what stays open, and when it asks for more runs."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from simulated_runs import KINDS, STEP_NS, Truth, metric, run, side

from dflash_bench.errors import DataError, ExitCode, UsageError
from dflash_bench.gate.decision import Answer, decide, run_gate, wanted_runs
from dflash_bench.gate.policy import MetricPolicy, OnInconclusive, Policy
from dflash_bench.model import Sides, Verdict

QUIET = Truth("step.period", STEP_NS, drift=0.002 * STEP_NS, jitter=0.02 * STEP_NS)
NOISY = Truth("step.period", STEP_NS, drift=0.03 * STEP_NS, jitter=0.02 * STEP_NS)
ONLY_STEP = Policy(metrics={"step.period": MetricPolicy()})


def sides(truth, num_base, num_candidate, shift=0.0, seed=0):
    rng = np.random.default_rng(seed)
    base, candidate = side(rng, truth, num_base, name="base"), side(rng, truth, num_candidate, shift, "candidate")
    return Sides(tuple(base), tuple(candidate))


def test_no_change_passes_and_a_regression_fails():
    passed, failed = run_gate(sides(QUIET, 5, 5), ONLY_STEP), run_gate(sides(QUIET, 5, 5, 0.1 * STEP_NS), ONLY_STEP)
    assert (passed.outcome, passed.exit_code) == (Answer.PASS, ExitCode.PASS)
    assert (failed.outcome, failed.exit_code) == (Answer.FAIL, ExitCode.REGRESSION)
    assert failed.checks[0].judgement.verdict is Verdict.REGRESSED


def test_an_improvement_passes():
    assert run_gate(sides(QUIET, 5, 5, -0.1 * STEP_NS), ONLY_STEP).outcome is Answer.PASS


def test_what_may_be_better_but_surely_is_not_worse_passes():
    """The interval reaches from a large gain to a loss inside the tolerance: the gate only asks for the loss."""
    found = run_gate(sides(replace(QUIET, drift=0.012 * STEP_NS), 5, 5, -0.03 * STEP_NS, seed=4), ONLY_STEP)
    (check,) = found.checks
    assert check.judgement.verdict is Verdict.INCONCLUSIVE
    assert check.outcome is Answer.PASS
    assert "ruled out" in check.reason


def test_a_single_noisy_pair_is_inconclusive():
    found = run_gate(sides(NOISY, 1, 1), ONLY_STEP)
    assert (found.outcome, found.exit_code) == (Answer.INCONCLUSIVE, ExitCode.INCONCLUSIVE)


@pytest.mark.parametrize(
    ("meaning", "wanted"),
    [
        (OnInconclusive.PASS, Answer.PASS),
        (OnInconclusive.FAIL, Answer.FAIL),
        (OnInconclusive.INCONCLUSIVE, Answer.INCONCLUSIVE),
    ],
)
def test_the_policy_says_what_inconclusive_means(meaning, wanted):
    assert run_gate(sides(NOISY, 1, 1), replace(ONLY_STEP, inconclusive=meaning)).outcome is wanted
    own = Policy(metrics={"step.period": MetricPolicy(inconclusive=meaning)})
    assert run_gate(sides(NOISY, 1, 1), own).outcome is wanted


def test_fewer_runs_than_the_policy_asks_for_do_not_pass():
    found = run_gate(sides(QUIET, 5, 2), ONLY_STEP)
    assert found.checks[0].judgement.verdict is Verdict.UNCHANGED
    assert found.outcome is Answer.INCONCLUSIVE
    assert "asks for 3" in found.checks[0].reason


# ── further runs ─────────────────────────────────────────────────────────────────────────────────────────────────────


class Maker:
    """Makes further runs and counts them."""

    def __init__(self, sides_, truth, shift=0.0):
        self.sides, self.truth, self.shift, self.asked = sides_, truth, shift, []

    def __call__(self, num):
        self.asked.append(num)
        rng = np.random.default_rng(99)
        more = side(rng, self.truth, num, self.shift, "further")
        return replace(self.sides, candidate=(*self.sides.candidate, *more))


def test_while_it_cannot_tell_it_makes_the_runs_that_would_decide():
    short = sides(QUIET, 5, 1)
    maker = Maker(short, QUIET)
    found = run_gate(short, ONLY_STEP, maker)
    assert found.outcome is Answer.PASS
    assert maker.asked == [found.reruns]
    assert 2 <= found.reruns <= ONLY_STEP.budget


def test_a_regression_hidden_by_noise_comes_out_with_more_runs():
    short = sides(NOISY, 6, 1, 0.15 * STEP_NS, seed=3)
    maker = Maker(short, NOISY, 0.15 * STEP_NS)
    assert run_gate(short, ONLY_STEP, maker).outcome is Answer.FAIL


def test_when_it_can_tell_no_further_run_is_made():
    for shift in (0.0, 0.1 * STEP_NS):
        enough = sides(QUIET, 5, 5, shift)
        maker = Maker(enough, QUIET)
        run_gate(enough, ONLY_STEP, maker)
        assert maker.asked == []


def test_the_budget_is_the_limit_and_nothing_is_asked_twice():
    short = sides(replace(NOISY, drift=0.3 * STEP_NS), 4, 1)
    maker = Maker(short, NOISY)
    found = run_gate(short, replace(ONLY_STEP, budget=2), maker)
    assert maker.asked == [2]
    assert found.judgements.rate == pytest.approx(0.025), "two looks share the rate"
    assert run_gate(short, replace(ONLY_STEP, budget=0), maker).reruns == 0
    assert maker.asked == [2]


def test_further_runs_of_another_commit_leave_the_decision_as_it_was():
    def of(run, commit):
        return replace(run, info=replace(run.info, settings={**run.info.settings, "commit": commit}))

    short = sides(QUIET, 5, 1)
    short = replace(short, candidate=tuple(of(run, "aaa") for run in short.candidate))
    maker = Maker(short, QUIET)

    def again(num, commit):
        more = maker(num)
        return replace(
            more, candidate=tuple(r if "commit" in r.info.settings else of(r, commit) for r in more.candidate)
        )

    found = run_gate(short, ONLY_STEP, lambda num: again(num, "bbb"))
    assert (found.outcome, found.reruns) == (Answer.INCONCLUSIVE, 0)
    (told,) = [f for f in found.findings if f.code == "further_runs"]
    assert "another commit: aaa and bbb" in told.text
    assert run_gate(short, ONLY_STEP, lambda num: again(num, "aaa")).outcome is Answer.PASS


def test_peeking_once_does_not_make_it_cry_wolf():
    """Base and candidate alike, further runs whenever it wishes: at most 5 % of 200 gates fail."""
    failed = 0
    for seed in range(200):
        short = sides(replace(NOISY, steps=20), 4, 2, seed=seed)
        rng = np.random.default_rng(10_000 + seed)

        def again(num, short=short, rng=rng):
            return replace(short, candidate=(*short.candidate, *side(rng, replace(NOISY, steps=20), num)))

        strict = Policy(metrics={"step.period": MetricPolicy(relative=0.005)})
        failed += run_gate(short, strict, again).outcome is Answer.FAIL
    assert failed <= 10


# ── what cannot be compared ──────────────────────────────────────────────────────────────────────────────────────────


def changed(found, **change):
    return tuple(replace(r, info=replace(r.info, **change)) for r in found)


@pytest.mark.parametrize("change", [{"device": "H300"}, {"workload": "long"}, {"world": 8}])
def test_runs_of_another_device_workload_or_size_are_refused(change):
    both = sides(QUIET, 3, 3)
    with pytest.raises(UsageError, match=f"differ in {next(iter(change))}") as caught:
        run_gate(replace(both, candidate=changed(both.candidate, **change)), ONLY_STEP)
    assert caught.value.hint.startswith("dflash-bench baseline save")


def test_another_seed_or_version_is_marked():
    both = sides(QUIET, 3, 3)
    other = changed(both.candidate, settings={"seed": 1, "version.torch": "2.11"})
    codes = {f.code for f in run_gate(replace(both, candidate=other), ONLY_STEP).findings}
    assert codes == {"different_seed", "different_torch"}


def test_a_watched_metric_that_vanished_is_not_slept_through():
    rng = np.random.default_rng(0)
    base = [run([metric(rng, QUIET), metric(rng, KINDS["lead"])], str(k)) for k in range(5)]
    candidate = side(rng, QUIET, 5)
    watching = Policy(metrics={"step.period": MetricPolicy(), "step.lead": MetricPolicy()})
    found = run_gate(Sides(tuple(base), tuple(candidate)), watching)
    assert found.missing == (("step.lead", None),)
    assert found.outcome is Answer.INCONCLUSIVE


def test_nothing_to_judge_is_an_error_not_a_pass():
    with pytest.raises(DataError, match="none of the metrics"):
        run_gate(sides(KINDS["share"], 3, 3), ONLY_STEP)


def test_runs_that_did_other_work_are_told():
    from dflash_bench.metrics.measurements import metric as measured

    def with_tokens(count):
        rng = np.random.default_rng(count)
        return run([metric(rng, QUIET), measured("tokens.committed", None, np.array([count]))], seed=0, steps=60)

    found = decide(Sides((with_tokens(900),), (with_tokens(901),)), ONLY_STEP, 0.05)
    assert "different_tokens" in {f.code for f in found.findings}


def test_the_number_of_runs_wanted_is_within_the_budget():
    found = run_gate(sides(QUIET, 5, 1), replace(ONLY_STEP, repeats=9))
    assert wanted_runs(found, replace(ONLY_STEP, repeats=9, budget=20)) == 8
    assert wanted_runs(found, replace(ONLY_STEP, repeats=9, budget=3)) == 3
