"""Host events of a process: NVTX ranges and CUDA API calls, and which range of a thread held an instant."""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import cached_property

import numpy as np

from dflash_bench.layout import Events
from dflash_bench.metrics.events.arrays import (
    NONE,
    OPEN,
    Index,
    Names,
    at_rows,
    distinct,
    order_of,
    read_columns,
    selected,
)
from dflash_bench.metrics.events.intervals import Intervals, intervals
from dflash_bench.metrics.events.names import Rule, short_names
from dflash_bench.model import BoolArray, IntArray, ProcessInfo
from dflash_bench.profile import Profile


@dataclass(frozen=True, slots=True)
class Ranges:
    """NVTX ranges that have an end, ascending by start, of equal starts the longest first. All arrays [n].

    ``full_name`` is what the engine wrote, ``name`` what is left of it after shortening (`short_names`). ``is_span``:
    start/end ranges, which need not nest.
    """

    thread: IntArray
    domain: Names
    name: Names
    start: IntArray
    end: IntArray
    full_name: Names
    is_span: BoolArray

    def __len__(self) -> int:
        return len(self.start)

    def __getitem__(self, index: Index) -> Ranges:
        return selected(self, index)


@dataclass(frozen=True, slots=True)
class ApiCalls:
    """CUDA API calls, ascending by start, of equal starts by correlation id. All arrays [n].

    ``result``: what each returned, 0 for success, NONE where the capture does not say.
    """

    thread: IntArray
    correlation: IntArray
    name: Names
    start: IntArray
    end: IntArray
    result: IntArray

    def __len__(self) -> int:
        return len(self.start)

    def __getitem__(self, index: Index) -> ApiCalls:
        return selected(self, index)


def read_ranges(profile: Profile, process: ProcessInfo) -> tuple[Ranges, Ranges]:
    """The ranges of a process under their full names: those that were closed, and those that were not."""
    read = read_columns(profile, Events.RANGES, process, ("thread", "domain", "name", "start_ns", "end_ns", "kind"))
    thread, domain, name, start, end, kind = read.values()
    every = Ranges(thread, domain, name, start, end, name, kind.among({"start_end"}))
    closed = every.end != OPEN
    if closed.all():
        return ranges_in_order(every), every[:0]
    return ranges_in_order(every[closed]), ranges_in_order(every[~closed])


def shortened(ranges: Ranges, rules: tuple[Rule, ...]) -> Ranges:
    """The same ranges, their names shortened (`short_names`)."""
    full = ranges.full_name
    short = short_names(full.values, rules)
    if short.values == full.values:
        return replace(ranges, name=full)
    codes = at_rows(np.asarray(short.place, np.int64), full.codes) if full.values else full.codes
    return replace(ranges, name=Names(codes, short.values))


def read_calls(profile: Profile, process: ProcessInfo) -> ApiCalls:
    """The API calls of a process."""
    columns = ("thread", "correlation_id", "name", "start_ns", "end_ns", "return_value")
    return calls_in_order(ApiCalls(*read_columns(profile, Events.API_CALLS, process, columns).values()))


def ranges_in_order(found: Ranges) -> Ranges:
    """By start, of equal starts the longest first."""
    order = order_of(found.start, -found.end)
    return found if order is None else found[order]


def calls_in_order(found: ApiCalls) -> ApiCalls:
    """By start, of equal starts by correlation id."""
    order = order_of(found.start, found.correlation)
    return found if order is None else found[order]


@dataclass(frozen=True)  # without slots: `parents` is worked out once
class ThreadIndex:
    """Things with a start and an end, by thread, ready to be asked which one held an instant."""

    by_thread: dict[int, tuple[Intervals, IntArray]]
    """The intervals of a thread, and the row that each is."""

    size: int

    def innermost(self, thread: IntArray, t: IntArray) -> IntArray:
        """The row with the latest start that held each thread at an instant, or NONE. int64 [n] each."""
        found = np.full(len(t), NONE, np.int64)
        for key in distinct(thread):
            if key in self.by_thread:
                index, rows = self.by_thread[key]
                mine = np.flatnonzero(thread == key)
                held = index.holding(t[mine])
                found[mine] = np.where(held == NONE, NONE, rows[index.source[held]])
        return found

    def of_thread(self, thread: int) -> tuple[Intervals, IntArray]:
        """The intervals of a thread, and the row that each is."""
        nothing = np.zeros(0, np.int64)
        return self.by_thread.get(thread) or (intervals(nothing, nothing), nothing)

    @cached_property
    def parents(self) -> IntArray:
        """For each row, the innermost other one of its thread that holds its start, or NONE."""
        parent = np.full(self.size, NONE, np.int64)
        for index, rows in self.by_thread.values():
            held = index.parents
            parent[rows[index.source]] = np.where(held == NONE, NONE, rows[index.source[held]])
        return parent


def thread_index(found: Ranges | ApiCalls) -> ThreadIndex:
    """Index ranges or calls by thread."""
    by_thread = {}
    for thread in distinct(found.thread):
        rows = np.flatnonzero(found.thread == thread)
        by_thread[thread] = intervals(found.start[rows], found.end[rows]), rows
    return ThreadIndex(by_thread, len(found))
