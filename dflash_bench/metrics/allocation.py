"""``alloc.step_share`` and ``alloc.step_cost``: which steps took pages, and what that cost them."""

from __future__ import annotations

import numpy as np

from dflash_bench.metrics.events.arrays import NONE
from dflash_bench.metrics.measurements import Measurements
from dflash_bench.metrics.view import View


def measure_allocation(view: View, found: Measurements) -> None:
    """The share of steps that allocate, and by how much longer they prepare."""
    steps, reading = view.steps, view.reading
    if not len(steps):
        return
    alloc, prepare = view.named(reading.alloc).start, view.named(reading.prepare)
    # only where every allocation is known to be inside a range, no such range means no allocation
    if not len(alloc) and not (view.is_own_loop and len(prepare)):
        if len(prepare):
            found.warn("no_alloc_ranges", len(steps), name=reading.alloc)
        return
    is_alloc = steps.holding_any(alloc)
    found.add("alloc.step_share", is_alloc, np.arange(len(steps)))
    step = steps.of(prepare.start)
    inside = step != NONE
    group = is_alloc[step[inside]]
    if group.any() and not group.all():
        found.add("alloc.step_cost", (prepare.end - prepare.start)[inside], step[inside], group)
