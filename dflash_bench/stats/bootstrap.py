"""Bootstrap interval of a difference between two runs, on one metric.

Steps inside a run are correlated (a slow one is followed by slow ones), so whole blocks of consecutive steps are drawn,
with the launches, waits or ranges that belong to them, and the blocks run on over the end (circular block bootstrap,
Politis and Romano 1992). The interval is the percentile interval of the statistic's difference. It speaks of the two
runs as they were; how much a further run would differ, one run cannot tell.
"""

from __future__ import annotations

import zlib
from dataclasses import dataclass

import numpy as np

from dflash_bench.metrics.summary import statistic
from dflash_bench.model import BoolArray, FloatArray, IntArray, Interval, Metric, Statistic

CONFIDENCE = 0.95
MIN_BLOCKS = 5
"""Under this many steps a resample says nothing about their spread."""

_MAX_RESAMPLES, _MIN_RESAMPLES, _SAMPLES_PER_METRIC = 1000, 200, 1_000_000


def difference_interval(base: Metric, candidate: Metric, confidence: float = CONFIDENCE) -> Interval | None:
    """Interval of statistic(candidate) − statistic(base), in the metric's unit.

    None where there are no samples to draw from: single values, or fewer than `MIN_BLOCKS` steps on a side. The draw is
    seeded by the metric's name, so the same profiles give the same interval.
    """
    if base.statistic is Statistic.VALUE:
        return None
    mine, theirs = _blocks(base), _blocks(candidate)
    if min(len(mine), len(theirs)) < MIN_BLOCKS:
        return None
    resamples = int(np.clip(_SAMPLES_PER_METRIC // max(base.n, candidate.n), _MIN_RESAMPLES, _MAX_RESAMPLES))
    seed = np.random.default_rng(zlib.crc32(f"{base.name} {base.rank}".encode()))
    differences = _draws(candidate, theirs, resamples, seed) - _draws(base, mine, resamples, seed)
    differences = differences[~np.isnan(differences)]
    if len(differences) < resamples / 2:
        return None
    low, high = np.quantile(differences, [(1 - confidence) / 2, (1 + confidence) / 2])
    return Interval(float(low), float(high), confidence)


@dataclass(frozen=True, slots=True)
class _Blocks:
    """Samples by step: ``order`` puts them step after step, step k holds ``order[first[k] : first[k] + count[k]]``."""

    order: IntArray
    first: IntArray
    count: IntArray

    def __len__(self) -> int:
        return len(self.first)


def _blocks(metric: Metric) -> _Blocks:
    key = np.arange(len(metric.values)) if metric.block is None else metric.block
    order = np.argsort(key, kind="stable")
    _, first, count = np.unique(key[order], return_index=True, return_counts=True)
    return _Blocks(order, first, count)


def block_length(n: int) -> int:
    """Steps to draw in a row: grows with the cube root of their number, which balances bias against spread."""
    return max(1, round(n ** (1 / 3)))


def _draws(metric: Metric, blocks: _Blocks, resamples: int, seed: np.random.Generator) -> FloatArray:
    """float64 [resamples]: the metric's statistic over each resample, NaN where it has none."""
    n, length = len(blocks), block_length(len(blocks))
    starts = seed.integers(0, n, size=(resamples, -(-n // length)))
    steps = ((starts[:, :, None] + np.arange(length)) % n).reshape(resamples, -1)[:, :n]
    if metric.group is None and (blocks.count == 1).all():
        values = metric.values[blocks.order[blocks.first[steps]]]
        return np.median(values, axis=1) if metric.statistic is Statistic.MEDIAN else values.mean(axis=1)
    found = [_one(metric, _gather(blocks, row)) for row in steps]
    return np.array([np.nan if value is None else value for value in found])


def _gather(blocks: _Blocks, steps: IntArray) -> IntArray:
    """The samples of these steps, as indices."""
    count = blocks.count[steps]
    offset = np.arange(count.sum()) - np.repeat(np.cumsum(count) - count, count)
    return blocks.order[np.repeat(blocks.first[steps], count) + offset]


def _one(metric: Metric, rows: IntArray) -> float | None:
    group: BoolArray | None = None if metric.group is None else metric.group[rows]
    return statistic(metric, metric.values[rows], group)
