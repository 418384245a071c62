"""``alloc.step_share`` and ``alloc.step_cost``: which steps took pages, and what that cost them."""

from __future__ import annotations

from collections import Counter

import numpy as np

from dflash_bench.metrics.events.arrays import NONE
from dflash_bench.metrics.events.steps import Steps
from dflash_bench.metrics.measurements import Measurements
from dflash_bench.metrics.view import View
from dflash_bench.model import BoolArray


def measure_allocation(view: View, found: Measurements) -> None:
    """The share of steps that allocate, and by how much longer the range around their allocations lasts."""
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
    add_share(steps, is_alloc, found)
    holder = _range_around(view) if len(alloc) else reading.prepare
    if holder is None:
        found.warn("alloc_cost_unknown", int(is_alloc.sum()), name=reading.alloc)
        return
    around = view.named(holder)
    step = steps.of(around.start)
    inside = step != NONE
    group = is_alloc[step[inside]]
    if group.any() and not group.all():
        found.add("alloc.step_cost", (around.end - around.start)[inside], step[inside], group)
        if holder != reading.prepare:
            found.warn("alloc_cost_of", int(group.sum()), name=reading.alloc, holder=holder, prepare=reading.prepare)


def add_share(steps: Steps, is_alloc: BoolArray, found: Measurements) -> None:
    """``alloc.step_share``. ``is_alloc`` bool [steps]."""
    found.add("alloc.step_share", is_alloc, np.arange(len(steps)))


def _range_around(view: View) -> str | None:
    """The range that holds most of the allocations: the preparation, or the outermost one inside their steps."""
    own, reading, parents = view.own, view.reading, view.own_index.parents
    is_step = reading.is_step(own)
    holders: Counter[str] = Counter()
    prepared = 0
    for row in np.flatnonzero(own.name.among({reading.alloc})).tolist():
        path = []
        at = int(parents[row])
        while at != NONE and not is_step[at]:
            path.append(own.name.values[own.name.codes[at]])
            at = int(parents[at])
        if path:
            holders[path[-1]] += 1
            prepared += reading.prepare in path
    if 2 * prepared >= holders.total() > 0:
        return reading.prepare
    return holders.most_common(1)[0][0] if holders else None
