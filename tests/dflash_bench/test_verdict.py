"""Verdicts on cases that are told in words, one by one."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from simulated_runs import KINDS, STEP_NS, Truth, both, judge_both, metric, run, side

from dflash_bench.metrics.registry import Noise
from dflash_bench.metrics.registry import spec as registry
from dflash_bench.model import Better, Design, Family, Metric, Verdict
from dflash_bench.stats.noise import GROSS_DRIFT, TOLERANCE, Allowance, noise, scale
from dflash_bench.stats.rules import MetricRule, Rules
from dflash_bench.stats.verdict import judge


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
    pair = run([value("tokens.per_s", 1000)]), run([value("tokens.per_s", 1041)])
    found = one(*pair, rules=Rules(drift=0.03))
    assert found.verdict is Verdict.INCONCLUSIVE
    assert found.interval.low < 0 < found.interval.high
    assert "drift" in found.reason
    assert one(*pair).verdict is Verdict.DESCRIBED, "nobody said how far runs stray"


def test_one_run_a_side_is_described_with_the_interval_of_these_two_runs():
    found = one(run([samples("step.period", 1e7, 1e5)]), run([samples("step.period", 1.05e7, 1e5, seed=1)]))
    assert found.verdict is Verdict.DESCRIBED
    assert found.design is Design.SINGLE
    assert found.interval.low < 5e5 < found.interval.high
    assert found.interval.high - found.interval.low < 1e5
    assert (found.detectable, found.further) == (None, None)
    assert not found.excludes_regression


def test_a_launch_lead_from_minus_51_us_to_19_ms_is_improved():
    """#31468, one pair: the lead moved by more than a step, drift or no drift."""
    base = run([samples("step.lead", -51e3, 300e3), samples("step.period", 13.9e6, 2e5)])
    candidate = run([samples("step.lead", 19.1e6, 2e6, seed=1), samples("step.period", 13.0e6, 2e5, seed=1)])
    found = judge_both([base], [candidate]).find("step.lead", None)
    assert found.verdict is Verdict.IMPROVED
    assert found.shift > 19e6


def test_a_lead_that_moves_by_less_than_a_part_of_the_step_is_described():
    base = run([samples("step.lead", -51e3, 30e3), samples("step.period", 13.9e6, 2e5)])
    candidate = run([samples("step.lead", 349e3, 30e3, seed=1), samples("step.period", 13.9e6, 2e5, seed=1)])
    assert judge_both([base], [candidate]).find("step.lead", None).verdict is Verdict.DESCRIBED


def test_of_a_single_pair_only_what_no_host_explains_is_judged():
    """27.8 → 90.7 % of launches ahead is more than a host twice as fast would do; 88.3 → 99.5 % is not."""
    name = "launch.run_ahead_fraction"
    for old, new, wanted in ((0.278, 0.907, Verdict.IMPROVED), (0.883, 0.995, Verdict.DESCRIBED)):
        assert one(run([flags(name, old, 3000)]), run([flags(name, new, 3000)])).verdict is wanted


# ── repeats ──────────────────────────────────────────────────────────────────────────────────────────────────────────


def test_one_odd_run_moves_neither_the_figure_nor_the_difference():
    """A mean beside a median of differences told of 8 → 219 µs and of a difference of 1 µs in one line."""
    base = [run([samples("cost.fill", centre)]) for centre in (7.8e3, 7.9e3, 8.2e3)]
    candidate = [run([samples("cost.fill", centre)]) for centre in (7.9e3, 640.8e3, 8.4e3)]
    (found,) = judge_both(base, candidate).each
    assert (found.base, found.candidate) == (7.9e3, 8.4e3)
    assert found.shift == pytest.approx(0.5e3, abs=0.2e3)


def test_five_quiet_repeats_settle_what_a_pair_could_not():
    rng = np.random.default_rng(0)
    truth = Truth("step.period", STEP_NS, drift=0.003 * STEP_NS, jitter=0.02 * STEP_NS)
    (found,) = judge_both(side(rng, truth, 5), side(rng, truth, 5, -0.041 * STEP_NS)).each
    assert found.verdict is Verdict.IMPROVED
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


def test_one_run_against_a_baseline_of_many_is_judged_by_their_spread():
    rng = np.random.default_rng(3)
    truth = Truth("step.period", STEP_NS, drift=0.002 * STEP_NS, jitter=0.02 * STEP_NS)
    (found,) = judge_both(side(rng, truth, 8), side(rng, truth, 1, 0.1 * STEP_NS)).each
    assert (found.base_runs, found.candidate_runs) == (8, 1)
    assert found.verdict is Verdict.REGRESSED


def test_a_metric_with_hardly_any_events_gets_no_verdict():
    """Two allocations in a whole run do not say what an allocation costs."""
    base, candidate = run([samples("cost.kv_alloc", 1e6, 1e4, n=80)]), run([samples("cost.kv_alloc", 9e6, 1e4, n=2)])
    assert one(base, candidate).verdict is Verdict.DESCRIBED


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
    assert found.verdict is Verdict.DESCRIBED


def test_a_count_that_differs_between_runs_of_one_arm_is_not_exact():
    runs = [run([value("retracted", k)], str(k), **SAME_INPUT) for k in (3, 4, 3, 5)]
    (found,) = judge_both(runs, runs).each
    assert not found.is_exact


def test_exact_counts_take_no_part_in_the_correction():
    both = [value("retracted", 3), value("tokens.per_s", 1000)]
    found = judge_both([run(both, **SAME_INPUT)], [run(both, **SAME_INPUT)])
    assert found.num_tests == 1
    assert len(found.each) == 2


# ── removed, new ─────────────────────────────────────────────────────────────────────────────────────────────────────


def test_what_one_side_lacks_is_removed_or_new_with_what_it_cost():
    with_it = [run([value("step.period", 1e7), value("cost.fill", 5e5)]) for _ in range(3)]
    without = [run([value("step.period", 1e7)]) for _ in range(3)]
    gone, there = (judge_both(*pair).find("cost.fill", None) for pair in ((with_it, without), (without, with_it)))
    assert (gone.verdict, gone.base, gone.candidate) == (Verdict.REMOVED, 5e5, None)
    assert (there.verdict, there.base, there.candidate) == (Verdict.NEW, None, 5e5)
    assert judge_both(with_it, [*without, with_it[0]]).find("cost.fill", None).verdict is not Verdict.REMOVED


def test_intervals_stay_inside_what_a_metric_can_be():
    rng = np.random.default_rng(0)
    for name in ("cost.fill", "gpu.dry_per_step", "dp.agreement_tax"):
        noisy = [[run([value(name, abs(rng.normal(1e5, 9e4)))]) for _ in range(3)] for _ in range(2)]
        (found,) = judge_both(*noisy).each
        assert found.base + found.interval.low >= 0, name
    for name in ("step.lead", "dp.lateness"):  # differences go below nothing
        noisy = [[run([value(name, rng.normal(1e4, 9e4))]) for _ in range(3)] for _ in range(2)]
        (found,) = judge_both(*noisy).each
        assert found.base + found.interval.low < 0, name
    share = "launch.run_ahead_fraction"
    high = [[run([flags(share, rng.uniform(0.9, 1), 300)]) for _ in range(3)] for _ in range(2)]
    (found,) = judge_both(*high).each
    assert found.base + found.interval.high <= 1


# ── duets ────────────────────────────────────────────────────────────────────────────────────────────────────────────


def duet(rng, processes=2, pairs=30, block=20, shift=0.0, name="cost.fill", ranks=1, on_rank=None):
    """Two sides of the same runs: the host's speed wanders from pair to pair, and takes both arms along."""
    sides = [], []
    for process in range(processes):
        metrics = [], []
        for rank in range(ranks):
            host = np.repeat(1 + 0.3 * np.sin(np.arange(pairs) / 3 + rng.uniform(0, 6)), block)
            for arm in (0, 1):
                level = 4e5 + shift * (arm and on_rank in (None, rank))
                values = host * level * (1 + 0.1 * rng.standard_normal(pairs * block))
                known = registry(name)
                block_of, pair = np.arange(pairs * block), np.repeat(np.arange(pairs), block)
                metrics[arm].append(Metric(name, rank, known.unit, known.statistic, values, block=block_of, pair=pair))
        for runs, own in zip(sides, metrics, strict=True):
            runs.append(run(own, f"process-{process}"))
    return sides


def test_a_duet_finds_what_the_hosts_drift_hides_from_separate_runs():
    """+5 % where the host wanders by 30 %: pair by pair it is plain, among two runs a side nobody sees it."""
    rng = np.random.default_rng(1)
    base, candidate = duet(rng, shift=4e4)
    found = judge_both(base, candidate, Rules({"cost.fill": MetricRule(Allowance(0.03))})).find("cost.fill", 0)
    assert (found.verdict, found.design, found.pairs) == (Verdict.REGRESSED, Design.DUET, 60)
    assert found.shift == pytest.approx(4e4, rel=0.3)
    renamed = [replace(r, info=replace(r.info, run=f"{r.info.run}-b")) for r in candidate]
    assert judge_both(base, renamed).find("cost.fill", 0).verdict is not Verdict.REGRESSED


@pytest.mark.parametrize(("longest", "verdict"), [(0.0, Verdict.IMPROVED), (3e6, Verdict.INCONCLUSIVE)])
def test_what_most_steps_gained_is_no_improvement_where_the_mean_got_worse(longest, verdict):
    """Steps lose 30 %, and one in a hundred takes sixty times as long: on average they take longer, in few pairs."""
    base, candidate = duet(np.random.default_rng(5))
    slow = np.arange(600) % 100 == 50

    def shortened(metric):
        return replace(metric, values=np.where(slow & (longest > 0), metric.values + 8 * longest, 0.7 * metric.values))

    candidate = [replace(r, metrics=tuple(map(shortened, r.metrics))) for r in candidate]
    found = judge_both(base, candidate).find("cost.fill", 0)
    assert (found.shift > 0) == (longest > 0)
    assert found.verdict is verdict


def test_hardly_a_duet_of_one_code_gives_a_verdict():
    rng = np.random.default_rng(2)
    rules = Rules({"cost.fill": MetricRule(Allowance(0.0))})
    found = [judge_both(*duet(rng, ranks=4), rules) for _ in range(60)]
    assert sum(any(j.verdict in (Verdict.IMPROVED, Verdict.REGRESSED) for j in each.each) for each in found) <= 3


def test_a_duet_names_the_one_rank_of_four_that_got_slower():
    rng = np.random.default_rng(3)
    base, candidate = duet(rng, ranks=4, shift=5e4, on_rank=2)
    assert [j.rank for j in judge_both(base, candidate).of(Verdict.REGRESSED)] == [2]


def test_a_counts_share_in_a_duet_is_compared_in_pairs_not_to_the_last_digit():
    rng = np.random.default_rng(4)
    sides = [], []
    for process in range(2):
        for runs in sides:
            values = (rng.random(600) < 0.4).astype(float)
            known = registry("alloc.step_share")
            own = Metric(known.name, 0, known.unit, known.statistic, values, pair=np.repeat(np.arange(30), 20))
            runs.append(run([own], f"process-{process}", **SAME_INPUT))
    (found,) = judge_both(*sides).each
    assert not found.is_exact
    assert found.verdict is not Verdict.REGRESSED


# ── many comparisons ─────────────────────────────────────────────────────────────────────────────────────────────────


def test_of_forty_metrics_without_a_change_hardly_ever_one_is_called_changed():
    """60 comparisons of 20 ranks each: without the correction every second one would name a rank."""
    rng, truth = np.random.default_rng(4), replace(KINDS["rate"], tails=30)
    wrong = 0
    for _ in range(60):
        base, candidate = ([run([metric(rng, truth, rank=r) for r in range(20)]) for _ in range(5)] for _ in range(2))
        found = judge_both(base, candidate, Rules({"tokens.per_s": MetricRule(Allowance(0.0))}))
        wrong += any(j.verdict in (Verdict.IMPROVED, Verdict.REGRESSED) for j in found.each)
    assert wrong <= 6
    assert "1 primary metric, each with its ranks as one family" in found.method


def test_primary_metrics_have_the_error_rate_nearly_to_themselves():
    """A shift of five spreads with 3 + 3 runs is found in a primary metric, and not in one of a hundred others."""
    rng = np.random.default_rng(11)
    names = ["step.period", *(f"cost.x{k}" for k in range(30))]
    found = {"step.period": 0, "cost.x0": 0}
    for _ in range(40):
        sides = [
            [
                run([value(n, 1e6 + 1e5 * rng.standard_normal() + 8e5 * arm * (n in found)) for n in names])
                for _ in "abc"
            ]
            for arm in (0, 1)
        ]
        judged = judge_both(*sides)
        assert judged.num_primary == 1
        for name in found:
            found[name] += judged.find(name, None).verdict is Verdict.REGRESSED
    assert found["step.period"] >= 36
    assert found["cost.x0"] < found["step.period"]
    assert judged.find("cost.x0", None).family is Family.SECONDARY


def test_a_rank_that_stands_out_is_found_among_many():
    rng, truth = np.random.default_rng(5), KINDS["rate"]

    def arm(slow):
        return [
            run([metric(rng, truth, rank=r, shift=-150.0 * (slow and r == 7)) for r in range(20)]) for _ in range(5)
        ]

    found = judge_both(arm(slow=False), arm(slow=True))
    assert [j.rank for j in found.of(Verdict.REGRESSED)] == [7]


# ── symmetry ─────────────────────────────────────────────────────────────────────────────────────────────────────────

MIRRORED = {"improved": "regressed", "regressed": "improved"}


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
        assert back.verdict == MIRRORED.get(there.verdict, there.verdict)
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


def test_every_kind_that_is_judged_has_a_tolerance_and_a_gross_drift():
    assert set(TOLERANCE) == set(Noise) - {Noise.UNJUDGED}
    assert set(GROSS_DRIFT) == set(Noise) - {Noise.UNJUDGED, Noise.EXACT}


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


def test_the_drift_is_learned_from_ten_earlier_runs_on():
    """Spread 1 over 10 runs: t(9) is 2.26, and two runs of one arm differ by twice what each may stray."""
    rules = Rules(history={("step.period", None): [99.0, 101.0] * 5})
    drift, source, is_gross = rules.drift_of("step.period", None, Noise.RELATIVE, 100.0)
    assert drift == pytest.approx(2.2622 * np.std([99, 101] * 5, ddof=1) * 2**0.5 / 2, rel=1e-4)
    assert "10 runs" in source
    assert not is_gross
    few = Rules(history={("step.period", None): [99.0, 101.0]})
    assert few.drift_of("step.period", None, Noise.RELATIVE, 100.0) == (35.0, "not known", True)


def test_a_learned_drift_makes_a_quiet_machine_see_more():
    pair = [run([value("tokens.per_s", 1000)])], [run([value("tokens.per_s", 1041)])]
    history = {("tokens.per_s", None): [1000.0, 1001.0, 999.0, 1000.5, 999.5] * 2}
    (found,) = judge_both(*pair, Rules(history=history)).each
    assert found.verdict is Verdict.IMPROVED
    assert "learned from 10 runs" in found.reason


def test_another_session_is_held_against_ten_or_not_judged():
    rng = np.random.default_rng(12)
    runs = [[run([value("step.period", 1e7 + 1e5 * rng.standard_normal() + up)]) for _ in range(3)] for up in (0, 2e6)]
    history = {("step.period", None): list(1e7 + 2e5 * rng.standard_normal(12))}
    other = replace(both(*runs), is_other_session=True)
    (unknown,) = judge(other).each
    assert unknown.verdict is Verdict.INCONCLUSIVE
    assert "another session" in unknown.reason
    (found,) = judge(replace(other, history=history)).each
    assert (found.verdict, found.design) == (Verdict.REGRESSED, Design.SESSIONS)
    (alike,) = judge(replace(both(runs[0], runs[0]), is_other_session=True, history=history)).each
    assert alike.verdict is not Verdict.REGRESSED


def test_a_policy_may_judge_what_has_no_direction():
    pair = [run([value("kv.topup_pages_held", 10)])], [run([value("kv.topup_pages_held", 20)])]
    assert judge_both(*pair).each == ()
    (found,) = judge_both(*pair, Rules({"kv.*": MetricRule(better=Better.LOWER)}, drift=0.03)).each
    assert found.verdict is Verdict.REGRESSED
