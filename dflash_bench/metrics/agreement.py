"""Several ranks at their agreement: who came last, and why.

Nobody can leave before the last one arrives, and leaving takes about the same time everywhere: so the ends of the same
agreement line the clocks of several captures up. Ranks of one capture share its clock and need no such estimate.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property

import numpy as np

from dflash_bench.metrics.events import Reading
from dflash_bench.metrics.intervals import NONE, Intervals, distinct
from dflash_bench.metrics.shelf import Growing, Part, Shelf, gathered, let_go, stored
from dflash_bench.metrics.windows import Outline, Window
from dflash_bench.model import BoolArray, Finding, FloatArray, IntArray, ProcessInfo, Value

LATE_START = "late start"
UNATTRIBUTED = "unattributed"
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


@dataclass(frozen=True)  # without slots: `lateness` is worked out once
class Meeting:
    """All ranks over the steps that all of them agreed in, on the clock of the first rank. Matrices are [ranks, n].

    ``offset`` float64 [ranks, n] is each rank's clock minus the first rank's, step by step.
    """

    ranks: tuple[int, ...]
    arrival: FloatArray
    step_start: FloatArray
    is_alloc: BoolArray
    offset: FloatArray
    is_one_clock: bool

    @property
    def last(self) -> IntArray:
        """Row of the rank that arrived last, int64 [n]; of equals the lowest rank."""
        return self.arrival.argmax(axis=0)

    @property
    def wait(self) -> FloatArray:
        """Last arrival − own arrival, ns, [ranks, n]."""
        return self.arrival.max(axis=0) - self.arrival

    @cached_property
    def lateness(self) -> FloatArray:
        """Own − median arrival, ns, [ranks, n]."""
        return self.arrival - np.median(self.arrival, axis=0)

    @property
    def tax(self) -> FloatArray:
        """Last − median arrival, ns, [n]."""
        return self.lateness.max(axis=0)

    @property
    def offset_spread(self) -> FloatArray:
        """Interquartile range of the per-step offsets, ns, [ranks]."""
        high, low = np.percentile(self.offset, [75, 25], axis=1)
        spread: FloatArray = high - low
        return spread


def meet(found: Sequence[Arrivals]) -> tuple[Meeting, tuple[Finding, ...]] | None:
    """Line the ranks up, k-th agreement to k-th agreement. None for fewer than two ranks."""
    if len(found) < 2:
        return None
    found = sorted(found, key=lambda a: a.rank)
    n = min(len(a.start) for a in found)
    ends = np.stack([a.end[:n] for a in found]).astype(np.float64)
    is_one_clock = len({a.capture for a in found}) == 1
    offset = np.zeros_like(ends) if is_one_clock else ends - ends[0]
    shift = np.median(offset, axis=1, keepdims=True)
    meeting = Meeting(
        ranks=tuple(a.rank for a in found),
        arrival=np.stack([a.start[:n] for a in found]) - shift,
        step_start=np.stack([a.step_start[:n] for a in found]) - shift,
        is_alloc=np.stack([a.is_alloc[:n] for a in found]),
        offset=offset,
        is_one_clock=is_one_clock,
    )
    return meeting, _findings(found, meeting)


def _findings(found: Sequence[Arrivals], meeting: Meeting) -> tuple[Finding, ...]:
    findings = []
    counts = [len(a.start) for a in found]
    if len(set(counts)) > 1:
        extra = max(counts) - min(counts)
        text = f"ranks agreed {min(counts):,} to {max(counts):,} times; only the first {min(counts):,} are compared"
        findings.append(Finding("agreement_counts_differ", None, extra, text))
    spread, effect = float(meeting.offset_spread.max()), float(np.median(meeting.tax))
    if spread > effect:
        text = (
            f"the clocks line up to {spread / 1000:,.1f} µs only, more than the agreement tax of"
            f" {effect / 1000:,.1f} µs: the cross-rank figures are not to be trusted"
        )
        findings.append(Finding("clock_spread", None, len(meeting.ranks), text))
    return tuple(findings)


def lateness_rows(found: Sequence[Arrivals], meeting: Meeting) -> list[tuple[Value, ...]]:
    """Rows (rank, cause, mean_ns, p50_ns): lateness = late start of the step + longer work before the agreement.

    Each part is a rank's own figure − the median over ranks, step by step; medians do not add up, and what they leave
    over is ``unattributed``.
    """
    rows: dict[int, list[tuple[Value, ...]]] = {rank: [] for rank in meeting.ranks}
    for name, part in _lateness_parts(sorted(found, key=lambda a: a.rank), meeting):
        for rank, own in zip(meeting.ranks, part, strict=True):
            if own.any():
                rows[rank].append((rank, name, float(own.mean()), float(np.median(own))))
    return [row for of_rank in rows.values() for row in sorted(of_rank, key=_size)]


def _size(row: tuple[Value, ...]) -> float:
    """The largest mean first."""
    mean = row[2]
    assert isinstance(mean, float)
    return -abs(mean)


def _lateness_parts(found: Sequence[Arrivals], meeting: Meeting) -> Iterator[tuple[str, FloatArray]]:
    """Each cause and its part of the lateness, ns, [ranks, n]: one at a time, since they can be large and many."""
    n = meeting.arrival.shape[1]
    part: FloatArray = meeting.step_start - np.median(meeting.step_start, axis=0)
    yield LATE_START, part
    total = part
    for name in dict.fromkeys(name for a in found for name in a.names):
        own = np.stack([a.work[a.names.index(name), :n] if name in a.names else np.zeros(n) for a in found])
        part = own - np.median(own, axis=0)
        yield name, part
        total = total + part
    yield UNATTRIBUTED, meeting.lateness - total
