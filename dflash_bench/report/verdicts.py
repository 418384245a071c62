"""Verdicts in words and rows: what was found, how sure it is, and what the repeats could have seen."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator, Sequence
from typing import Any

from dflash_bench.report.sheets import Sheet
from dflash_bench.report.units import MISSING, rank_text, symbol, text
from dflash_bench.stats.judgement import Judgement, Judgements, Verdict

_ORDER = (Verdict.REGRESSED, Verdict.IMPROVED, Verdict.INCONCLUSIVE)


def verdict_lines(judgements: Judgements) -> Iterator[str]:
    """How many of each, and how they were reached."""
    counts = (f"{len(judgements.of(verdict))} {verdict}" for verdict in (*_ORDER, Verdict.UNCHANGED))
    yield f"verdicts: {', '.join(counts)}; {judgements.method}"


def verdict_sheet(judgements: Judgements, *, is_per_rank: bool, watched: Sequence[str] | None = None) -> Sheet:
    """Everything but what is unchanged, the worst first; the reasons with it.

    ``watched``: of the inconclusive ones, only these metrics are shown and the rest is counted.
    """
    pooled = {j.metric for j in judgements.each if j.rank is None}
    shown = [j for j in judgements.each if is_per_rank or j.rank is None or j.metric not in pooled]
    told = [j for verdict in _ORDER for j in shown if j.verdict is verdict]
    if watched is not None:
        told = [j for j in told if j.verdict is not Verdict.INCONCLUSIVE or j.metric in watched]
    rows = tuple(
        (
            j.metric,
            rank_text(j.rank),
            j.verdict,
            text(j.shift, j.unit, is_signed=True),
            interval_text(j),
            symbol(j.unit),
            power_text(j),
            j.reason,
        )
        for j in told
    )
    columns = ("metric", "rank", "verdict", "shift", "95 % interval", "unit", "power", "reason")
    unchanged = sum(j.verdict is Verdict.UNCHANGED for j in shown)
    unsure = len(shown) - len(told) - unchanged
    notes = (
        f"{unsure} more are inconclusive: all of them without --brief" if unsure else "",
        f"{unchanged} more are unchanged: shown to lie inside their tolerance" if unchanged else "",
    )
    note = "; ".join(part for part in notes if part)
    return Sheet("Verdicts", columns, rows, ("metric", "verdict", "unit", "power", "reason"), note)


def judgement_rows(judgements: Sequence[Judgement]) -> list[dict[str, Any]]:
    """Judgements as flat rows with their reasons."""
    return [{**judgement_row(j), "reason": j.reason} for j in judgements]


def judgement_row(judgement: Judgement) -> dict[str, Any]:
    """A judgement as a flat row."""
    row = {k: v for k, v in dataclasses.asdict(judgement).items() if k not in ("interval", "reason")}
    found = judgement.interval
    return row | {
        "low": found.low if found else None,
        "high": found.high if found else None,
        "confidence": found.confidence if found else None,
        "power": power_text(judgement),
    }


def interval_text(judgement: Judgement) -> str:
    """The interval of the shift, or that the comparison is exact."""
    found = judgement.interval
    if found is None:
        return "exact" if judgement.is_exact else MISSING
    return f"{text(found.low, judgement.unit, is_signed=True)} … {text(found.high, judgement.unit, is_signed=True)}"


def power_text(judgement: Judgement) -> str:
    """What these repeats can see, and how many more would decide."""
    if judgement.detectable is None:
        return "every difference"
    num = min(judgement.base_runs, judgement.candidate_runs)
    seen = f"{num} repeat{'s' * (num != 1)} see{'s' * (num == 1)} ≥ {size_text(judgement, judgement.detectable)}"
    if judgement.further is not None:
        seen += f"; {judgement.further} more would decide"
    elif judgement.verdict is Verdict.INCONCLUSIVE:
        seen += "; more repeats would hardly decide"
    return seen


def size_text(judgement: Judgement, size: float) -> str:
    """A difference as a share of the base where the base is a positive time or rate, otherwise in the metric's unit."""
    unit = symbol(judgement.unit)
    base = judgement.base or 0.0
    if judgement.unit.value in ("ns", "tokens/s") and size < base:
        return f"{size / base:.1%}".replace("%", " %")
    return f"{text(size, judgement.unit)} {unit}".strip()
