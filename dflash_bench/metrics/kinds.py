"""What kind of work each step did, so that like is compared with like: ``steps@KIND``, ``step.period@KIND``.

Steps that prefill are longer and launch no decode graph; a step that falls back from its CUDA graph to eager launches
is another step than its neighbours. They are counted apart, and timed apart where there are enough of them.
"""

from __future__ import annotations

from collections.abc import Iterator
from enum import StrEnum

import numpy as np

from dflash_bench.metrics.events.arrays import NONE
from dflash_bench.metrics.events.intervals import intervals
from dflash_bench.metrics.events.launches import is_launch
from dflash_bench.metrics.measurements import Measurements
from dflash_bench.metrics.view import View
from dflash_bench.model import BoolArray

MIN_STEPS = 20
"""Steps of a kind from which it has figures of its own: of fewer a median says little."""


class Kind(StrEnum):
    """The kinds of steps."""

    DECODE = "decode"
    """Nothing but decode work, launched as most steps launch it."""
    PREFILL = "prefill"
    """Prefill and no decode work."""
    MIXED = "mixed"
    """Prefill and decode work."""
    EAGER = "eager"
    """Launches, but no CUDA graph, where most steps launch one."""
    IDLE = "idle"
    """No launch at all, where most steps launch a CUDA graph."""


def kinds_of(view: View) -> dict[Kind, BoolArray]:
    """bool [steps] for each kind that occurs: which steps are of it. Each step is of one kind.

    Told by the steps' names where an engine writes the numbers of requests into them; otherwise by prefill ranges
    between a step's start and the next one's, and by graph launches inside the step. Where most steps launch no graph,
    every step counts as decoding: then only the ranges tell.
    """
    steps, names, inside = view.steps, view.events.calls.name, view.step_of_call != NONE
    launches, launches_graph = np.zeros((2, len(steps)), bool)
    launches[view.step_of_call[is_launch(names) & inside]] = True
    launches_graph[view.step_of_call[names.containing("GraphLaunch") & inside]] = True
    prefills, decodes, is_told = _by_name(view)
    prefills |= ~is_told & _holds_prefill(view)
    is_graphed = bool(launches_graph.mean() > 0.5)
    decodes = np.where(is_told, decodes, launches_graph if is_graphed else True)
    without_graph = ~prefills & ~launches_graph & is_graphed
    found = {
        Kind.DECODE: ~prefills & ~without_graph,
        Kind.PREFILL: prefills & ~decodes,
        Kind.MIXED: prefills & decodes,
        Kind.EAGER: without_graph & launches,
        Kind.IDLE: without_graph & ~launches,
    }
    return {kind: steps for kind, steps in found.items() if steps.any()}


def _by_name(view: View) -> tuple[BoolArray, BoolArray, BoolArray]:
    """Whether each step prefills and whether it decodes, as its name says, and whether it says so at all."""
    steps, pattern = view.steps, view.reading.composition
    prefills, decodes, told = np.zeros((3, len(steps)), bool)
    if pattern is None:
        return prefills, decodes, told
    named = view.own[view.own.name.matching(view.reading.step_pattern())]
    found = [pattern.fullmatch(name) for name in named.full_name.values]
    counts = np.array([[int(m["prefill"]), int(m["decode"])] if m else [0, 0] for m in found]).reshape(-1, 2)
    # some ranges of the name are not counted as steps
    place = np.minimum(np.searchsorted(steps.start, named.start), len(steps) - 1)
    is_step = (steps.start[place] == named.start) & (steps.end[place] == named.end)
    step, codes = place[is_step], named.full_name.codes[is_step]
    prefills[step], decodes[step] = (counts[codes] > 0).T
    told[step] = np.array([m is not None for m in found], bool)[codes]
    return prefills, decodes, told


def _holds_prefill(view: View) -> BoolArray:
    own = view.own[view.own.name.matching(view.reading.prefill_pattern())]
    # a decode step allocates with the same code as a prefill does
    prepare = view.named(view.reading.prepare)
    is_of_decode = intervals(prepare.start, prepare.end).holding(own.start) != NONE
    return view.steps.sum_by(view.steps.covering(own.start[~is_of_decode])) > 0


def timed(kinds: dict[Kind, BoolArray]) -> Iterator[tuple[Kind, BoolArray]]:
    """The kinds that have figures of their own: those with steps enough, if there are several kinds at all."""
    for kind, steps in kinds.items() if len(kinds) > 1 else ():
        if steps.sum() >= MIN_STEPS:
            yield kind, steps


def measure_kinds(view: View, found: Measurements) -> None:
    """How many steps there are of each kind, and how long they take."""
    steps = view.steps
    if not len(steps):
        return
    kinds = kinds_of(view)
    for kind, is_own in kinds.items():
        found.add_value(f"steps@{kind}", int(is_own.sum()), len(steps))
    for kind, is_own in timed(kinds):
        # until the next step starts: the last one has none
        own = np.flatnonzero(is_own & steps.is_followed)
        found.add(f"step.period@{kind}", steps.start[own + 1] - steps.start[own], own)
