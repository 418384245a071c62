"""The runs of both sides of a comparison, and which run of each is looked at step by step."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

from dflash_bench.metrics.summary import figure
from dflash_bench.model import Comparison, Metric, RunMetrics
from dflash_bench.report.changes import KEY_METRICS


@dataclass(frozen=True, slots=True)
class Arms:
    """The runs of base and candidate, at least one each.

    Verdicts and the figures of metrics rest on all of them. What is made of single steps (distributions, causes,
    arrivals, timelines) is made of the first of each side: see `typical`.
    """

    base: tuple[RunMetrics, ...]
    candidate: tuple[RunMetrics, ...]

    @property
    def is_repeated(self) -> bool:
        """Whether either side has more than one run."""
        return len(self.base) > 1 or len(self.candidate) > 1

    @property
    def sides(self) -> tuple[tuple[str, tuple[RunMetrics, ...]], ...]:
        """Each side's name and runs."""
        return ("base", self.base), ("candidate", self.candidate)

    @property
    def note(self) -> str:
        """Which runs stand behind what, where there are repeats; otherwise empty."""
        if not self.is_repeated:
            return ""
        return (
            f"{len(self.base)} runs of the base, {len(self.candidate)} of the candidate: figures are medians over the"
            " runs, differences the median of those between single runs (Hodges-Lehmann), so the two need not agree"
            " where runs scatter; distributions, causes, arrivals and timelines are those of the runs with the median"
            f" step.period, {self.base[0].info.run} and {self.candidate[0].info.run}"
        )


def arms_of(comparison: Comparison, arms: Arms | None) -> Arms:
    """The arms of a comparison; without any given, its two runs."""
    return arms or Arms((comparison.base,), (comparison.candidate,))


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
class RunRow:
    """One run among its repeats. ``figures`` are in the metrics' base units, below `run_metrics`."""

    side: str
    run: str
    created_utc: str
    is_typical: bool
    figures: tuple[float | None, ...]


def run_metrics(arms: Arms) -> tuple[str, ...]:
    """The metrics that answer first, those that any of the runs has."""
    runs = (*arms.base, *arms.candidate)
    return tuple(name for name in KEY_METRICS if any(pooled(run, name) is not None for run in runs))


def run_rows(arms: Arms) -> Iterator[RunRow]:
    """Every run with its own figures, in the order in which they were made."""
    names = run_metrics(arms)
    for side, runs in arms.sides:
        for run in sorted(runs, key=lambda r: (r.info.created_utc, r.info.run)):
            figures = tuple(_figure(run, name) for name in names)
            yield RunRow(side, run.info.run, run.info.created_utc, run is runs[0], figures)


def run_documents(arms: Arms) -> list[dict[str, Any]]:
    """The same for JSON."""
    names = run_metrics(arms)
    return [
        {"side": row.side, "run": row.run, "created_utc": row.created_utc, "is_typical": row.is_typical}
        | {"figures": dict(zip(names, row.figures, strict=True))}
        for row in run_rows(arms)
    ]
