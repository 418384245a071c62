"""What the machine did to a whole run, taken out: one rank against the others of its run, and the host's speed.

Ranks of a run share the host, its clocks and its neighbours, so their times rise and fall together from run to run. A
rank that became slower by itself stands out from the others far more clearly than from its own earlier runs. Over 20
runs of one code on a busy 2-core machine (those of ``tests/data/gate-demo`` and ten more), the median
`prepare_for_decode` of a rank, 408 µs, had a standard deviation of 37 µs, and of 14 µs against the other three ranks.

Likewise nearly all ranges of a run are slow when the host is: on one H200, tenths of a single run took 244 to 552 µs in
`prepare_for_decode`, and the other ranges with it.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np

from dflash_bench.model import FloatArray

MIN_RANKS = 4
"""The median of three others stays where it is when one of them moves; with fewer, each would take others along."""
_MIN_COSTS = 5
"""Costs whose median says how fast the host was."""
_SMALLEST_NS = 2_000.0
"""A shorter cost is mostly what it costs to measure it."""


def levelled(figures: Mapping[int, FloatArray]) -> dict[int, FloatArray]:
    """Rank → its figures less the median of the other ranks' in the same run (or pair of blocks).

    ``figures``: float64 [runs] by rank. Empty where fewer than `MIN_RANKS` ranks have the metric.
    """
    if len(figures) < MIN_RANKS:
        return {}
    every = np.stack([figures[rank] for rank in figures])
    return {rank: every[k] - np.median(np.delete(every, k, axis=0), axis=0) for k, rank in enumerate(figures)}


def host_speed(costs: Sequence[FloatArray]) -> FloatArray | None:
    """float64 [runs]: how many times as long as usual the host took in each run; None with fewer than `_MIN_COSTS`.

    ``costs``: float64 [runs], ns, of each range; the usual is the median over all runs.
    """
    chosen = [c / usual for c in costs if (usual := float(np.median(c))) >= _SMALLEST_NS and (c > 0).all()]
    if len(chosen) < _MIN_COSTS:
        return None
    found: FloatArray = np.median(chosen, axis=0)
    return found
