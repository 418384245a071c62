"""The report of one run: on one screen, or in full."""

from __future__ import annotations

import shlex
from collections.abc import Sequence
from itertools import groupby, zip_longest

from dflash_bench.metrics.reading import Reading
from dflash_bench.metrics.summary import figure, has_quantiles, summarise
from dflash_bench.model import Metric, RunMetrics, Unit
from dflash_bench.report.causes import Cause, by_line, by_name, dry_causes, host_waits, paired, steps_of
from dflash_bench.report.changes import KEY_METRICS
from dflash_bench.report.headline import proposed_options, run_headline
from dflash_bench.report.sheets import (
    Detail,
    Report,
    Sheet,
    by_section,
    captured,
    first_warnings,
    fitted,
    identity,
    left_out,
    main_ranges,
    warning_lines,
)
from dflash_bench.report.sides import pooled
from dflash_bench.report.table_sheets import table_sheets
from dflash_bench.report.units import abridged, milliseconds, percent, rank_text, readable, symbol, text

_CAUSES_ON_SCREEN = 3
_WITHOUT_STEPS = ("launch.calls_per_s", "launch.lead", "gpu.dry_per_s", "sync.calls_per_s", "sync.total_per_s")
"""What a capture without steps says first."""
_RANGES_ON_SCREEN = 5
_LINES_ON_SCREEN = 2
_CODE_WIDTH = 63


def run_report(run: RunMetrics, detail: Detail | None = None, reading: Reading | None = None) -> Report:
    """The metrics of one run, as closely as asked."""
    detail, info = detail or Detail(), run.info
    headline = run_headline(run, reading)
    name = f"{info.run}:{info.arm}" if info.arms else info.run
    warnings = warning_lines(run.findings)
    if detail.is_full or detail.is_close:
        is_ranked = detail.is_ranked(len(info.ranks)) or detail.is_close
        sheets = [_metrics_sheet(title, own) for title, own in by_section(_shown(run, detail, is_ranked), _name)]
        tables = table_sheets(run) if detail.is_full else []
        lines = (*headline.lines, identity(info), captured(info)) if detail.is_full else headline.lines
        return Report(name, lines, tuple(s for s in (*sheets, *tables) if s.rows), tuple(warnings))
    short = tuple(s for s in (_screen_sheet(run), _screen_causes(run)) if s.rows)
    asked = [f"dflash-bench metrics {shlex.quote(name)} {option}" for option in proposed_options(run)]
    following = (*asked, f"dflash-bench report {shlex.quote(name)}")
    return fitted(Report(name, headline.lines, short, first_warnings(warnings), following))


def _name(metric: Metric) -> str:
    return metric.name


def _shown(run: RunMetrics, detail: Detail, is_ranked: bool) -> list[Metric]:
    found = [m for m in run.metrics if is_ranked or m.rank is None or m.name.startswith(("dp.straggler", "clock."))]
    if len(run.info.ranks) == 1:
        # pooled over one rank is that rank
        ranked = {m.name for m in found if m.rank is not None}
        found = [m for m in found if m.rank is not None or m.name not in ranked]
    return [m for m in found if detail.shows(m.name, m.rank)]


def _screen_sheet(run: RunMetrics) -> Sheet:
    """The figures that answer first, over all ranks."""
    found = [m for name in KEY_METRICS for m in _of_all_ranks(run, name)]
    if not steps_of(run):
        found += [m for name in _WITHOUT_STEPS if (m := pooled(run, name)) is not None]
        found += _longest_ranges(run)
    rows = tuple((m.name, *_readable(m)) for m in found)
    return Sheet("", ("metric", "n", "p50 / value", "p90", "p99", "mean", "unit"), rows, ("metric", "unit"))


def _of_all_ranks(run: RunMetrics, name: str) -> list[Metric]:
    """The metric, or where ranks agree several times in a step that of each time."""
    if (found := pooled(run, name)) is not None:
        return [found]
    return [m for m in run.metrics if m.rank is None and m.name.startswith("dp.") and m.name.startswith(f"{name}@")]


def _longest_ranges(run: RunMetrics) -> list[Metric]:
    """Where a capture without steps spends its time."""
    own = {m.name for m in run.metrics if m.name.startswith("range.")}
    found = [m for name in own if (m := pooled(run, name)) is not None]
    return sorted(found, key=lambda m: (-int(m.values.sum()), m.name))[:_RANGES_ON_SCREEN]


def _readable(metric: Metric) -> tuple[str, ...]:
    found = summarise(metric) if has_quantiles(metric) else None
    if found is None:
        value, unit = readable(figure(metric), unit=metric.unit)
        return f"{metric.n:,}", value, "", "", "", unit
    return (f"{found.n:,}", *readable(found.p50, found.p90, found.p99, found.mean, unit=metric.unit))


def _screen_causes(run: RunMetrics) -> Sheet:
    """The first rows of both cause tables, in time per step, or of the whole capture where there are no steps."""
    steps, rows = steps_of(run), []
    for what, causes in (("GPU dry", dry_causes(run)), ("wait", host_waits(run))):
        total = sum(c.total_ns for c in causes) or 1
        groups = []
        for cause in by_name(causes)[:_CAUSES_ON_SCREEN]:
            place = paired(((cause,), steps), ((), 0))[0].place if steps else cause.place
            groups.append([_cause_row(f"{what} {place}", cause, steps, total)])
            lines = by_line(run, [c for c in causes if c.name == cause.name])
            groups[-1] += [_cause_row(f"└ {c.line}", c, steps, total) for c in lines[:_LINES_ON_SCREEN] if c.line]
        rows.append(groups)
    mixed = tuple(row for both in zip_longest(*rows) for group in both for row in group or ())
    length = "a step" if steps else "in all"
    return Sheet("", ("which code", length, "of all such", "made late"), mixed, ("which code",))


def _cause_row(name: str, cause: Cause, steps: int, total: int) -> tuple[str, ...]:
    late = "" if cause.late_ns is None else _per_step(cause.late_ns, steps)
    share = percent(cause.total_ns / total, is_signed=False)
    return abridged(name, _CODE_WIDTH), _per_step(cause.total_ns, steps), share, late


def _per_step(total_ns: int, steps: int) -> str:
    return " ".join(readable(total_ns / max(steps, 1), unit=Unit.NS))


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
    found = summarise(metric) if has_quantiles(metric) else None
    if found is None:
        return f"{metric.n:,}", text(figure(metric), metric.unit), "", "", "", "", unit
    quantiles = (text(v, metric.unit) for v in (found.p50, found.p90, found.p99, found.mean))
    return f"{found.n:,}", *quantiles, milliseconds(found.total) if metric.unit is Unit.NS else "", unit
