"""Steps: the ranges that everything else is counted against."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from dflash_bench.metrics.events import ProcessEvents, Ranges, Reading
from dflash_bench.metrics.intervals import NONE, Intervals, intervals, used_codes
from dflash_bench.model import BoolArray, Finding, IntArray


@dataclass(frozen=True, slots=True)
class Steps:
    """The steps of one process, ascending. ``domain`` is where its own ranges live (libraries use others)."""

    start: IntArray
    end: IntArray
    domain: str
    _index: Intervals

    def __len__(self) -> int:
        return len(self.start)

    def of(self, t: IntArray) -> IntArray:
        """The step whose [start, end) holds each instant, or NONE. int64 [n] → int64 [n]."""
        found = self._index.holding(t)
        return np.where(found == NONE, NONE, self._index.source[found])

    def holding_any(self, t: IntArray) -> BoolArray:
        """bool [steps]: which steps hold at least one of these instants."""
        return np.bincount(_inside(self.of(t)), minlength=len(self)) > 0

    def sum_of(self, t: IntArray, weights: IntArray) -> IntArray:
        """int64 [steps]: the weights summed up by step; instants outside steps do not count."""
        step = self.of(t)
        total = np.zeros(len(self), np.int64)
        np.add.at(total, step[step != NONE], weights[step != NONE])
        return total


def _inside(step: IntArray) -> IntArray:
    return step[step != NONE]


def find_steps(events: ProcessEvents, reading: Reading) -> tuple[Steps, tuple[Finding, ...]]:
    """The steps of a process: its ranges whose name matches, in one domain, none inside another.

    Two scopes of one name per iteration, one within the other, would double the steps: the inner ones are left out and
    counted. A name in two domains counts in the domain that has it more often.
    """
    ranges, rank, findings = events.ranges, events.process.rank, []
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
    kept = found[~inner]
    return Steps(kept.start, kept.end, domain, intervals(kept.start, kept.end)), tuple(findings)


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
        for key in np.unique(thread):
            if int(key) in self.by_thread:
                index, rows = self.by_thread[int(key)]
                mine = np.flatnonzero(thread == key)
                held = index.holding(t[mine])
                found[mine] = np.where(held == NONE, NONE, rows[index.source[held]])
        return found

    def paths(self) -> tuple[list[str], IntArray]:
        """The path of each range: names from the outermost that holds it to its own, joined by `` > ``.

        Returns the paths that occur and, int64 [ranges], which one is whose.
        """
        parent = np.full(len(self.ranges), NONE, np.int64)
        for index, rows in self.by_thread.values():
            held = index.parents()
            parent[rows[index.source]] = np.where(held == NONE, NONE, rows[index.source[held]])
        paths: list[str] = []
        code = np.full(len(self.ranges), NONE, np.int64)
        level = np.flatnonzero(parent == NONE)
        while len(level):
            code[level] = self._extend(paths, np.where(parent[level] == NONE, NONE, code[parent[level]]), level)
            level = np.flatnonzero((code == NONE) & (code[parent] != NONE))
        return paths, code

    def _extend(self, paths: list[str], outer: IntArray, level: IntArray) -> IntArray:
        """Append the paths of one nesting level and return the code of each range on it."""
        names, base = self.ranges.name, len(paths)
        num_names = len(names.values)
        pairs, place = used_codes((outer + 1) * num_names + names.codes[level], (base + 1) * num_names)
        for pair in pairs.tolist():
            path, name = divmod(pair, num_names)
            paths.append(names.values[name] if path == 0 else f"{paths[path - 1]} > {names.values[name]}")
        return base + place


def thread_ranges(ranges: Ranges, domain: str) -> ThreadRanges:
    """Index the ranges of the step range's domain by thread: ranges of libraries never take the blame."""
    is_own = ranges.domain.among({domain})
    own = ranges if is_own.all() else ranges[is_own]
    by_thread = {}
    for thread in np.unique(own.thread):
        rows = np.flatnonzero(own.thread == thread)
        by_thread[int(thread)] = intervals(own.start[rows], own.end[rows]), rows
    return ThreadRanges(own, by_thread)
