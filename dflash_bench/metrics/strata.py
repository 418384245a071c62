"""What kind of work each step did, so that like is compared with like.

Steps that prefill are longer and launch no decode graph; a step that falls back from its CUDA graph to eager launches
is another step than its neighbours. They are counted apart, and timed apart where there are enough of them.
"""

from __future__ import annotations

from collections.abc import Iterator
from enum import StrEnum

import numpy as np

from dflash_bench.metrics.events import Ranges, Reading
from dflash_bench.metrics.intervals import NONE, intervals
from dflash_bench.metrics.launches import is_launch
from dflash_bench.metrics.windows import Outline, Window
from dflash_bench.model import BoolArray, IntArray

MIN_STEPS = 20
"""Steps of a kind from which it has figures of its own: of fewer a median says little."""


class Stratum(StrEnum):
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


class StrataMeter:
    """Tells the steps apart by their names where an engine writes the numbers of requests into them; otherwise by
    prefill ranges between a step's start and the next one's, and by graph launches inside the step.

    Where most steps launch no graph, every step counts as decoding: then only the ranges tell. Holds five bytes a step.
    """

    def __init__(self, outline: Outline, reading: Reading) -> None:
        self.outline, self.reading = outline, reading
        self.launches, self.launches_graph = (np.zeros(len(outline.steps), bool) for _ in range(2))
        self.has_prefill, self.has_decode, self.is_told = self._by_name()
        self.has_prefill |= ~self.is_told & self._holds_prefill()
        del self.outline

    def see(self, window: Window, step: IntArray) -> None:
        """Take in the calls of a window; ``step`` int64 [calls] is the step of each, or NONE."""
        names, inside = window.calls.name, step != NONE
        self.launches[step[is_launch(names) & inside]] = True
        self.launches_graph[step[names.containing("GraphLaunch") & inside]] = True

    def finish(self) -> dict[Stratum, BoolArray]:
        """bool [steps] for each kind that occurs: which steps are of it. Each step is of one kind."""
        is_graphed = bool(self.launches_graph.mean() > 0.5)
        decodes = np.where(self.is_told, self.has_decode, self.launches_graph if is_graphed else True)
        without_graph = ~self.has_prefill & ~self.launches_graph & is_graphed
        found = {
            Stratum.DECODE: ~self.has_prefill & ~without_graph,
            Stratum.PREFILL: self.has_prefill & ~decodes,
            Stratum.MIXED: self.has_prefill & decodes,
            Stratum.EAGER: without_graph & self.launches,
            Stratum.IDLE: without_graph & ~self.launches,
        }
        return {kind: steps for kind, steps in found.items() if steps.any()}

    def _by_name(self) -> tuple[BoolArray, BoolArray, BoolArray]:
        """Whether each step prefills and whether it decodes, as its name says, and whether it says so at all."""
        prefill, decode, told = (np.zeros(len(self.outline.steps), bool) for _ in range(3))
        pattern, named = self.reading.composition, self.outline.named_steps
        if pattern is None or not len(named):
            return prefill, decode, told
        found = [pattern.fullmatch(name) for name in named.name.values]
        counts = np.array([[int(m["prefill"]), int(m["decode"])] if m else [0, 0] for m in found]).reshape(-1, 2)
        step = self._same_step(named)
        codes = named.name.codes[step != NONE]
        step = step[step != NONE]
        prefill[step], decode[step] = (counts[codes] > 0).T
        told[step] = np.array([m is not None for m in found], bool)[codes]
        return prefill, decode, told

    def _same_step(self, named: Ranges) -> IntArray:
        """The step that each of these ranges is, or NONE: some are not counted as steps."""
        steps = self.outline.steps
        place = np.minimum(np.searchsorted(steps.start, named.start), len(steps) - 1)
        is_same = (steps.start[place] == named.start) & (steps.end[place] == named.end)
        return np.where(is_same, place, NONE)

    def _holds_prefill(self) -> BoolArray:
        steps, reading = self.outline.steps, self.reading
        own = self.outline.matching(reading.prefill_pattern())
        # a decode step allocates with the same code as a prefill does
        prepare = self.outline.own(reading.prepare)
        is_of_decode = intervals(prepare.start, prepare.end).holding(own.start) != NONE
        step = np.searchsorted(steps.start, own.start[~is_of_decode], side="right") - 1
        return np.bincount(step[step >= 0], minlength=len(steps)) > 0


def timed(strata: dict[Stratum, BoolArray]) -> Iterator[tuple[Stratum, BoolArray]]:
    """The kinds that have figures of their own: those with steps enough, if there are several kinds at all."""
    for kind, steps in strata.items() if len(strata) > 1 else ():
        if steps.sum() >= MIN_STEPS:
            yield kind, steps
