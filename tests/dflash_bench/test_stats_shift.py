"""The shift between two arms: its interval covers as it says, and it does not care what it must not care about."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from simulated_runs import KINDS, Truth, metric

from dflash_bench.stats.autocorrelation import block_length
from dflash_bench.stats.bootstrap import draws
from dflash_bench.stats.repeats import Repeat, repeats
from dflash_bench.stats.shift import hodges_lehmann, permutation_p, shift


def test_steps_that_drift_the_same_way_in_every_run_do_not_widen_the_interval():
    """Warming up makes steps unlike each other, not runs."""
    rng = np.random.default_rng(3)
    ramp = np.linspace(-1e6, 1e6, 60)
    truth = Truth("step.period", 1e7, drift=2e4, jitter=5e4)

    def one():
        found = metric(rng, truth)
        return repeats(
            [type(found)(found.name, None, found.unit, found.statistic, found.values + ramp, None, found.block)]
        )

    found = shift(*(sorted((one()[0] for _ in range(5)), key=lambda r: r.figure) for _ in range(2)), 0.0)
    assert found.interval.high - found.interval.low < 3e5


figures = st.lists(st.integers(-1_000_000, 1_000_000), min_size=1, max_size=6)


def made(values):
    rng = np.random.default_rng(abs(hash(tuple(sorted(values)))) % 2**32)
    return tuple(sorted((Repeat(float(v), rng.standard_normal(50)) for v in values), key=lambda r: r.figure))


@given(figures, figures, st.integers(0, 50_000))
@settings(max_examples=60, deadline=None)
def test_swapping_the_arms_turns_the_sign_and_nothing_else(base, candidate, drift):
    there, back = (shift(a, b, drift, 7) for a, b in ((made(base), made(candidate)), (made(candidate), made(base))))
    assert back.estimate == -there.estimate
    assert back.p == pytest.approx(there.p, rel=1e-6, abs=1e-12) or base == candidate
    if sorted(base) != sorted(candidate):
        assert (back.interval.low, back.interval.high) == pytest.approx((-there.interval.high, -there.interval.low))
        assert (back.p_exact is None) == (there.p_exact is None)


@given(figures, figures, st.integers(-1_000_000, 1_000_000))
@settings(max_examples=60, deadline=None)
def test_adding_one_constant_to_both_arms_changes_nothing(base, candidate, constant):
    plain = shift(made(base), made(candidate), 100.0, 7)
    moved = [tuple(Repeat(r.figure + constant, r.noise) for r in made(side)) for side in (base, candidate)]
    found = shift(*moved, 100.0, 7)
    assert found.estimate == pytest.approx(plain.estimate)
    assert found.error == pytest.approx(plain.error, rel=1e-9, abs=1e-6)
    assert found.p == pytest.approx(plain.p, rel=1e-6, abs=1e-9)


def test_the_order_in_which_runs_were_made_changes_nothing():
    rng = np.random.default_rng(5)
    base, candidate = ([metric(rng, KINDS["time"]) for _ in range(5)] for _ in range(2))
    assert shift(repeats(base), repeats(candidate), 0.0) == shift(repeats(base[::-1]), repeats(candidate[::-1]), 0.0)


def test_the_hodges_lehmann_shift_is_the_median_of_all_pairs_by_hand():
    # pairs: 10-1 10-2 10-4 20-1 20-2 20-4 = 9 8 6 19 18 16, sorted 6 8 9 16 18 19
    assert hodges_lehmann(made([1, 2, 4]), made([10, 20])) == 12.5


def test_the_permutation_test_counts_arrangements_by_hand():
    """Of the 70 ways to deal 8 runs into 4 and 4, only the seen one and its mirror lie so far apart."""
    assert permutation_p(made([1, 2, 3, 4]), made([11, 12, 13, 14])) == pytest.approx(2 / 70)
    assert permutation_p(made([1, 2, 3, 4]), made([1, 2, 3, 4])) == 1.0
    assert permutation_p(made([1, 2, 3]), made([11, 12, 13])) is None, "2 of 20 is not rarer than 5 %"


def test_the_permutation_test_agrees_with_scipy():
    from scipy.stats import permutation_test

    rng = np.random.default_rng(6)
    for _ in range(5):
        old, new = rng.standard_normal(5), rng.standard_normal(6) + 0.5
        theirs = permutation_test((old, new), lambda a, b: np.mean(b) - np.mean(a), n_resamples=np.inf).pvalue
        assert permutation_p(made_of(old), made_of(new)) == pytest.approx(theirs)


def made_of(values):
    return tuple(Repeat(float(v), np.zeros(1)) for v in sorted(values))


def test_with_many_runs_the_ranks_are_tested_instead():
    rng = np.random.default_rng(8)
    assert permutation_p(made_of(rng.standard_normal(12)), made_of(rng.standard_normal(12) + 9)) < 1e-4


def test_one_run_a_side_is_widened_by_the_drift_of_both():
    found = shift(made_of([100.0]), made_of([104.1]), 3.0)
    assert (found.interval.low, found.interval.high) == pytest.approx((4.1 - 6, 4.1 + 6))
    assert found.is_widened
    assert found.p == 1.0


def test_two_runs_a_side_that_lie_further_apart_than_the_drift_say_so_themselves():
    found = shift(made_of([100.0, 140.0]), made_of([100.0, 101.0]), 1.0)
    assert found.allowance == pytest.approx(2 * 20 / np.sqrt(2))


def test_longer_memory_means_longer_blocks():
    rng = np.random.default_rng(9)
    white = rng.standard_normal(500)
    slow = np.convolve(rng.standard_normal(540), np.ones(41) / 41, "valid")
    assert block_length(white) <= 5
    assert block_length(slow) > 20
    assert block_length(np.ones(50)) == 1


def test_the_difference_of_two_medians_is_resampled_group_by_group():
    """Allocation steps cost exactly 100 more: every resample that holds both kinds says 100."""
    is_alloc = np.arange(60) % 3 == 0
    found = metric(np.random.default_rng(0), KINDS["time"])
    cost = type(found)(
        "alloc.step_cost", 0, found.unit, "median difference", 500.0 + 100 * is_alloc, is_alloc, np.arange(60)
    )
    resampled = draws(cost, 100, np.random.default_rng(1))
    assert np.nanmin(resampled) == np.nanmax(resampled) == 100
