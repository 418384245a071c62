"""The host events of a process, window by window of time, and what must be known of them beforehand.

Two passes: `HostEvents.outline` goes once through the ranges and keeps those that play a part, steps above all;
`HostEvents.windows` goes through ranges and API calls together. A window holds what begins in it, and the ranges and
calls that began before and are still open, so that every question about an instant of it has its whole answer there.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace

import numpy as np
import pyarrow as pa

from dflash_bench.layout import Events
from dflash_bench.metrics.ahead import Ahead, cuts, spans
from dflash_bench.metrics.columns import OPEN, Names, Vocabulary, ints
from dflash_bench.metrics.events import (
    CALL_COLUMNS,
    RANGE_COLUMNS,
    ApiCalls,
    Ranges,
    Reading,
    calls_in_order,
    order_of,
    ranges_in_order,
)
from dflash_bench.metrics.intervals import slim
from dflash_bench.metrics.names import short_names
from dflash_bench.metrics.shelf import Growing, Shelf, let_go, stored
from dflash_bench.metrics.steps import Steps, ThreadRanges, steps_among, thread_ranges
from dflash_bench.model import BoolArray, Finding, IntArray, ProcessInfo
from dflash_bench.profile import EventFile, Profile, Span

WINDOW_ROWS = 1 << 16
"""Ranges and calls of a window: 40 bytes each, and several times that while figures are made of them."""


@dataclass(frozen=True, slots=True)
class Outline:
    """What must be known of a process before its events are gone through.

    ``counts`` int64 [domains, names] of closed ranges, ``num_open`` the others. ``roles``: the ranges that the reading
    names, in order. ``named_steps``: those that match the step's name, as the engine wrote it, if that name says more.
    """

    names: tuple[str, ...]
    domains: tuple[str, ...]
    counts: IntArray
    num_open: int
    roles: Ranges
    steps: Steps
    findings: tuple[Finding, ...]
    named_steps: Ranges

    def matching(self, pattern: re.Pattern[str]) -> Ranges:
        """The ranges of the step range's domain whose name matches, one that the reading gives a part."""
        return self._chosen(self.roles.name.matching(pattern))

    def own(self, name: str) -> Ranges:
        """The ranges of the step range's domain that have this name, one that the reading gives a part."""
        return self._chosen(self.roles.name.among({name}))

    def _chosen(self, is_wanted: BoolArray) -> Ranges:
        found = self.roles[is_wanted & self.roles.domain.among({self.steps.domain})]
        _let_go(self.roles)
        return found


@dataclass(frozen=True, slots=True)
class Window:
    """What begins in [begin, stop), ``None`` for no bound.

    ``ranges``: all that begin inside. ``own``: those of the step range's domain, after the ones still open from before;
    ``stays_open`` bool [own] tells which last beyond the window. ``open_calls`` began before and last into it.
    ``coming``: where the correlation ids of calls after the window lie.
    """

    begin: int | None
    stop: int | None
    ranges: Ranges
    own: ThreadRanges
    stays_open: BoolArray
    calls: ApiCalls
    open_calls: ApiCalls
    coming: tuple[Span, ...]

    def holds(self, t: IntArray) -> BoolArray:
        """bool [n]: which instants lie in the window."""
        found = np.ones(len(t), bool)
        if self.begin is not None:
            found &= t >= self.begin
        if self.stop is not None:
            found &= t < self.stop
        return found

    def clipped(self, t: IntArray) -> IntArray:
        """The instants, those outside moved to the window's nearer end."""
        t = t if self.begin is None else np.maximum(t, self.begin)
        return t if self.stop is None else np.minimum(t, self.stop)


class HostEvents:
    """The ranges and API calls of one process of a profile."""

    def __init__(self, profile: Profile, process: ProcessInfo, reading: Reading) -> None:
        self.process, self.reading = process, reading
        self.ranges: EventFile | None = profile.event_file(Events.RANGES, process)
        self.calls: EventFile | None = profile.event_file(Events.API_CALLS, process)
        self._names, self._domains, self._apis = Vocabulary(), Vocabulary(), Vocabulary()
        self._place, self._short = self._shortened()

    @property
    def num_calls(self) -> int:
        return 0 if self.calls is None else int(self.calls.metadata.num_rows)

    def _shortened(self) -> tuple[IntArray | None, tuple[str, ...]]:
        if not self.reading.rules or self.ranges is None:
            return None, ()
        for group in range(self.ranges.num_groups):
            self._names.codes(self.ranges.read(group, ["name"]).column("name"))
        found = short_names(self._names.values, self.reading.rules)
        return np.asarray(found.place, np.int64), found.values

    @property
    def _range_names(self) -> tuple[str, ...]:
        return self._names.values if self._place is None else self._short

    def _ranges_of(self, table: pa.Table) -> Ranges:
        codes = self._names.codes(table.column("name"))
        codes = codes if self._place is None else self._place[codes]
        domain = self._domains.codes(table.column("domain"))
        return Ranges(
            ints(table.column("thread")),
            Names(domain, self._domains.values),
            Names(codes, self._range_names),
            ints(table.column("start_ns")),
            ints(table.column("end_ns")),
        )

    def _closed(self, table: pa.Table) -> Ranges:
        found = self._ranges_of(table)
        closed = found.end != OPEN
        return ranges_in_order(found if closed.all() else found[closed])

    def _calls_of(self, table: pa.Table) -> ApiCalls:
        codes = self._apis.codes(table.column("name"))
        columns = {name: ints(table.column(name)) for name in CALL_COLUMNS if name != "name"}
        return calls_in_order(
            ApiCalls(
                columns["thread"],
                columns["correlation_id"],
                Names(codes, self._apis.values),
                columns["start_ns"],
                columns["end_ns"],
            )
        )

    def outline(self, shelf: Shelf | None = None) -> Outline:
        """Go through the ranges once. ``shelf``: where those that play a part go; there are a few for each step.

        Raises UsageError when the reading's step pattern does not compile.
        """
        reading, pattern, prefill = self.reading, self.reading.step_pattern(), self.reading.prefill_pattern()
        parts_named = {reading.agreement, reading.prepare, reading.alloc}
        plays, counts = np.zeros(0, bool), np.zeros((0, 0), np.int64)
        columns, whole_names, num_open = [Growing(shelf, np.int64) for _ in range(5)], [], 0
        for group in range(self.ranges.num_groups if self.ranges is not None else 0):
            assert self.ranges is not None
            table = self.ranges.read(group, RANGE_COLUMNS)
            every = self._ranges_of(table)
            closed = every.end != OPEN
            found = every if closed.all() else every[closed]
            num_open += len(every) - len(found)
            fresh = found.name.values[len(plays) :]
            has_part = [n in parts_named or bool(pattern.fullmatch(n) or prefill.fullmatch(n)) for n in fresh]
            plays = np.append(plays, has_part).astype(bool)
            counts = _grown(counts, len(found.domain.values), len(found.name.values))
            place = found.domain.codes * counts.shape[1] + found.name.codes
            counts += np.bincount(place, minlength=counts.size).reshape(counts.shape)
            own = ranges_in_order(found[plays[found.name.codes]])
            kept = (own.thread, own.domain.codes, own.name.codes, own.start, own.end)
            for column, values in zip(columns, kept, strict=True):
                column.add(values)
            if reading.composition is not None:
                whole_names.append(self._step_names(table, found, closed))
        roles = self._in_order([column.array() for column in columns], shelf)
        del columns
        steps, findings = steps_among(roles, self.process.rank, reading)
        steps = steps.kept(shelf)
        _let_go(roles)
        named = ranges_in_order(Ranges.joined(whole_names))
        return Outline(self._range_names, self._domains.values, counts, num_open, roles, steps, findings, named)

    def _in_order(self, columns: Sequence[IntArray], shelf: Shelf | None) -> Ranges:
        """Ranges of these columns, from thread to end; on the shelf, if there is one and they are many."""
        *_, start, end = columns
        if (order := order_of(start, lambda: -end)) is not None:
            columns = [stored(column[order], shelf).mapped() for column in columns]
        thread, domain, name, start, end = columns
        return Ranges(
            slim(thread), Names(slim(domain), self._domains.values), Names(name, self._range_names), start, end
        )

    def _step_names(self, table: pa.Table, found: Ranges, closed: BoolArray) -> Ranges:
        """The closed ranges that match the step's name, under their names as the engine wrote them."""
        is_step = found.name.matching(self.reading.step_pattern())
        whole = Names(self._names.codes(table.column("name"))[closed][is_step], self._names.values)
        return replace(found[is_step], name=whole)

    def windows(self, domain: str, num_rows: int) -> Iterator[Window]:
        """All ranges and calls, ``num_rows`` or so a window. ``domain``: that of the step range."""
        ranges, calls = self._ranges_ahead(), self._calls_ahead()
        begin: int | None = None
        open_ranges, open_calls = Ranges.joined([]), ApiCalls.joined([])
        for stop in (*cuts([self.ranges, self.calls], num_rows), None):
            new, called = ranges.until(stop), calls.until(stop)
            is_own = new.domain.among({domain})
            own = Ranges.joined([open_ranges, new if is_own.all() else new[is_own]])
            stays_open = np.zeros(len(own), bool) if stop is None else own.end > stop
            coming = self._ids_of(calls)
            yield Window(begin, stop, new, thread_ranges(own, domain), stays_open, called, open_calls, coming)
            if stop is not None:
                recent = ApiCalls.joined([open_calls, called])
                open_ranges, open_calls = own[stays_open], recent[recent.end > stop]
            begin = stop

    def calls_alone(self, num_rows: int) -> Iterator[tuple[ApiCalls, tuple[Span, ...]]]:
        """The calls of each window, and where the correlation ids of later ones lie."""
        calls = self._calls_ahead()
        for stop in (*cuts([self.calls], num_rows), None):
            called = calls.until(stop)
            yield called, self._ids_of(calls)

    def _ranges_ahead(self) -> Ahead[Ranges]:
        starts = spans(self.ranges, "start_ns")
        return Ahead(self.ranges, RANGE_COLUMNS, self._closed, lambda rows: rows.start, Ranges.joined, starts)

    def _calls_ahead(self) -> Ahead[ApiCalls]:
        starts = spans(self.calls, "start_ns")
        return Ahead(self.calls, CALL_COLUMNS, self._calls_of, lambda rows: rows.start, ApiCalls.joined, starts)

    def _ids_of(self, calls: Ahead[ApiCalls]) -> tuple[Span, ...]:
        if self.calls is None:
            return ()
        unread = [self.calls.span(group, "correlation_id") for group in calls.unread]
        begun = [(int(rows.correlation.min()), int(rows.correlation.max())) for rows in calls.begun.values()]
        return *unread, *begun


def _let_go(ranges: Ranges) -> None:
    for column in (ranges.thread, ranges.domain.codes, ranges.name.codes, ranges.start, ranges.end):
        let_go(column)


def _grown(counts: IntArray, rows: int, columns: int) -> IntArray:
    grown = np.zeros((rows, columns), np.int64)
    grown[: counts.shape[0], : counts.shape[1]] = counts
    return grown
