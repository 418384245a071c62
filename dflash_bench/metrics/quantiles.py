"""Sums and quantiles of millions of whole numbers, exactly as NumPy has them, without a copy of them all.

NumPy puts a copy in order; here the numbers are counted by their high bits, pass after pass, until the bins in which
the wanted places lie are one number wide.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass

import numpy as np

from dflash_bench.metrics.shelf import CHUNK, Part, let_go, together
from dflash_bench.model import FloatArray, IntArray

LARGE = 1 << 20
"""Samples from which a copy is worth avoiding: 8 MB."""

_BIN_BITS = 16
_EXACT = 1 << 53

Read = Callable[[], Iterable[IntArray]]
"""One pass over the numbers, a bounded number of them at a time."""


@dataclass(frozen=True, slots=True)
class Totals:
    """The quantiles that were asked for, the mean, and the sum."""

    quantiles: tuple[float, ...]
    mean: float
    total: float


def totals(values: FloatArray, percent: Sequence[float]) -> Totals:
    """Quantiles, which interpolate linearly, mean and sum of float64 [n], n > 0. Lets go of what it has read."""
    if len(values) >= LARGE and (found := _of_whole(values, percent)) is not None:
        return found
    quantiles = tuple(float(each) for each in np.percentile(values, percent))
    result = Totals(quantiles, float(values.mean()), float(values.sum()))
    let_go(values)
    return result


def mean(values: FloatArray) -> float:
    """The mean of float64 [n], n > 0. Lets go of what it has read."""
    if len(values) >= LARGE and (total := _sum_of_whole(values)) is not None:
        return total / len(values)
    result = float(values.mean())
    let_go(values)
    return result


def median(parts: Sequence[Part]) -> float:
    """The median of whole numbers, int64, at least one."""
    num = sum(part.count for part in parts)
    if num < LARGE:
        return float(np.median(together(parts)))

    def read() -> Iterator[IntArray]:
        return (chunk for part in parts for chunk in part.chunks())

    low, high = at_places(read, [(num - 1) // 2, num // 2])
    return (low + high) / 2


def at_places(read: Read, places: Sequence[int]) -> list[int]:
    """The numbers at these places, ascending, of all numbers in order."""
    edges = [(int(chunk.min()), int(chunk.max())) for chunk in read()]
    low, high = min(edge for edge, _ in edges), max(edge for _, edge in edges)
    return _between(read, low, high, np.asarray(places, np.int64))


def _between(read: Read, low: int, high: int, places: IntArray) -> list[int]:
    """As `at_places`, of the numbers from ``low`` to ``high`` alone."""
    if low == high:
        return [low] * len(places)
    shift = max(0, (high - low).bit_length() - _BIN_BITS)
    counts = np.zeros(1 << _BIN_BITS, np.int64)
    for chunk in read():
        inside = chunk[(chunk >= low) & (chunk <= high)]
        counts += np.bincount((inside - low) >> shift, minlength=len(counts))
    upto = np.cumsum(counts)
    bins = np.searchsorted(upto, places, side="right")
    found: list[int] = []
    for chosen in np.unique(bins).tolist():
        begin = low + (chosen << shift)
        inner = places[bins == chosen] - (upto[chosen] - counts[chosen])
        found += _between(read, begin, min(high, begin + (1 << shift) - 1), inner)
    return found


def _of_whole(values: FloatArray, percent: Sequence[float]) -> Totals | None:
    total = _sum_of_whole(values)
    if total is None:
        return None
    place = (len(values) - 1) * (np.asarray(percent, np.float64) / 100)
    before = np.floor(place).astype(np.int64)
    after = np.minimum(before + 1, len(values) - 1)
    wanted = np.unique(np.concatenate([before, after]))
    known = dict(zip(wanted.tolist(), at_places(lambda: _whole(values), wanted.tolist()), strict=True))
    low, high = (np.array([known[each] for each in side.tolist()], np.float64) for side in (before, after))
    part, step = place - before, high - low
    # as NumPy has it, to the last bit: from the nearer side
    quantiles = np.where(part >= 0.5, high - step * (1 - part), low + step * part)
    return Totals(tuple(quantiles.tolist()), total / len(values), total)


def _sum_of_whole(values: FloatArray) -> float | None:
    """The sum, None where numbers are not whole or so large that it depends on the order in which they are added."""
    total = size = 0.0
    for chunk in _slices(values):
        if not (chunk == np.rint(chunk)).all():
            return None
        total += float(chunk.sum())
        size += float(np.abs(chunk).sum())
    return total if size < _EXACT else None


def _whole(values: FloatArray) -> Iterator[IntArray]:
    return (chunk.astype(np.int64) for chunk in _slices(values))


def _slices(values: FloatArray) -> Iterator[FloatArray]:
    for at in range(0, len(values), CHUNK):
        yield values[at : at + CHUNK]
        let_go(values)
