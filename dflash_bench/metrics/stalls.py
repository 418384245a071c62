"""What the host was doing when the GPU ran dry."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence

import numpy as np

from dflash_bench.metrics.blame import blamed
from dflash_bench.metrics.collect import Collector
from dflash_bench.metrics.events import ApiCalls
from dflash_bench.metrics.intervals import NONE, distinct, intervals
from dflash_bench.metrics.launches import Launches
from dflash_bench.metrics.windows import Window
from dflash_bench.model import IntArray

TABLE = "stall.by_cause"


class StallMeter:
    """GPU time lost by what the launching thread did at the instant its stream ran dry.

    That instant comes before the launch, mostly just before: it is looked for in the launch's window and the one before
    that. Launches whose stream had been dry for longer are kept, and asked about in a second look at the windows.

    The label is one text: ``rebuild_compact · cudaStreamSynchronize`` is a host sync, ``fill · -`` CPU work,
    ``- · -`` lies outside the steps.
    """

    def __init__(self, collector: Collector) -> None:
        self.collector = collector
        self.before: Window | None = None
        self.older: list[Launches] = []

    def see(self, window: Window, late: Launches) -> None:
        """Take in the launches of a window with lead < 0."""
        for near in (window, self.before):
            if near is not None and len(late):
                inside = near.holds(late.dry)
                self._ask(near, late[inside])
                late = late[~inside]
        if len(late):
            self.older.append(late)
        self.before = window

    def finish(self, again: Callable[[], Iterator[Window]]) -> None:
        """Ask about the instants that were too far back. ``again`` goes through the windows once more."""
        self.before = None
        for window in again() if self.older else ():
            rest = []
            for late in self.older:
                inside = window.holds(late.dry)
                self._ask(window, late[inside])
                if not inside.all():
                    rest.append(late[~inside])
            self.older = rest
            if not rest:
                return

    def _ask(self, window: Window, late: Launches) -> None:
        own = window.own
        held = own.innermost(late.thread, late.dry)
        name = np.where(held == NONE, NONE, own.ranges.name.codes[held]) if len(own.ranges) else held
        calls = ApiCalls.joined([window.open_calls, window.calls])
        keys: Sequence[tuple[Sequence[str], IntArray]] = [
            (own.ranges.name.values, name),
            (calls.name.values, call_at(late.thread, late.dry, calls)),
        ]
        for label, lost in blamed(keys, -late.lead):
            self.collector.blame(TABLE, (" · ".join(label),), lost)


def call_at(thread: IntArray, t: IntArray, calls: ApiCalls) -> IntArray:
    """Name code of the API call that held each thread at an instant, or NONE. int64 [n] each."""
    name = np.full(len(t), NONE, np.int64)
    for key in distinct(thread):
        rows = np.flatnonzero(calls.thread == key)
        mine = np.flatnonzero(thread == key)
        index = intervals(calls.start[rows], calls.end[rows])
        held = index.holding(t[mine])
        inside = held != NONE
        name[mine[inside]] = calls.name.codes[rows[index.source[held[inside]]]]
    return name
