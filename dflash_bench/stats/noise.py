"""How each metric varies from run to run, as data: what its tolerance and its drift are a share of.

Every name of the metric registry is in exactly one row of `KINDS`; the tests hold the two lists against each other.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum

from dflash_bench.metrics.registry import spec
from dflash_bench.model import Unit


class Noise(StrEnum):
    """What a metric's tolerance and drift are a share of."""

    RELATIVE = "relative"
    """A positive time or rate: of the mean of both sides' figures."""
    LEVEL = "level"
    """What is left between two times (a lead, a wait, a difference), zero or negative too: of the step's period, or of
    itself where larger."""
    SHARE = "share"
    """A share of events: points."""
    EXACT = "exact"
    """The same seed and steps give the same number, to the last digit; without them, as its unit suggests."""
    UNJUDGED = "unjudged"
    """It speaks of the capture or of the machine's clock, not of the code."""


KINDS: dict[Noise, tuple[str, ...]] = {
    Noise.RELATIVE: ("step.period", "step.period@*", "range.*", "sync.*", "tokens.per_s", "tokens.per_s_per_request"),
    Noise.LEVEL: (
        "step.lead",
        "step.lead@*",
        "launch.lead",
        "graph.lead",
        "graph.lead@*",
        "alloc.step_cost",
        "stall.total_per_step",
        "sync.total_per_step",
        "dp.wait",
        "dp.lateness",
        "dp.agreement_tax",
    ),
    Noise.SHARE: (
        "launch.run_ahead_fraction",
        "graph.run_ahead_fraction",
        "dp.straggler_share",
        "dp.alloc_on_critical_path",
    ),
    Noise.EXACT: (
        "steps@*",
        "launch.calls_per_step",
        "sync.calls_per_step",
        "alloc.step_share",
        "alloc.steps",
        "accept.length",
        "tokens.committed",
        "kv.usage_max",
        "swa.usage_max",
        "kv.topup_pages_held",
        "topup.guard_ratio_min",
        "retracted",
        "consistency.checks",
        "consistency.bad",
    ),
    Noise.UNJUDGED: (
        "launch.backpressure",
        "clock.offset",
        "clock.offset_spread",
        "gpu_work_without_launch",
        "coverage.launches_matched",
        "coverage.gpu_work_matched",
        "coverage.gpu_work_uncorrelated",
        "coverage.open_ranges",
        "coverage.steps_with_overhead",
        "coverage.impossible_pairs",
    ),
}

_BY_NAME = {name: kind for kind, names in KINDS.items() for name in names}


def noise(name: str) -> Noise:
    """The kind of a metric. Raises KeyError for a name that the registry does not know."""
    return _BY_NAME[spec(name).name]


def inexact(kind: Noise, unit: Unit) -> Noise:
    """What an exact metric counts as where the inputs were not the same, or not known to be."""
    if kind is not Noise.EXACT:
        return kind
    return Noise.SHARE if unit is Unit.FRACTION else Noise.RELATIVE


@dataclass(frozen=True, slots=True)
class Allowance:
    """A size stated as a share of a scale, with a floor in the metric's base unit."""

    relative: float
    floor: float = 0.0

    def of(self, scale: float) -> float:
        """In the metric's unit."""
        return max(self.relative * scale, self.floor)


# A push/pop pair costs some 100 ns to 1 µs, so times closer than a microsecond are not told apart.
TIMER_FLOOR_NS = 1_000.0

TOLERANCE: dict[Noise, Allowance] = {
    Noise.RELATIVE: Allowance(0.03),
    Noise.LEVEL: Allowance(0.01),
    Noise.SHARE: Allowance(0.03),
    Noise.EXACT: Allowance(0.0),
}
"""What a reader would call no change, where no policy says otherwise. `dflash-bench calibrate` measures better ones."""

DRIFT: dict[Noise, Allowance] = {
    Noise.RELATIVE: Allowance(0.03),
    Noise.LEVEL: Allowance(0.03),
    Noise.SHARE: Allowance(0.03),
}
"""By how much a run may stray from its arm's level; two runs of one arm may so be twice that apart. 3 % is what the
published measurements of this code path report (#47685)."""


def scale(kind: Noise, base: float, candidate: float, step_period: float | None) -> float:
    """What a relative allowance is multiplied by, in the metric's unit; the same for both orders of the sides."""
    match kind:
        case Noise.SHARE:
            return 1.0
        case Noise.LEVEL:
            return max(abs(base), abs(candidate), step_period or 0.0)
        case _:
            return (abs(base) + abs(candidate)) / 2
