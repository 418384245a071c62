"""From samples to the figures that are shown: quantiles, means, single values."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from dflash_bench.model import FloatArray, Metric, Statistic, Unit


@dataclass(frozen=True, slots=True)
class Summary:
    """A distribution in five figures, in the metric's unit. Quantiles interpolate linearly between order statistics."""

    n: int
    p50: float
    p90: float
    p99: float
    mean: float
    total: float


def has_quantiles(metric: Metric) -> bool:
    """Whether a metric is a distribution that quantiles say something of: samples in time, and no difference of two."""
    is_spread = metric.statistic in (Statistic.MEDIAN, Statistic.MEAN, Statistic.P99)
    return len(metric.values) > 0 and (metric.statistic is Statistic.MEDIAN or (is_spread and metric.unit is Unit.NS))


def summarise(metric: Metric) -> Summary | None:
    """The summary of a metric's samples; None where there are none."""
    if not len(metric.values):
        return None
    p50, p90, p99 = (float(each) for each in np.percentile(metric.values, (50, 90, 99)))
    return Summary(metric.n, p50, p90, p99, float(metric.values.mean()), float(metric.values.sum()))


def figure(metric: Metric) -> float | None:
    """The one figure by which a metric is compared: its statistic over its samples; None where there are none."""
    if not len(metric.values):
        return None
    return statistic(metric, metric.values, metric.group)


def statistic(metric: Metric, values: FloatArray, group: np.typing.NDArray[np.bool_] | None) -> float | None:
    """The metric's statistic over other samples of it (a resample)."""
    match metric.statistic:
        case Statistic.MEDIAN:
            return float(np.median(values))
        case Statistic.P99:
            return float(np.percentile(values, 99))
        case Statistic.MEAN | Statistic.VALUE:
            return float(values.mean())
        case Statistic.MEDIAN_DIFFERENCE:
            assert group is not None
            if not group.any() or group.all():
                return None
            return float(np.median(values[group]) - np.median(values[~group]))
