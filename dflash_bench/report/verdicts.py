"""Verdicts in words and rows: what was found, how sure it is, and what the repeats could have seen."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from typing import Any

from dflash_bench.model import Judgement, Judgements, Verdict
from dflash_bench.report.sheets import Detail, Sheet
from dflash_bench.report.units import MISSING, rank_text, symbol, text, with_unit

_FIRST = ("regressed", "improved", "inconclusive")
_ORDER = (*map(Verdict, _FIRST), *(v for v in Verdict if v not in _FIRST))


def verdict_line(judgements: Judgements) -> str:
    """How many of each, and how they were reached."""
    counts = ", ".join(f"{len(found)} {verdict}" for verdict in _ORDER if (found := judgements.of(verdict)))
    return f"verdicts: {counts or 'none'}; {judgements.method}"


def verdict_sheet(judgements: Judgements, detail: Detail, *, is_per_rank: bool = True) -> Sheet:
    """Everything but what is unchanged, the worst first, and a reason once for all that share it."""
    pooled = {j.metric for j in judgements.each if j.rank is None}
    shown = [
        j
        for j in judgements.each
        if detail.shows(j.metric, j.rank) and (is_per_rank or j.rank is None or j.metric not in pooled)
    ]
    told = [j for verdict in _ORDER if verdict is not Verdict.UNCHANGED for j in shown if j.verdict is verdict]
    reasons = list(dict.fromkeys((j.verdict, j.reason) for j in told))
    told.sort(key=lambda j: reasons.index((j.verdict, j.reason)))
    rows, last = [], None
    for j in told:
        reason = "″" if (j.verdict, j.reason) == last else j.reason
        last = j.verdict, j.reason
        cells = (text(j.shift, j.unit, is_signed=True), interval_text(j), symbol(j.unit), power_text(j))
        rows.append((j.metric, rank_text(j.rank), j.verdict, *cells, reason))
    columns = ("metric", "rank", "verdict", "shift", "95 % interval", "unit", "power", "reason")
    unchanged = sum(j.verdict is Verdict.UNCHANGED for j in shown)
    note = f"{unchanged} more are unchanged: shown to lie inside their tolerance" if unchanged else ""
    return Sheet("Verdicts", columns, tuple(rows), ("metric", "verdict", "unit", "power", "reason"), note)


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
    seen = f"{num} repeat{'s' * (num != 1)} see{'s' * (num == 1)} ≥ {_size(judgement, judgement.detectable)}"
    if judgement.further is not None:
        seen += f"; {judgement.further} more would decide"
    elif judgement.verdict is Verdict.INCONCLUSIVE:
        seen += "; more repeats would hardly decide"
    return seen


def _size(judgement: Judgement, size: float) -> str:
    """A difference as a share of the base where the base is a positive time or rate, otherwise in the metric's unit."""
    base = judgement.base or 0.0
    if judgement.unit.value in ("ns", "tokens/s") and size < base:
        return f"{size / base:.1%}".replace("%", " %")
    return with_unit(size, judgement.unit)
