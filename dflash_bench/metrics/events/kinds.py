"""What kind of work each step did, as far as the capture tells."""

from __future__ import annotations

from enum import StrEnum

import numpy as np

from dflash_bench.metrics.events.arrays import NONE, Names
from dflash_bench.metrics.events.host import Ranges
from dflash_bench.metrics.events.intervals import intervals
from dflash_bench.metrics.events.launches import is_launch
from dflash_bench.metrics.events.steps import Steps
from dflash_bench.metrics.reading import Reading
from dflash_bench.model import BoolArray, IntArray


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
    """No launch at all, where others launch."""
    UNKNOWN = "unknown"
    """Nothing in the capture tells: no composition in the name, no prefill range, no graph launches."""


def kinds_of(
    steps: Steps, own: Ranges, calls: Names, step_of_call: IntArray, reading: Reading
) -> dict[Kind, BoolArray]:
    """bool [steps] for each kind that occurs: which steps are of it. Each step is of one kind.

    Told by the steps' names where an engine writes the numbers of requests into them; otherwise by prefill ranges
    between a step's start and the next one's, and by graph launches inside the step, where most steps that launch
    anything launch a graph. ``calls``, ``step_of_call``: the API calls by name, and the step of each, or NONE.
    """
    inside = step_of_call != NONE
    works = is_launch(calls) | calls.containing("Memcpy") | calls.containing("Memset")
    launches, launches_graph = np.zeros((2, len(steps)), bool)
    launches[step_of_call[works & inside]] = True
    launches_graph[step_of_call[calls.containing("GraphLaunch") & inside]] = True
    prefills, decodes, is_told = _by_name(steps, own, reading)
    by_range = _holds_prefill(steps, own, reading)
    prefills |= ~is_told & by_range
    is_graphed = launches_graph.sum() > launches.sum() / 2
    if is_graphed:
        decodes = np.where(is_told, decodes, launches_graph)
    is_idle = ~prefills & ~launches & launches.any()
    is_eager = ~is_idle & ~prefills & ~launches_graph & is_graphed & ~(is_told & decodes)
    is_known = is_told | is_graphed | by_range.any()
    found = {
        Kind.DECODE: ~prefills & ~is_idle & ~is_eager & is_known,
        Kind.PREFILL: prefills & ~decodes,
        Kind.MIXED: prefills & decodes,
        Kind.EAGER: is_eager,
        Kind.IDLE: is_idle,
        Kind.UNKNOWN: ~prefills & ~is_idle & ~is_eager & ~is_known,
    }
    return {kind: steps for kind, steps in found.items() if steps.any()}


def _by_name(steps: Steps, own: Ranges, reading: Reading) -> tuple[BoolArray, BoolArray, BoolArray]:
    """Whether each step prefills and whether it decodes, as its name says, and whether it says so at all."""
    prefills, decodes, told = np.zeros((3, len(steps)), bool)
    if reading.composition is None or not len(steps):
        return prefills, decodes, told
    named = own[reading.is_step(own)]
    found = [reading.composition_of(name) for name in named.full_name.values]
    counts = np.array([(0, 0) if each is None else each for each in found], bool).reshape(-1, 2)
    # some ranges of the name are not counted as steps
    place = np.minimum(np.searchsorted(steps.start, named.start), len(steps) - 1)
    is_step = (steps.start[place] == named.start) & (steps.end[place] == named.end)
    step, codes = place[is_step], named.full_name.codes[is_step]
    prefills[step], decodes[step] = counts[codes].T
    told[step] = np.array([each is not None for each in found], bool)[codes]
    return prefills, decodes, told


def _holds_prefill(steps: Steps, own: Ranges, reading: Reading) -> BoolArray:
    prefill = own[own.name.matching(reading.prefill_pattern())]
    # a decode step allocates with the same code as a prefill does
    prepare = own[own.name.among({reading.prepare})]
    is_of_decode = intervals(prepare.start, prepare.end).holding(prefill.start) != NONE
    return steps.sum_by(steps.covering(prefill.start[~is_of_decode])) > 0
