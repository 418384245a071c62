"""Metrics and comparisons as JSON and CSV: stable field names, base units (nanoseconds), nothing rounded.

``{"metrics": […], "warnings": […], "tables": {…}}``; a metric is ``{"run", "arm", "rank", "metric", "unit", "n", "p50",
"p90", "p99", "mean", "total"}``, and a scalar carries ``"value"`` instead of the quantiles. ``rank`` is null for pooled
and cross-rank figures. ``"coverage"`` stands beside the figures that could not see everything, lead, stall and share.
"""

from __future__ import annotations

import csv
import dataclasses
import io
import json
from collections.abc import Iterable, Sequence
from typing import Any

from dflash_bench.metrics.measure import COLUMNS
from dflash_bench.metrics.summary import figure, has_quantiles, summarise
from dflash_bench.model import Change, Comparison, Finding, Judgements, Metric, RunInfo, RunMetrics, Statistic, Table
from dflash_bench.report.sides import run_documents
from dflash_bench.report.verdicts import judgement_rows


def metrics_json(runs: Sequence[RunMetrics]) -> str:
    """One document for the metrics of one or more runs."""
    return json.dumps(metrics_document(runs), indent=1, ensure_ascii=False)


def metrics_document(runs: Sequence[RunMetrics]) -> dict[str, Any]:
    """The same before it is text."""
    return {
        "runs": [_run(r.info) for r in runs],
        "metrics": [_metric(r.info, m) for r in runs for m in r.metrics],
        "warnings": [_finding(f, r.info) for r in runs for f in r.findings],
        "tables": _tables(runs),
    }


_CSV_COLUMNS = ("run", "arm", "rank", "metric", "unit", "n", "value", "p50", "p90", "p99", "mean", "total", "coverage")


def metrics_csv(runs: Sequence[RunMetrics]) -> str:
    """The metrics of one or more runs as CSV, a line a metric and rank; what a metric does not have is empty."""
    text = io.StringIO()
    writer = csv.DictWriter(text, _CSV_COLUMNS, lineterminator="\n")
    writer.writeheader()
    writer.writerows(_metric(r.info, m) for r in runs for m in r.metrics)
    return text.getvalue()


def comparison_json(comparison: Comparison, judgements: Judgements | None = None) -> str:
    """One document for a comparison: both runs' identity, every change with its interval, all verdicts and warnings."""
    return json.dumps(comparison_document(comparison, judgements), indent=1, ensure_ascii=False)


def comparison_document(comparison: Comparison, judgements: Judgements | None = None) -> dict[str, Any]:
    """The same before it is text.

    ``"verdicts"`` is null where the runs are too unlike for any. ``"runs"`` lists each run
    with its own figures; ``"base"``, ``"candidate"`` and ``"tables"`` are those of the runs looked at step by step.
    """
    first = {"base": comparison.base, "candidate": comparison.candidate}
    return {
        **{side: _run(run.info) for side, run in first.items()},
        "runs": run_documents(comparison.sides),
        "comparison": [_change(c) for c in comparison.changes],
        "verdicts": None if judgements is None else judgement_rows(judgements.each),
        "method": None if judgements is None else judgements.method,
        "warnings": [_finding(f) for f in comparison.findings]
        + [_finding(f, run.info, side) for side, runs in comparison.sides.named for run in runs for f in run.findings],
        "tables": _tables(first.values()),
    }


def _run(info: RunInfo) -> dict[str, Any]:
    return {
        "run": info.run,
        "arm": info.arm,
        "workload": info.workload,
        "device": info.device,
        "world": info.world,
        "ranks": info.ranks,
        "rank_source": info.rank_source,
        "created_utc": info.created_utc,
        "recorder": sorted({c.recorder for c in info.captures}),
        "exporter_version": sorted({c.exporter_version for c in info.captures if c.exporter_version}),
    }


def _metric(info: RunInfo, metric: Metric) -> dict[str, Any]:
    row: dict[str, Any] = {
        "run": info.run,
        "arm": info.arm,
        "rank": metric.rank,
        "metric": metric.name,
        "unit": metric.unit,
        "n": metric.n,
    }
    found = summarise(metric) if has_quantiles(metric) else None
    if found is not None:
        row |= dataclasses.asdict(found)
    elif metric.statistic is Statistic.MEDIAN:
        row |= dict.fromkeys(("p50", "p90", "p99", "mean", "total"))
    if metric.statistic is not Statistic.MEDIAN:
        row["value"] = figure(metric)
    if metric.coverage is not None:
        row["coverage"] = metric.coverage
    return row


def _change(change: Change) -> dict[str, Any]:
    row = {k: v for k, v in dataclasses.asdict(change).items() if k != "interval"}
    found = change.interval
    return row | {
        "low": found.low if found else None,
        "high": found.high if found else None,
        "confidence": found.confidence if found else None,
    }


def _finding(finding: Finding, info: RunInfo | None = None, side: str | None = None) -> dict[str, Any]:
    where = {"run": info.run} if info else {}
    return {**dataclasses.asdict(finding), **where, **({"side": side} if side else {})}


def _tables(runs: Iterable[RunMetrics]) -> dict[str, list[dict[str, Any]]]:
    # a table without rows is an empty list, so that scripts need not ask whether it is there
    found: dict[str, list[dict[str, Any]]] = {name: [] for name in COLUMNS}
    for run in runs:
        for table in run.tables:
            found[table.name].extend(_rows(run.info, table))
    return found


def _rows(info: RunInfo, table: Table) -> list[dict[str, Any]]:
    return [{"run": info.run, "arm": info.arm, **dict(zip(table.columns, row, strict=True))} for row in table.rows]
