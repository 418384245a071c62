"""Verdicts on cases that are told in words, one by one."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy.stats import false_discovery_control
from simulated_runs import KINDS, STEP_NS, Truth, judge_both, metric, run, side

from dflash_bench.metrics.registry import Noise
from dflash_bench.metrics.registry import spec as registry
from dflash_bench.model import Better, Metric
from dflash_bench.stats.fdr import adjusted, level
from dflash_bench.stats.judgement import Verdict
from dflash_bench.stats.noise import DRIFT, TOLERANCE, Allowance, noise, scale
from dflash_bench.stats.rules import MetricRule, Rules


def value(name, figure, rank=None):
    known = registry(name)
    return Metric(name, rank, known.unit, known.statistic, np.array([float(figure)]))


def samples(name, centre, spread=0.0, n=200, rank=None, seed=0):
    known = registry(name)
    values = centre + spread * np.random.default_rng(seed).standard_normal(n)
    return Metric(name, rank, known.unit, known.statistic, values, block=np.arange(n))


def flags(name, share, n=200, rank=None):
    known = registry(name)
    spread_out = np.diff(np.floor(np.arange(n + 1) * share + 1e-9))
    return Metric(name, rank, known.unit, known.statistic, spread_out, block=np.arange(n))


def one(base, candidate, **how):
    (found,) = judge_both([base], [candidate], **how).each
    return found


# ── the two that must come out right ─────────────────────────────────────────────────────────────────────────────────


def test_one_pair_with_4_percent_more_throughput_and_3_percent_drift_is_inconclusive():
    """#47685: +4.1 % from one pair of runs. Either run may be 3 % off, so the pair may be 6 % apart by itself."""
    found = one(run([value("tokens.per_s", 1000)]), run([value("tokens.per_s", 1041)]))
    assert found.verdict is Verdict.INCONCLUSIVE
    assert found.interval.low < 0 < found.interval.high
    assert "drift" in found.reason
    assert found.further is not None
    assert 1 <= found.further <= 5


def test_a_launch_lead_from_minus_51_us_to_19_ms_is_improved():
    """#31468, one pair: the lead moved by more than a step, drift or no drift."""
    base = run([samples("step.lead", -51e3, 300e3), samples("step.period", 13.9e6, 2e5)])
    candidate = run([samples("step.lead", 19.1e6, 2e6, seed=1), samples("step.period", 13.0e6, 2e5, seed=1)])
    found = judge_both([base], [candidate]).find("step.lead", None)
    assert found.verdict is Verdict.IMPROVED
    assert found.shift > 19e6


def test_a_lead_that_moves_by_less_than_the_drift_of_a_step_is_inconclusive():
    base = run([samples("step.lead", -51e3, 30e3), samples("step.period", 13.9e6, 2e5)])
    candidate = run([samples("step.lead", 349e3, 30e3, seed=1), samples("step.period", 13.9e6, 2e5, seed=1)])
    assert judge_both([base], [candidate]).find("step.lead", None).verdict is Verdict.INCONCLUSIVE


def test_the_run_ahead_fraction_of_the_published_change_is_improved():
    """0.883 → 0.995 is more than the points that two runs may stray."""
    name = "launch.run_ahead_fraction"
    found = one(run([flags(name, 0.883, 3000)]), run([flags(name, 0.995, 3000)]))
    assert found.verdict is Verdict.IMPROVED


# ── repeats ──────────────────────────────────────────────────────────────────────────────────────────────────────────


def test_one_odd_run_moves_neither_the_figure_nor_the_difference():
    """A mean beside a median of differences told of 8 → 219 µs and of a difference of 1 µs in one line."""
    base = [run([samples("sync.total_per_step", centre)]) for centre in (7.8e3, 7.9e3, 8.2e3)]
    candidate = [run([samples("sync.total_per_step", centre)]) for centre in (7.9e3, 640.8e3, 8.4e3)]
    (found,) = judge_both(base, candidate).each
    assert (found.base, found.candidate) == (7.9e3, 8.4e3)
    assert found.shift == pytest.approx(0.5e3, abs=0.2e3)


def test_five_quiet_repeats_settle_what_a_pair_could_not():
    rng = np.random.default_rng(0)
    truth = Truth("step.period", STEP_NS, drift=0.003 * STEP_NS, jitter=0.02 * STEP_NS)
    (found,) = judge_both(side(rng, truth, 5), side(rng, truth, 5, -0.041 * STEP_NS)).each
    assert found.verdict is Verdict.IMPROVED
    assert found.p_exact <= 0.05
    assert found.detectable < 0.05 * STEP_NS


def test_unchanged_means_shown_to_be_alike():
    rng = np.random.default_rng(1)
    truth = Truth("step.period", STEP_NS, drift=0.002 * STEP_NS, jitter=0.02 * STEP_NS)
    (found,) = judge_both(side(rng, truth, 5), side(rng, truth, 5)).each
    assert found.verdict is Verdict.UNCHANGED
    assert max(-found.interval.low, found.interval.high) <= found.tolerance


def test_noisy_repeats_are_not_called_alike_only_because_they_are_not_told_apart():
    rng = np.random.default_rng(2)
    truth = Truth("step.period", STEP_NS, drift=0.02 * STEP_NS, jitter=0.02 * STEP_NS)
    (found,) = judge_both(side(rng, truth, 3), side(rng, truth, 3)).each
    assert found.verdict is Verdict.INCONCLUSIVE
    assert found.further > 0


def test_one_run_against_a_baseline_of_many_is_judged_by_their_spread():
    rng = np.random.default_rng(3)
    truth = Truth("step.period", STEP_NS, drift=0.002 * STEP_NS, jitter=0.02 * STEP_NS)
    (found,) = judge_both(side(rng, truth, 8), side(rng, truth, 1, 0.1 * STEP_NS)).each
    assert (found.base_runs, found.candidate_runs) == (8, 1)
    assert found.verdict is Verdict.REGRESSED


def test_a_metric_with_hardly_any_events_gets_no_verdict():
    """Two allocations in a whole run do not say what an allocation costs."""
    base, candidate = run([samples("range.kv_alloc", 1e6, 1e4, n=80)]), run([samples("range.kv_alloc", 9e6, 1e4, n=2)])
    found = one(base, candidate)
    assert found.verdict is Verdict.INCONCLUSIVE
    assert "too few events" in found.reason


# ── exact ────────────────────────────────────────────────────────────────────────────────────────────────────────────

SAME_INPUT = {"seed": 0, "steps": 200}


@pytest.mark.parametrize(("candidate", "wanted"), [(0.395, "unchanged"), (0.390, "improved"), (0.400, "regressed")])
def test_the_allocation_share_is_compared_exactly_at_a_fixed_seed(candidate, wanted):
    """One allocation step more out of 200 is a regression: the same requests gave another answer."""
    name = "alloc.step_share"
    found = one(run([flags(name, 0.395)], **SAME_INPUT), run([flags(name, candidate)], **SAME_INPUT))
    assert found.verdict == wanted
    assert found.is_exact
    assert found.q is None


@pytest.mark.parametrize("other", [{}, {"seed": 1, "steps": 200}, {"seed": 0, "steps": 100}])
def test_with_other_inputs_the_same_share_is_only_a_share(other):
    name = "alloc.step_share"
    found = one(run([flags(name, 0.395)], **SAME_INPUT), run([flags(name, 0.400)], **other))
    assert not found.is_exact
    assert found.verdict is Verdict.INCONCLUSIVE


def test_a_count_that_differs_between_runs_of_one_arm_is_not_exact():
    runs = [run([value("retracted", k)], str(k), **SAME_INPUT) for k in (3, 4, 3, 5)]
    (found,) = judge_both(runs, runs).each
    assert not found.is_exact


def test_exact_counts_take_no_part_in_the_correction():
    both = [value("retracted", 3), value("tokens.per_s", 1000)]
    found = judge_both([run(both, **SAME_INPUT)], [run(both, **SAME_INPUT)])
    assert found.num_tests == 1
    assert len(found.each) == 2


# ── many comparisons ─────────────────────────────────────────────────────────────────────────────────────────────────


def test_benjamini_and_hochberg_by_hand():
    """Of 4 p-values the smallest is held against 5 % / 4, the second against 2 × 5 % / 4, …"""
    assert adjusted([0.01, 0.02, 0.03, 0.9]) == pytest.approx([0.04, 0.04, 0.04, 0.9])
    assert level([0.01, 0.02, 0.03, 0.9]) == pytest.approx(0.05)
    assert level([0.5, 0.5, 0.5, 0.5]) == pytest.approx(0.05 / 4)
    assert adjusted([]) == []


@given(st.lists(st.floats(0, 1), min_size=1, max_size=60))
def test_adjusted_p_values_are_those_of_scipy(p):
    assert adjusted(p) == pytest.approx(false_discovery_control(p, method="bh"), rel=1e-12)


def test_of_forty_metrics_without_a_change_hardly_ever_one_is_called_changed():
    """200 comparisons of 40 ranks each: without the correction every second one would name a rank."""
    rng, truth = np.random.default_rng(4), replace(KINDS["rate"], tails=30)
    wrong = 0
    for _ in range(60):
        base, candidate = ([run([metric(rng, truth, rank=r) for r in range(20)]) for _ in range(5)] for _ in range(2))
        found = judge_both(base, candidate, Rules({"tokens.per_s": MetricRule(Allowance(0.0))}))
        wrong += any(j.verdict in (Verdict.IMPROVED, Verdict.REGRESSED) for j in found.each)
    assert wrong <= 6
    assert "20 comparisons" in found.method
    assert "Benjamini-Hochberg" in found.method


def test_a_rank_that_stands_out_is_found_among_many():
    rng, truth = np.random.default_rng(5), KINDS["rate"]

    def arm(slow):
        return [
            run([metric(rng, truth, rank=r, shift=-150.0 * (slow and r == 7)) for r in range(20)]) for _ in range(5)
        ]

    found = judge_both(arm(slow=False), arm(slow=True))
    assert [j.rank for j in found.of(Verdict.REGRESSED)] == [7]


# ── symmetry ─────────────────────────────────────────────────────────────────────────────────────────────────────────

MIRRORED = {"improved": "regressed", "regressed": "improved", "unchanged": "unchanged", "inconclusive": "inconclusive"}


@pytest.mark.parametrize("kind", list(KINDS))
@pytest.mark.parametrize("num", [1, 2, 5])
def test_swapping_the_arms_mirrors_every_verdict(kind, num):
    rng = np.random.default_rng(6)
    truth = KINDS[kind]
    for times in (0, 1, 8):
        base, candidate = (
            side(rng, truth, num),
            side(rng, truth, num, times * max(truth.drift, 0.01 * abs(truth.level))),
        )
        (there,), (back,) = judge_both(base, candidate).each, judge_both(candidate, base).each
        assert back.verdict == MIRRORED[there.verdict]
        assert back.shift == pytest.approx(-there.shift)


def test_adding_a_constant_to_all_samples_changes_no_verdict_where_the_tolerance_is_absolute():
    rng, rules = np.random.default_rng(7), Rules({"step.lead": MetricRule(Allowance(0.0, 60e3), Allowance(0.0, 50e3))})
    for num in (1, 5):
        sides = side(rng, KINDS["lead"], num), side(rng, KINDS["lead"], num, 200e3)
        moved = [
            [replace(r, metrics=tuple(replace(m, values=m.values + 5e6) for m in r.metrics)) for r in each]
            for each in sides
        ]
        (plain,), (found,) = judge_both(*sides, rules).each, judge_both(*moved, rules).each
        assert found.verdict is plain.verdict
        assert (found.interval.low, found.interval.high) == pytest.approx((plain.interval.low, plain.interval.high))


# ── what is data ─────────────────────────────────────────────────────────────────────────────────────────────────────


def test_every_kind_that_is_judged_has_a_tolerance_and_a_drift():
    assert set(TOLERANCE) == set(Noise) - {Noise.UNJUDGED}
    assert set(DRIFT) == set(Noise) - {Noise.UNJUDGED, Noise.EXACT}


def test_what_says_something_of_the_capture_is_never_judged():
    same = run([flags("coverage.gpu_work_matched", 0.5), value("clock.offset", 5)])
    assert judge_both([same], [same]).each == ()


@pytest.mark.parametrize(
    ("name", "wanted"),
    [
        ("range.whatever", Noise.RELATIVE),
        ("graph.lead@draft", Noise.LEVEL),
        ("sync.cudaStreamSynchronize", Noise.RELATIVE),
        ("alloc.step_share", Noise.EXACT),
    ],
)
def test_families_have_a_kind(name, wanted):
    assert noise(name) is wanted


def test_leads_are_measured_against_the_step():
    assert scale(Noise.LEVEL, -5.0, 3.0, 100.0) == 100.0
    assert scale(Noise.LEVEL, -5.0, 300.0, 100.0) == 300.0
    assert scale(Noise.RELATIVE, 100.0, 200.0, None) == 150.0


def test_the_drift_is_learned_from_three_earlier_runs_on():
    """Spread 1 over 4 runs: t(3) is 3.18, and two runs of one arm differ by twice what each may stray."""
    rules = Rules(history={("step.period", None): [99.0, 101.0, 99.0, 101.0]})
    drift, source = rules.drift_of("step.period", None, Noise.RELATIVE, 100.0)
    assert drift == pytest.approx(3.1824 * np.std([99, 101, 99, 101], ddof=1) * 2**0.5 / 2, rel=1e-4)
    assert "4 runs" in source
    assert Rules(history={("step.period", None): [99.0, 101.0]}).drift_of(
        "step.period", None, Noise.RELATIVE, 100.0
    ) == (
        3.0,
        "stated",
    )


def test_a_learned_drift_makes_a_quiet_machine_see_more():
    pair = [run([value("tokens.per_s", 1000)])], [run([value("tokens.per_s", 1041)])]
    history = {("tokens.per_s", None): [1000.0, 1001.0, 999.0, 1000.5, 999.5]}
    (found,) = judge_both(*pair, Rules(history=history)).each
    assert found.verdict is Verdict.IMPROVED
    assert "learned from 5 runs" in found.reason


def test_a_policy_may_judge_what_has_no_direction():
    pair = [run([value("kv.topup_pages_held", 10)])], [run([value("kv.topup_pages_held", 20)])]
    assert judge_both(*pair).each == ()
    (found,) = judge_both(*pair, Rules({"kv.*": MetricRule(better=Better.LOWER)})).each
    assert found.verdict is Verdict.REGRESSED
