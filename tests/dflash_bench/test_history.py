"""A metric over sessions: changes and creep are found, and hardly ever where nothing changed."""

from __future__ import annotations

import numpy as np
import pytest

from dflash_bench.stats.history import change_points, creep


def nights(rng, num, noise=0.01):
    return 10.0 * (1 + noise * rng.standard_normal(num))


def test_a_step_is_found_where_it_is():
    rng = np.random.default_rng(5)
    series = nights(rng, 30)
    series[18:] *= 1.05
    (found,) = change_points(series)
    assert abs(found.index - 18) <= 1
    assert found.after / found.before == pytest.approx(1.05, abs=0.015)


def test_two_steps_are_two_changes():
    rng = np.random.default_rng(1)
    series = nights(rng, 45)
    series[15:] *= 1.06
    series[30:] *= 0.95
    assert [abs(c.index - k) <= 1 for c, k in zip(change_points(series), (15, 30), strict=True)] == [True, True]


def test_a_creep_of_half_a_percent_a_night_is_found():
    """Nights stray by 1 %; in 20 of them the creep is 10 %: found in nearly all of 100 such histories."""
    rng, slopes = np.random.default_rng(2), []
    for _ in range(100):
        found = creep(nights(rng, 20) * 1.005 ** np.arange(20))
        slopes.append(np.nan if found is None else found.slope / 10.0)
    assert np.isfinite(slopes).sum() >= 98
    assert np.nanmedian(slopes) == pytest.approx(0.005, rel=0.15)


@pytest.mark.parametrize("find", [lambda s: bool(change_points(s)), lambda s: creep(s) is not None])
def test_hardly_a_history_without_a_change_shows_one(find):
    rng = np.random.default_rng(3)
    assert sum(find(nights(rng, 24)) for _ in range(300)) <= 9


def test_one_wild_night_is_no_change():
    rng = np.random.default_rng(4)
    series = nights(rng, 24)
    series[11] *= 3
    assert change_points(series) == ()
    assert creep(series) is None


def test_a_short_history_says_nothing():
    assert change_points([1.0, 1, 1, 9, 9]) == ()
    assert creep([1.0, 2, 3, 4, 5]) is None
    assert creep([5.0] * 20) is None
