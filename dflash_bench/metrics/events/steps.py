"""Steps: the ranges that everything else is counted against."""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np

from dflash_bench.duet import duet_mark
from dflash_bench.findings import finding
from dflash_bench.metrics.events.arrays import NONE, OPEN, Index, Names
from dflash_bench.metrics.events.host import ApiCalls, Ranges
from dflash_bench.metrics.reading import Reading
from dflash_bench.model import BoolArray, Finding, IntArray


@dataclass(frozen=True, slots=True)
class Steps:
    """The steps of one process that count, ascending, none inside another. All arrays [n].

    ``domain`` is where its own ranges live (libraries use others). ``next_start`` is where the next step of the process
    starts, counted or not, OPEN where there is none, or in a duet none in the same block. ``pair`` is the pair of
    blocks that each step is from, in a duet.
    """

    start: IntArray
    end: IntArray
    domain: str
    next_start: IntArray
    pair: IntArray | None = None

    def __len__(self) -> int:
        return len(self.start)

    def __getitem__(self, index: Index) -> Steps:
        pair = None if self.pair is None else self.pair[index]
        return Steps(self.start[index], self.end[index], self.domain, self.next_start[index], pair)

    @property
    def is_followed(self) -> BoolArray:
        """bool [n]: whether there is a next step."""
        return self.next_start != OPEN

    @property
    def stop(self) -> IntArray:
        """Where what belongs to a step ends: at the start of the next, or with the step itself where none follows."""
        return np.where(self.is_followed, self.next_start, self.end)

    def covering(self, t: IntArray) -> IntArray:
        """The step whose [start, stop) holds each instant, or NONE. int64 [n] → int64 [n]."""
        found = np.searchsorted(self.start, t, side="right") - 1
        return np.where((found >= 0) & (t < self.stop[found]), found, NONE) if len(self) else found

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
        return self.sum_by(self.of(t)) > 0

    def sum_by(self, step: IntArray, weights: IntArray | None = None) -> IntArray:
        """int64 [steps]: the weights, or 1 each, summed up by step. ``step`` int64 [n], NONE for outside."""
        inside = step != NONE
        if weights is None:
            return np.bincount(step[inside], minlength=len(self))
        total = np.zeros(len(self), np.int64)
        np.add.at(total, step[inside], weights[inside])
        return total


def find_steps(ranges: Ranges, rank: int | None, reading: Reading) -> tuple[Steps, tuple[Finding, ...]]:
    """The steps among ranges: those whose name matches, in one domain, none inside another.

    Two scopes of one name per iteration, one within the other, would double the steps: the inner ones are left out and
    counted. A name in two domains counts in the domain that has it more often.
    """
    findings = []
    found = ranges[reading.is_step(ranges)]
    domain, others = _main_domain(found)
    if others:
        findings.append(finding("step_name_in_two_domains", rank, others, domain=domain))
        found = found[found.domain.among({domain})]
    latest_end = np.maximum.accumulate(found.end)
    inner = np.concatenate([[False], found.start[1:] < latest_end[:-1]]) if len(found) else np.zeros(0, bool)
    if inner.any():
        findings.append(finding("step_inside_step", rank, int(inner.sum())))
        found = found[~inner]
    return Steps(found.start, found.end, domain, np.append(found.start[1:], OPEN)[: len(found)]), tuple(findings)


def _main_domain(found: Ranges) -> tuple[str, int]:
    if not len(found):
        return "", 0
    counts = np.bincount(found.domain.codes, minlength=len(found.domain.values))
    best = int(counts.argmax())
    return found.domain.values[best], int(counts.sum() - counts[best])


def steps_between(calls: ApiCalls, name: str) -> Steps:
    """Steps that each begin with a call of this name, on the thread that has most of them, and end at the next one."""
    found = calls[calls.name.among({name})]
    threads, count = np.unique(found.thread, return_counts=True)
    found = found[found.thread == threads[count.argmax()]] if len(found) else found
    next_start = np.append(found.start[1:], OPEN)[: len(found)]
    return Steps(found.start, np.where(next_start == OPEN, found.end, next_start), "", next_start)


@dataclass(frozen=True, slots=True)
class Blocks:
    """Blocks of steps of one arm, in order. All arrays [n]."""

    open: IntArray
    close: IntArray
    pair: IntArray


def blocks_of(marks: Names, t: IntArray, arm: str) -> Blocks:
    """The blocks of an arm: from each mark that opens one to the mark that closes it."""
    found = [(int(at), duet_mark(marks.values[code])) for at, code in sorted(zip(t, marks.codes, strict=True))]
    own = [(at, mark) for at, mark in found if mark is not None and mark.arm == arm]
    opened = [(at, mark) for at, mark in own if mark.is_open]
    closed = {mark.pair: at for at, mark in own if not mark.is_open}
    whole = [(at, closed[mark.pair], mark.pair) for at, mark in opened if mark.pair in closed]
    return Blocks(*np.array(whole, np.int64).reshape(-1, 3).T)


def in_blocks(steps: Steps, blocks: Blocks) -> Steps:
    """The steps that start inside a block, with its pair."""
    block = np.searchsorted(blocks.open, steps.start, side="right") - 1
    inside = (block >= 0) & (steps.start < np.append(blocks.close, 0)[block])
    pair = blocks.pair[block[inside]]
    is_last = np.append(pair[1:] != pair[:-1], True)[: len(pair)]
    found = steps[inside]
    return replace(found, next_start=np.where(is_last, OPEN, found.next_start), pair=pair)
