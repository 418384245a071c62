"""Block bootstrap inside one run: how far its figure would move had other steps of the same run been seen.

Steps inside a run are correlated (a slow one is followed by slow ones), so whole blocks of consecutive steps are drawn,
with the launches, waits or ranges that belong to them, and the blocks run on over the end (circular block bootstrap,
Politis and Romano 1992). How much a further run would differ, one run cannot tell: see `shift.py`.
"""

from __future__ import annotations

import zlib
from dataclasses import dataclass

import numpy as np

from dflash_bench.metrics.summary import statistic
from dflash_bench.model import BoolArray, FloatArray, IntArray, Interval, Metric, Statistic
from dflash_bench.stats.shift import CONFIDENCE

_MIN_BLOCKS = 5
"""Under this many steps a resample says nothing about their spread."""

_MAX_RESAMPLES, _MIN_RESAMPLES, _SAMPLES_PER_METRIC = 1000, 200, 1_000_000


def difference_interval(base: Metric, candidate: Metric, confidence: float = CONFIDENCE) -> Interval | None:
    """Percentile interval of statistic(candidate) − statistic(base), in the metric's unit, of these two runs alone.

    None where there are no samples to draw from: single values, or hardly any steps on a side. The draw is
    seeded by the metric's name, so the same profiles give the same interval.
    """
    resamples = int(np.clip(_SAMPLES_PER_METRIC // max(base.n, candidate.n, 1), _MIN_RESAMPLES, _MAX_RESAMPLES))
    rng = np.random.default_rng(zlib.crc32(f"{base.name} {base.rank}".encode()))
    theirs, mine = draws(candidate, resamples, rng), draws(base, resamples, rng)
    if theirs is None or mine is None:
        return None
    differences = theirs - mine
    differences = differences[~np.isnan(differences)]
    if len(differences) < resamples / 2:
        return None
    low, high = np.quantile(differences, [(1 - confidence) / 2, (1 + confidence) / 2])
    return Interval(float(low), float(high), confidence)


def draws(metric: Metric, resamples: int, rng: np.random.Generator) -> FloatArray | None:
    """float64 [resamples]: the metric's statistic over each resample, NaN where it has none.

    None for a single value and for fewer than `_MIN_BLOCKS` steps.
    """
    if metric.statistic is Statistic.VALUE:
        return None
    blocks = _blocks(metric)
    if len(blocks) < _MIN_BLOCKS:
        return None
    n, length = len(blocks), block_length(_influence(metric, blocks))
    starts = rng.integers(0, n, size=(resamples, -(-n // length)))
    steps = ((starts[:, :, None] + np.arange(length)) % n).reshape(resamples, -1)[:, :n]
    if (blocks.count == 1).all():
        return _rowwise(metric, blocks.order[blocks.first[steps]])
    found = [_one(metric, _gather(blocks, row)) for row in steps]
    return np.array([np.nan if value is None else value for value in found])


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


def _influence(metric: Metric, blocks: _Blocks) -> FloatArray:
    """float64 [steps]: what each step does to the statistic. For a median only the side of it counts, so that heavy
    tails do not hide the correlation."""
    values = metric.values
    if metric.statistic is Statistic.MEAN:
        pull = values - values.mean()
    elif metric.group is None:
        pull = np.sign(values - np.median(values))
    else:
        pull = np.sign(values - _median_where(values, metric.group)) * np.where(metric.group, 1.0, -1.0)
    return np.add.reduceat(pull[blocks.order], blocks.first)


def _median_where(values: FloatArray, group: BoolArray) -> FloatArray:
    """float64 [n]: for each sample the median of its own group."""
    levels = [float(np.median(values[side])) if side.any() else 0.0 for side in (group, ~group)]
    return np.where(group, *levels)


def _rowwise(metric: Metric, rows: IntArray) -> FloatArray:
    """The statistic of each row of sample indices [resamples, n]."""
    values = metric.values[rows]
    match metric.statistic:
        case Statistic.MEDIAN:
            return np.median(values, axis=1)
        case Statistic.MEDIAN_DIFFERENCE:
            assert metric.group is not None
            group = metric.group[rows]
            return _masked_median(values, group) - _masked_median(values, ~group)
        case _:
            return values.mean(axis=1)


def _masked_median(values: FloatArray, mask: BoolArray) -> FloatArray:
    """The median of the masked values of each row, NaN for a row without any."""
    ordered = np.sort(np.where(mask, values, np.inf), axis=1)
    count = np.maximum(mask.sum(axis=1), 1)
    every = np.arange(len(values))
    found = (ordered[every, (count - 1) // 2] + ordered[every, count // 2]) / 2
    return np.where(mask.any(axis=1), found, np.nan)


def _gather(blocks: _Blocks, steps: IntArray) -> IntArray:
    """The samples of these steps, as indices."""
    count = blocks.count[steps]
    offset = np.arange(count.sum()) - np.repeat(np.cumsum(count) - count, count)
    return blocks.order[np.repeat(blocks.first[steps], count) + offset]


def _one(metric: Metric, rows: IntArray) -> float | None:
    group: BoolArray | None = None if metric.group is None else metric.group[rows]
    return statistic(metric, metric.values[rows], group)


def block_length(series: FloatArray) -> int:
    """Steps to draw in a row (Politis and White 2004, corrected 2009, circular blocks).

    ``series``: float64 [steps], what each step does to the statistic. The correlation is followed until it is lost in
    the noise; the longer it reaches, the longer the blocks, up to a third of the run.
    """
    n = len(series)
    limit = max(1, min(round(3 * n**0.5), n // 3))
    covariance = _autocovariance(series, min(limit * 2, n - 1))
    if covariance[0] <= 0:
        return 1
    reach = _reach(covariance / covariance[0], n)
    lag = np.arange(1, min(2 * reach, len(covariance) - 1) + 1)
    # a flat top, then a straight way down: the window that keeps the bias small
    weight = np.clip(2 * (1 - lag / (2 * reach)), 0, 1) * covariance[lag]
    spread = covariance[0] + 2 * weight.sum()
    if spread <= 0:
        return 1
    length = ((2 * (2 * (weight * lag).sum()) ** 2) / (4 / 3 * spread**2)) ** (1 / 3) * n ** (1 / 3)
    return int(np.clip(np.ceil(length), 1, limit))


def _autocovariance(series: FloatArray, lags: int) -> FloatArray:
    """float64 [lags + 1], by the fast Fourier transform."""
    centred = series - series.mean()
    size = 1 << (2 * len(centred) - 1).bit_length()
    spectrum = np.fft.rfft(centred, size)
    found: FloatArray = np.fft.irfft(np.abs(spectrum) ** 2, size)[: lags + 1] / len(centred)
    return found


def _reach(correlation: FloatArray, n: int) -> int:
    """The last lag before a stretch of lags that are all lost in the noise; at least 1."""
    noise = 2 * np.sqrt(np.log10(n) / n)
    stretch = max(5, round(np.sqrt(np.log10(n))))
    loud = np.flatnonzero(np.abs(correlation[1:]) >= noise) + 1
    last = 0
    for lag in loud:
        if lag - last > stretch:
            break
        last = int(lag)
    return max(1, last)
