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


class ArrivalMeter:
    """The agreements of a process, and the work before each, window by window.

    Holds four numbers for each agreement, and one for each range name in which time passes before it.
    """

    def __init__(self, process: ProcessInfo, outline: Outline, reading: Reading) -> None:
        self.process, steps = process, outline.steps
        found = outline.own(reading.agreement)
        step = steps.of(found.start)
        found, self.step = found[step != NONE], step[step != NONE]
        self.thread, self.start, self.end = found.thread, found.start, found.end
        self.steps = steps
        self.is_alloc = steps.holding_any(outline.own(reading.alloc).start)[self.step]
        self.names = (*outline.names, BETWEEN)
        self.work: dict[int, FloatArray] = {}

    def see(self, window: Window) -> None:
        """Add up the time before each arrival, by innermost range of its thread, as far as it lies in the window."""
        begin, arrival = window.clipped(self.steps.start[self.step]), window.clipped(self.start)
        near = begin < arrival
        for thread in distinct(self.thread[near]):
            mine = np.flatnonzero(near & (self.thread == thread))
            index, rows = window.own.of_thread(thread)
            name = window.own.ranges.name.codes[rows[index.source]]
            count = own_time if index.is_nested else own_time_of_overlapping
            total = count(index, name, len(self.names) - 1, begin[mine], arrival[mine])
            for used in np.flatnonzero(total.any(axis=1)).tolist():
                self.work.setdefault(used, np.zeros(len(self.step)))[mine] += total[used]

    def arrivals(self) -> Arrivals | None:
        """What was found; None where no agreement lies inside a step, or the process has no rank."""
        if not len(self.step) or self.process.rank is None:
            return None
        used = sorted(self.work)
        return Arrivals(
            rank=self.process.rank,
            capture=self.process.capture,
            start=self.start,
            end=self.end,
            step_start=self.steps.start[self.step],
            is_alloc=self.is_alloc,
            names=tuple(self.names[name] for name in used),
            work=np.stack([self.work[name] for name in used]) if used else np.zeros((0, len(self.step))),
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
