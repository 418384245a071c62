"""Sheets: what a report shows, as titles and rows of text, whether a terminal or Markdown will show them."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from itertools import groupby
from typing import TypeVar

from dflash_bench.metrics.strata import Stratum
from dflash_bench.metrics.summary import figure, summarise
from dflash_bench.model import Finding, Metric, RunInfo, RunMetrics, Statistic, Table, Unit, Value
from dflash_bench.report.units import MISSING, milliseconds, rank_text, symbol, text

T = TypeVar("T")
MAX_RANKS_SHOWN = 4
MAX_CAUSES = 10
MAX_RANGES_SHOWN = 40
"""A loop has some twenty ranges; libraries and frameworks emit thousands of names, which bury the rest of a report."""

KINDS_TITLE = "Kinds of steps"
SECTIONS = (
    ("Steps and ranges", ("step.period", "range.")),
    (KINDS_TITLE, ("steps@", "step.lead@", *(f"step.period@{kind}" for kind in Stratum))),
    ("Allocation", ("alloc.",)),
    ("Launch lead", ("step.lead", "launch.", "graph.", "stall.")),
    ("Host waits", ("sync.",)),
    ("Across ranks", ("dp.", "clock.")),
    ("Engine counters", ("step.period@", "tokens.", "accept.", "kv.", "swa.", "topup.", "retracted", "consistency.")),
    ("Coverage", ("coverage.", "gpu_work_without_launch")),
)


@dataclass(frozen=True, slots=True)
class Sheet:
    """A titled table of texts. Columns in ``left`` hold words, all others figures. ``note`` stands under it."""

    title: str
    columns: tuple[str, ...]
    rows: tuple[tuple[str, ...], ...]
    left: tuple[str, ...] = ()
    note: str = ""


@dataclass(frozen=True, slots=True)
class Report:
    """A whole report: headline, lines of text, sheets, warnings."""

    title: str
    lines: tuple[str, ...]
    sheets: tuple[Sheet, ...]
    warnings: tuple[str, ...] = ()


def run_report(run: RunMetrics, *, is_per_rank: bool | None = None) -> Report:
    """The metrics of one run. ``is_per_rank``: None shows single ranks where there are at most four."""
    info = run.info
    per_rank = len(info.ranks) <= MAX_RANKS_SHOWN if is_per_rank is None else is_per_rank
    shown = [m for m in run.metrics if per_rank or m.rank is None or m.name.startswith(("dp.straggler", "clock."))]
    if len(info.ranks) == 1:
        # pooled over one rank is that rank
        ranked = {m.name for m in shown if m.rank is not None}
        shown = [m for m in shown if m.rank is not None or m.name not in ranked]
    sheets = [_metrics_sheet(title, own) for title, own in by_section(shown, lambda m: m.name)]
    return Report(
        title=f"{info.run}: {identity(info)}",
        lines=(captured(info),),
        sheets=tuple(s for s in (*sheets, *_table_sheets(run)) if s.rows),
        warnings=tuple(warning_lines(run.findings)),
    )


def warning_text(finding: Finding) -> str:
    """A warning as one line."""
    where = "" if finding.rank is None else f"rank {finding.rank}: "
    return f"{where}{finding.text} [{finding.code}]"


def warning_lines(findings: Sequence[Finding]) -> list[str]:
    """One line a warning; one that more than a few ranks share is given for the worst of them, and the rest counted."""
    lines = []
    for _, same in groupby(findings, lambda f: f.code):
        group = list(same)
        if len({f.rank for f in group}) <= MAX_RANKS_SHOWN:
            lines += [warning_text(f) for f in group]
            continue
        worst = max(group, key=lambda f: f.count)
        lines.append(f"{warning_text(worst)}, and {len(group) - 1} more like it; all of them with --json")
    return lines


def by_section(items: Iterable[T], name: Callable[[T], str]) -> list[tuple[str, list[T]]]:
    """Things by the section of their metric, the first that a name belongs to; each section is there, empty or not."""
    found: dict[str, list[T]] = {title: [] for title, _ in SECTIONS}
    for item in items:
        title = next((title for title, own in SECTIONS if _belongs(name(item), own)), None)
        if title is not None:
            found[title].append(item)
    return list(found.items())


def _belongs(name: str, prefixes: Iterable[str]) -> bool:
    """Whether a metric's name is one of these or begins with one that ends in a dot or an @."""
    return any(name == p or (p.endswith((".", "@")) and name.startswith(p)) for p in prefixes)


def identity(info: RunInfo) -> str:
    """Arm, workload, ranks and device of a run."""
    parts = (
        f"arm {info.arm}" if info.arm else "arm not stated",
        f"workload {info.workload}" if info.workload else "",
        f"{len(info.ranks)} rank{'s' if len(info.ranks) != 1 else ''}",
        f"device: {info.device}",
    )
    return ", ".join(p for p in parts if p)


def captured(info: RunInfo) -> str:
    """What recorded a run and where its ranks were read."""
    versions = " and ".join(sorted({f"{c.recorder} {c.exporter_version or ''}".strip() for c in info.captures}))
    return f"captured by {versions}; ranks from the {info.rank_source or 'nothing'}"


def cut(sheet: Sheet, limit: int = MAX_CAUSES) -> Sheet:
    """The first rows of a sheet, saying how many are left out: never silently."""
    rest = len(sheet.rows) - limit
    if rest <= 0:
        return sheet
    note = f"… and {rest} more rows; all of them with --json"
    return Sheet(sheet.title, sheet.columns, sheet.rows[:limit], sheet.left, note)


def _metrics_sheet(title: str, metrics: Sequence[Metric]) -> Sheet:
    """Quantiles where there is a distribution; a value alone stands in the first figure column."""
    longest = main_ranges({m.name: float(m.values.sum()) for m in metrics if m.name.startswith("range.")})
    shown = [m for m in metrics if not m.name.startswith("range.") or m.name in longest]
    rows = [
        (name if k == 0 else "", rank_text(m.rank), *_figures(m))
        for name, same in groupby(shown, lambda m: m.name)
        for k, m in enumerate(same)
    ]
    columns = ("metric", "rank", "n", "p50 / value", "p90", "p99", "mean", "total ms", "unit")
    rest = len({m.name for m in metrics}) - len({m.name for m in shown})
    return Sheet(title, columns, tuple(rows), left=("metric", "unit"), note=left_out(rest))


def main_ranges(total: dict[str, float]) -> set[str]:
    """The range metrics with most time in them, of a {metric: total time}."""
    return set(sorted(total, key=lambda name: (-total[name], name))[:MAX_RANGES_SHOWN])


def left_out(num_ranges: int) -> str:
    """The note under a sheet that does not show all ranges: never silently."""
    return f"… and {num_ranges:,} more ranges with less time in them; all of them with --json" if num_ranges else ""


def _figures(metric: Metric) -> tuple[str, ...]:
    unit = symbol(metric.unit)
    found = summarise(metric)
    if found is None or metric.statistic is not Statistic.MEDIAN:
        return f"{metric.n:,}", text(figure(metric), metric.unit), "", "", "", "", unit
    quantiles = (text(v, metric.unit) for v in (found.p50, found.p90, found.p99, found.mean))
    return f"{found.n:,}", *quantiles, milliseconds(found.total) if metric.unit is Unit.NS else "", unit


# ── tables ───────────────────────────────────────────────────────────────────────────────────────────────────────────

Formatter = Callable[[Value], str]


def _number(value: Value) -> float | None:
    return value if isinstance(value, int | float) else None


def _rank(value: Value) -> str:
    return rank_text(value if isinstance(value, int) else None)


def _count(value: Value) -> str:
    return f"{value:,}" if isinstance(value, int) else MISSING


def _ms(value: Value) -> str:
    return milliseconds(_number(value))


def _us(value: Value) -> str:
    return text(_number(value), Unit.NS)


def _percent(value: Value) -> str:
    return text(_number(value), Unit.FRACTION)


def _ratio(value: Value) -> str:
    return MISSING if (found := _number(value)) is None else f"{found:,.3f}"


def _ns(value: Value) -> str:
    return MISSING if (found := _number(value)) is None else f"{found:,.0f}"


@dataclass(frozen=True, slots=True)
class _Layout:
    """How a result table is shown. Each column: heading and formatter; a column without one is left out."""

    title: str
    columns: dict[str, tuple[str, Formatter]]
    is_pooled: bool
    limit: int = MAX_CAUSES


_LAYOUTS = {
    "stall.by_cause": _Layout(
        title="What the host did when the GPU ran dry",
        columns={
            "cause": ("cause", str),
            "launches": ("launches", _count),
            "lost_total_ns": ("lost ms", _ms),
            "lost_p50_ns": ("p50 µs", _us),
        },
        is_pooled=True,
    ),
    "sync.by_range": _Layout(
        title="Which code made the host wait",
        columns={
            "path": ("range path", str),
            "api": ("call", str),
            "count": ("count", _count),
            "total_ns": ("total ms", _ms),
            "p50_ns": ("p50 µs", _us),
        },
        is_pooled=True,
    ),
    "sync.by_thread": _Layout(
        title="Which threads waited",
        columns={
            "rank": ("rank", _rank),
            "thread": ("thread", str),
            "api": ("call", str),
            "count": ("count", _count),
            "total_ns": ("total ms", _ms),
            "share_of_step_time": ("% of step time", _percent),
        },
        is_pooled=False,
    ),
    "dp.lateness_by_cause": _Layout(
        title="What made a rank late at the agreement",
        columns={
            "rank": ("rank", _rank),
            "cause": ("cause", str),
            "mean_ns": ("mean µs", _us),
            "p50_ns": ("p50 µs", _us),
        },
        is_pooled=False,
        limit=4 * MAX_CAUSES,
    ),
    "tracing.cost": _Layout(
        title="What tracing cost",
        columns={
            "rank": ("rank", _rank),
            "recorder": ("recorder", str),
            "traced_p50_ns": ("step p50 traced µs", _us),
            "untraced_p50_ns": ("untraced µs", _us),
            "ratio": ("ratio", _ratio),
            "range_cost_ns": ("ns a range", _ns),
        },
        is_pooled=False,
        limit=4 * MAX_CAUSES,
    ),
}


def tracing_rows(run: RunMetrics) -> list[tuple[str, ...]]:
    """What tracing cost a run, pooled over its ranks, as cells below `TRACING_COLUMNS`; no row where it has none."""
    found = [row for table in run.tables if table.name == "tracing.cost" for row in table.rows if row[0] is None]
    return [
        (
            run.info.arm or MISSING,
            str(recorder),
            _us(traced),
            _us(untraced),
            _ratio(ratio),
            _ns(range_cost),
            f"{_count(num_traced)} / {_count(num_untraced)}",
        )
        for _, recorder, num_traced, traced, num_untraced, untraced, ratio, range_cost in found
    ]


TRACING_COLUMNS = ("arm", "recorder", "step p50 traced µs", "untraced µs", "ratio", "ns a range", "n")


def _table_sheets(run: RunMetrics) -> list[Sheet]:
    return [_table_sheet(table, _LAYOUTS[table.name]) for table in run.tables]


def _table_sheet(table: Table, layout: _Layout) -> Sheet:
    place = {name: table.columns.index(name) for name in layout.columns}
    rows = [row for row in table.rows if not layout.is_pooled or row[0] is None]
    shown = [tuple(show(row[place[name]]) for name, (_, show) in layout.columns.items()) for row in rows]
    headings = tuple(heading for heading, _ in layout.columns.values())
    words = tuple(heading for heading, show in layout.columns.values() if show is str)
    return cut(Sheet(f"{layout.title} ({table.name})", headings, tuple(shown), words), layout.limit)
