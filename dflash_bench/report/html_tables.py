"""The tables of the HTML report. Cells carry the stored number beside the text, so that the page can be checked."""

from __future__ import annotations

import shlex
from collections.abc import Sequence
from dataclasses import dataclass, replace

from dflash_bench.metrics.registry import spec
from dflash_bench.model import Change, Comparison, RunInfo, Sides, Unit, Value
from dflash_bench.report.changes import KEY_METRICS, pooled_changes, tone
from dflash_bench.report.figures_code import Cause
from dflash_bench.report.sheets import MAX_RANKS_SHOWN, by_section
from dflash_bench.report.sides import run_metrics, run_rows
from dflash_bench.report.units import MISSING, milliseconds, rank_text, symbol, text
from dflash_bench.run.request import is_repeatable, request_of
from dflash_bench.stats.judgement import Judgement, Judgements, Verdict

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
    """One metric of one rank, base beside candidate."""

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
    is_exact: bool = False


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
    """A change as a row, with the verdict on it where there is one."""
    unit, found = change.unit, change.interval
    judged = judgements.find(change.metric, change.rank) if judgements else None
    same_n = change.base_n == change.candidate_n
    return ChangeRow(
        metric=change.metric,
        meaning=spec(change.metric).meaning,
        unit=symbol(unit),
        rank=rank_text(change.rank),
        better=change.better,
        tone=tone(change, judgements),
        base=number(change.base, unit),
        candidate=number(change.candidate, unit),
        difference=number(change.difference, unit, is_signed=True),
        ratio=Cell(MISSING) if change.ratio is None else Cell(f"{change.ratio:,.3f}", repr(change.ratio)),
        low=number(found.low if found else None, unit, is_signed=True),
        high=number(found.high if found else None, unit, is_signed=True),
        n=f"{change.base_n:,}" if same_n else f"{change.base_n:,} / {change.candidate_n:,}",
        verdict=judged.verdict if judged else "",
        reason=judged.reason if judged else "",
        is_exact=judged is not None and judged.is_exact,
    )


def verdict_lines(judgements: Judgements) -> list[VerdictLine]:
    """The verdicts, the worst first; in each the metrics that answer first come first."""
    pooled = {j.metric for j in judgements.each if j.rank is None}
    is_one_rank = len({j.rank for j in judgements.each if j.rank is not None}) == 1
    lines = []
    for verdict in WORST_FIRST:
        found = sorted(judgements.of(verdict), key=_place)
        named = [j for j in found if j.rank is None or j.metric not in pooled]
        rest = len(named) - MAX_NAMED
        names = [_judged_name(j, is_one_rank=is_one_rank) for j in named[:MAX_NAMED]] + (
            [f"{rest} more"] if rest > 0 else []
        )
        if found:
            lines.append(VerdictLine(verdict, ", ".join(names), len(found) - len(named)))
    return lines


def _place(found: Judgement) -> tuple[int, int]:
    place = KEY_METRICS.index(found.metric) if found.metric in KEY_METRICS else len(KEY_METRICS)
    return place, -1 if found.rank is None else found.rank


def _judged_name(found: Judgement, *, is_one_rank: bool) -> str:
    return found.metric if found.rank is None or is_one_rank else f"{found.metric} on rank {found.rank}"


def change_sections(comparison: Comparison, judgements: Judgements | None = None) -> list[tuple[str, list[ChangeRow]]]:
    """Every change by section; single ranks where there are at most four of them, the heat map shows the others."""
    ranks = {c.rank for c in comparison.changes if c.rank is not None}
    changes = list(comparison.changes) if 1 < len(ranks) <= MAX_RANKS_SHOWN else pooled_changes(comparison)
    found = by_section((change_row(c, judgements) for c in changes), lambda row: row.metric)
    return [(title, rows) for title, rows in found if rows]


def cause_rows(base: Sequence[Cause], candidate: Sequence[Cause]) -> tuple[list[CauseRow], int]:
    """Both runs' causes side by side, the larger total first, and how many are left out."""
    both = [{(c.where, c.call): c for c in side} for side in (base, candidate)]
    keys = sorted({*both[0], *both[1]}, key=lambda k: (-max(s[k].total_ns for s in both if k in s), k))
    rows = [_cause_row(*(side.get(key) for side in both)) for key in keys[:MAX_CAUSE_ROWS]]
    return rows, len(keys) - len(rows)


def _cause_row(base: Cause | None, candidate: Cause | None) -> CauseRow:
    either = base or candidate
    assert either is not None
    where = either.where if either.call else either.name
    return CauseRow(where, either.call, _pair(base) + _pair(candidate))


def _pair(cause: Cause | None) -> tuple[Cell, Cell]:
    if cause is None:
        return Cell(MISSING), Cell(MISSING)
    return Cell(f"{cause.count:,}", str(cause.count)), Cell(milliseconds(cause.total_ns), str(cause.total_ns))


@dataclass(frozen=True, slots=True)
class RunCells:
    """A run with its own figures, as cells."""

    side: str
    run: str
    is_typical: bool
    cells: tuple[Cell, ...]


def run_cells(sides: Sides) -> list[RunCells]:
    """Every run with its own figures."""
    units = [spec(name).unit for name in run_metrics(sides)]
    return [
        RunCells(
            row.side, row.run, row.is_typical, tuple(number(v, u) for v, u in zip(row.figures, units, strict=True))
        )
        for row in run_rows(sides)
    ]


def settings(sides: Sides) -> list[Setting]:
    """The circumstances of both sides, those that differ first; of several runs, every value that any of them has."""
    ours, theirs = (_circumstances([run.info for run in runs]) for _, runs in sides.named)
    found = [Setting(k, ours.get(k, MISSING), theirs.get(k, MISSING)) for k in dict.fromkeys([*ours, *theirs])]
    return sorted(found, key=lambda s: not s.is_different)


def _circumstances(infos: Sequence[RunInfo]) -> dict[str, str]:
    each = [_circumstances_of(info) for info in infos]
    names = dict.fromkeys(name for found in each for name in found)
    return {name: " · ".join(dict.fromkeys(found.get(name, MISSING) for found in each)) for name in names}


def _circumstances_of(info: RunInfo) -> dict[str, str]:
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
    }
    # what was captured, not what was asked for, where both have a name
    found |= {name: value for name, value in sorted(info.settings.items()) if name not in found}
    return {name: MISSING if value is None or value == "" else str(value) for name, value in found.items()}


def commands(sides: Sides) -> list[str]:
    """What to type to get this report again; where the built-in loop made the runs, from the very start."""
    pair = shlex.join(",".join(run.info.run for run in runs) for _, runs in sides.named)
    return [*_origin(sides), f"dflash-bench compare {pair}", f"dflash-bench report {pair} -o report.html"]


def _origin(sides: Sides) -> list[str]:
    """The commands that made the runs: one for both arms, which then take turns, where all else was the same."""
    base, candidate = sides.base[0].info, sides.candidate[0].info
    if not (is_repeatable(base) and is_repeatable(candidate)):
        return ["dflash-bench ingest FOLDER_OF_CAPTURES"]
    made = [request_of(base).words, request_of(candidate).words]
    if base.arm != candidate.arm and made[0] == request_of(replace(candidate, arm=base.arm)).words:
        made = [[*made[0], "--arm", str(candidate.arm)]]
    repeats = max(len(sides.base), len(sides.candidate))
    return [shlex.join([*words, *(["--repeats", str(repeats)] if repeats > 1 else [])]) for words in made]
