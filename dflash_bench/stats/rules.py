"""The rules by which a metric is judged: what counts as no change, how far runs stray, which way is better."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from fnmatch import fnmatchcase

import numpy as np

from dflash_bench.metrics.registry import Noise, spec
from dflash_bench.model import Better, Figures, Unit
from dflash_bench.stats.families import ERROR_RATE
from dflash_bench.stats.noise import GROSS_DRIFT, TIMER_FLOOR_NS, TOLERANCE, Allowance
from dflash_bench.stats.shift import MIN_SESSIONS, t_quantile


@dataclass(frozen=True, slots=True)
class MetricRule:
    """What a policy says of the metrics that match a name; None leaves the default."""

    tolerance: Allowance | None = None
    drift: Allowance | None = None
    better: Better | None = None


@dataclass(frozen=True, slots=True)
class Rules:
    """How to judge. ``own`` maps a name or a pattern (``range.*``) to its rule; an exact name wins over a pattern.

    ``drift`` is stated for every metric without a rule; ``history`` replaces both where it has enough runs or sessions.
    ``rate``: the chance of any false verdict. ``primary``: the names and patterns that are judged first;
    None: those of the registry.
    """

    own: Mapping[str, MetricRule] = field(default_factory=dict)
    drift: float | None = None
    history: Figures = field(default_factory=dict)
    rate: float = ERROR_RATE
    primary: Sequence[str] | None = None

    def rule(self, name: str) -> MetricRule:
        """The rule of a metric."""
        if name in self.own:
            return self.own[name]
        return next((rule for pattern, rule in self.own.items() if fnmatchcase(name, pattern)), MetricRule())

    def names(self, name: str) -> bool:
        """Whether a rule is about that metric."""
        return any(fnmatchcase(name, pattern) for pattern in self.own)

    def is_primary(self, name: str) -> bool:
        """Whether a metric is judged first, and decides."""
        return spec(name).is_primary if self.primary is None else any(fnmatchcase(name, own) for own in self.primary)

    def better(self, name: str) -> Better:
        """The direction of the registry; a policy may only add one where the registry has none."""
        return self.rule(name).better or spec(name).better

    def tolerance(self, name: str, kind: Noise, unit: Unit) -> Allowance:
        """What counts as no change."""
        found = self.rule(name).tolerance or TOLERANCE[kind]
        is_timer = unit is Unit.NS and self.rule(name).tolerance is None
        return Allowance(found.relative, max(found.floor, TIMER_FLOOR_NS)) if is_timer else found

    def drift_of(self, name: str, rank: int | None, kind: Noise, scale: float) -> tuple[float, str, bool]:
        """By how much a run may stray from its arm's level, in the metric's unit, where that is known from, and whether
        it is not known at all: then it is what even a gross drift does not exceed."""
        earlier = self.history.get((name, rank), ())
        if len(earlier) >= MIN_SESSIONS:
            return _learned(earlier), f"learned from {len(earlier)} runs", False
        own = self.rule(name).drift or (None if self.drift is None else Allowance(self.drift))
        return (GROSS_DRIFT[kind].of(scale), "not known", True) if own is None else (own.of(scale), "stated", False)


def _learned(figures: Sequence[float]) -> float:
    """Half of the largest difference that two further runs of the arm are expected to have, 95 times in 100."""
    spread = float(np.std(figures, ddof=1))
    return t_quantile(0.975, len(figures) - 1) * spread * math.sqrt(2) / 2
