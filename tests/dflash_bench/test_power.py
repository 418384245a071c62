"""Power: what a number of runs can see is what they do see, and a number that is promised holds."""

from __future__ import annotations

import math

import numpy as np
import pytest

from dflash_bench.stats.power import detectable, further_runs, planned_detectable
from dflash_bench.stats.shift import of_runs, t_quantile


@pytest.mark.parametrize("runs", [4, 5, 10])
def test_a_difference_of_the_planned_size_is_told_from_chance_nine_times_in_ten(runs):
    rng, size = np.random.default_rng(0), planned_detectable(1.0, runs, 0.05)
    found = [of_runs(rng.standard_normal(runs), rng.standard_normal(runs) + size).p <= 0.05 for _ in range(400)]
    assert 0.83 <= np.mean(found) <= 0.96


def test_more_runs_see_less():
    sizes = [planned_detectable(1.0, n, 0.05) for n in (2, 3, 5, 10, 20)]
    assert sizes == sorted(sizes, reverse=True)
    assert planned_detectable(1.0, 5, 0.001) > planned_detectable(1.0, 5, 0.05)


def test_what_is_detectable_is_never_below_the_tolerance():
    rng = np.random.default_rng(1)
    found = of_runs(rng.standard_normal(5), rng.standard_normal(5))
    assert detectable(found, 100.0, 0.05) > 100.0
    assert detectable(found, 0.0, 0.05) < 100.0


def is_decided(found, tolerance, level):
    interval = found.interval()
    is_shown = abs(found.estimate) > tolerance and found.p <= level
    return is_shown or (-tolerance <= interval.low and interval.high <= tolerance)


@pytest.mark.parametrize(("truth", "tolerance"), [(0.0, 1.5), (2.0, 0.5), (1.5, 0.3)])
@pytest.mark.parametrize("runs", [3, 5])
def test_n_more_runs_decide_in_90_of_100_cases_where_a_number_is_named(truth, tolerance, runs):
    rng, level = np.random.default_rng(2), 0.05
    is_kept = []
    for _ in range(400):
        base, candidate = rng.standard_normal(runs), rng.standard_normal(runs) + truth
        found = of_runs(base, candidate)
        if is_decided(found, tolerance, level) or (more := further_runs(found, runs, tolerance, level)) is None:
            continue
        further = rng.standard_normal((2, more))
        is_kept.append(is_decided(of_runs([*base, *further[0]], [*candidate, *(further[1] + truth)]), tolerance, level))
    print(f"{runs} runs, truth {truth}, tolerance {tolerance}: {sum(is_kept)} of {len(is_kept)} promises kept")
    assert len(is_kept) >= 20
    assert np.mean(is_kept) >= 0.90


def test_what_no_number_of_runs_settles_is_not_promised():
    assert further_runs(of_runs([0.0, 1.0, 2.0], [1.0, 2.0, 3.001]), 3, 1.0, 0.05) is None


def test_the_planned_size_is_that_of_the_t_test():
    assert planned_detectable(2.0, 5, 0.05) == pytest.approx(
        (t_quantile(0.975, 8) + t_quantile(0.9, 8)) * 2 * math.sqrt(2 / 5)
    )
