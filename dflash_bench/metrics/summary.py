"""From samples to the figures that are shown: quantiles, means, single values."""

from __future__ import annotations

import numpy as np

from dflash_bench.model import FloatArray, Metric, SampleFigures, Statistic, Summary, Unit


def has_quantiles(metric: Metric) -> bool:
    """Whether a metric is a distribution that quantiles say something of: samples in time, and no difference of two."""
    is_spread = metric.statistic in (Statistic.MEDIAN, Statistic.MEAN, Statistic.P99)
    return len(metric.values) > 0 and (metric.statistic is Statistic.MEDIAN or (is_spread and metric.unit is Unit.NS))


def summarise(metric: Metric) -> Summary | None:
    """The summary of a metric's samples; None where there are none."""
    if not len(metric.values):
        return None
    if (known := _known(metric)) is not None:
        return known.summary
    p50, p90, p99 = (float(each) for each in np.percentile(metric.values, (50, 90, 99)))
    return Summary(metric.n, p50, p90, p99, float(metric.values.mean()), float(metric.values.sum()))


def _known(metric: Metric) -> SampleFigures | None:
    """What came with a metric, as long as its samples are those that it is of."""
    known = metric.known
    is_of_these = known is not None and known.values is metric.values and known.group is metric.group
    return known if is_of_these and known is not None and known.summary.n == metric.n else None


def figure(metric: Metric) -> float | None:
    """The one figure by which a metric is compared: its statistic over its samples; None where there are none."""
    if not len(metric.values):
        return None
    if (known := _known(metric)) is not None:
        return known.figure
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
