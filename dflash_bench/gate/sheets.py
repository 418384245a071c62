"""A decision as sheets, for terminal and Markdown alike, and in single sentences."""

from __future__ import annotations

from collections.abc import Sequence
from difflib import get_close_matches

from dflash_bench.gate.decision import Answer, Decision, Ruling
from dflash_bench.model import RunMetrics, Sides
from dflash_bench.report.headline import sides_headline
from dflash_bench.report.sheets import MAX_RANKS_SHOWN, Report, Sheet, warning_text
from dflash_bench.report.units import rank_text, symbol, text
from dflash_bench.report.verdicts import interval_text, power_text

WORDS = {
    Answer.PASS: "PASS: no regression beyond the tolerances",
    Answer.FAIL: "FAIL: a regression was shown",
    Answer.INCONCLUSIVE: "INCONCLUSIVE: the data cannot tell",
}


def gate_report(decision: Decision) -> Report:
    """The whole decision."""
    base, candidate = decision.sides.base, decision.sides.candidate
    reruns = f"; {decision.reruns} further runs were made by the gate" if decision.reruns else ""
    source = "baseline" if decision.sides.is_baseline else "base"
    return Report(
        title=WORDS[decision.outcome],
        lines=(
            *sides_headline(decision.sides, decision.judgements, decision.findings).lines,
            f"{source}: {_side(base)}",
            f"candidate: {_side(candidate)}{reruns}",
            *(f"cause: {culprit.text}" for culprit in decision.culprits[:3]),
            decision.judgements.method,
        ),
        sheets=(_checks_sheet(decision.checks),),
        warnings=(
            *(missing_text(decision.sides, name, rank) for name, rank in decision.missing),
            *(warning_text(f) for f in decision.findings),
        ),
    )


def missing_text(sides: Sides, name: str, rank: int | None) -> str:
    """Which side lacks a figure that the policy watches; where both do, the name that may have been meant."""
    there = [side for side, runs in sides.named if any(m.name == name for run in runs for m in run.metrics)]
    if there:
        return f"{name} of rank {rank_text(rank)} is in the {there[0]} only: it was not judged"
    near = get_close_matches(name, sorted({m.name for m in sides.candidate[0].metrics}), 1)
    return f"no run has {name}, which the policy names{f'; {near[0]} is there' if near else ''}"


def _side(runs: Sequence[RunMetrics]) -> str:
    info = runs[0].info
    world = info.world or len(info.ranks)
    names = ", ".join(r.info.run for r in runs[:3]) + (", …" if len(runs) > 3 else "")
    parts = (
        f"{len(runs)} run{'s' * (len(runs) != 1)} ({names}) of arm {info.arm or 'not stated'}",
        f"workload {info.workload}" if info.workload else "",
        f"{world} rank{'s' * (world != 1)}",
        f"device {info.device}",
    )
    return ", ".join(p for p in parts if p)


def _checks_sheet(checks: Sequence[Ruling]) -> Sheet:
    """Failures first, then what is open; of what passes on many ranks, the pooled figure stands for all."""
    order = [Answer.FAIL, Answer.INCONCLUSIVE, Answer.PASS]
    many = len({c.judgement.rank for c in checks} - {None}) > MAX_RANKS_SHOWN
    shown = [c for c in checks if c.outcome is not Answer.PASS or c.judgement.rank is None or not many]
    rows = tuple(_row(c) for c in sorted(shown, key=lambda c: order.index(c.outcome)))
    columns = (
        "metric",
        "rank",
        "gate",
        "verdict",
        "base",
        "candidate",
        "shift",
        "95 % interval",
        "tolerance ±",
        "unit",
        "runs",
        "power",
    )
    rest = len(checks) - len(shown)
    note = f"… and {rest} more checks of single ranks pass; all of them with --json" if rest else ""
    return Sheet("What the gate watches", columns, rows, ("metric", "gate", "verdict", "unit", "power"), note)


def _row(check: Ruling) -> tuple[str, ...]:
    j = check.judgement
    return (
        j.metric,
        rank_text(j.rank),
        check.outcome,
        j.verdict,
        text(j.base, j.unit),
        text(j.candidate, j.unit),
        text(j.shift, j.unit, is_signed=True),
        interval_text(j),
        text(j.tolerance, j.unit),
        symbol(j.unit),
        f"{j.base_runs} + {j.candidate_runs}",
        power_text(j),
    )


def sentence(check: Ruling) -> str:
    """One check in one line: what, where, how much, how sure."""
    j = check.judgement
    where = "all ranks" if j.rank is None else f"rank {j.rank}"
    unit = symbol(j.unit)
    change = f"{text(j.base, j.unit)} → {text(j.candidate, j.unit)} {unit}".strip()
    ratio = j.shift / j.base if j.base and j.base > 0 and j.shift is not None else None
    share = "" if ratio is None else f", {ratio:+.1%}".replace("%", " %").replace("-", "−")
    return f"{j.metric}, {where}: {j.verdict}, {change}{share} ({check.reason})"


def told(checks: Sequence[Ruling]) -> tuple[Ruling, ...]:
    """Each metric once where all its ranks came out alike: the pooled check then speaks for them."""
    outcomes: dict[str, set[Answer]] = {}
    for check in checks:
        outcomes.setdefault(check.judgement.metric, set()).add(check.outcome)
    pooled = {c.judgement.metric for c in checks if c.judgement.rank is None}
    alike = {name for name, seen in outcomes.items() if len(seen) == 1 and name in pooled}
    return tuple(c for c in checks if c.judgement.rank is None or c.judgement.metric not in alike)
