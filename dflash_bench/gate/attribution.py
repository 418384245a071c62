"""Who made it worse: the rank and the range that a regression is pinned on."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from dflash_bench.model import RunMetrics
from dflash_bench.stats.judgement import Judgement, Verdict
from dflash_bench.stats.rules import Rules
from dflash_bench.stats.verdict import judge

PREFIX = "range."


@dataclass(frozen=True, slots=True)
class Culprit:
    """A range that takes longer on these of ``num_ranks`` ranks. ``added_ns`` is the largest shift."""

    range: str
    ranks: tuple[int, ...]
    num_ranks: int
    added_ns: float

    @property
    def text(self) -> str:
        """In words."""
        if len(self.ranks) == self.num_ranks:
            where = "on all ranks" if self.num_ranks > 1 else f"on rank {self.ranks[0]}"
        else:
            where = f"on rank{'s' if len(self.ranks) > 1 else ''} {', '.join(map(str, self.ranks))}"
            where += f" of {self.num_ranks}"
        return f"{self.range} takes {self.added_ns / 1000:,.1f} µs longer {where}"


def attribute(
    base: Sequence[RunMetrics], candidate: Sequence[RunMetrics], rules: Rules, step: str, agreement: str
) -> tuple[Culprit, ...]:
    """Ranges that regressed on single ranks, the largest shift first.

    The step's own range and the agreement are left out: the one contains the cause, and in the other the ranks that
    are not to blame wait for the one that is.
    """
    left_out = {PREFIX + step, PREFIX + agreement}
    found = judge(
        base, candidate, rules, lambda name, rank: name.startswith(PREFIX) and rank is not None and name not in left_out
    )
    by_range: dict[str, list[Judgement]] = {}
    for each in found.of(Verdict.REGRESSED):
        by_range.setdefault(each.metric, []).append(each)
    num_ranks = len({m.rank for run in candidate for m in run.metrics if m.rank is not None})
    culprits = [_culprit(name, regressed, num_ranks) for name, regressed in by_range.items()]
    return tuple(sorted(culprits, key=lambda c: (-c.added_ns, c.range)))


def _culprit(name: str, regressed: Sequence[Judgement], num_ranks: int) -> Culprit:
    ranks = tuple(sorted(j.rank for j in regressed if j.rank is not None))
    return Culprit(name.removeprefix(PREFIX), ranks, num_ranks, max(j.shift for j in regressed))
