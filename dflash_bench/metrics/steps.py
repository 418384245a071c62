"""Steps: the ranges that everything else is counted against."""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np

from dflash_bench.metrics.events import ProcessEvents, Ranges, Reading
from dflash_bench.metrics.intervals import NONE, Intervals, distinct, intervals, used_codes
from dflash_bench.metrics.shelf import Growing, Shelf, let_go, stored
from dflash_bench.model import BoolArray, Finding, IntArray


@dataclass(frozen=True, slots=True)
class Steps:
    """The steps of one process, ascending, none inside another.

    ``domain`` is where its own ranges live (libraries use others).
    """

    start: IntArray
    end: IntArray
    domain: str

    def __len__(self) -> int:
        return len(self.start)

    def kept(self, shelf: Shelf | None) -> Steps:
        """The same steps, on the shelf if there is one and they are many."""
        return replace(self, start=stored(self.start, shelf).mapped(), end=stored(self.end, shelf).mapped())

    def let_go(self) -> None:
        """From a shelf they take no memory until they are looked at again."""
        let_go(self.start)
        let_go(self.end)

    def of(self, t: IntArray) -> IntArray:
        """The step whose [start, end) holds each instant, or NONE. int64 [n] → int64 [n]."""
        found = np.searchsorted(self.start, t, side="right") - 1
        # before the first step this asks the last one, whose answer counts for nothing
        return np.where((found >= 0) & (t < self.end[found]), found, NONE) if len(self) else found

    def of_ascending(self, t: IntArray) -> IntArray:
        """As `of`, for instants in order: steps are few, so that their edges are looked for among the instants."""
        if not len(t):
            return np.zeros(0, np.int64)
        # steps do not overlap, so that those that hold any of these instants are neighbours
        low = max(0, int(np.searchsorted(self.start, t[0], side="right")) - 1)
        high = int(np.searchsorted(self.start, t[-1], side="right"))
        first = np.searchsorted(t, self.start[low:high])
        edges = np.stack([first, np.maximum(first, np.searchsorted(t, self.end[low:high]))], axis=1).ravel()
        held = np.full(len(edges) + 1, NONE, np.int64)
        held[1::2] = np.arange(low, high)
        return np.repeat(held, np.diff(edges, prepend=0, append=len(t)))

    def holding_any(self, t: IntArray) -> BoolArray:
        """bool [steps]: which steps hold at least one of these instants."""
        return np.bincount(_inside(self.of(t)), minlength=len(self)) > 0

    def sum_of(self, t: IntArray, weights: IntArray) -> IntArray:
        """int64 [steps]: the weights summed up by step; instants outside steps do not count."""
        step = self.of(t)
        total = np.zeros(len(self), np.int64)
        np.add.at(total, step[step != NONE], weights[step != NONE])
        return total


class PerStep:
    """One number for each step, summed up as time goes on: steps that are over go to the shelf, if there is one."""

    def __init__(self, num_steps: int, shelf: Shelf | None) -> None:
        self.num_steps, self.over = num_steps, Growing(shelf, np.int64)
        self.first, self.last_sum = 0, np.zeros(1, np.int64)
        self.every: IntArray | None = None

    def add(self, step: IntArray, values: IntArray | None = None) -> None:
        """Add values, or 1 each, to these steps, which ascend and go on where they ended the last time."""
        if not len(step):
            return
        sums = np.bincount(step - self.first) if values is None else np.zeros(step[-1] + 1 - self.first, np.int64)
        if values is not None:
            np.add.at(sums, step - self.first, values)
        sums[0] += self.last_sum[0]
        self.over.add(sums[:-1])
        self.first, self.last_sum = int(step[-1]), sums[-1:].copy()

    def array(self) -> IntArray:
        """The sums, int64 [steps]; from then on nothing can be added."""
        if self.every is None:
            if self.num_steps:
                self.over.add(self.last_sum)
                self.over.add(np.zeros(self.num_steps - self.first - 1, np.int64))
            self.every = self.over.array()
        return self.every


def _inside(step: IntArray) -> IntArray:
    return step[step != NONE]


def find_steps(events: ProcessEvents, reading: Reading) -> tuple[Steps, tuple[Finding, ...]]:
    """The steps of a process, see `steps_among`."""
    return steps_among(events.ranges, events.process.rank, reading)


def steps_among(ranges: Ranges, rank: int | None, reading: Reading) -> tuple[Steps, tuple[Finding, ...]]:
    """The steps among ranges: those whose name matches, in one domain, none inside another.

    Two scopes of one name per iteration, one within the other, would double the steps: the inner ones are left out and
    counted. A name in two domains counts in the domain that has it more often.
    """
    findings = []
    found = ranges[ranges.name.matching(reading.step_pattern())]
    domain, others = _main_domain(found)
    if others:
        text = f"{others:,} ranges match the step name in another domain than {domain!r} and do not count"
        findings.append(Finding("step_name_in_two_domains", rank, others, text))
        found = found[found.domain.among({domain})]
    latest_end = np.maximum.accumulate(found.end)
    inner = np.concatenate([[False], found.start[1:] < latest_end[:-1]]) if len(found) else np.zeros(0, bool)
    if inner.any():
        text = f"{inner.sum():,} step ranges begin inside another step and do not count"
        findings.append(Finding("step_inside_step", rank, int(inner.sum()), text))
        found = found[~inner]
    return Steps(found.start, found.end, domain), tuple(findings)


def _main_domain(found: Ranges) -> tuple[str, int]:
    if not len(found):
        return "", 0
    counts = np.bincount(found.domain.codes, minlength=len(found.domain.values))
    best = int(counts.argmax())
    return found.domain.values[best], int(counts.sum() - counts[best])


@dataclass(frozen=True, slots=True)
class ThreadRanges:
    """The program's own ranges of each thread, ready to be asked which one was innermost at an instant."""

    ranges: Ranges
    by_thread: dict[int, tuple[Intervals, IntArray]]

    def innermost(self, thread: IntArray, t: IntArray) -> IntArray:
        """Index into ``ranges`` of the innermost range of that thread at each instant, or NONE. int64 [n] each."""
        found = np.full(len(t), NONE, np.int64)
        for key in distinct(thread):
            if key in self.by_thread:
                index, rows = self.by_thread[key]
                mine = np.flatnonzero(thread == key)
                held = index.holding(t[mine])
                found[mine] = np.where(held == NONE, NONE, rows[index.source[held]])
        return found

    def of_thread(self, thread: int) -> tuple[Intervals, IntArray]:
        """The intervals of a thread, and which range each thing they were made of is."""
        nothing = np.zeros(0, np.int64)
        return self.by_thread.get(thread) or (intervals(nothing, nothing), nothing)

    def parents(self) -> IntArray:
        """For each range, the index of the innermost other one of its thread that holds its start, or NONE."""
        parent = np.full(len(self.ranges), NONE, np.int64)
        for index, rows in self.by_thread.values():
            held = index.parents
            parent[rows[index.source]] = np.where(held == NONE, NONE, rows[index.source[held]])
        return parent


class Paths:
    """The paths of ranges: names from the outermost range that holds it to its own, joined by `` > ``.

    ``values`` holds every path that was asked for, in whichever window.
    """

    def __init__(self) -> None:
        self.values: list[str] = []
        self._code_of: dict[tuple[int, int], int] = {}
        self._open = np.zeros(0, np.int64)

    def codes(self, own: ThreadRanges, wanted: IntArray, stays_open: BoolArray) -> IntArray:
        """Which path each wanted range has, int64 [n]; NONE for NONE.

        The ranges still open from before come first, with the path they had; ``stays_open`` bool [ranges]: those that
        will come first the next time.
        """
        parent = own.parents()
        code = np.full(len(own.ranges), NONE, np.int64)
        code[: len(self._open)] = self._open
        # few ranges hold a wait: only they and those around them are given a path
        rows = _with_outer(parent, np.concatenate([wanted[wanted != NONE], np.flatnonzero(stays_open)]))
        rows = rows[rows >= len(self._open)]
        level = rows[(parent[rows] == NONE) | (code[parent[rows]] != NONE)]
        while len(level):
            code[level] = self._extended(own, np.where(parent[level] == NONE, NONE, code[parent[level]]), level)
            rows = rows[code[rows] == NONE]
            level = rows[code[parent[rows]] != NONE]
        self._open = code[stays_open]
        return np.where(wanted == NONE, NONE, code[wanted]) if len(code) else wanted

    def _extended(self, own: ThreadRanges, outer: IntArray, level: IntArray) -> IntArray:
        """The paths of one nesting level, each its outer path and its own name."""
        names = own.ranges.name
        num_names = len(names.values)
        pairs, place = used_codes((outer + 1) * num_names + names.codes[level], (len(self.values) + 1) * num_names)
        found = [self._code(pair // num_names, pair % num_names, names.values) for pair in pairs.tolist()]
        return np.asarray(found, np.int64)[place]

    def _code(self, outer: int, name: int, names: tuple[str, ...]) -> int:
        if (outer, name) not in self._code_of:
            self._code_of[outer, name] = len(self.values)
            self.values.append(names[name] if outer == 0 else f"{self.values[outer - 1]} > {names[name]}")
        return self._code_of[outer, name]


def _with_outer(parent: IntArray, rows: IntArray) -> IntArray:
    """These ranges and all those around them, ascending. ``parent`` int64 [ranges]: what each lies in, or NONE."""
    is_met = np.zeros(len(parent), bool)
    while len(rows):
        is_met[rows] = True
        rows = parent[rows]
        rows = rows[rows != NONE]
        rows = rows[~is_met[rows]]
    return np.flatnonzero(is_met)


def thread_ranges(ranges: Ranges, domain: str) -> ThreadRanges:
    """Index the ranges of the step range's domain by thread: ranges of libraries never take the blame."""
    is_own = ranges.domain.among({domain})
    own = ranges if is_own.all() else ranges[is_own]
    by_thread = {}
    for thread in distinct(own.thread):
        rows = np.flatnonzero(own.thread == thread)
        by_thread[thread] = intervals(own.start[rows], own.end[rows]), rows
    return ThreadRanges(own, by_thread)
