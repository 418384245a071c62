"""Which changes of a comparison are shown first, and what is said of each: better, worse or neither."""

from __future__ import annotations

from collections.abc import Sequence
from enum import StrEnum

from dflash_bench.model import Better, Change, Comparison
from dflash_bench.stats.judgement import Judgements, Verdict

KEY_METRICS = (
    "range.prepare_for_decode",
    "step.period",
    "step.lead",
    "launch.run_ahead_fraction",
    "stall.total_per_step",
    "sync.total_per_step",
    "alloc.step_share",
    "alloc.step_cost",
    "dp.agreement_tax",
    "dp.alloc_on_critical_path",
    "tokens.per_s",
    "accept.length",
)
"""What a tired engineer asks first, in this order, over all ranks."""


class Tone(StrEnum):
    """What a change is, as far as one can tell."""

    BETTER = "better"
    WORSE = "worse"
    SAME = "same"


def pooled_changes(comparison: Comparison) -> list[Change]:
    """One change a metric: over all ranks, or, where there is one rank, that rank's, which the verdicts speak of."""
    ranks = {c.rank for c in comparison.changes if c.rank is not None}
    own = {c.metric for c in comparison.changes if c.rank is not None} if len(ranks) == 1 else set()
    return [c for c in comparison.changes if (c.rank is not None) == (c.metric in own)]


def key_changes(comparison: Comparison) -> list[Change]:
    """The changes that answer first, in their fixed order; those that either run has."""
    found = {c.metric: c for c in pooled_changes(comparison)}
    return [found[name] for name in KEY_METRICS if name in found]


def direction(change: Change) -> int:
    """+1 where the candidate's figure lies in the better direction, −1 in the worse one, 0 where none is."""
    if change.better is Better.NONE or not change.difference:
        return 0
    return 1 if (change.difference < 0) == (change.better is Better.LOWER) else -1


def excludes_zero(change: Change) -> bool:
    """Whether the interval of the difference lies on one side of zero."""
    found = change.interval
    return found is not None and (found.low > 0 or found.high < 0)


def tone(change: Change, judgements: Judgements | None = None) -> Tone:
    """Better or worse: by the verdict where there are verdicts, otherwise where the interval excludes zero."""
    if judgements is not None:
        judged = judgements.find(change.metric, change.rank)
        verdicts = {Verdict.IMPROVED: Tone.BETTER, Verdict.REGRESSED: Tone.WORSE}
        return verdicts.get(judged.verdict, Tone.SAME) if judged else Tone.SAME
    return {1: Tone.BETTER, -1: Tone.WORSE, 0: Tone.SAME}[direction(change) if excludes_zero(change) else 0]


def largest(changes: Sequence[Change], count: int = 3) -> list[Change]:
    """The clearest differences: the largest in half-widths of their intervals, those whose interval excludes zero."""
    return sorted((c for c in changes if excludes_zero(c)), key=_clearness, reverse=True)[:count]


def _clearness(change: Change) -> float:
    assert change.interval is not None
    width = change.interval.high - change.interval.low
    return abs(change.difference or 0.0) / width if width else float("inf")
