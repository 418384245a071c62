"""A duet's samples as pairs: the difference of the two arms in each pair of blocks."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from dflash_bench.metrics.summary import statistic
from dflash_bench.model import FloatArray, IntArray, Metric, Statistic

_TAIL_PAIRS = 3
"""So many pairs in a row make one where the statistic needs more steps than a block holds: tails, and medians of two
kinds of steps."""


def pair_differences(base: Metric, candidate: Metric) -> tuple[IntArray, FloatArray]:
    """The pairs that both arms of a process have, in order, and candidate − base of the metric's statistic in each.

    Empty for figures without pairs.
    """
    mine, theirs = _by_pair(base), _by_pair(candidate)
    both = [p for p in mine if p in theirs and mine[p] is not None and theirs[p] is not None]
    differences = [(theirs[p] or 0.0) - (mine[p] or 0.0) for p in both]
    return np.array(both, np.int64), np.array(differences, np.float64)


def common_pairs(parts: Sequence[tuple[IntArray, FloatArray]]) -> list[FloatArray]:
    """The same differences of several ranks, of the pairs that all of them have."""
    shared = parts[0][0]
    for pairs, _ in parts[1:]:
        shared = np.intersect1d(shared, pairs)
    return [values[np.isin(pairs, shared)] for pairs, values in parts]


def _by_pair(metric: Metric) -> dict[int, float | None]:
    if metric.pair is None or not len(metric.values):
        return {}
    pair = metric.pair if metric.statistic in (Statistic.MEAN, Statistic.MEDIAN) else metric.pair // _TAIL_PAIRS
    order = np.argsort(pair, kind="stable")
    keys, first = np.unique(pair[order], return_index=True)
    parts = np.split(order, first[1:])
    if metric.statistic is Statistic.MEAN:
        means = np.add.reduceat(metric.values[order], first) / np.diff(np.append(first, len(order)))
        return dict(zip(keys.tolist(), means.tolist(), strict=True))
    group = metric.group
    return {
        int(key): statistic(metric, metric.values[rows], None if group is None else group[rows])
        for key, rows in zip(keys, parts, strict=True)
    }
