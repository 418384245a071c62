"""What a comparison of runs ends in: a verdict per metric and rank, with everything it rests on."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum

from dflash_bench.model import Better, Interval, Unit


class Verdict(StrEnum):
    """What can be said of a metric."""

    IMPROVED = "improved"
    UNCHANGED = "unchanged"
    REGRESSED = "regressed"
    INCONCLUSIVE = "inconclusive"
    DESCRIBED = "described"
    """One run a side, whose drift nobody measured: it differs by so much, and that is all that can be said."""
    REMOVED = "removed"
    """Every run of the base has it, and none of the candidate."""
    NEW = "new"


class Family(StrEnum):
    """Primary metrics are judged first and decide; all others are looked at beside them."""

    PRIMARY = "primary"
    SECONDARY = "secondary"


class Design(StrEnum):
    """What a verdict rests on."""

    DUET = "pairs of blocks"
    RUNS = "runs"
    SESSIONS = "sessions"
    SINGLE = "one run a side"
    EXACT = "exact count"


@dataclass(frozen=True, slots=True)
class Judgement:
    """The verdict on one metric and rank. Figures and differences are in the metric's unit.

    ``base`` and ``candidate`` are the medians of the runs' figures, ``shift`` is candidate − base: with several runs
    the Hodges-Lehmann shift, so not quite the difference of the two. ``tolerance`` is what counts as no change.
    ``is_on_drift``: the runs were too few to measure how far runs stray, and a stated or learned drift stands for it.
    ``q`` is the p-value adjusted for all comparisons. ``detectable`` is the smallest difference that these repeats get
    a verdict on, 9 times in 10; ``further`` how many more runs of each side would decide. Both, and the p-values, are
    None for an exact comparison. ``pairs``: pairs of blocks behind it, in a duet. ``base`` is None where a metric is
    new, ``candidate`` where it is removed.
    """

    metric: str
    rank: int | None
    unit: Unit
    better: Better
    verdict: Verdict
    reason: str
    base: float | None
    candidate: float | None
    base_runs: int
    candidate_runs: int
    shift: float | None
    interval: Interval | None
    tolerance: float
    is_exact: bool
    is_on_drift: bool = False
    p: float | None = None
    p_exact: float | None = None
    q: float | None = None
    detectable: float | None = None
    further: int | None = None
    family: Family = Family.SECONDARY
    design: Design = Design.RUNS
    pairs: int | None = None

    @property
    def percent(self) -> Interval | None:
        """The interval as a share of the base's figure; None for shares, and where the base is not positive."""
        found = self.interval
        if found is None or self.unit is Unit.FRACTION or self.base is None or self.base <= 0:
            return None
        return Interval(found.low / self.base, found.high / self.base, found.confidence)

    @property
    def excludes_regression(self) -> bool:
        """Whether a regression beyond the tolerance is ruled out, whatever else is open."""
        if self.interval is None:
            return self.verdict is not Verdict.REGRESSED
        worst = -self.interval.low if self.better is Better.HIGHER else self.interval.high
        return self.verdict in (Verdict.UNCHANGED, Verdict.IMPROVED) or worst <= self.tolerance


@dataclass(frozen=True, slots=True)
class Judgements:
    """All verdicts of a comparison. ``num_tests`` comparisons shared the false-discovery rate ``rate``."""

    each: tuple[Judgement, ...]
    num_tests: int
    rate: float

    def of(self, verdict: Verdict) -> tuple[Judgement, ...]:
        """Those with this verdict, in the order of every listing."""
        return tuple(j for j in self.each if j.verdict is verdict)

    def find(self, name: str, rank: int | None) -> Judgement | None:
        """The verdict on that metric and rank, or None."""
        return next((j for j in self.each if j.metric == name and j.rank == rank), None)

    @property
    def num_on_drift(self) -> int:
        """How many verdicts that something changed rest on a drift that was not measured on these runs."""
        return sum(j.is_on_drift for j in (*self.of(Verdict.IMPROVED), *self.of(Verdict.REGRESSED)))

    @property
    def method(self) -> str:
        """How the verdicts were reached, in one line."""
        if not self.num_tests:
            return "every comparison is exact"
        return (
            f"{self.num_tests} comparisons (metrics × ranks): of the verdicts at most {self.rate:.0%} are expected to"
            " be false (Benjamini-Hochberg)"
        )
