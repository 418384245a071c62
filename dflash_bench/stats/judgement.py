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


@dataclass(frozen=True, slots=True)
class Judgement:
    """The verdict on one metric and rank. Figures and differences are in the metric's unit.

    ``base`` and ``candidate`` are the medians of the runs' figures, ``shift`` is candidate − base: with several runs
    the Hodges-Lehmann shift, so not quite the difference of the two. ``tolerance`` is what counts as no change.
    ``is_on_drift``: the runs were too few to measure how far runs stray, and a stated or learned drift stands for it.
    ``q`` is the p-value adjusted for all comparisons. ``detectable`` is the smallest difference that these repeats get
    a verdict on, 9 times in 10; ``further`` how many more runs of each side would decide. Both, and the p-values, are
    None for an exact comparison.
    """

    metric: str
    rank: int | None
    unit: Unit
    better: Better
    verdict: Verdict
    reason: str
    base: float
    candidate: float
    base_runs: int
    candidate_runs: int
    shift: float
    interval: Interval | None
    tolerance: float
    is_exact: bool
    is_on_drift: bool = False
    p: float | None = None
    p_exact: float | None = None
    q: float | None = None
    detectable: float | None = None
    further: int | None = None

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
