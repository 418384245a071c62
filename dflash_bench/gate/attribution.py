"""Who made it worse: the rank and the code that a regression is pinned on."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from dflash_bench.model import Judgement, Judgements, Sides, Verdict

_COSTS = ("cost.", "range.")


@dataclass(frozen=True, slots=True)
class Culprit:
    """A range that costs more on these of ``num_ranks`` ranks. ``added_ns`` is the largest shift."""

    range: str
    ranks: tuple[int, ...]
    num_ranks: int
    added_ns: float

    @property
    def text(self) -> str:
        """In words."""
        if len(self.ranks) in (0, self.num_ranks):
            where = "on all ranks" if self.num_ranks > 1 else "on rank 0"
        else:
            where = f"on rank{'s' if len(self.ranks) > 1 else ''} {', '.join(map(str, self.ranks))}"
            where += f" of {self.num_ranks}"
        return f"{self.range} takes {self.added_ns / 1000:,.1f} µs longer {where}"


def attribute(
    judgements: Judgements, sides: Sides, left_out: Iterable[str], failed: Sequence[Judgement] = ()
) -> tuple[Culprit, ...]:
    """Costs that regressed, the largest shift first: on the ranks where they did, or on all.

    ``failed``: what the gate itself saw regress. ``left_out`` names ranges that contain a cause or follow from it: the
    step, and the agreement, in which the ranks that are not to blame wait for the one that is.
    """
    names = set(left_out)
    found: dict[str, dict[int | None, float]] = {}
    for j in (*failed, *judgements.of(Verdict.REGRESSED)):
        name = next((j.metric.removeprefix(prefix) for prefix in _COSTS if j.metric.startswith(prefix)), None)
        if name is not None and name not in names and not name.endswith(".p99"):
            found.setdefault(name, {}).setdefault(j.rank, j.shift or 0.0)
    num_ranks = len({m.rank for run in sides.candidate for m in run.metrics if m.rank is not None})
    culprits = [
        Culprit(name, tuple(sorted(r for r in ranks if r is not None)), num_ranks, max(ranks.values()))
        for name, ranks in found.items()
    ]
    return tuple(sorted(culprits, key=lambda c: (-c.added_ns, c.range)))
