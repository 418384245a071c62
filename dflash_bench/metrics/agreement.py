"""Several ranks at their agreement: who came last, and why.

Nobody can leave before the last one arrives, and leaving takes about the same time everywhere: so the ends of the same
agreement line the clocks of several captures up. Ranks of one capture share its clock and need no such estimate.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from dflash_bench.metrics.events import ProcessEvents, Reading
from dflash_bench.metrics.intervals import NONE, Intervals
from dflash_bench.metrics.steps import Steps, ThreadRanges
from dflash_bench.model import BoolArray, Finding, FloatArray, IntArray, Value

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


def arrivals(events: ProcessEvents, steps: Steps, own: ThreadRanges, reading: Reading) -> Arrivals | None:
    """The agreements of a process; None when it has none inside a step."""
    found = own.ranges[own.ranges.name.among({reading.agreement})]
    step = steps.of(found.start)
    found, step = found[step != NONE], step[step != NONE]
    rank = events.process.rank
    if not len(found) or rank is None:
        return None
    alloc = own.ranges.start[own.ranges.name.among({reading.alloc})]
    names, work = _work_before(own, found.thread, steps.start[step], found.start)
    return Arrivals(
        rank=rank,
        capture=events.process.capture,
        start=found.start,
        end=found.end,
        step_start=steps.start[step],
        is_alloc=steps.holding_any(alloc)[step],
        names=names,
        work=work,
    )


def _work_before(
    own: ThreadRanges, thread: IntArray, begin: IntArray, arrival: IntArray
) -> tuple[tuple[str, ...], FloatArray]:
    """Time by innermost range between ``begin`` and ``arrival``, each pair on its thread. → names, [names, n]."""
    values = own.ranges.name.values
    total = np.zeros((len(values) + 1, len(arrival)))
    for key, (index, rows) in own.by_thread.items():
        mine = np.flatnonzero(thread == key)
        if len(mine):
            names = own.ranges.name.codes[rows[index.source]]
            count = own_time if index.is_nested else own_time_of_overlapping
            total[:, mine] += count(index, names, len(values), begin[mine], arrival[mine])
    used = np.flatnonzero(total.any(axis=1))
    return tuple(BETWEEN if k == len(values) else values[k] for k in used), total[used]


def own_time(index: Intervals, name: IntArray, num_names: int, begin: IntArray, stop: IntArray) -> FloatArray:
    """Time inside windows by innermost interval: own time less that of the intervals directly inside.

    ``index``: intervals that nest. ``name`` int64 [intervals] < ``num_names``. ``begin``, ``stop`` int64 [n]: windows,
    ascending and apart. Returns float64 [num_names + 1, n]; the last row is time in no interval.
    """
    first = np.searchsorted(stop, index.start, side="right")
    count = np.maximum(np.searchsorted(begin, index.end, side="left") - first, 0)
    interval = np.repeat(np.arange(len(index)), count)
    window = np.repeat(first, count) + np.arange(len(interval)) - np.repeat(np.cumsum(count) - count, count)
    inside = np.minimum(index.end[interval], stop[window]) - np.maximum(index.start[interval], begin[window])
    inside = np.maximum(inside, 0).astype(np.float64)
    owner = np.append(name, num_names)[index.parents()[interval]]
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
    window = np.searchsorted(begin, edges[:-1], side="right") - 1
    inside = (window >= 0) & (edges[:-1] < stop[np.maximum(window, 0)])
    held = index.holding(edges[:-1][inside])
    # NONE is −1: it takes the entry behind the last name
    owner = np.append(name, num_names)[held]
    np.add.at(total, (owner, window[inside]), np.diff(edges)[inside])
    return total


@dataclass(frozen=True, slots=True)
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

    @property
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
    found = sorted(found, key=lambda a: a.rank)
    n = meeting.arrival.shape[1]
    parts = {LATE_START: meeting.step_start - np.median(meeting.step_start, axis=0)}
    for name in dict.fromkeys(name for a in found for name in a.names):
        own = np.stack([a.work[a.names.index(name), :n] if name in a.names else np.zeros(n) for a in found])
        parts[name] = own - np.median(own, axis=0)
    parts[UNATTRIBUTED] = meeting.lateness - sum(parts.values())
    rows: list[tuple[Value, ...]] = []
    for k, rank in enumerate(meeting.ranks):
        own_rows = [(name, float(v[k].mean()), float(np.median(v[k]))) for name, v in parts.items()]
        rows += [(rank, *row) for row in sorted(own_rows, key=lambda row: -abs(row[1])) if any(parts[row[0]][k])]
    return rows
