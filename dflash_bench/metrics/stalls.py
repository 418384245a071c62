"""``stall.*``: what the host was doing when the GPU ran dry."""

from __future__ import annotations

import numpy as np

from dflash_bench.metrics.measurements import Measurements
from dflash_bench.metrics.per_step import add_per_step
from dflash_bench.metrics.view import View
from dflash_bench.metrics.warm_up import blame_warm_up


def measure_stalls(view: View, found: Measurements) -> None:
    """GPU time lost by what the launching thread did at the instant its lane ran dry, lanes added up.

    The label is one text: ``rebuild_compact · cudaStreamSynchronize`` is a host sync, ``fill · -`` CPU work, ``- · -``
    lies outside the steps.
    """
    share = found.coverage.launches
    if share is None or not view.launches.has_lead.any():
        return
    late = view.launches[view.launches.has_lead & (view.launches.lead < 0)]
    lost, step = -late.lead, view.step_of_call[late.call]
    is_launching = view.scope.sum_by(view.step_of_call[view.launches.call]) > 0
    if without := int((view.is_traced & ~is_launching).sum()):
        found.warn("steps_without_launches", without, num=len(view.scope))
    is_launching &= view.is_whole
    per_step = view.scope.sum_by(step, lost)
    add_per_step(view, found, "stall.total_per_step", per_step, np.flatnonzero(is_launching), share)
    held = view.own_index.innermost(late.thread, late.dry)
    call = view.call_index.innermost(late.thread, late.dry)
    ranges, calls = view.own.name, view.events.calls.name
    keys = [(ranges.values, ranges.codes_at(held)), (calls.values, calls.codes_at(call))]
    found.blame("stall.by_cause", keys, lost, separator=" · ")
    blame_warm_up(view, found, "stall.by_cause", keys, lost, step, separator=" · ")
