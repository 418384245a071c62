"""What is lost at the end of a capture, and ranges whose pushes and pops do not match.

A server that is killed before its rows are collected leaves steps without some of their ranges, calls or GPU rows, or
calls without ranges. None of that is an error of the file, and all of it makes figures of its last part too small.
"""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from dflash_bench.metrics.events.arrays import NONE, Names
from dflash_bench.metrics.events.host import thread_index
from dflash_bench.metrics.events.launches import is_launch
from dflash_bench.metrics.events.steps import Steps
from dflash_bench.metrics.measurements import Measurements
from dflash_bench.metrics.view import View
from dflash_bench.model import BoolArray, IntArray

_NEARLY_ALL = 0.95
"""Share of the steps before a tail that have what it lacks, from which on that is missing rather than rare."""

_FEW = 10
"""Steps before a tail that do not tell yet what steps have."""

_LONG = 3
"""Periods of steps, and launches of as many, that must follow the last step before ranges are taken to be lost."""


_BRIEF = 0.5
"""Part of a usual step below which one is taken to be empty."""


def measure_endings(view: View, found: Measurements) -> None:
    """Warnings, each with its part of the capture; the figures keep what there is."""
    if not len(view.steps):
        return
    _warn_of_tail(view, found)
    _warn_of_launches_after(view, found)
    _warn_of_crossings(view, found)
    _warn_of_unclosed(view, found)


def _warn_of_tail(view: View, found: Measurements) -> None:
    steps, number = view.chosen_steps, np.flatnonzero(_is_at_work(view))
    tails = {name: tail for name, has in _lacking(view) if (tail := _tail(has[number]))}
    if not tails:
        return
    count = max(tails.values())
    first = int(number[-count])
    hint = f"; --steps :{first} leaves them out of every figure" if len(steps) == len(view.all_steps) else ""
    share = (steps.stop[-1] - steps.start[first]) / max(steps.stop[-1] - steps.start[0], 1)
    found.warn("tail_incomplete", count, num=len(number), share=f"{share:.0%}", names=", ".join(tails), hint=hint)


def _tail(has: BoolArray) -> int:
    """How many of the last steps lack what nearly all of those before have; 0 where it is no such thing."""
    before = int(np.flatnonzero(has)[-1]) + 1 if has.any() else 0
    is_usual = before >= max(_FEW, len(has) / 2) and has[:before].mean() >= _NEARLY_ALL
    return len(has) - before if is_usual else 0


def _lacking(view: View) -> Iterator[tuple[str, BoolArray]]:
    """What may be missing from the last step, and bool [chosen steps]: which steps have it."""
    steps, own = view.chosen_steps, view.own
    count = np.bincount(own.name.codes, minlength=len(own.name.values))
    count[own.name.codes[np.searchsorted(own.start, steps.start[-1]) :]] = 0
    for code in np.flatnonzero(2 * count >= len(view.steps)).tolist():
        yield own.name.values[code], _holding(steps, own.start[own.name.codes == code])
    for name, start in (("API calls", view.events.calls.start), ("GPU rows", view.events.gpu.start)):
        if len(start) and start.max() < steps.start[-1]:
            yield name, _holding(steps, start)


def _holding(steps: Steps, t: IntArray) -> BoolArray:
    """bool [steps]: in which any of these instants lies, the next step not begun; the last one never ends."""
    step = np.searchsorted(steps.start, t, side="right") - 1
    return np.bincount(step[step >= 0], minlength=len(steps)) > 0


def _is_at_work(view: View) -> BoolArray:
    """bool [chosen steps]: not idle, or with every range that nearly all steps at work have: their calls are lost.

    Steps far shorter than the others had nothing to do: an engine makes one at its end.
    """
    steps, at_work = view.chosen_steps, ~view.is_idle
    length = steps.end - steps.start
    is_brief = length < _BRIEF * np.median(length[at_work])
    if at_work.all():
        return ~is_brief
    inner = view.own[~view.reading.is_step(view.own)]
    count = np.bincount(inner.name.codes, minlength=len(inner.name.values))
    each = (
        _holding(steps, inner.start[inner.name.codes == code]) for code in np.flatnonzero(2 * count >= at_work.sum())
    )
    usual = [has for has in each if has[at_work].mean() >= _NEARLY_ALL]
    return ~is_brief & (at_work | np.logical_and.reduce(usual) if usual else at_work)


def _warn_of_launches_after(view: View, found: Measurements) -> None:
    """Where steps launch graphs, eager work behind the last one is something else: a check of results, a teardown."""
    steps, calls = view.all_steps, view.events.calls
    if len(steps) < _FEW:
        return
    graphs = calls.start[calls.name.containing("GraphLaunch")]
    start = graphs if len(graphs) >= len(steps) else calls.start[is_launch(calls.name)]
    last = max(int(steps.end[-1]), int(view.events.ranges.end.max(initial=0)))
    after = start[start > last]
    period = float(np.median(np.diff(steps.start)))
    if len(after) < _LONG * max(len(start) - len(after), 1) / len(steps) or after[-1] - last < _LONG * period:
        return
    share = (after[-1] - last) / (after[-1] - steps.start[0])
    found.warn("ranges_end_early", len(after), share=f"{share:.0%}")


def _warn_of_crossings(view: View, found: Measurements) -> None:
    """Pushed ranges end within the one that they began in, whatever the program does, if they are popped as pushed."""
    pushed = view.own[~view.own.is_span]
    parent = (view.own_index if len(pushed) == len(view.own) else thread_index(pushed)).parents
    crosses = np.flatnonzero((parent != NONE) & (pushed.end > pushed.end[parent]))
    if not len(crosses):
        return
    steps = view.steps
    length = steps.stop - steps.start
    touched = np.unique(steps.covering(pushed.start[crosses]))
    touched = touched[touched != NONE]
    share = length[touched].sum() / max(length.sum(), 1)
    both = np.concatenate([pushed.name.codes[crosses], pushed.name.codes[parent[crosses]]])
    names = _most(pushed.name, both)
    num = len(pushed)
    found.warn("ranges_misnested", len(crosses), num=num, names=names, steps=len(touched), share=f"{share:.0%}")


def _warn_of_unclosed(view: View, found: Measurements) -> None:
    """Of ranges that the end of the capture found open no later step is known; others were never popped."""
    steps, unclosed = view.all_steps, view.events.unclosed
    is_own = (unclosed.thread == view.step_thread) & unclosed.domain.among({view.domain}) & ~unclosed.is_span
    left = unclosed[is_own & (unclosed.start >= steps.start[0]) & (unclosed.start < steps.start[-1])]
    if len(left):
        first = int(np.searchsorted(steps.start, left.start.min(), side="right")) - 1
        found.warn("ranges_not_closed", len(left), names=_most(left.name, left.name.codes), first=first)


def _most(names: Names, codes: IntArray, limit: int = 4) -> str:
    """The names that these codes occur most of, the first few; of equally many by name, not by place in the file."""
    count = np.bincount(codes, minlength=len(names.values))
    found = [names.values[k] for k in sorted(np.flatnonzero(count), key=lambda k: (-count[k], names.values[k]))]
    return ", ".join(found[:limit]) + (", …" if len(found) > limit else "")
