"""A decision as sheets, for terminal and Markdown alike, and in single sentences."""

from __future__ import annotations

from collections.abc import Sequence

from dflash_bench.gate.decision import Check, Decision, Outcome
from dflash_bench.report.sheets import Report, Sheet, identity, warning_text
from dflash_bench.report.units import MISSING, rank_text, symbol, text
from dflash_bench.stats.judgement import Judgement

WORDS = {
    Outcome.PASS: "PASS: no regression beyond the tolerances",
    Outcome.FAIL: "FAIL: a regression was shown",
    Outcome.INCONCLUSIVE: "INCONCLUSIVE: the data cannot tell",
}


def gate_report(decision: Decision) -> Report:
    """The whole decision."""
    base, candidate = decision.sides.base, decision.sides.candidate
    reruns = f"; {decision.reruns} further runs were made by the gate" if decision.reruns else ""
    source = "baseline" if decision.sides.is_baseline else "base"
    return Report(
        title=f"{WORDS[decision.outcome]}",
        lines=(
            f"{source}: {_runs(len(base))} of {identity(base[0].info)}",
            f"candidate: {_runs(len(candidate))} of {identity(candidate[0].info)}{reruns}",
            *(f"cause: {culprit.text}" for culprit in decision.culprits[:3]),
            decision.judgements.method,
        ),
        sheets=(_checks_sheet(decision.checks),),
        warnings=(
            *(
                f"{name} of rank {rank_text(rank)} is in the base only: it was not judged"
                for name, rank in decision.missing
            ),
            *(warning_text(f) for f in decision.findings),
        ),
    )


def _runs(num: int) -> str:
    return f"{num} run{'s' * (num != 1)}"


def _checks_sheet(checks: Sequence[Check]) -> Sheet:
    """Failures first, then what is open."""
    order = [Outcome.FAIL, Outcome.INCONCLUSIVE, Outcome.PASS]
    rows = tuple(_row(c) for c in sorted(checks, key=lambda c: order.index(c.outcome)))
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
    return Sheet("What the gate watches", columns, rows, left=("metric", "gate", "verdict", "unit", "power"))


def _row(check: Check) -> tuple[str, ...]:
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
    return seen


def size_text(judgement: Judgement, size: float) -> str:
    """A difference as a share of the base where the base is a positive time or rate, otherwise in the metric's unit."""
    unit = symbol(judgement.unit)
    if judgement.unit.value in ("ns", "tokens/s") and judgement.base > 0 and size < judgement.base:
        return f"{size / judgement.base:.1%}".replace("%", " %")
    return f"{text(size, judgement.unit)} {unit}".strip()


def sentence(check: Check) -> str:
    """One check in one line: what, where, how much, how sure."""
    j = check.judgement
    where = "all ranks" if j.rank is None else f"rank {j.rank}"
    unit = symbol(j.unit)
    change = f"{text(j.base, j.unit)} → {text(j.candidate, j.unit)} {unit}".strip()
    share = f", {j.shift / j.base:+.1%}".replace("%", " %").replace("-", "−") if j.base > 0 else ""
    return f"{j.metric}, {where}: {j.verdict}, {change}{share} ({check.reason})"
