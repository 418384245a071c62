"""Questions to many intervals at once: which one holds an instant, and which hold it outside that one.

Everything is vectorised: a capture has millions of ranges and calls, and a loop in Python over them would take minutes.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property

import numpy as np

from dflash_bench.model import BoolArray, IntArray

Index = IntArray | BoolArray | slice

NONE = -1
"""No interval. The only place where −1 stands for absence: these are indices inside NumPy arrays."""


@dataclass(frozen=True)  # without slots: `parents` is worked out once
class Intervals:
    """Half-open intervals [start, end), sorted by start, of equal starts the longest first.

    ``start``, ``end``: int64 [n]. ``source`` int64 [n] is each one's place in the arrays it was made of. ``outer``
    int64 [n] is the nearest earlier interval that ends later, or NONE: whoever looks for an interval that holds t and
    finds one over already may skip to its ``outer``, since all between end no later.
    """

    start: IntArray
    end: IntArray
    source: IntArray
    outer: IntArray

    def __len__(self) -> int:
        return len(self.start)

    @property
    def is_nested(self) -> bool:
        """Whether each interval ends within the one that it begins in."""
        parent = self.parents
        inner = parent != NONE
        return bool((self.end[parent[inner]] >= self.end[inner]).all())

    def holding(self, t: IntArray) -> IntArray:
        """Index of the innermost interval at each t: the one with the latest start among those that hold it."""
        latest = np.searchsorted(self.start, t, side="right") - 1
        return self._settle(latest, t)

    @cached_property
    def parents(self) -> IntArray:
        """For each interval, the innermost other one that holds its start."""
        return self._settle(np.arange(len(self)) - 1, self.start)

    def _settle(self, index: IntArray, t: IntArray) -> IntArray:
        index = index.astype(np.int64)
        over = np.flatnonzero(index >= 0)
        while len(over := over[self.end[index[over]] <= t[over]]):
            index[over] = self.outer[index[over]]
            over = over[index[over] >= 0]
        return index


def intervals(start: IntArray, end: IntArray) -> Intervals:
    """Sort and link intervals. ``start``, ``end``: int64 [n] in any order, nested or not."""
    if (start[1:] > start[:-1]).all():
        source = np.arange(len(start))
    else:
        source = np.lexsort((-end, start))
        start, end = start[source], end[source]
    return Intervals(start, end, source, _outer(end))


def _outer(end: IntArray) -> IntArray:
    # Pointer jumping: everything between outer[i] and i ends no later than i, so a pointer that does not yet point to a
    # later end may take over its target's pointer. The distance doubles: about log2(n) rounds. What ends later than
    # everything before it needs none: of calls that follow one another, that is all of them.
    outer = np.arange(len(end), dtype=np.int64) - 1
    if len(end) > 1:
        latest = np.maximum.accumulate(end)
        outer[1:][end[1:] >= latest[:-1]] = NONE
    moving = np.flatnonzero(outer >= 0)
    while len(moving := moving[end[outer[moving]] <= end[moving]]):
        outer[moving] = outer[outer[moving]]
        moving = moving[outer[moving] >= 0]
    return outer


def distinct(values: IntArray) -> list[int]:
    """The numbers that occur, ascending: as ``numpy.unique``, but at once where they are all the same."""
    if len(values) and (values == values[0]).all():
        return [int(values[0])]
    return [int(value) for value in np.unique(values)]


def slim(values: IntArray) -> IntArray:
    """The same numbers, read-only and in the memory of a single one where they are all equal, as threads mostly are."""
    if len(values) < 2 or values[0] != values[-1] or not (values == values[0]).all():
        return values
    return np.broadcast_to(values[0], values.shape)


def taken(values: IntArray, index: Index) -> IntArray:
    """``values[index]``, slim where the values are."""
    if isinstance(index, slice) or values.strides != (0,) or not len(values):
        return values[index]
    return np.broadcast_to(values[0], int(np.count_nonzero(index)) if index.dtype == np.bool_ else len(index))


def used_codes(codes: IntArray, size: int) -> tuple[IntArray, IntArray]:
    """Which of the numbers 0 … size − 1 occur, ascending, and for each of ``codes`` its place among those.

    As ``numpy.unique`` with its inverse, by counting instead of sorting: for codes of few names.
    """
    used = np.flatnonzero(np.bincount(codes, minlength=size))
    place = np.zeros(size, np.int64)
    place[used] = np.arange(len(used))
    return used, place[codes]
