"""The shift between two sides: its interval covers as it says, and it does not care what it must not care about."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.signal import lfilter
from simulated_runs import KINDS, metric

from dflash_bench.model import Design
from dflash_bench.stats.bootstrap import block_length, draws
from dflash_bench.stats.shift import of_duets, of_pair, of_runs, of_sessions, permutation_p

figures = st.lists(st.integers(-1_000_000, 1_000_000), min_size=2, max_size=6)


@given(figures, figures)
@settings(max_examples=60, deadline=None)
def test_swapping_the_sides_turns_the_sign_and_nothing_else(base, candidate):
    there, back = of_runs(base, candidate), of_runs(candidate, base)
    assert back.estimate == pytest.approx(-there.estimate)
    assert back.error == pytest.approx(there.error)
    assert back.p == pytest.approx(there.p)


@given(figures, figures, st.integers(-1_000_000, 1_000_000))
@settings(max_examples=60, deadline=None)
def test_adding_one_constant_to_both_sides_changes_nothing(base, candidate, constant):
    plain = of_runs(base, candidate)
    moved = of_runs([v + constant for v in base], [v + constant for v in candidate])
    assert moved.estimate == pytest.approx(plain.estimate, abs=1e-6)
    assert moved.error == pytest.approx(plain.error, rel=1e-9, abs=1e-6)


def test_the_order_in_which_runs_were_made_changes_nothing():
    rng = np.random.default_rng(5)
    base, candidate = rng.standard_normal(5), rng.standard_normal(5)
    assert of_runs(base, candidate) == of_runs(base[::-1], candidate[::-1])


def test_two_runs_a_side_have_two_degrees_of_freedom_and_fewer_none():
    assert of_runs([1.0, 2.0], [5.0, 6.0]).degrees == 2
    assert of_runs([1.0, 2.0], [5.0]) is None
    assert of_runs([1.0, 2.0, 3.0, 4.0], []) is None


# ── one outlying run, two modes ──────────────────────────────────────────────────────────────────────────────────────


def test_one_run_far_outside_all_others_is_left_out():
    found = of_runs([7.8, 7.9, 8.2, 8.0, 7.7], [7.9, 640.8, 8.4, 8.1])
    assert found.left_out == 1
    assert found.estimate == pytest.approx(0.2, abs=0.05)
    few = of_runs([7.8, 7.9, 8.2], [7.9, 640.8, 8.4])
    assert few.left_out == 0
    assert few.estimate == pytest.approx(0.5, abs=0.05), "the median of differences does not follow one run"


def test_a_run_at_the_level_of_the_other_side_is_another_mode_and_stays():
    found = of_runs([10.0, 10.1, 9.9, 10.05, 9.95], [20.0, 20.1, 19.9, 20.05, 10.0])
    assert found.left_out == 0
    assert found.p > 0.003


def test_one_outlying_run_does_not_blind_the_test():
    """A shift of six spreads with five runs a side, one of which lies 20 spreads off."""
    rng = np.random.default_rng(1)
    found = 0
    for _ in range(300):
        base, candidate = rng.standard_normal(5), rng.standard_normal(5) + 6
        (base if rng.random() < 0.5 else candidate)[0] += rng.choice([-20, 20])
        found += of_runs(base, candidate).p <= 0.05 / 6
    assert found >= 0.95 * 300


# ── false alarms and cover ───────────────────────────────────────────────────────────────────────────────────────────

NOISE = {
    "normal": lambda rng, n: rng.standard_normal(n),
    "heavy tails": lambda rng, n: rng.standard_t(5, n),
    "two modes": lambda rng, n: 6.0 * (rng.random(n) < 0.5) + 0.5 * rng.standard_normal(n),
    "outliers": lambda rng, n: rng.standard_normal(n) * np.where(rng.random(n) < 0.05, 10, 1),
}


@pytest.mark.parametrize("kind", list(NOISE))
@pytest.mark.parametrize(("num_base", "num_candidate"), [(3, 3), (5, 3), (5, 5)])
def test_at_most_6_percent_of_comparisons_of_one_code_reach_5_percent(kind, num_base, num_candidate):
    rng = np.random.default_rng(2)
    rare = [of_runs(NOISE[kind](rng, num_base), NOISE[kind](rng, num_candidate)).p <= 0.05 for _ in range(1500)]
    assert np.mean(rare) <= 0.066


def test_an_interval_of_runs_covers_the_truth_in_95_percent_of_trials():
    rng = np.random.default_rng(3)
    found = [of_runs(rng.standard_normal(5), rng.standard_normal(5)).interval() for _ in range(2000)]
    assert 0.935 <= np.mean([i.low <= 0 <= i.high for i in found]) <= 0.96


def pairs(rng, num, memory=0.0):
    noise = lfilter([1], [1, -memory], rng.standard_normal(num + 50))[50:]
    return noise * np.sqrt(1 - memory**2)


@pytest.mark.parametrize("memory", [0.0, 0.3, 0.6])
@pytest.mark.parametrize("luck", [0.0, 1.0])
@pytest.mark.parametrize("processes", [2, 4])
def test_an_interval_of_a_duet_covers_the_truth(memory, luck, processes):
    """Pairs that resemble their neighbours, processes with a luck as large as the error of 30 pairs."""
    rng = np.random.default_rng(4)
    covers = 0
    for _ in range(600):
        made = [pairs(rng, 30, memory) + luck * rng.standard_normal() / 30**0.5 for _ in range(processes)]
        interval = of_duets(made).interval()
        covers += interval.low <= 0 <= interval.high
    assert covers >= 0.93 * 600


def test_a_duet_of_two_processes_finds_a_pair_noise_of_a_half():
    rng = np.random.default_rng(5)
    found = [of_duets([pairs(rng, 30) + 1.0 for _ in range(2)]).p <= 0.01 for _ in range(300)]
    assert np.mean(found) >= 0.95


def test_a_hiccup_in_one_pair_moves_a_duet_hardly():
    rng = np.random.default_rng(6)
    quiet = [pairs(rng, 30) for _ in range(2)]
    loud = [d.copy() for d in quiet]
    loud[0][3] += 1000.0
    assert of_duets(loud).estimate == pytest.approx(of_duets(quiet).estimate, abs=0.2)
    assert of_duets(loud).error < 2 * of_duets(quiet).error


def test_a_duet_needs_pairs():
    assert of_duets([np.zeros(3)]) is None
    assert of_duets([]) is None


def test_processes_that_disagree_widen_the_interval():
    rng = np.random.default_rng(7)
    alike, apart = [pairs(rng, 30) for _ in range(4)], [pairs(rng, 30) + shift for shift in (-3, -1, 1, 3)]
    assert of_duets(apart).error > 3 * of_duets(alike).error


# ── sessions, single runs ────────────────────────────────────────────────────────────────────────────────────────────


@pytest.mark.parametrize("session", [0.0, 1.0, 2.0])
def test_a_run_of_another_session_is_held_against_ten(session):
    """Sessions that stray as far as runs, or twice: the prediction covers all the same."""
    rng = np.random.default_rng(8)

    def median_of_one(runs=3):
        return float(np.median(session * rng.standard_normal() + rng.standard_normal(runs)))

    rare = [of_sessions([median_of_one() for _ in range(10)], [median_of_one()]).p <= 0.05 for _ in range(1500)]
    assert 0.035 <= np.mean(rare) <= 0.065


def test_nine_sessions_are_too_few():
    assert of_sessions([1.0] * 9, [1.0]) is None
    assert of_sessions(np.arange(10.0), [4.5]).design is Design.SESSIONS


def test_one_run_a_side_is_widened_by_the_drift_of_both():
    found = of_pair(100.0, 104.1, 3.0, 0.0)
    assert (found.interval().low, found.interval().high) == pytest.approx((4.1 - 6, 4.1 + 6))
    assert found.p == 1.0


# ── by hand ──────────────────────────────────────────────────────────────────────────────────────────────────────────


def test_the_permutation_test_counts_arrangements_by_hand():
    """Of the 252 ways to deal 10 runs into 5 and 5, only the seen one and its mirror lie so far apart."""
    low, high = np.arange(5.0), np.arange(5.0) + 10
    assert permutation_p(low, high) == pytest.approx(2 / 252)
    assert permutation_p(low, low) == 1.0
    assert permutation_p(low[:4], high[:4]) is None, "70 ways say too little"


def test_the_permutation_test_agrees_with_scipy():
    from scipy.stats import permutation_test

    rng = np.random.default_rng(6)
    for _ in range(5):
        old, new = rng.standard_normal(5), rng.standard_normal(6) + 0.5
        theirs = permutation_test((old, new), lambda a, b: np.mean(b) - np.mean(a), n_resamples=np.inf).pvalue
        assert permutation_p(old, new) == pytest.approx(theirs)


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
