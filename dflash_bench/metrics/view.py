"""One process as the meters see it: its events, its steps, and what several of them ask for, each worked out once."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property

import numpy as np

from dflash_bench.metrics.events.arrays import NONE, OPEN
from dflash_bench.metrics.events.code_lines import CodeLines
from dflash_bench.metrics.events.gpu import pieces
from dflash_bench.metrics.events.host import Ranges, ThreadIndex, thread_index
from dflash_bench.metrics.events.kinds import Kind, kinds_of
from dflash_bench.metrics.events.launches import Join, Launches, join
from dflash_bench.metrics.events.loads import is_load
from dflash_bench.metrics.events.process import ProcessEvents
from dflash_bench.metrics.events.steps import Steps, blocks_of, find_steps, in_blocks, steps_between
from dflash_bench.metrics.events.tools import is_of_tool
from dflash_bench.metrics.reading import CALL, Reading
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
        if self.reading.step.startswith(CALL):
            return steps_between(self.events.calls, self.reading.step.removeprefix(CALL)), ()
        return find_steps(self.events.ranges, self.events.process.rank, self.reading)

    @property
    def all_steps(self) -> Steps:
        """The steps that were found, whether they count or not."""
        return self._found_steps[0]

    @property
    def step_findings(self) -> tuple[Finding, ...]:
        return self._found_steps[1]

    @cached_property
    def chosen_steps(self) -> Steps:
        """The steps of the arm and of the window that is looked at, idle ones too."""
        steps, reading = self.all_steps, self.reading
        if reading.arm is not None:
            steps = in_blocks(steps, blocks_of(self.events.marks, self.events.marked_at, reading.arm))
        elif reading.first or reading.last is not None:
            steps = steps[reading.first : reading.last]
        return steps

    def left_out(self, t: IntArray) -> BoolArray:
        """bool [n]: which instants lie in steps of another arm, or outside the window that is looked at."""
        return (self.all_steps.of(t) != NONE) & (self.chosen_steps.of(t) == NONE)

    @cached_property
    def kinds_of_all(self) -> dict[Kind, BoolArray]:
        """bool [all chosen steps] for each kind that occurs."""
        steps, calls = self.chosen_steps, self.events.calls
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
        return self.kinds_of_all.get(Kind.IDLE, np.zeros(len(self.chosen_steps), bool))

    @cached_property
    def steps(self) -> Steps:
        """The steps that count."""
        return self.chosen_steps[~self.is_idle] if self.is_idle.any() else self.chosen_steps

    @cached_property
    def scope(self) -> Steps:
        """What launches, waits and leads are counted in: the steps, and where there are none the capture as a whole."""
        steps, events = self.steps, self.events
        if len(steps) or len(self.all_steps) or not len(events.calls):
            return steps
        edges = [(events.calls.start, events.calls.end), (events.gpu.start, events.gpu.end)]
        start = min(int(first.min()) for first, _ in edges if len(first))
        end = max(int(last.max()) for _, last in edges if len(last)) + 1
        one = np.array([[start], [end], [OPEN]])
        return Steps(one[0], one[1], self.domain, one[2])

    @cached_property
    def kinds(self) -> dict[Kind, BoolArray]:
        """bool [steps] for each kind that occurs among the steps that count."""
        return {kind: own[~self.is_idle] for kind, own in self.kinds_of_all.items() if kind is not Kind.IDLE}

    @property
    def is_part(self) -> bool:
        """Whether not all steps of the process count."""
        return len(self.steps) < len(self.all_steps)

    @cached_property
    def is_traced(self) -> BoolArray:
        """bool [steps]: whether the API calls of a step are in the capture.

        GPU work without a launch call proves that calls are missing: a step without any call, in which such work
        starts, says nothing of waits, launches and leads.
        """
        return ~self._works_alone(self.scope) | (self.scope.sum_by(self.step_of_call) > 0)

    @cached_property
    def is_warm_up(self) -> BoolArray:
        """bool [scope]: which steps load modules, compile, or capture or instantiate graphs."""
        if not len(self.steps):
            return np.zeros(len(self.scope), bool)
        return self.scope.sum_by(self.step_of_call[is_load(self.events.calls) & (self.step_of_call != NONE)]) > 0

    @cached_property
    def own(self) -> Ranges:
        """The ranges of the step range's domain: those of libraries never take the blame."""
        ranges = self.events.ranges
        is_own = ranges.domain.among({self.domain}) & ~ranges.name.among(self._spans_apart(ranges))
        return ranges if is_own.all() else ranges[is_own]

    @cached_property
    def domain(self) -> str:
        """The domain of the step range; without steps the one with most ranges that is no library's."""
        if len(self.all_steps):
            return self.all_steps.domain
        names, ranges = self.events.ranges.domain, self.events.ranges[~is_of_tool(self.events.ranges)]
        count = np.bincount(ranges.domain.codes, minlength=len(names.values))
        return names.values[int(count.argmax())] if len(ranges) else ""

    def _spans_apart(self, ranges: Ranges) -> set[str]:
        """Names of start/end ranges that overlap with others of their thread without nesting: requests, mostly.

        They are open at an instant without holding what happens in it, and take no blame.
        """
        apart: set[str] = set()
        is_left = ranges.domain.among({self.domain}) & ~self.reading.is_step(ranges)
        while (ranges.is_span & is_left).any():
            own = ranges[is_left | self.reading.is_step(ranges) & ranges.domain.among({self.domain})]
            parent = thread_index(own).parents
            crosses = (parent != NONE) & (own.end > own.end[parent])
            partners = np.concatenate([np.flatnonzero(crosses), parent[crosses]])
            found = {own.name.values[code] for code in own.name.codes[partners[own.is_span[partners]]]}
            if not found - apart:
                break
            apart |= found
            is_left &= ~ranges.name.among(apart)
        return apart

    @cached_property
    def own_index(self) -> ThreadIndex:
        return thread_index(self.own)

    @cached_property
    def call_index(self) -> ThreadIndex:
        return thread_index(self.events.calls)

    @cached_property
    def code_lines(self) -> CodeLines:
        """What the process ran, as far as its capture tells; read once, when it is first asked for."""
        return CodeLines(self.profile, self.events.process)

    @cached_property
    def step_thread(self) -> int:
        """The thread that emits most of the steps."""
        calls, ranges = self.events.calls, self.events.ranges  # not `own`: steps may lie in the unnamed domain
        thread = ranges.thread[self.reading.is_step(ranges) & ranges.domain.among({self.all_steps.domain})]
        if self.reading.step.startswith(CALL):
            thread = calls.thread[calls.name.among({self.reading.step.removeprefix(CALL)})]
        threads, count = np.unique(thread, return_counts=True)
        return int(threads[count.argmax()])

    @cached_property
    def step_of_call(self) -> IntArray:
        """The step of each call, or NONE."""
        return self.scope.of_ascending(self.events.calls.start)

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
        launches, whole = self.join.launches, self.is_traced.copy()
        step = self.scope.covering(launches.start[~launches.has_lead & ~launches.is_first])
        whole[step[step != NONE]] = False
        return whole

    def named_anywhere(self, name: str) -> Ranges:
        """The ranges of this name in any domain, for a process without steps, which has no domain of its own."""
        return self.events.ranges[self.events.ranges.name.among({name})]

    def named(self, name: str) -> Ranges:
        """The own ranges of this name."""
        return self.own[self.own.name.among({name})]
