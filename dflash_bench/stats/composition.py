"""What kinds of steps a run consists of: figures over all steps compare like with like only where the mix is alike."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from dflash_bench.metrics.summary import figure
from dflash_bench.model import Finding, RunMetrics, Sides

_PREFIX = "steps@"
_TOLERATED = 0.02
"""A kind of steps may make up so much more of one side's steps than of the other's. A median moves by less than the
distance of the quantiles that far from it."""


def composition(runs: Sequence[RunMetrics]) -> dict[str, float]:
    """Kind of step → its share of all steps of these runs, over all ranks; empty where a run does not say."""
    counts = [_counts(run) for run in runs]
    total = sum(sum(each.values()) for each in counts)
    if not total or not all(counts):
        return {}
    kinds = sorted({kind for each in counts for kind in each})
    return {kind: sum(each.get(kind, 0.0) for each in counts) / total for kind in kinds}


def is_composition(name: str) -> bool:
    """Whether a metric counts the steps of one kind."""
    return name.startswith(_PREFIX)


def unlike_steps(sides: Sides) -> Iterator[Finding]:
    """A warning where the sides consist of different steps; none where one of them does not say."""
    old, new = composition(sides.base), composition(sides.candidate)
    kinds = sorted({*old, *new})
    apart = max((abs(new.get(kind, 0.0) - old.get(kind, 0.0)) for kind in kinds), default=0.0)
    if not old or not new or round(apart, 6) <= _TOLERATED:
        return
    shares = ", ".join(f"{kind} {old.get(kind, 0.0):.1%} against {new.get(kind, 0.0):.1%}" for kind in kinds)
    text = f"the steps are not alike ({shares}): figures over all steps compare unlike work, those of one kind do not"
    yield Finding("different_composition", None, len(kinds), text.replace("%", " %"))


def _counts(run: RunMetrics) -> dict[str, float]:
    """Kind → number of steps, summed over the ranks."""
    found: dict[str, float] = {}
    for m in run.metrics:
        if is_composition(m.name) and m.rank is not None and (value := figure(m)) is not None:
            kind = m.name.removeprefix(_PREFIX)
            found[kind] = found.get(kind, 0.0) + value
    return found
