"""Block bootstrap inside one run: how far its figure would move had other steps of the same run been seen.

Steps inside a run are correlated (a slow one is followed by slow ones), so whole blocks of consecutive steps are drawn,
with the launches, waits or ranges that belong to them, and the blocks run on over the end (circular block bootstrap,
Politis and Romano 1992). How much a further run would differ, one run cannot tell: see `shift.py`.
"""

from __future__ import annotations

import zlib
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from dflash_bench.metrics.cache import answer
from dflash_bench.metrics.summary import figure, statistic
from dflash_bench.model import (
    BoolArray,
    FloatArray,
    IntArray,
    Interval,
    Metric,
    MetricKey,
    RunMetrics,
    Statistic,
)
from dflash_bench.stats.shift import CONFIDENCE, t_quantile

_MIN_BLOCKS = 5
"""Under this many steps a resample says nothing about their spread."""

_MAX_RESAMPLES, _MIN_RESAMPLES, _SAMPLES_PER_METRIC = 400, 200, 400_000

_AT_ONCE = 4_000_000
"""Samples of resamples in memory at once."""

_MANY_STEPS, _BATCHES = 5_000, 50
"""From so many steps on a run is cut into so many stretches instead, whose figures are as good as independent."""


def run_intervals(
    base: RunMetrics, candidate: RunMetrics, keys: Sequence[MetricKey]
) -> dict[MetricKey, Interval | None]:
    """`difference_interval` of those of the metrics that both runs have; of large runs it is kept beside the base."""
    ours, theirs = ({(m.name, m.rank): m for m in run.metrics} for run in (base, candidate))
    both = [key for key in keys if key in ours and key in theirs]

    def draw() -> list[tuple[float, float] | None]:
        found = (difference_interval(ours[key], theirs[key]) for key in both)
        return [None if each is None else (each.low, each.high) for each in found]

    drawn = zip(both, answer((base, candidate), ("intervals", CONFIDENCE, both), draw), strict=True)
    return {key: None if ends is None else Interval(ends[0], ends[1], CONFIDENCE) for key, ends in drawn}


def difference_interval(base: Metric, candidate: Metric, confidence: float = CONFIDENCE) -> Interval | None:
    """Percentile interval of statistic(candidate) − statistic(base), in the metric's unit, of these two runs alone.

    None where there are no samples to draw from: single values, or hardly any steps on a side. The draw is
    seeded by the metric's name, so the same profiles give the same interval.
    """
    if base.statistic is not Statistic.VALUE and min(_num_steps(base), _num_steps(candidate)) >= _MANY_STEPS:
        return _batch_interval(base, candidate, confidence)
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


def _num_steps(metric: Metric) -> int:
    """Of a metric that several steps lack: from its first to its last."""
    return metric.n if metric.block is None else int(np.ptp(metric.block)) + 1 if len(metric.block) else 0


def _batch_interval(base: Metric, candidate: Metric, confidence: float) -> Interval | None:
    """The same by batch means (Law and Kelton): each run in stretches of steps, the spread of whose figures says how
    far that of the whole strays. It looks at every sample once.
    """
    whole = figure(candidate), figure(base)
    parts = _batch_figures(candidate), _batch_figures(base)
    if whole[0] is None or whole[1] is None or min(map(len, parts)) < _BATCHES / 2:
        return None
    error = np.sqrt(sum(part.var(ddof=1) / len(part) for part in parts))
    reach = t_quantile((1 + confidence) / 2, min(map(len, parts)) - 1) * float(error)
    shift = whole[0] - whole[1]
    return Interval(shift - reach, shift + reach, confidence)


def _batch_figures(metric: Metric) -> FloatArray:
    """float64 [batches]: the metric's statistic over each stretch of the run that has one."""
    step = np.arange(len(metric.values)) if metric.block is None else metric.block - metric.block.min()
    batch = step * _BATCHES // (int(step.max()) + 1)
    rows = np.split(np.argsort(batch.astype(np.int16), kind="stable"), np.cumsum(np.bincount(batch)[:-1]))
    group = metric.group
    found = [statistic(metric, metric.values[own], None if group is None else group[own]) for own in rows if len(own)]
    return np.array([value for value in found if value is not None])


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
    times = np.bincount((steps + n * np.arange(resamples)[:, None]).ravel(), minlength=resamples * n)
    return _statistics(metric, blocks, times.reshape(resamples, n).astype(np.int32))


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


def _statistics(metric: Metric, blocks: _Blocks, times: IntArray) -> FloatArray:
    """The metric's statistic with each step as often as each row of ``times`` [resamples, steps] says."""
    values, step = metric.values[blocks.order], np.repeat(np.arange(len(blocks)), blocks.count)
    match metric.statistic:
        case Statistic.MEDIAN:
            return _quantiles(values, step, times, 0.5)
        case Statistic.P99:
            return _quantiles(values, step, times, 0.99)
        case Statistic.MEDIAN_DIFFERENCE:
            assert metric.group is not None
            group = metric.group[blocks.order]
            true, false = (_quantiles(values[own], step[own], times, 0.5) for own in (group, ~group))
            return true - false
        case _:
            found: FloatArray = times @ np.add.reduceat(values, blocks.first) / (times @ blocks.count)
            return found


def _quantiles(values: FloatArray, step: IntArray, times: IntArray, level: float) -> FloatArray:
    """float64 [resamples]: the quantile of the samples, each as often as its step; NaN where none is there."""
    found = np.full(len(times), np.nan)
    if not len(values):
        return found
    order = np.argsort(values, kind="stable")
    values, step = values[order], step[order]
    for rows in np.array_split(np.arange(len(times)), -(-len(times) * len(values) // _AT_ONCE)):
        upto = np.cumsum(times[rows].take(step, axis=1), axis=1, dtype=np.int32)
        place = np.maximum(upto[:, -1] - 1, 0) * level
        low, high = (
            values[np.minimum((upto <= edge[:, None]).sum(axis=1), len(values) - 1)]
            for edge in (np.floor(place), np.ceil(place))
        )
        found[rows] = np.where(upto[:, -1] > 0, low + (high - low) * (place - np.floor(place)), np.nan)
    return found


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
