"""Several ranks at their agreement: when each came, who came last, and what that cost: ``dp.*``.

Nobody can leave before the last one arrives, and leaving takes about the same time everywhere: so the ends of the same
agreement line the clocks of several captures up. Ranks of one capture share its clock and need no such estimate.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property

import numpy as np

from dflash_bench.findings import finding
from dflash_bench.metrics.events.arrays import NONE, compact, distinct
from dflash_bench.metrics.events.intervals import own_time, own_time_of_overlapping
from dflash_bench.metrics.measurements import metric
from dflash_bench.metrics.view import View
from dflash_bench.model import BoolArray, Finding, FloatArray, IntArray, Metric

BETWEEN = "between ranges"


@dataclass(frozen=True, slots=True)
class Arrivals:
    """One rank's agreements in order, in its capture's clock. All arrays [n], n = number of agreements.

    ``step_start`` is where the step around each began; ``is_alloc`` whether that step allocated; ``work`` float64 [n]
    of each name: time spent in that range (innermost) between the step's start and the arrival. ``pair``: of blocks,
    in a duet, that the step is from.
    """

    rank: int
    capture: int
    start: IntArray
    end: IntArray
    step_start: IntArray
    is_alloc: BoolArray
    work: dict[str, FloatArray]
    pair: IntArray | None = None


def arrivals_of(view: View) -> Arrivals | None:
    """The agreements of a process inside its steps; None where there are none, or the process has no rank."""
    steps, process = view.steps, view.events.process
    found = view.named(view.reading.agreement)
    step = steps.of(found.start)
    found, step = found[step != NONE], step[step != NONE]
    if not len(found) or process.rank is None:
        return None
    return Arrivals(
        rank=process.rank,
        capture=process.capture,
        start=found.start,
        end=found.end,
        step_start=steps.start[step],
        is_alloc=steps.holding_any(view.named(view.reading.alloc).start)[step],
        work=_work_before(view, found.thread, steps.start[step], found.start),
        pair=None if steps.pair is None else steps.pair[step],
    )


def _work_before(view: View, thread: IntArray, begin: IntArray, arrival: IntArray) -> dict[str, FloatArray]:
    """The time in each range, as far as it was the innermost of its thread, between two instants. All [n]."""
    work: dict[str, FloatArray] = {}
    names = (*view.own.name.values, BETWEEN)
    for own in distinct(thread):
        mine = np.flatnonzero(thread == own)
        index, rows = view.own_index.of_thread(own)
        used, code = compact(view.own.name.codes[rows[index.source]])
        count = own_time if index.is_nested else own_time_of_overlapping
        total = count(index, code, len(used), begin[mine], arrival[mine])
        for name, time in zip([*used.tolist(), len(names) - 1], total, strict=True):
            if time.any():
                work.setdefault(names[name], np.zeros(len(thread)))[mine] = time
    return {name: work[name] for name in names if name in work}


@dataclass(frozen=True)  # without slots: `lateness` is worked out once
class Meeting:
    """All ranks over the steps that all of them agreed in, on the clock of the first rank. Matrices are [ranks, n].

    ``offset`` float64 [ranks, n] is each rank's clock minus the first rank's, step by step. ``pair``: see `Arrivals`.
    """

    ranks: tuple[int, ...]
    arrival: FloatArray
    step_start: FloatArray
    is_alloc: BoolArray
    offset: FloatArray
    is_one_clock: bool
    pair: IntArray | None

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
        pair=None if found[0].pair is None else found[0].pair[:n],
    )
    return meeting, _findings(found, meeting)


def _findings(found: Sequence[Arrivals], meeting: Meeting) -> tuple[Finding, ...]:
    findings = []
    counts = [len(a.start) for a in found]
    if len(set(counts)) > 1:
        extra = max(counts) - min(counts)
        findings.append(finding("agreement_counts_differ", None, extra, least=min(counts), most=max(counts)))
    spread, effect = float(meeting.offset_spread.max()), float(np.median(meeting.tax))
    if spread > effect:
        findings.append(
            finding("clock_spread", None, len(meeting.ranks), spread_us=spread / 1000, effect_us=effect / 1000)
        )
    return tuple(findings)


def agreement_metrics(meeting: Meeting) -> Iterator[Metric]:
    """The figures of each rank, then those of all of them together."""
    last, wait, every, pair = meeting.last, meeting.wait, np.arange(meeting.arrival.shape[1]), meeting.pair
    for k, rank in enumerate(meeting.ranks):
        yield metric("dp.wait", rank, wait[k], block=every, pair=pair)
        yield metric("dp.lateness", rank, meeting.lateness[k], block=every, pair=pair)
        yield metric("dp.straggler_share", rank, last == k, block=every, pair=pair)
        yield metric("clock.offset", rank, np.median(meeting.offset[k : k + 1], axis=1), num_samples=len(every))
        yield metric("clock.offset_spread", rank, meeting.offset_spread[k : k + 1], num_samples=len(every))
    yield metric("dp.alloc_on_critical_path", None, meeting.is_alloc[last, every], block=every, pair=pair)
    yield metric("dp.agreement_tax", None, meeting.tax, block=every, pair=pair)
