"""What the tolerance and the drift of each kind of metric are a share of."""

from __future__ import annotations

from dataclasses import dataclass

from dflash_bench.metrics.registry import Noise, spec
from dflash_bench.model import Unit


def noise(name: str) -> Noise:
    """How a metric varies, as its registry entry says. Raises KeyError for a name that the registry does not know."""
    return spec(name).noise


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

GROSS_DRIFT: dict[Noise, Allowance] = {
    Noise.RELATIVE: Allowance(0.35),
    Noise.LEVEL: Allowance(0.25),
    Noise.SHARE: Allowance(0.15),
}
"""By how much a run may stray from its arm's level where nobody measured it: a host twice as fast or as slow is no news
(`prepare_for_decode` of one code on one H200: 179 and 332 µs in two runs of an hour). Two runs differ by twice that."""


def scale(kind: Noise, base: float, candidate: float, step_period: float | None) -> float:
    """What a relative allowance is multiplied by, in the metric's unit; the same for both orders of the sides."""
    match kind:
        case Noise.SHARE:
            return 1.0
        case Noise.LEVEL:
            return max(abs(base), abs(candidate), step_period or 0.0)
        case _:
            return (abs(base) + abs(candidate)) / 2
