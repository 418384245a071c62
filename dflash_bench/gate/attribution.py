"""Who made it worse: the rank and the range that a regression is pinned on."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from dflash_bench.model import Sides
from dflash_bench.stats.judgement import Judgement, Verdict
from dflash_bench.stats.levelled import levelled
from dflash_bench.stats.rules import Rules
from dflash_bench.stats.verdict import judge

_RANGES = "range."


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
    sides: Sides,
    rules: Rules,
    left_out: Iterable[str],
    failed: Sequence[Judgement] = (),
) -> tuple[Culprit, ...]:
    """Ranges that regressed on single ranks, the largest shift first.

    Those are: what the gate itself saw regress (``failed``), what regressed among all ranges and ranks, and what
    regressed against the other ranks of the same runs, where the noise that all ranks share is gone. ``left_out`` names
    ranges that contain a cause or follow from it: the step, and the agreement, in which the ranks that are not to blame
    wait for the one that is.
    """
    names = {_RANGES + name for name in left_out}

    def chosen(name: str) -> bool:
        return name.startswith(_RANGES) and name not in names

    alone = judge(sides, rules, lambda name, rank: chosen(name) and rank is not None)
    together = judge(levelled(sides, chosen), rules)
    found: dict[str, dict[int, float]] = {}
    for j in (*failed, *alone.each, *together.each):
        if j.verdict is Verdict.REGRESSED and j.rank is not None and chosen(j.metric):
            found.setdefault(j.metric, {}).setdefault(j.rank, j.shift or 0.0)
    num_ranks = len({m.rank for run in sides.candidate for m in run.metrics if m.rank is not None})
    culprits = [
        Culprit(name.removeprefix(_RANGES), tuple(sorted(ranks)), num_ranks, max(ranks.values()))
        for name, ranks in found.items()
    ]
    return tuple(sorted(culprits, key=lambda c: (-c.added_ns, c.range)))
