"""Several ranks at their agreement: when each came, who came last, and what that cost: ``dp.*``.

Nobody can leave before the last one arrives: so on one clock, agreements that belong together overlap in time. Leaving
takes about the same time everywhere: so the ends of the same agreement line the clocks of several captures up
(`clocks`). A rank may agree outside any step, for want of requests, and several times in one: each figure is of the
agreements at one place in the steps of every rank.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from functools import cached_property

import numpy as np

from dflash_bench.findings import finding
from dflash_bench.metrics.clocks import Clock, line_up
from dflash_bench.metrics.events.arrays import NONE, compact, distinct
from dflash_bench.metrics.events.intervals import own_time, own_time_of_overlapping
from dflash_bench.metrics.measurements import metric
from dflash_bench.metrics.view import View
from dflash_bench.model import BoolArray, Finding, FloatArray, IntArray, Metric

BETWEEN = "between ranges"
_TWICE_SHARE = 0.5
"""Of the iterations, from agreement to agreement, that hold two steps: then a step's range opens twice in each."""


@dataclass(frozen=True, slots=True)
class Agreements:
    """One rank's agreements in order, all of them, in its capture's clock. All arrays [n].

    ``place``: 1 for the first agreement in its step, 2 for the second, …, 0 outside any step. ``begin``: where the work
    for it began, with the step or when the agreement before it in the step was over. ``is_alloc``: whether the rank
    took pages since its agreement before. ``work`` float64 [n] of each name: time spent in that range (innermost) from
    ``begin`` to the arrival. ``pair``: of blocks, in a duet, that the step is from. ``utc_ns``: wall time at time 0.
    ``num_doubled``: iterations that hold two steps or more.
    """

    rank: int
    capture: int
    start: IntArray
    end: IntArray
    place: IntArray
    begin: IntArray
    is_alloc: BoolArray
    work: dict[str, FloatArray]
    pair: IntArray | None = None
    utc_ns: int | None = None
    num_doubled: int = 0


def agreements_of(view: View) -> Agreements | None:
    """The agreements of a process; None where there are none in its steps, or the process has no rank."""
    steps, process = view.steps, view.events.process
    found = view.named(view.reading.agreement)
    found = found[~view.left_out(found.start)]
    step = steps.of(found.start)
    inside = np.flatnonzero(step != NONE)
    if not len(inside) or process.rank is None:
        return None
    place = np.zeros(len(found), np.int64)
    place[inside] = _places(step[inside])
    begin = found.start.copy()
    begin[inside] = steps.start[step[inside]]
    later = np.flatnonzero(place > 1)
    begin[later] = found.end[later - 1]
    alloc = np.sort(view.named(view.reading.alloc).start)
    taken = np.searchsorted(alloc, found.start, side="right")
    of_step = _work_before(view, found.thread[inside], begin[inside], found.start[inside])
    work = {name: np.zeros(len(found)) for name in of_step}
    for name, time in of_step.items():
        work[name][inside] = time
    pair = None
    if steps.pair is not None:
        pair = np.full(len(found), NONE, np.int64)
        pair[inside] = steps.pair[step[inside]]
    return Agreements(
        rank=process.rank,
        capture=process.capture,
        start=found.start,
        end=found.end,
        place=place,
        begin=begin,
        is_alloc=np.diff(taken, prepend=0) > 0,
        work=work,
        pair=pair,
        num_doubled=int((np.diff(np.searchsorted(steps.start, found.start)) > 1).sum()),
    )


def _places(step: IntArray) -> IntArray:
    """1 for the first of equal numbers in a row, 2 for the second, …"""
    first = np.flatnonzero(np.diff(step, prepend=NONE))
    return np.arange(len(step)) - np.repeat(first, np.diff(np.append(first, len(step)))) + 1


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
    """All ranks over the agreements at one place in the steps of all of them, on the clock of the first rank.

    Matrices are [ranks, n]. ``place``: which agreement of its step it is; None where each step holds one.
    ``row`` int64 [ranks, n]: which of each rank's `Agreements` it is. ``clocks``: one a rank.
    """

    ranks: tuple[int, ...]
    place: int | None
    row: IntArray
    arrival: FloatArray
    begin: FloatArray
    is_alloc: BoolArray
    pair: IntArray | None
    clocks: tuple[Clock, ...]

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


def find_meetings(found: Sequence[Agreements]) -> tuple[tuple[Meeting, ...], tuple[Finding, ...]] | None:
    """Find which agreements of the ranks belong together. One meeting for each place in the steps.

    None for fewer than two ranks, and where most agreements are not known to belong together.
    """
    if len(found) < 2:
        return None
    found = sorted(found, key=lambda a: a.rank)
    lined_up = line_up([(a.capture, a.start, a.end, a.utc_ns) for a in found])
    if 2 * lined_up.row.shape[1] < min(len(a.start) for a in found):
        return None
    row = lined_up.row
    place = np.stack([a.place[own] for a, own in zip(found, row, strict=True)])
    in_steps = (place == place[0]).all(axis=0) & (place[0] > 0)
    num_places = int(place[0][in_steps].max(initial=0))
    meetings = tuple(
        _at(found, row[:, in_steps & (place[0] == k)], k if num_places > 1 else None, lined_up.clocks)
        for k in range(1, num_places + 1)
    )
    num = [len(a.start) for a in found]
    findings = [*lined_up.findings, *_doubled(found)]
    if extra := sum(num) - row.size:
        fewest, most = min(num), max(num)
        findings.append(finding("agreements_unpaired", None, extra, paired=row.shape[1], least=fewest, most=most))
    if outside := int((~in_steps).sum()):
        findings.append(finding("agreements_outside_steps", None, outside, inside=int(in_steps.sum())))
    spread = max(clock.spread for clock in lined_up.clocks)
    effect = min((float(np.median(each.tax)) for each in meetings), default=0.0)
    if spread > effect:
        facts = {"spread_us": spread / 1000, "effect_us": effect / 1000}
        findings.append(finding("clock_spread", None, len(found), **facts))
    return (meetings, tuple(findings)) if meetings else None


def _at(found: Sequence[Agreements], row: IntArray, place: int | None, clocks: tuple[Clock, ...]) -> Meeting:
    pair = found[0].pair
    both = list(zip(found, row, clocks, strict=True))
    return Meeting(
        ranks=tuple(a.rank for a in found),
        place=place,
        row=row,
        arrival=np.stack([clock.on_first(a.start[own]) for a, own, clock in both]),
        begin=np.stack([clock.on_first(a.begin[own]) for a, own, clock in both]),
        is_alloc=np.stack([a.is_alloc[own] for a, own, _ in both]),
        pair=None if pair is None else pair[row[0]],
        clocks=clocks,
    )


def _doubled(found: Sequence[Agreements]) -> Iterator[Finding]:
    for each in found:
        if each.num_doubled > _TWICE_SHARE * len(each.start):
            yield finding("steps_twice", each.rank, each.num_doubled)


def agreement_metrics(meetings: Sequence[Meeting]) -> Iterator[Metric]:
    """The figures of each rank, then those of all of them together, by place in the step where there are several."""
    first = meetings[0]
    for k, rank in enumerate(first.ranks):
        for meeting in meetings:
            yield from _of_rank(meeting, k, rank)
        if len(meetings) > 1:
            yield metric("dp.wait", rank, _waits_of_steps(meetings, k))
        clock, num = first.clocks[k], first.clocks[k].num
        yield metric("clock.offset", rank, np.array([clock.offset]), num_samples=num)
        yield metric("clock.offset_spread", rank, np.array([clock.spread]), num_samples=num)
        if clock.drift:
            yield metric("clock.drift", rank, np.array([clock.drift * 1e6]), num_samples=num)
    for meeting in meetings:
        every = np.arange(meeting.arrival.shape[1])
        at, pair, is_alloc = _suffix(meeting), meeting.pair, meeting.is_alloc[meeting.last, every]
        yield metric(f"dp.alloc_on_critical_path{at}", None, is_alloc, block=every, pair=pair)
        yield metric(f"dp.agreement_tax{at}", None, meeting.tax, block=every, pair=pair)


def _suffix(meeting: Meeting) -> str:
    return "" if meeting.place is None else f"@{meeting.place}"


def _of_rank(meeting: Meeting, k: int, rank: int) -> Iterator[Metric]:
    at, every, pair = _suffix(meeting), np.arange(meeting.arrival.shape[1]), meeting.pair
    yield metric(f"dp.wait{at}", rank, meeting.wait[k], block=every, pair=pair)
    yield metric(f"dp.lateness{at}", rank, meeting.lateness[k], block=every, pair=pair)
    yield metric(f"dp.straggler_share{at}", rank, meeting.last == k, block=every, pair=pair)


def _waits_of_steps(meetings: Sequence[Meeting], k: int) -> FloatArray:
    """The waits of a rank at all agreements of a step, summed. float64 [steps]."""
    row = np.concatenate([meeting.row[k] for meeting in meetings])
    wait = np.concatenate([meeting.wait[k] for meeting in meetings])
    place = np.concatenate([np.full(meeting.row.shape[1], meeting.place or 1) for meeting in meetings])
    order = np.argsort(row)
    begins = np.flatnonzero(np.diff(row[order] - place[order], prepend=NONE - 1))
    total: FloatArray = np.add.reduceat(wait[order], begins)
    return total


def on_clocks(found: Sequence[Agreements], clock: Sequence[int], utc_ns: Sequence[int | None]) -> list[Agreements]:
    """The agreements with the clock that each rank's capture shares, and wall time at its time 0."""
    return [replace(a, capture=clock[a.capture], utc_ns=utc_ns[a.capture]) for a in found]
