"""A run as one repeat of a measurement: its figure, and how far its own steps leave that figure open."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field

import numpy as np

from dflash_bench.metrics.summary import figure
from dflash_bench.model import FloatArray, Metric, Statistic
from dflash_bench.stats.bootstrap import draws, seed

_MAX_RESAMPLES, _MIN_RESAMPLES, _SAMPLES_PER_RUN = 200, 50, 2_000_000


@dataclass(frozen=True, slots=True)
class Repeat:
    """One metric of one run. ``noise``: float64 [resamples], what the figure would be moved by with other steps of the
    same run (block bootstrap); one zero where there are no samples behind the figure, or too few: then
    ``is_noise_known`` is False."""

    figure: float
    noise: FloatArray = field(repr=False, compare=False)
    is_noise_known: bool = True

    @property
    def variance(self) -> float:
        """Of the figure, from inside the run."""
        return float(self.noise.var())


def repeat(metric: Metric) -> Repeat | None:
    """The metric of one run as a repeat; None where it has no figure."""
    own = figure(metric)
    if own is None:
        return None
    resamples = int(np.clip(_SAMPLES_PER_RUN // max(1, len(metric.values)), _MIN_RESAMPLES, _MAX_RESAMPLES))
    found = draws(metric, resamples, np.random.default_rng(seed(metric)))
    found = np.zeros(0) if found is None else found[~np.isnan(found)]
    if len(found) < resamples / 2:
        return Repeat(own, np.zeros(1), is_noise_known=metric.statistic is Statistic.VALUE)
    return Repeat(own, found - found.mean())


def repeats(metrics: Iterable[Metric | None]) -> tuple[Repeat, ...]:
    """The runs that have a figure, in order of the figure: the order in which they were made changes nothing."""
    found = [own for m in metrics if m is not None and (own := repeat(m)) is not None]
    return tuple(sorted(found, key=lambda r: r.figure))
