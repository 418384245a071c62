"""The report of one run."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import groupby

from dflash_bench.metrics.summary import figure, summarise
from dflash_bench.model import Metric, RunMetrics, Statistic, Unit
from dflash_bench.report.sheets import (
    MAX_RANKS_SHOWN,
    Report,
    Sheet,
    by_section,
    captured,
    identity,
    left_out,
    main_ranges,
    warning_lines,
)
from dflash_bench.report.table_sheets import table_sheets
from dflash_bench.report.units import milliseconds, rank_text, symbol, text


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
        sheets=tuple(s for s in (*sheets, *table_sheets(run)) if s.rows),
        warnings=tuple(warning_lines(run.findings)),
    )


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


def _figures(metric: Metric) -> tuple[str, ...]:
    unit = symbol(metric.unit)
    found = summarise(metric)
    if found is None or metric.statistic is not Statistic.MEDIAN:
        return f"{metric.n:,}", text(figure(metric), metric.unit), "", "", "", "", unit
    quantiles = (text(v, metric.unit) for v in (found.p50, found.p90, found.p99, found.mean))
    return f"{found.n:,}", *quantiles, milliseconds(found.total) if metric.unit is Unit.NS else "", unit
