"""Where the host waited for the GPU."""

from __future__ import annotations

import re

import numpy as np

from dflash_bench.metrics.blame import blamed
from dflash_bench.metrics.collect import Collector
from dflash_bench.metrics.events import ApiCalls
from dflash_bench.metrics.intervals import NONE
from dflash_bench.metrics.launches import is_launch
from dflash_bench.metrics.steps import Paths, PerStep, Steps
from dflash_bench.metrics.windows import Window
from dflash_bench.model import IntArray

SYNC = re.compile(r"(cuda(Stream|Event|Device)|cu(Stream|Event|Ctx))Synchronize(_pt[sd][sz])?")
"""Calls that block until the GPU gets somewhere. The name tells; the stored sync type differs between nsys versions."""

BLOCKING_COPY = re.compile(r"cu(da)?Memcpy(?!\w*Async)\w*")
"""Copies that block without being called synchronize: a pageable device-to-host copy is a host wait too."""


class WaitMeter:
    """Host waits inside steps, on any thread. Holds the paths of ranges that occur."""

    def __init__(self, steps: Steps, collector: Collector) -> None:
        self.steps, self.collector, self.paths = steps, collector, Paths()
        self.waited, self.num_waits, self.num_launches = (PerStep(len(steps), collector.shelf) for _ in range(3))

    def see(self, window: Window, step: IntArray) -> None:
        """Take in the calls of a window; ``step`` int64 [calls] is the step of each, or NONE."""
        calls, inside = window.calls, step != NONE
        syncs = np.flatnonzero(calls.name.matching(SYNC) & inside)
        self._by_name(calls[syncs], step[syncs])
        self.num_launches.add(step[is_launch(calls.name) & inside])
        self._by_thread(calls[syncs])
        waits = calls[(calls.name.matching(SYNC) | calls.name.matching(BLOCKING_COPY)) & inside]
        held = window.own.innermost(waits.thread, waits.start)
        # paths are followed through every window, whether anything waits there or not
        path = self.paths.codes(window.own, held, window.stays_open)
        keys = [(self.paths.values, path), (waits.name.values, waits.name.codes)]
        for label, duration in blamed(keys, waits.end - waits.start):
            self.collector.blame("sync.by_range", label, duration)

    def finish(self) -> None:
        """The figures that need all windows."""
        every = np.arange(len(self.steps))
        self.collector.add("sync.total_per_step", self.waited.array(), every)
        self.collector.add("sync.calls_per_step", self.num_waits.array(), every)
        self.collector.add("launch.calls_per_step", self.num_launches.array(), every)

    def _by_name(self, waits: ApiCalls, step: IntArray) -> None:
        duration = waits.end - waits.start
        self.waited.add(step, duration)
        self.num_waits.add(step)
        for code in np.unique(waits.name.codes):
            rows = waits.name.codes == code
            self.collector.add(f"sync.{waits.name.values[code]}", duration[rows], step[rows])

    def _by_thread(self, waits: ApiCalls) -> None:
        threads, code = np.unique(waits.thread, return_inverse=True)
        keys = [([str(t) for t in threads], code), (waits.name.values, waits.name.codes)]
        for label, duration in blamed(keys, waits.end - waits.start):
            self.collector.blame("sync.by_thread", label, duration)
