"""The tables of the HTML report. Cells carry the stored number beside the text, so that the page can be checked."""

from __future__ import annotations

import shlex
from collections.abc import Sequence
from dataclasses import dataclass

from dflash_bench.metrics.registry import spec
from dflash_bench.model import Change, Comparison, Finding, RunInfo, Unit, Value
from dflash_bench.report.figures_code import Cause
from dflash_bench.report.figures_metrics import direction, excludes_zero, pooled_changes
from dflash_bench.report.sheets import MAX_RANKS_SHOWN, SECTIONS, belongs, warning_text
from dflash_bench.report.units import MISSING, milliseconds, rank_text, symbol, text
from dflash_bench.stats.judgement import Judgement, Judgements, Verdict

KEY_METRICS = (
    "range.prepare_for_decode",
    "step.period",
    "step.lead",
    "launch.run_ahead_fraction",
    "stall.total_per_step",
    "sync.total_per_step",
    "alloc.step_share",
    "dp.alloc_on_critical_path",
    "tokens.per_s",
)
"""The figures that answer first; whichever of them both runs have."""

MAX_CAUSE_ROWS = 12
MAX_NAMED = 5
"""Metrics that a verdict line names; it says how many more there are."""

ALWAYS_DIFFERENT = {"run", "ingested (UTC)", "capture fingerprints", "position", "repeat"}
WORST_FIRST = (Verdict.REGRESSED, Verdict.INCONCLUSIVE, Verdict.IMPROVED, Verdict.UNCHANGED)


@dataclass(frozen=True, slots=True)
class Cell:
    """A text and, for a figure, the number behind it as JSON has it."""

    text: str
    value: str | None = None


@dataclass(frozen=True, slots=True)
class ChangeRow:
    """One metric of one rank, base beside candidate. ``tone``: better, worse or same, as far as the interval tells."""

    metric: str
    meaning: str
    unit: str
    rank: str
    better: str
    tone: str
    base: Cell
    candidate: Cell
    difference: Cell
    ratio: Cell
    low: Cell
    high: Cell
    n: str
    verdict: str = ""
    reason: str = ""


@dataclass(frozen=True, slots=True)
class VerdictLine:
    """One verdict: over all ranks, which metrics got it, and how many more verdicts on single ranks are alike."""

    verdict: str
    names: str
    num_ranked: int


@dataclass(frozen=True, slots=True)
class CauseRow:
    """A piece of code and what it cost in both runs."""

    where: str
    call: str
    cells: tuple[Cell, Cell, Cell, Cell]


@dataclass(frozen=True, slots=True)
class Setting:
    """A circumstance of both runs."""

    name: str
    base: str
    candidate: str

    @property
    def is_different(self) -> bool:
        """Whether it differs and need not: two runs never share a name or a time."""
        return self.base != self.candidate and self.name not in ALWAYS_DIFFERENT


def number(value: float | None, unit: Unit, *, is_signed: bool = False) -> Cell:
    """A figure in its display unit, with the stored number."""
    return Cell(text(value, unit, is_signed=is_signed), None if value is None else repr(value))


def change_row(change: Change, judgements: Judgements | None = None) -> ChangeRow:
    """A change as a row. Where a verdict was reached, tone and interval are those of the verdict."""
    unit = change.unit
    judged = judgements.find(change.metric, change.rank) if judgements else None
    found = judged.interval if judged else change.interval
    tone = {1: "better", -1: "worse", 0: "same"}[direction(change) if excludes_zero(change) else 0]
    if judged:
        tone = {Verdict.IMPROVED: "better", Verdict.REGRESSED: "worse"}.get(judged.verdict, "same")
    same_n = change.base_n == change.candidate_n
    return ChangeRow(
        metric=change.metric,
        meaning=spec(change.metric).meaning,
        unit=symbol(unit),
        rank=rank_text(change.rank),
        better=change.better,
        tone=tone,
        base=number(change.base, unit),
        candidate=number(change.candidate, unit),
        difference=number(change.difference, unit, is_signed=True),
        ratio=Cell(MISSING) if change.ratio is None else Cell(f"{change.ratio:,.3f}", repr(change.ratio)),
        low=number(found.low if found else None, unit, is_signed=True),
        high=number(found.high if found else None, unit, is_signed=True),
        n=f"{change.base_n:,}" if same_n else f"{change.base_n:,} / {change.candidate_n:,}",
        verdict=judged.verdict if judged else "",
        reason=judged.reason if judged else "",
    )


def verdict_lines(judgements: Judgements) -> list[VerdictLine]:
    """The verdicts, the worst first; in each the metrics that answer first come first."""
    pooled = {j.metric for j in judgements.each if j.rank is None}
    lines = []
    for verdict in WORST_FIRST:
        found = sorted(judgements.of(verdict), key=_place)
        named = [j for j in found if j.rank is None or j.metric not in pooled]
        rest = len(named) - MAX_NAMED
        names = [_judged_name(j) for j in named[:MAX_NAMED]] + ([f"{rest} more"] if rest > 0 else [])
        if found:
            lines.append(VerdictLine(verdict, ", ".join(names), len(found) - len(named)))
    return lines


def _place(found: Judgement) -> tuple[int, int]:
    place = KEY_METRICS.index(found.metric) if found.metric in KEY_METRICS else len(KEY_METRICS)
    return place, -1 if found.rank is None else found.rank


def _judged_name(found: Judgement) -> str:
    return found.metric if found.rank is None else f"{found.metric} on rank {found.rank}"


def key_changes(comparison: Comparison) -> list[Change]:
    """The changes that answer first, in their fixed order; those that both runs have."""
    found = {c.metric: c for c in pooled_changes(comparison) if c.difference is not None}
    return [found[name] for name in KEY_METRICS if name in found]


def largest(changes: Sequence[Change], count: int = 3) -> list[Change]:
    """The clearest differences: the largest in half-widths of their intervals, those whose interval excludes zero."""
    return sorted((c for c in changes if excludes_zero(c)), key=_clearness, reverse=True)[:count]


def _clearness(change: Change) -> float:
    assert change.interval is not None
    width = change.interval.high - change.interval.low
    return abs(change.difference or 0.0) / width if width else float("inf")


def change_sections(comparison: Comparison, judgements: Judgements | None = None) -> list[tuple[str, list[ChangeRow]]]:
    """Every change by section; single ranks where there are at most four of them, the heat map shows the others."""
    ranks = {c.rank for c in comparison.changes if c.rank is not None}
    changes = list(comparison.changes) if 1 < len(ranks) <= MAX_RANKS_SHOWN else pooled_changes(comparison)
    found = [(title, [change_row(c, judgements) for c in changes if belongs(c.metric, own)]) for title, own in SECTIONS]
    return [(title, rows) for title, rows in found if rows]


def cause_rows(base: Sequence[Cause], candidate: Sequence[Cause]) -> tuple[list[CauseRow], int]:
    """Both runs' causes side by side, the larger total first, and how many are left out."""
    both = [{(c.where, c.call): c for c in side} for side in (base, candidate)]
    keys = sorted({*both[0], *both[1]}, key=lambda k: (-max(s[k].total_ns for s in both if k in s), k))
    rows = [CauseRow(*key, _pair(both[0].get(key)) + _pair(both[1].get(key))) for key in keys[:MAX_CAUSE_ROWS]]
    return rows, len(keys) - len(rows)


def _pair(cause: Cause | None) -> tuple[Cell, Cell]:
    if cause is None:
        return Cell(MISSING), Cell(MISSING)
    return Cell(f"{cause.count:,}", str(cause.count)), Cell(milliseconds(cause.total_ns), str(cause.total_ns))


def warnings(comparison: Comparison) -> list[str]:
    """Everything a reader must know, as lines."""
    sides: list[tuple[str, Sequence[Finding]]] = [
        ("", comparison.findings),
        ("base: ", comparison.base.findings),
        ("candidate: ", comparison.candidate.findings),
    ]
    return [f"{side}{warning_text(f)}" for side, findings in sides for f in findings]


def settings(base: RunInfo, candidate: RunInfo) -> list[Setting]:
    """The circumstances of both runs, those that differ marked."""
    ours, theirs = _circumstances(base), _circumstances(candidate)
    return [Setting(k, ours.get(k, MISSING), theirs.get(k, MISSING)) for k in dict.fromkeys([*ours, *theirs])]


def _circumstances(info: RunInfo) -> dict[str, str]:
    found: dict[str, Value] = {
        "run": info.run,
        "arm": info.arm,
        "workload": info.workload,
        "device": ", ".join(info.devices) or info.device,
        "ranks": ", ".join(str(r) for r in info.ranks),
        "world": info.world,
        "ranks read from": info.rank_source,
        "recorder": " and ".join(sorted({f"{c.recorder} {c.exporter_version or ''}".strip() for c in info.captures})),
        "ingested (UTC)": info.created_utc,
        "dflash-bench": info.tool_version,
        "capture fingerprints": ", ".join(c.fingerprint for c in info.captures),
        **dict(sorted(info.settings.items())),
    }
    return {name: MISSING if value is None or value == "" else str(value) for name, value in found.items()}


def commands(base: RunInfo, candidate: RunInfo) -> list[str]:
    """What to type to get this report again; where the built-in loop made the runs, from the very start."""
    pair = shlex.join([base.run, candidate.run])
    return [*_origin(base, candidate), f"dflash-bench compare {pair}", f"dflash-bench report {pair} -o report.html"]


def _origin(base: RunInfo, candidate: RunInfo) -> list[str]:
    lines = []
    for info in (base, candidate):
        asked = {"--ranks": info.settings.get("ranks"), "--steps": info.settings.get("steps_asked")}
        asked["--seed"] = info.settings.get("seed")
        if info.arm is None or info.workload is None or None in asked.values():
            return ["dflash-bench ingest FOLDER_OF_CAPTURES"]
        words = ["--arm", info.arm, "--workload", info.workload, "--name", info.run]
        words += [word for option, value in asked.items() for word in (option, str(value))]
        lines.append(f"dflash-bench run {shlex.join(words)}")
    return lines
