"""The changes of a comparison: which answer first, and what each is by its verdict."""

from __future__ import annotations

from collections.abc import Sequence
from enum import StrEnum

from dflash_bench.model import Change, Comparison, Judgement, Judgements, Unit
from dflash_bench.report.units import percent, readable

KEY_METRICS = (
    "step.period",
    "tokens.per_s",
    "host.busy_per_step",
    "gpu.dry_per_step",
    "cost.prepare_for_decode",
    "step.lead",
    "alloc.step_share",
    "alloc.step_cost",
    "dp.agreement_tax",
    "dp.alloc_on_critical_path",
    "accept.length",
)
"""What a tired engineer asks first, in this order, over all ranks."""


class Tone(StrEnum):
    """What a change is to whoever made it: by its verdict, never by its size."""

    BETTER = "better"
    WORSE = "worse"
    SAME = "same"
    OPEN = "open"


_TONES = {"improved": Tone.BETTER, "regressed": Tone.WORSE, "unchanged": Tone.SAME}


def tone(judged: Judgement | None) -> Tone:
    """Better, worse or the same where a verdict says so; all else is open."""
    return Tone.OPEN if judged is None else _TONES.get(judged.verdict, Tone.OPEN)


def pooled_changes(comparison: Comparison) -> list[Change]:
    """One change a metric: over all ranks, or, where there is one rank, that rank's, which the verdicts speak of."""
    ranks = {c.rank for c in comparison.changes if c.rank is not None}
    own = {c.metric for c in comparison.changes if c.rank is not None} if len(ranks) == 1 else set()
    return [c for c in comparison.changes if (c.rank is not None) == (c.metric in own)]


def key_changes(comparison: Comparison) -> list[Change]:
    """The changes that answer first, in their fixed order; those that either run has."""
    found = {c.metric: c for c in pooled_changes(comparison)}
    return [found[name] for name in KEY_METRICS if name in found]


def by_importance(changes: Sequence[Change], judgements: Judgements | None) -> list[Change]:
    """What got worse, what got better, what is open, what is the same; in each the metrics that answer first, then by
    size."""

    def place(change: Change) -> tuple[int, int, float]:
        found = judgements.find(change.metric, change.rank) if judgements else None
        order = (Tone.WORSE, Tone.BETTER, Tone.OPEN, Tone.SAME)
        first = KEY_METRICS.index(change.metric) if change.metric in KEY_METRICS else len(KEY_METRICS)
        return order.index(tone(found)), first, -abs(relative(change) or 0.0)

    return sorted(changes, key=place)


def is_relative(change: Judgement | Change) -> bool:
    """Whether a difference is told in % of the base: of times and counts above zero on both sides."""
    if change.base is None or change.candidate is None or change.unit is Unit.FRACTION:
        return False
    return change.base > 0 and change.candidate > 0


def relative(change: Change) -> float | None:
    """The difference as a share of the base; None where that means nothing."""
    if not is_relative(change) or change.difference is None:
        return None
    assert change.base is not None
    return change.difference / change.base


def pair_text(change: Judgement | Change) -> str:
    """``11.13 → 9.57 ms``."""
    base, candidate, unit = readable(change.base, change.candidate, unit=change.unit)
    return f"{base} → {candidate} {unit}".rstrip()


def change_texts(change: Judgement | Change) -> tuple[str, str]:
    """Difference and interval: in % of the base, of shares in points, of leads and what was zero in their own unit.

    The interval is empty where there is none.
    """
    difference = change.shift if isinstance(change, Judgement) else change.difference
    if difference is None:
        return "", ""
    span = change.interval
    ends = (difference,) if span is None else (difference, span.low, span.high)
    if is_relative(change):
        assert change.base is not None
        shown = percent(difference / change.base)
        digits = len(shown.removesuffix(" %").partition(".")[2])
        texts = (f"{round(100 * end / change.base, digits) + 0.0:+,.{digits}f}".replace("-", "−") for end in ends[1:])
        return shown, " … ".join(texts)
    first, *rest, unit = readable(*ends, unit=change.unit, is_signed=True)
    return f"{first} {unit}".rstrip(), " … ".join(rest)
