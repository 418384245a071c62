"""``stall.*``: what the host was doing when the GPU ran dry."""

from __future__ import annotations

import numpy as np

from dflash_bench.metrics.events.launches import Launches
from dflash_bench.metrics.measurements import Measurements
from dflash_bench.metrics.view import View
from dflash_bench.model import BoolArray, IntArray


def measure_stalls(
    view: View, launches: Launches, step: IntArray, is_launching: BoolArray, coverage: float, found: Measurements
) -> None:
    """GPU time lost by what the launching thread did at the instant its lane ran dry.

    ``launches`` with a lead inside steps, ``step`` int64 [launches] theirs; ``is_launching`` bool [steps]: those that
    launch anything. The label is one text: ``rebuild_compact · cudaStreamSynchronize`` is a host sync, ``fill · -`` CPU
    work, ``- · -`` lies outside the steps.
    """
    late = np.flatnonzero(launches.lead < 0)
    launches, step = launches[late], step[late]
    lost = -launches.lead
    per_step = view.steps.sum_by(step, lost)
    found.add("stall.total_per_step", per_step[is_launching], np.flatnonzero(is_launching), coverage=coverage)
    held = view.own_index.innermost(launches.thread, launches.dry)
    call = view.call_index.innermost(launches.thread, launches.dry)
    ranges, calls = view.own.name, view.events.calls.name
    keys = [(ranges.values, ranges.codes_at(held)), (calls.values, calls.codes_at(call))]
    found.blame("stall.by_cause", keys, lost, separator=" · ")
