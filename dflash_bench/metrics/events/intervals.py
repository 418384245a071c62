"""Questions to many intervals at once: which one holds an instant, and which hold it outside that one.

Everything is vectorised: a capture has millions of ranges and calls, and a loop in Python over them would take minutes.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property

import numpy as np

from dflash_bench.metrics.events.arrays import NONE
from dflash_bench.model import FloatArray, IntArray


@dataclass(frozen=True)  # without slots: `parents` is worked out once
class Intervals:
    """Half-open intervals [start, end), sorted by start, of equal starts the longest first.

    ``start``, ``end``: int64 [n]. ``source`` int64 [n] is each one's place in the arrays it was made of. ``outer``
    int64 [n] is the nearest earlier interval that ends later, or NONE. When an interval is over at t, so are all those
    between it and its ``outer``: the search for one that holds t goes on there.
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


def own_time(index: Intervals, name: IntArray, num_names: int, begin: IntArray, stop: IntArray) -> FloatArray:
    """Time inside windows by innermost interval: own time less that of the intervals directly inside.

    ``index``: intervals that nest. ``name`` int64 [intervals] < ``num_names``. ``begin``, ``stop`` int64 [n]: windows,
    both ascending; they may overlap. Returns float64 [num_names + 1, n]; the last row is time in no interval.
    """
    first = np.searchsorted(stop, index.start, side="right")
    count = np.maximum(np.searchsorted(begin, index.end, side="left") - first, 0)
    interval = np.repeat(np.arange(len(index)), count)
    window = np.repeat(first, count) + np.arange(len(interval)) - np.repeat(np.cumsum(count) - count, count)
    inside = np.minimum(index.end[interval], stop[window]) - np.maximum(index.start[interval], begin[window])
    inside = np.maximum(inside, 0).astype(np.float64)
    owner = np.append(name, num_names)[index.parents[interval]]
    size, n = (num_names + 1) * len(begin), len(begin)
    total = np.bincount(name[interval] * n + window, inside, size) - np.bincount(owner * n + window, inside, size)
    found: FloatArray = np.asarray(total, np.float64).reshape(num_names + 1, n)
    found[num_names] += stop - begin
    return found


def own_time_of_overlapping(
    index: Intervals, name: IntArray, num_names: int, begin: IntArray, stop: IntArray
) -> FloatArray:
    """As `own_time`, for intervals that need not nest: piece by piece between all edges, which takes longer."""
    total = np.zeros((num_names + 1, len(begin)))
    if not len(begin):
        return total
    edges = np.sort(np.concatenate([index.start, index.end, begin, stop]))
    first = np.searchsorted(stop, edges[:-1], side="right")
    count = np.maximum(np.searchsorted(begin, edges[:-1], side="right") - first, 0)
    piece = np.repeat(np.arange(len(count)), count)
    window = np.repeat(first, count) + np.arange(len(piece)) - np.repeat(np.cumsum(count) - count, count)
    held = index.holding(edges[:-1][piece])
    # NONE is −1: it takes the entry behind the last name
    owner = np.append(name, num_names)[held]
    np.add.at(total, (owner, window), np.diff(edges)[piece])
    return total
