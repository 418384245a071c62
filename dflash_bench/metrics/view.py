"""One process as the meters see it: its events, its steps, and what several of them ask for, each worked out once."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property

import numpy as np

from dflash_bench.metrics.events.gpu import pieces
from dflash_bench.metrics.events.host import Ranges, ThreadIndex, thread_index
from dflash_bench.metrics.events.launches import Join, join
from dflash_bench.metrics.events.process import ProcessEvents
from dflash_bench.metrics.events.steps import Steps, blocks_of, find_steps, in_blocks
from dflash_bench.metrics.reading import Reading
from dflash_bench.model import Finding, IntArray
from dflash_bench.profile import Profile


@dataclass(frozen=True)  # without slots: its properties are worked out once
class View:
    """One process. ``is_own_loop``: its loop is known to wrap every allocation in a range."""

    profile: Profile
    events: ProcessEvents
    reading: Reading
    is_own_loop: bool

    @cached_property
    def _found_steps(self) -> tuple[Steps, tuple[Finding, ...]]:
        return find_steps(self.events.ranges, self.events.process.rank, self.reading)

    @cached_property
    def steps(self) -> Steps:
        """The steps that count: of the arm that is looked at, and of the window."""
        steps, reading = self._found_steps[0], self.reading
        if reading.arm is not None:
            steps = in_blocks(steps, blocks_of(self.events.marks, self.events.marked_at, reading.arm))
        if reading.first or reading.last is not None:
            inside = steps.number >= reading.first
            steps = steps[inside if reading.last is None else inside & (steps.number < reading.last)]
        return steps

    @property
    def is_part(self) -> bool:
        """Whether not all steps of the process count."""
        return len(self.steps) < len(self._found_steps[0])

    @property
    def step_findings(self) -> tuple[Finding, ...]:
        return self._found_steps[1]

    @cached_property
    def own(self) -> Ranges:
        """The ranges of the step range's domain: those of libraries never take the blame."""
        is_own = self.events.ranges.domain.among({self.steps.domain})
        return self.events.ranges if is_own.all() else self.events.ranges[is_own]

    @cached_property
    def own_index(self) -> ThreadIndex:
        return thread_index(self.own)

    @cached_property
    def call_index(self) -> ThreadIndex:
        return thread_index(self.events.calls)

    @cached_property
    def step_thread(self) -> int:
        """The thread that emits most of the steps."""
        steps = self.own[self.own.name.matching(self.reading.step_pattern())]
        threads, count = np.unique(steps.thread, return_counts=True)
        return int(threads[count.argmax()])

    @cached_property
    def step_of_call(self) -> IntArray:
        """The step of each call, or NONE."""
        return self.steps.of_ascending(self.events.calls.start)

    @cached_property
    def join(self) -> Join:
        return join(self.events.calls, pieces(self.events.gpu))

    def named(self, name: str) -> Ranges:
        """The own ranges of this name."""
        return self.own[self.own.name.among({name})]
