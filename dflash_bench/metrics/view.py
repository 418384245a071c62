"""One process as the meters see it: its events, its steps, and what several of them ask for, each worked out once."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property

import numpy as np

from dflash_bench.metrics.events.arrays import NONE, at_rows, distinct
from dflash_bench.metrics.events.gpu import pieces
from dflash_bench.metrics.events.host import Ranges, ThreadIndex, thread_index
from dflash_bench.metrics.events.kinds import Kind, kinds_of
from dflash_bench.metrics.events.launches import Join, Launches, join
from dflash_bench.metrics.events.process import ProcessEvents
from dflash_bench.metrics.events.steps import Steps, blocks_of, find_steps, in_blocks
from dflash_bench.metrics.reading import Reading
from dflash_bench.model import BoolArray, Finding, IntArray
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

    @property
    def step_findings(self) -> tuple[Finding, ...]:
        return self._found_steps[1]

    @cached_property
    def _chosen_steps(self) -> Steps:
        """The steps of the arm and of the window that is looked at, idle ones too."""
        steps, reading = self._found_steps[0], self.reading
        if reading.arm is not None:
            steps = in_blocks(steps, blocks_of(self.events.marks, self.events.marked_at, reading.arm))
        elif reading.first or reading.last is not None:
            steps = steps[reading.first : reading.last]
        return steps

    @cached_property
    def kinds_of_all(self) -> dict[Kind, BoolArray]:
        """bool [all chosen steps] for each kind that occurs."""
        steps, calls = self._chosen_steps, self.events.calls
        found = kinds_of(steps, self.own, calls.name, steps.of_ascending(calls.start), self.reading)
        if (idle := found.get(Kind.IDLE)) is not None and (is_untraced := idle & self._works_alone(steps)).any():
            # no call was recorded, but GPU work was: the capture lacks the calls
            found[Kind.IDLE] = idle & ~is_untraced
            found[Kind.UNKNOWN] = found.get(Kind.UNKNOWN, np.zeros(len(steps), bool)) | is_untraced
        return {kind: own for kind, own in found.items() if own.any()}

    def _works_alone(self, steps: Steps) -> BoolArray:
        """bool [steps]: whether GPU work starts in them whose launch call is not in the capture."""
        is_alone = np.ones(len(self.join.work), bool)
        is_alone[self.join.launches.piece] = False
        return steps.sum_by(steps.covering(self.join.work.start[is_alone])) > 0

    @cached_property
    def is_idle(self) -> BoolArray:
        """bool [all chosen steps]: which are iterations without work. They take no part in any figure of the others."""
        return self.kinds_of_all.get(Kind.IDLE, np.zeros(len(self._chosen_steps), bool))

    @cached_property
    def steps(self) -> Steps:
        """The steps that count."""
        return self._chosen_steps[~self.is_idle] if self.is_idle.any() else self._chosen_steps

    @cached_property
    def kinds(self) -> dict[Kind, BoolArray]:
        """bool [steps] for each kind that occurs among the steps that count."""
        return {kind: own[~self.is_idle] for kind, own in self.kinds_of_all.items() if kind is not Kind.IDLE}

    @property
    def is_part(self) -> bool:
        """Whether not all steps of the process count."""
        return len(self.steps) < len(self._found_steps[0])

    @cached_property
    def is_traced(self) -> BoolArray:
        """bool [steps]: whether the API calls of a step are in the capture.

        GPU work without a launch call proves that calls are missing: a step without any call, in which such work
        starts, says nothing of waits, launches and leads.
        """
        return ~self._works_alone(self.steps) | (self.steps.sum_by(self.step_of_call) > 0)

    @cached_property
    def own(self) -> Ranges:
        """The ranges of the step range's domain: those of libraries never take the blame."""
        is_own = self.events.ranges.domain.among({self._found_steps[0].domain})
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

    @cached_property
    def launches(self) -> Launches:
        """The launches inside steps, in order."""
        launches = self.join.launches
        return launches[self.step_of_call[launches.call] != NONE]

    @cached_property
    def is_whole(self) -> BoolArray:
        """bool [steps]: whether calls were traced, and it is known when the work before each launch ended."""
        launches, work, whole = self.join.launches, self.join.work, self.is_traced.copy()
        lane = at_rows(work.lane, launches.piece)
        for own in distinct(lane[work.is_damaged[launches.piece]]):
            rows = np.flatnonzero(lane == own)
            behind = rows[1:][work.is_damaged[launches.piece[rows[:-1]]]]
            step = self.steps.covering(launches.start[behind])
            whole[step[step != NONE]] = False
        return whole

    def named(self, name: str) -> Ranges:
        """The own ranges of this name."""
        return self.own[self.own.name.among({name})]
