"""What a number of repeats can see, and how many more would decide."""

from __future__ import annotations

import functools
import math

from dflash_bench.stats.bootstrap import CONFIDENCE
from dflash_bench.stats.shift import Shift, t_quantile

POWER = 0.90
MAX_REPEATS = 200
"""A difference that so many repeats a side would not settle is not worth measuring this way."""


def detectable(found: Shift, tolerance: float, level: float) -> float:
    """The smallest true difference, in the metric's unit, that gets a verdict with 90 % probability.

    ``level``: the p-value that a verdict takes, two-sided.
    """
    certain = found.allowance + t_quantile(1 - level / 2, found.degrees) * found.error
    return max(certain, tolerance) + t_quantile(POWER, found.degrees) * found.error


def further_repeats(found: Shift, num_base: int, num_candidate: int, tolerance: float, level: float) -> int | None:
    """How many more runs of each side would decide, should the difference and the spread stay as they are.

    Decided is: beyond the tolerance and told from chance, or the interval inside the tolerance. None when more than
    `MAX_REPEATS` a side would be needed.
    """
    if found.run_spread == 0:
        return None
    distance = abs(found.estimate)
    have = min(num_base, num_candidate)
    for each in range(max(have + 1, 3), MAX_REPEATS + 1):
        error = found.run_spread * math.sqrt(2 / each)
        if distance > tolerance and distance >= _quantile(1 - level / 2, 2 * each - 2) * error:
            return each - have
        if distance + _quantile((1 + CONFIDENCE) / 2, 2 * each - 2) * error <= tolerance:
            return each - have
    return None


def planned_detectable(run_spread: float, repeats: int, level: float) -> float:
    """The smallest difference, in the metric's unit, that this many repeats a side tell from chance 9 times in 10."""
    degrees = 2 * repeats - 2
    return (t_quantile(1 - level / 2, degrees) + t_quantile(POWER, degrees)) * run_spread * math.sqrt(2 / repeats)


@functools.lru_cache(maxsize=4096)
def _quantile(probability: float, degrees: int) -> float:
    return t_quantile(probability, degrees)
