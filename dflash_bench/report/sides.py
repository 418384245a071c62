"""The runs of both sides of a comparison, and which run of each is looked at step by step."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

from dflash_bench.metrics.summary import figure
from dflash_bench.model import Metric, RunMetrics, Sides
from dflash_bench.report.changes import KEY_METRICS


def runs_note(sides: Sides) -> str:
    """Which runs stand behind what, where there are repeats; otherwise empty."""
    if not sides.is_repeated:
        return ""
    return (
        f"{len(sides.base)} runs of the base, {len(sides.candidate)} of the candidate: figures are medians over the"
        " runs, differences the median of those between single runs (Hodges-Lehmann), so the two need not agree"
        " where runs scatter; distributions, causes, arrivals and timelines are those of the runs with the median"
        f" step.period, {sides.base[0].info.run} and {sides.candidate[0].info.run}"
    )


def typical(runs: Sequence[RunMetrics]) -> int:
    """Which run has the median step period; of the middle two the faster. The first where none has steps."""
    known = sorted((found, k) for k, run in enumerate(runs) if (found := _figure(run, "step.period")) is not None)
    return known[(len(known) - 1) // 2][1] if known else 0


def pooled(run: RunMetrics, name: str) -> Metric | None:
    """A metric of a run over all ranks, or of its only rank; None where it has no samples."""
    found = run.find(name, None) or next((m for m in run.metrics if m.name == name), None)
    return found if found is not None and len(found.values) else None


def _figure(run: RunMetrics, name: str) -> float | None:
    found = pooled(run, name)
    return None if found is None else figure(found)


@dataclass(frozen=True, slots=True)
class _RunRow:
    """One run among its repeats. ``figures`` are in the metrics' base units, below `run_metrics`."""

    side: str
    run: str
    created_utc: str
    is_typical: bool
    figures: tuple[float | None, ...]


def run_metrics(sides: Sides) -> tuple[str, ...]:
    """The metrics that answer first, those that any of the runs has."""
    runs = (*sides.base, *sides.candidate)
    return tuple(name for name in KEY_METRICS if any(pooled(run, name) is not None for run in runs))


def run_rows(sides: Sides) -> Iterator[_RunRow]:
    """Every run with its own figures, in the order in which they were made."""
    names = run_metrics(sides)
    for side, runs in sides.named:
        for run in sorted(runs, key=lambda r: (r.info.created_utc, r.info.run)):
            figures = tuple(_figure(run, name) for name in names)
            yield _RunRow(side, run.info.run, run.info.created_utc, run is runs[0], figures)


def run_documents(sides: Sides) -> list[dict[str, Any]]:
    """The same for JSON."""
    names = run_metrics(sides)
    return [
        {"side": row.side, "run": row.run, "created_utc": row.created_utc, "is_typical": row.is_typical}
        | {"figures": dict(zip(names, row.figures, strict=True))}
        for row in run_rows(sides)
    ]
