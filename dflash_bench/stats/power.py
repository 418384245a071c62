"""What a measurement can see, and how much more of it would decide."""

from __future__ import annotations

import functools
import math

import numpy as np

from dflash_bench.stats.shift import CONFIDENCE, Shift, t_quantile

_POWER = 0.90
_PROMISE = 0.85
"""A number is named when it decides in so many of the truths that the data leave open: 97 of 100 such numbers held."""
_FURTHER = (1, 2, 3, 4, 6, 8, 12, 16, 20)
_DRAWS = 400


def detectable(found: Shift, tolerance: float, level: float) -> float:
    """The smallest true difference, in the metric's unit, that gets a verdict with 90 % probability.

    ``level``: the p-value that a verdict takes, two-sided.
    """
    certain = found.allowance + t_quantile(1 - level / 2, found.degrees) * found.error
    return max(certain, tolerance) + t_quantile(_POWER, found.degrees) * found.error


def planned_detectable(spread: float, runs: int, level: float) -> float:
    """The smallest difference, in the metric's unit, that this many runs a side tell from chance 9 times in 10."""
    degrees = 2 * runs - 2
    return (_quantile(1 - level / 2, degrees) + _quantile(_POWER, degrees)) * spread * math.sqrt(2 / runs)


def further_runs(found: Shift, have: int, tolerance: float, level: float) -> int | None:
    """How many more runs of each side (processes of a duet) would decide; None where no number can be promised.

    Decided is: beyond the tolerance and told from chance, or the interval inside the tolerance. What the truth may be
    is drawn from what the runs leave open, of the difference and of the spread; a number is named where nearly all of
    those truths would be decided by it.
    """
    if found.spread == 0 or have < 2 or found.allowance > 0:
        return None
    rng = np.random.default_rng(0)
    degrees = min(found.degrees, 1e6)
    spread = found.spread * np.sqrt(degrees / rng.chisquare(degrees, _DRAWS))
    truth = found.estimate + found.error / found.spread * spread * rng.standard_normal(_DRAWS)
    fresh, noise = rng.standard_normal(_DRAWS), rng.standard_normal(_DRAWS)
    sides = have * (found.error / found.spread) ** 2
    for more in _FURTHER:
        num, free = have + more, 2 * (have + more) - 2
        mean = (have * found.estimate + more * (truth + fresh * spread * np.sqrt(sides / more))) / num
        # the spread that so many runs will show, by Wilson and Hilferty's root of a chi-square
        root = 1 - 2 / (9 * free) + noise * math.sqrt(2 / (9 * free))
        error = spread * np.maximum(root, 0.05) ** 1.5 * math.sqrt(sides / num)
        size = np.abs(mean)
        is_shown = (size > tolerance) & (size >= _quantile(1 - level / 2, free) * error)
        is_alike = size + _quantile((1 + CONFIDENCE) / 2, free) * error <= tolerance
        if (is_shown | is_alike).mean() >= _PROMISE:
            return more
    return None


@functools.lru_cache(maxsize=4096)
def _quantile(probability: float, degrees: int) -> float:
    return t_quantile(probability, degrees)
