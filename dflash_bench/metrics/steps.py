"""Steps: the ranges that everything else is counted against."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from dflash_bench.findings import finding
from dflash_bench.layout import Events
from dflash_bench.metrics.events.arrays import NONE, read_columns
from dflash_bench.metrics.events.host import Ranges
from dflash_bench.metrics.measurements import Measurements
from dflash_bench.metrics.reading import Reading
from dflash_bench.model import BoolArray, Finding, IntArray

if TYPE_CHECKING:
    from dflash_bench.metrics.view import View


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
    found = ranges[ranges.name.matching(reading.step_pattern())]
    domain, others = _main_domain(found)
    if others:
        findings.append(finding("step_name_in_two_domains", rank, others, domain=domain))
        found = found[found.domain.among({domain})]
    latest_end = np.maximum.accumulate(found.end)
    inner = np.concatenate([[False], found.start[1:] < latest_end[:-1]]) if len(found) else np.zeros(0, bool)
    if inner.any():
        findings.append(finding("step_inside_step", rank, int(inner.sum())))
        found = found[~inner]
    return Steps(found.start, found.end, domain), tuple(findings)


def _main_domain(found: Ranges) -> tuple[str, int]:
    if not len(found):
        return "", 0
    counts = np.bincount(found.domain.codes, minlength=len(found.domain.values))
    best = int(counts.argmax())
    return found.domain.values[best], int(counts.sum() - counts[best])


def measure_steps(view: View, found: Measurements) -> None:
    """``step.period``, and how many steps the profiler's overhead touched; a warning where there are no steps."""
    steps = view.steps
    found.findings.extend(view.step_findings)
    if not len(steps):
        _warn_of_no_steps(view, found)
        return
    found.add("step.period", np.diff(steps.start), np.arange(1, len(steps)))
    overhead = read_columns(view.profile, Events.OVERHEAD, view.events.process, ("start_ns", "end_ns"))
    touched = num_touched(steps, *overhead.values())
    found.add_value("coverage.steps_with_overhead", touched, len(steps))


def _warn_of_no_steps(view: View, found: Measurements) -> None:
    names = view.events.ranges.name
    if not len(names):
        found.warn("no_steps", 0, reason="no NVTX ranges in the capture", hint="")
        return
    counts = np.bincount(names.codes, minlength=len(names.values))
    some = ", ".join(f"{names.values[k]!r}" for k in np.argsort(-counts, kind="stable")[:5])
    hint = f" (choose one with --step-range; the most frequent are {some})"
    found.warn("no_steps", len(names), reason=f"no range named {view.reading.step!r}", hint=hint)


def num_touched(steps: Steps, start: IntArray, end: IntArray) -> int:
    """How many steps any of these intervals overlaps."""
    first = np.searchsorted(steps.end, start, side="right")
    last = np.searchsorted(steps.start, end, side="left")
    change = np.zeros(len(steps) + 1, np.int64)
    overlapping = first < last
    np.add.at(change, first[overlapping], 1)
    np.add.at(change, last[overlapping], -1)
    return int((np.cumsum(change)[:-1] > 0).sum())
