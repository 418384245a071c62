"""Power: what a number of repeats can see is what they do see."""

from __future__ import annotations

import numpy as np
import pytest

from dflash_bench.stats.power import MAX_REPEATS, detectable, further_repeats, planned_detectable
from dflash_bench.stats.repeats import Repeat
from dflash_bench.stats.shift import shift


def arm(rng, num, level=0.0, spread=1.0):
    made = (Repeat(level + spread * rng.standard_normal(), np.zeros(1)) for _ in range(num))
    return tuple(sorted(made, key=lambda r: r.figure))


@pytest.mark.parametrize("repeats", [4, 5, 10])
def test_a_difference_of_the_planned_size_is_told_from_chance_nine_times_in_ten(repeats):
    rng, size = np.random.default_rng(0), planned_detectable(1.0, repeats, 0.05)
    found = [shift(arm(rng, repeats), arm(rng, repeats, size), 0.0, k).p <= 0.05 for k in range(400)]
    assert 0.83 <= np.mean(found) <= 0.96


def test_more_repeats_see_less():
    sizes = [planned_detectable(1.0, n, 0.05) for n in (2, 3, 5, 10, 20)]
    assert sizes == sorted(sizes, reverse=True)
    assert planned_detectable(1.0, 5, 0.001) > planned_detectable(1.0, 5, 0.05)


def test_what_is_detectable_is_never_below_the_tolerance():
    rng = np.random.default_rng(1)
    found = shift(arm(rng, 5), arm(rng, 5), 0.0)
    assert detectable(found, 100.0, 0.05) > 100.0
    assert detectable(found, 0.0, 0.05) < 100.0


def test_the_further_repeats_that_are_named_do_decide():
    """A shift of 1.5 spreads with three runs a side: with as many more as it says, its p is below the level."""
    level = [Repeat(float(v), np.zeros(1)) for v in (-1, 0, 1)]
    moved = [Repeat(r.figure + 1.5, r.noise) for r in level]
    found = shift(level, moved, 0.0)
    more = further_repeats(found, 3, 3, 0.1, 0.05)
    assert more is not None
    many = 3 + more
    error = found.run_spread * (2 / many) ** 0.5
    from scipy.stats import t

    assert 1.5 / error >= t.ppf(0.975, 2 * many - 2)
    assert 1.5 / (found.run_spread * (2 / (many - 1)) ** 0.5) < t.ppf(0.975, 2 * (many - 1) - 2)


def test_what_no_number_of_repeats_settles_is_not_promised():
    found = shift([Repeat(0.0, np.zeros(1))], [Repeat(3.0001, np.zeros(1))], 1000.0)
    assert further_repeats(found, 1, 1, 3.0, 0.05) is None
    assert MAX_REPEATS >= 100
