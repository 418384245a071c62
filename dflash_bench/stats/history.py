"""A metric over sessions: where it changed, and whether it creeps.

Changes are found by cutting a series in two where the cumulative sum of its ranks lies furthest from a straight line
(CUSUM), as long as a permutation of the series hardly ever bends it as much, and looking at both parts anew. Ranks, so
that one wild night is no change. Creep is a trend: Mann and Kendall's test, and the slope of Theil and Sen.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from dflash_bench.model import FloatArray

_SHORTEST = 6
_MIN_PART = 3
_PERMUTATIONS = 1999
_LEVEL = 0.01
"""The chance that a series without a change shows one."""


@dataclass(frozen=True, slots=True)
class ChangePoint:
    """From the session at ``index`` on the median is ``after``, and was ``before``; ``p`` by permutation."""

    index: int
    before: float
    after: float
    p: float


@dataclass(frozen=True, slots=True)
class Creep:
    """A trend: ``slope`` in the metric's unit from session to session."""

    slope: float
    p: float


def change_points(values: Sequence[float], level: float = _LEVEL) -> tuple[ChangePoint, ...]:
    """The changes of a series, oldest first. ``level``: the chance to find any in a series without one."""
    series = np.asarray(values, float)
    cuts = sorted(_cuts(series, 0, len(series), level))
    edges = [0, *(index for index, _ in cuts), len(series)]
    medians = [float(np.median(series[a:b])) for a, b in itertools.pairwise(edges)]
    return tuple(ChangePoint(index, medians[k], medians[k + 1], p) for k, (index, p) in enumerate(cuts))


def _cuts(series: FloatArray, start: int, end: int, level: float) -> list[tuple[int, float]]:
    part = series[start:end]
    if len(part) < max(_SHORTEST, 2 * _MIN_PART):
        return []
    ranks: FloatArray = np.argsort(np.argsort(part, kind="stable"), kind="stable") - np.float64((len(part) - 1) / 2)
    rng = np.random.default_rng(len(part))
    shuffled = rng.permuted(np.tile(ranks, (_PERMUTATIONS, 1)), axis=1)
    bend, cut = _bend(ranks[None, :])
    p = float((1 + (_bend(shuffled)[0] >= bend[0] - 1e-12).sum()) / (1 + _PERMUTATIONS))
    if p > level:
        return []
    index = start + int(cut[0])
    return [(index, p), *_cuts(series, start, index, level / 2), *_cuts(series, index, end, level / 2)]


def _bend(ranks: FloatArray) -> tuple[FloatArray, np.typing.NDArray[np.int64]]:
    """How far the cumulative sums [series, n] lie from a straight line at most, standardised, and behind how many."""
    num = ranks.shape[1]
    k = np.arange(_MIN_PART, num - _MIN_PART + 1)
    sums = np.abs(np.cumsum(ranks, axis=1)[:, k - 1]) / np.sqrt(k * (num - k))
    best = sums.argmax(axis=1)
    return sums[np.arange(len(sums)), best], k[best]


def creep(values: Sequence[float], level: float = _LEVEL) -> Creep | None:
    """The trend of a series; None where chance makes one like it, or the series is too short."""
    series = np.asarray(values, float)
    num = len(series)
    if num < _SHORTEST:
        return None
    first, second = np.triu_indices(num, 1)
    differences = series[second] - series[first]
    score = float(np.sign(differences).sum())
    _, ties = np.unique(series, return_counts=True)
    variance = (num * (num - 1) * (2 * num + 5) - float((ties * (ties - 1) * (2 * ties + 5)).sum())) / 18
    if variance <= 0:
        return None
    z = max(0.0, abs(score) - 1) / math.sqrt(variance)
    p = math.erfc(z / math.sqrt(2))
    return Creep(float(np.median(differences / (second - first))), p) if p <= level else None
