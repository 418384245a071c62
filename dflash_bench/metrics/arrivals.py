"""When a rank came to its agreements, and what it had done before each."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from dflash_bench.metrics.events import Reading
from dflash_bench.metrics.intervals import NONE, Intervals, distinct
from dflash_bench.metrics.shelf import Growing, Part, Shelf, gathered, let_go, stored
from dflash_bench.metrics.windows import Outline, Window
from dflash_bench.model import BoolArray, FloatArray, IntArray, ProcessInfo

BETWEEN = "between ranges"


@dataclass(frozen=True, slots=True)
class Arrivals:
    """One rank's agreements in order, in its capture's clock. All arrays [n], n = number of agreements.

    ``step_start`` is where the step around each began; ``is_alloc`` whether that step allocated; ``work`` float64
    [names, n]: time spent in each range (innermost) between the step's start and the arrival.
    """

    rank: int
    capture: int
    start: IntArray
    end: IntArray
    step_start: IntArray
    is_alloc: BoolArray
    names: tuple[str, ...]
    work: FloatArray


@dataclass(frozen=True, slots=True)
class ArrivalParts:
    """The same as `Arrivals`, in parts that may lie on a shelf. ``work``: those of each name."""

    rank: int
    capture: int
    start: Part
    end: Part
    step_start: Part
    is_alloc: Part
    names: tuple[str, ...]
    work: tuple[tuple[Part, ...], ...]

    def read(self, shelf: Shelf | None = None) -> Arrivals:
        """All of it as arrays. ``shelf``: where ``work`` goes, which is the most by far; None for memory."""
        work = [part for of_name in self.work for part in of_name]
        return Arrivals(
            rank=self.rank,
            capture=self.capture,
            start=self.start.mapped(),
            end=self.end.mapped(),
            step_start=self.step_start.mapped(),
            is_alloc=self.is_alloc.mapped(),
            names=self.names,
            work=gathered(work, shelf).reshape(len(self.names), self.start.count),
        )


class ArrivalMeter:
    """The agreements of a process, and the work before each, window by window.

    With a shelf it holds the work before those alone that a window parts, otherwise one number for each agreement and
    range name in which time passes before it.
    """

    def __init__(self, process: ProcessInfo, outline: Outline, reading: Reading, shelf: Shelf | None = None) -> None:
        self.process, steps = process, outline.steps
        found = outline.own(reading.agreement)
        step = steps.of(found.start)
        found, step = found[step != NONE], step[step != NONE]
        self.thread, self.shelf = found.thread, shelf
        is_alloc = steps.holding_any(outline.own(reading.alloc).start)[step]
        self.all_start, self.all_end = stored(found.start, shelf), stored(found.end, shelf)
        self.all_step_start, self.is_alloc = stored(steps.start[step], shelf), stored(is_alloc, shelf)
        self.start, self.step_start = self.all_start.mapped(), self.all_step_start.mapped()
        self.names = (*outline.names, BETWEEN)
        self.work: dict[int, Growing] = {}
        self.num_done, self.open = 0, dict[int, FloatArray]()

    def see(self, window: Window) -> None:
        """Add up the time before each arrival, by innermost range of its thread, as far as it lies in the window."""
        num_over, num_begun = self._upto(window.stop)
        not_over = slice(self.num_done, num_begun)
        begin, arrival = window.clipped(self.step_start[not_over]), window.clipped(self.start[not_over])
        near, threads = begin < arrival, self.thread[not_over]
        for thread in distinct(threads[near]):
            mine = np.flatnonzero(near & (threads == thread))
            index, rows = window.own.of_thread(thread)
            name = window.own.ranges.name.codes[rows[index.source]]
            count = own_time if index.is_nested else own_time_of_overlapping
            total = count(index, name, len(self.names) - 1, begin[mine], arrival[mine])
            for used in np.flatnonzero(total.any(axis=1)).tolist():
                self._open(used, num_begun)[mine] += total[used]
        self._close(num_over)
        let_go(self.start)
        let_go(self.step_start)

    def _upto(self, stop: int | None) -> tuple[int, int]:
        """How many agreements are over at an instant, the end of a window, and how many steps of theirs have begun."""
        if stop is None:
            return len(self.start), len(self.start)
        num_over = int(np.searchsorted(self.start, stop, side="right"))
        return num_over, max(num_over, int(np.searchsorted(self.step_start, stop)))

    def _open(self, name: int, upto: int) -> FloatArray:
        """The time in a range before each agreement that is not over, up to one of them at the least."""
        if name not in self.work:
            self.work[name] = Growing(self.shelf, np.float64)
            self.work[name].add(np.zeros(self.num_done))
            self.open[name] = np.zeros(0)
        if (more := upto - self.num_done - len(self.open[name])) > 0:
            self.open[name] = np.concatenate([self.open[name], np.zeros(more)])
        return self.open[name]

    def _close(self, num_over: int) -> None:
        for name, growing in self.work.items():
            found = self._open(name, num_over)
            growing.add(found[: num_over - self.num_done])
            self.open[name] = found[num_over - self.num_done :].copy()
        self.num_done = num_over

    def arrivals(self) -> ArrivalParts | None:
        """What was found; None where no agreement lies inside a step, or the process has no rank."""
        if not len(self.start) or self.process.rank is None:
            return None
        self._close(len(self.start))
        used = sorted(self.work)
        return ArrivalParts(
            rank=self.process.rank,
            capture=self.process.capture,
            start=self.all_start,
            end=self.all_end,
            step_start=self.all_step_start,
            is_alloc=self.is_alloc,
            names=tuple(self.names[name] for name in used),
            work=tuple(self.work[name].parts() for name in used),
        )


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
