"""Result tables as sheets: the headings, and how the cells of each column are written."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from dflash_bench.model import RunMetrics, Table, Unit, Value
from dflash_bench.report.sheets import MAX_CAUSES, Sheet, cut
from dflash_bench.report.units import MISSING, milliseconds, rank_text, text

_Formatter = Callable[[Value], str]


def _number(value: Value) -> float | None:
    return value if isinstance(value, int | float) else None


def _rank(value: Value) -> str:
    return rank_text(value if isinstance(value, int) else None)


def _word(value: Value) -> str:
    return MISSING if value is None else str(value)


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
    columns: dict[str, tuple[str, _Formatter]]
    is_pooled: bool
    limit: int = MAX_CAUSES


_LAYOUTS = {
    "dry.by_cause": _Layout(
        title="What the host did while the GPU was dry",
        columns={
            "cause": ("cause", str),
            "steps": ("steps", _count),
            "total_ns": ("total ms", _ms),
            "share": ("% of all", _percent),
        },
        is_pooled=True,
    ),
    "launch.by_lane": _Layout(
        title="Launches by lane",
        columns={
            "rank": ("rank", _rank),
            "device": ("GPU", str),
            "stream": ("stream", str),
            "lane": ("lane", str),
            "launches": ("launches", _count),
            "lead_p50_ns": ("lead p50 µs", _us),
            "run_ahead_fraction": ("run ahead %", _percent),
            "gpu_time_share": ("% of GPU time", _percent),
        },
        is_pooled=False,
    ),
    "stall.by_cause": _Layout(
        title="What the host did the moment a stream ran dry",
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
            "exposed_ns": ("late ms", _ms),
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
    "lines.by_cause": _Layout(
        title="Which line of code",
        columns={
            "table": ("table", str),
            "cause": ("cause", str),
            "api": ("call", _word),
            "line": ("line", str),
            "total_ns": ("total ms", _ms),
        },
        is_pooled=True,
    ),
    "warm_up.by_cause": _Layout(
        title="What of these tables lies in steps that warm up",
        columns={
            "table": ("table", str),
            "cause": ("cause", str),
            "api": ("call", _word),
            "total_ns": ("total ms", _ms),
        },
        is_pooled=True,
    ),
    "dp.wait_by_cause": _Layout(
        title="Whom a rank waited for at the agreement",
        columns={
            "rank": ("rank", _rank),
            "cause": ("cause", str),
            "agreements": ("agreements", _count),
            "total_ns": ("total ms", _ms),
            "share": ("% of its waits", _percent),
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
            "traced_steps": ("steps traced", _count),
            "traced_p50_ns": ("step p50 traced µs", _us),
            "untraced_steps": ("steps untraced", _count),
            "untraced_p50_ns": ("untraced µs", _us),
            "ratio": ("ratio", _ratio),
            "range_cost_ns": ("ns a range", _ns),
        },
        is_pooled=False,
        limit=4 * MAX_CAUSES,
    ),
}


def tracing_sheet(runs: Sequence[RunMetrics]) -> Sheet:
    """Step p50 with the recorder and without any, over all ranks, of the runs that were made both ways."""
    rows = []
    for run in runs:
        for table in (t for t in run.tables if t.name == "tracing.cost"):
            for row in (dict(zip(table.columns, r, strict=True)) for r in table.rows if r[0] is None):
                cells = (
                    shown(row[name]) for name, (_, shown) in _LAYOUTS[table.name].columns.items() if name != "rank"
                )
                rows.append((run.info.arm or MISSING, *cells))
    headings = (heading for name, (heading, _) in _LAYOUTS["tracing.cost"].columns.items() if name != "rank")
    note = "each from one pair of runs: the drift of the machine between them is in the ratio"
    return Sheet("What tracing cost", ("arm", *headings), tuple(rows), ("arm", "recorder"), note)


def table_sheets(run: RunMetrics) -> list[Sheet]:
    """Every result table of a run."""
    return [_table_sheet(table, _LAYOUTS[table.name]) for table in run.tables]


def _table_sheet(table: Table, layout: _Layout) -> Sheet:
    place = {name: table.columns.index(name) for name in layout.columns}
    rows = [row for row in table.rows if not layout.is_pooled or row[0] is None]
    shown = [tuple(show(row[place[name]]) for name, (_, show) in layout.columns.items()) for row in rows]
    headings = tuple(heading for heading, _ in layout.columns.values())
    words = tuple(heading for heading, show in layout.columns.values() if show is str)
    return cut(Sheet(f"{layout.title} ({table.name})", headings, tuple(shown), words), layout.limit)
