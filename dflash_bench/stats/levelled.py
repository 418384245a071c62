"""One rank against the others of its run: what the machine did to all ranks alike is taken out.

Ranks of a run share the host, its clocks and its neighbours, so their times rise and fall together from run to run. A
rank that became slower by itself stands out from the others far more clearly than from its own earlier runs. Over 20
runs of one code on a busy 2-core machine (those of ``tests/data/gate-demo`` and ten more), the median
`prepare_for_decode` of a rank, 408 µs, had a standard deviation of 37 µs, and of 14 µs against the other three ranks.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import numpy as np

from dflash_bench.metrics.summary import figure
from dflash_bench.model import Metric, MetricKey, RunMetrics, Sides

_MIN_RANKS = 4
"""The median of three others stays where it is when one of them moves; with fewer, each would take others along."""


def levelled(sides: Sides, chosen: Callable[[str], bool]) -> Sides:
    """Both sides with only the ``chosen`` metrics of single ranks, each rank's samples at one common level.

    From each run the median of the *other* ranks' figures is taken off and its mean over the base's runs put back on:
    adding that constant to both sides changes no difference and keeps the scale that tolerances are a share of. Metrics
    that fewer than `_MIN_RANKS` ranks have are left out.
    """
    levels = [_levels(run, chosen) for run in sides.base]
    keys = set.intersection(*(set(each) for each in levels)) if levels else set()
    common = {key: float(np.mean([each[key] for each in levels])) for key in keys}
    base, candidate = (tuple(_at(run, common, chosen) for run in runs) for _, runs in sides.named)
    return replace(sides, base=base, candidate=candidate)


def _levels(run: RunMetrics, chosen: Callable[[str], bool]) -> dict[MetricKey, float]:
    """(metric, rank) → the median of the other ranks' figures in this run."""
    figures: dict[str, dict[int, float]] = {}
    for m in run.metrics:
        if m.rank is not None and chosen(m.name) and (own := figure(m)) is not None:
            figures.setdefault(m.name, {})[m.rank] = own
    return {
        (name, rank): float(np.median([value for other, value in ranks.items() if other != rank]))
        for name, ranks in figures.items()
        if len(ranks) >= _MIN_RANKS
        for rank in ranks
    }


def _at(run: RunMetrics, common: dict[MetricKey, float], chosen: Callable[[str], bool]) -> RunMetrics:
    own = _levels(run, chosen)
    kept = tuple(
        _moved(m, common[key] - own[key]) for m in run.metrics if (key := (m.name, m.rank)) in own and key in common
    )
    return replace(run, metrics=kept)


def _moved(metric: Metric, by: float) -> Metric:
    return replace(metric, values=metric.values + by)
