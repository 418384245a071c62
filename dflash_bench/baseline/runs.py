"""What a baseline holds: the samples of its newest runs, and the figures of every run ever saved."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import groupby
from statistics import median

from dflash_bench.baseline.key import BaselineKey
from dflash_bench.metrics.measure import pool
from dflash_bench.metrics.registry import Noise, Pool, position, spec
from dflash_bench.metrics.summary import figure
from dflash_bench.model import Metric, MetricKey, RunInfo, RunMetrics, Value
from dflash_bench.session import Session, commit_of
from dflash_bench.stats.composition import is_composition

KEEP_RUNS = 10
"""Runs whose samples a file holds; older ones live on in its history."""
_KEEP_HISTORY = 200


@dataclass(frozen=True, slots=True)
class BaselineRun:
    """A run in a baseline: what it was made with, and its metrics per rank, with their samples."""

    run: str
    created_utc: str
    settings: dict[str, Value]
    metrics: tuple[Metric, ...]


@dataclass(frozen=True, slots=True)
class HistoryEntry:
    """The figures of a run that was saved once: ``metric@rank`` (``metric@all`` for one of all ranks) → figure."""

    run: str
    created_utc: str
    figures: dict[str, float]
    session: Session
    commit: str | None = None


@dataclass(frozen=True, slots=True)
class Baseline:
    """What a baseline file holds; runs and history oldest first."""

    key: BaselineKey
    runs: tuple[BaselineRun, ...]
    history: tuple[HistoryEntry, ...]

    def run_metrics(self) -> tuple[RunMetrics, ...]:
        """Its runs as they were measured, pooled figures included."""
        return tuple(_measured(self.key, run) for run in self.runs)

    def figures(self) -> dict[MetricKey, list[float]]:
        """(metric, rank) → the median of its figures in every session of the history, oldest first."""
        found: dict[MetricKey, list[float]] = {}
        for entries in self.sessions().values():
            labels = dict.fromkeys(label for entry in entries for label in entry.figures)
            for label in labels:
                values = [entry.figures[label] for entry in entries if label in entry.figures]
                found.setdefault(name_and_rank(label), []).append(median(values))
        return found

    def sessions(self) -> dict[Session, list[HistoryEntry]]:
        """The entries of the history by session, oldest first."""
        found: dict[Session, list[HistoryEntry]] = {}
        for entry in self.history:
            found.setdefault(entry.session, []).append(entry)
        return found

    def with_runs(self, runs: Sequence[RunMetrics], keep: int = KEEP_RUNS) -> Baseline:
        """The same with more runs. A run that it has already, by name and time, is not added again."""
        known = {(e.run, e.created_utc) for e in self.history}
        new = [r for r in runs if (r.info.run, r.info.created_utc) not in known]
        order = lambda each: (each.created_utc, each.run)  # noqa: E731
        every = sorted([*self.runs, *(_kept(r) for r in new)], key=order)
        history = sorted([*self.history, *(_entry(r) for r in new)], key=order)
        return Baseline(self.key, tuple(every[-keep:]), tuple(history[-_KEEP_HISTORY:]))


def metric_label(name: str, rank: int | None) -> str:
    """What a metric of one rank, or of all of them, is called in a baseline's file."""
    # names of leads hold an @ themselves: the rank stands behind the last one
    return f"{name}@all" if rank is None else f"{name}@{rank}"


def name_and_rank(label: str) -> tuple[str, int | None]:
    """The metric's name and its rank of a label that `metric_label` made."""
    name, _, rank = label.rpartition("@")
    return name, None if rank == "all" else int(rank)


def _is_kept(metric: Metric) -> bool:
    """Whether its samples are stored: pooled ones are made of the ranks', and what is never judged is not needed."""
    is_own = metric.rank is not None or spec(metric.name).pool is Pool.NONE
    is_used = spec(metric.name).noise is not Noise.UNJUDGED or is_composition(metric.name)
    return is_own and is_used and len(metric.values) > 0


def _kept(run: RunMetrics) -> BaselineRun:
    metrics = tuple(m for m in run.metrics if _is_kept(m))
    return BaselineRun(run.info.run, run.info.created_utc, dict(run.info.settings), metrics)


def _entry(run: RunMetrics) -> HistoryEntry:
    judged = [m for m in run.metrics if spec(m.name).noise is not Noise.UNJUDGED]
    figures = {metric_label(m.name, m.rank): value for m in judged if (value := figure(m)) is not None}
    return HistoryEntry(run.info.run, run.info.created_utc, figures, Session.of(run.info), commit_of(run.info))


def _measured(key: BaselineKey, run: BaselineRun) -> RunMetrics:
    info = RunInfo(
        run=run.run,
        arm=key.arm,
        workload=key.workload,
        device=key.device,
        devices=(),
        world=key.world,
        created_utc=run.created_utc,
        tool_version="",
        captures=(),
        processes=(),
        findings=(),
        settings=run.settings,
    )
    ranked = sorted((m for m in run.metrics if m.rank is not None and spec(m.name).pool is not Pool.NONE), key=_order)
    pooled = [pool(list(same), rank=None) for _, same in groupby(ranked, lambda m: m.name)]
    return RunMetrics(info, tuple(sorted([*run.metrics, *pooled], key=_order)), (), ())


def _order(metric: Metric) -> tuple[int, str, int]:
    return position(metric.name), metric.name, -1 if metric.rank is None else metric.rank
