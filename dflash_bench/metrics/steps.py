"""``step.period``, and the warning where a capture has no steps."""

from __future__ import annotations

import numpy as np

from dflash_bench.layout import Events
from dflash_bench.metrics.events.arrays import read_columns
from dflash_bench.metrics.events.steps import Steps
from dflash_bench.metrics.measurements import Measurements
from dflash_bench.metrics.view import View
from dflash_bench.model import IntArray


def measure_steps(view: View, found: Measurements) -> None:
    """``step.period``, and how many steps the profiler's overhead touched; a warning where there are no steps."""
    steps = view.steps
    found.findings.extend(view.step_findings)
    if not len(steps):
        return
    followed = np.flatnonzero(steps.is_followed)
    found.add("step.period", steps.next_start[followed] - steps.start[followed], followed)
    overhead = read_columns(view.profile, Events.OVERHEAD, view.events.process, ("start_ns", "end_ns"))
    touched = num_touched(steps, *overhead.values())
    found.add_value("coverage.steps_with_overhead", touched, len(steps))


def num_touched(steps: Steps, start: IntArray, end: IntArray) -> int:
    """How many steps any of these intervals overlaps."""
    first = np.searchsorted(steps.end, start, side="right")
    last = np.searchsorted(steps.start, end, side="left")
    change = np.zeros(len(steps) + 1, np.int64)
    overlapping = first < last
    np.add.at(change, first[overlapping], 1)
    np.add.at(change, last[overlapping], -1)
    return int((np.cumsum(change)[:-1] > 0).sum())
