"""The rules by which a metric is judged: what counts as no change, how far runs stray, which way is better."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from fnmatch import fnmatchcase

import numpy as np

from dflash_bench.metrics.registry import Noise, spec
from dflash_bench.model import Better, Figures, Unit
from dflash_bench.stats.fdr import FALSE_DISCOVERY_RATE
from dflash_bench.stats.noise import DRIFT, TIMER_FLOOR_NS, TOLERANCE, Allowance
from dflash_bench.stats.shift import t_quantile

MIN_HISTORY = 3
"""Runs that a drift can be learned from."""


@dataclass(frozen=True, slots=True)
class MetricRule:
    """What a policy says of the metrics that match a name; None leaves the default."""

    tolerance: Allowance | None = None
    drift: Allowance | None = None
    better: Better | None = None


@dataclass(frozen=True, slots=True)
class Rules:
    """How to judge. ``own`` maps a name or a pattern (``range.*``) to its rule; an exact name wins over a pattern.

    ``drift`` replaces the stated 3 % for every metric without a rule; ``history`` replaces both where it has enough
    runs. ``rate`` is the false-discovery rate.
    """

    own: Mapping[str, MetricRule] = field(default_factory=dict)
    drift: float | None = None
    history: Figures = field(default_factory=dict)
    rate: float = FALSE_DISCOVERY_RATE

    def rule(self, name: str) -> MetricRule:
        """The rule of a metric."""
        if name in self.own:
            return self.own[name]
        return next((rule for pattern, rule in self.own.items() if fnmatchcase(name, pattern)), MetricRule())

    def better(self, name: str) -> Better:
        """The direction of the registry; a policy may only add one where the registry has none."""
        return self.rule(name).better or spec(name).better

    def tolerance(self, name: str, kind: Noise, unit: Unit) -> Allowance:
        """What counts as no change."""
        found = self.rule(name).tolerance or TOLERANCE[kind]
        is_timer = unit is Unit.NS and self.rule(name).tolerance is None
        return Allowance(found.relative, max(found.floor, TIMER_FLOOR_NS)) if is_timer else found

    def drift_of(self, name: str, rank: int | None, kind: Noise, scale: float) -> tuple[float, str]:
        """By how much a run may stray from its arm's level, in the metric's unit, and where that is known from."""
        earlier = self.history.get((name, rank), ())
        if len(earlier) >= MIN_HISTORY:
            return _learned(earlier), f"learned from {len(earlier)} runs"
        own = self.rule(name).drift or (DRIFT[kind] if self.drift is None else Allowance(self.drift))
        return own.of(scale), "stated"


def _learned(figures: Sequence[float]) -> float:
    """Half of the largest difference that two further runs of the arm are expected to have, 95 times in 100."""
    spread = float(np.std(figures, ddof=1))
    return t_quantile(0.975, len(figures) - 1) * spread * math.sqrt(2) / 2
