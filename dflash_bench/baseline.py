"""Baselines: runs of one arm that later runs are held against, in a small file that can be read in a diff.

::

    baselines/<device>/<workload>-<arm>-w<world>-<stack>.json

One file per key: device, software stack, workload, arm and world size. It holds the samples of its newest runs (one
line per metric and rank, see `samples.py`) and a history: the figures of every run ever saved, from which the drift of
the machine is learned. Two writers take turns through a lock file and each adds to what the other left; a file is
replaced whole or not at all.

Format history (``FORMAT_VERSION``)
  1  first version
"""

from __future__ import annotations

import fcntl
import hashlib
import json
import os
import re
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass, replace
from itertools import groupby
from pathlib import Path
from typing import Any

import numpy as np

from dflash_bench.environment import stack
from dflash_bench.errors import DataError, SchemaError, UsageError
from dflash_bench.metrics.measure import pool
from dflash_bench.metrics.registry import Pool, position, spec
from dflash_bench.metrics.summary import figure
from dflash_bench.model import Metric, RunInfo, RunMetrics, Statistic, Unit, Value
from dflash_bench.samples import decode, encode
from dflash_bench.stats.composition import is_composition
from dflash_bench.stats.noise import Noise, noise

FORMAT_VERSION = 1
KEEP_RUNS = 5
"""Runs whose samples a file holds; older ones live on in its history."""
KEEP_HISTORY = 50


@dataclass(frozen=True, slots=True)
class BaselineKey:
    """What a baseline is a baseline of. ``stack`` is sorted name and version pairs."""

    device: str
    stack: tuple[tuple[str, str], ...]
    workload: str
    arm: str
    world: int

    @classmethod
    def of(cls, info: RunInfo) -> BaselineKey:
        """The key of a run. Raises UsageError when the run does not say what it is."""
        world = info.world or len(info.ranks)
        missing = [n for n, v in (("device", info.device), ("workload", info.workload), ("arm", info.arm)) if not v]
        if missing or info.device is None or info.workload is None or info.arm is None:
            raise UsageError(
                f"{info.run} does not say its {' and '.join(missing)}, so it has no baseline",
                hint="name them on ingest: dflash-bench ingest --arm ARM --workload NAME PATH",
            )
        return cls(info.device, tuple(sorted(stack(info).items())), info.workload, info.arm, world)

    @property
    def path(self) -> Path:
        """Where the file lies in the folder of baselines."""
        print_ = hashlib.sha256(json.dumps(self.stack).encode()).hexdigest()[:8]
        return Path(_slug(self.device)) / f"{_slug(self.workload)}-{_slug(self.arm)}-w{self.world}-{print_}.json"

    @property
    def text(self) -> str:
        """The key in words."""
        versions = ", ".join(f"{name} {version}" for name, version in self.stack)
        ranks = "1 rank" if self.world == 1 else f"{self.world} ranks"
        return f"arm {self.arm}, workload {self.workload}, {ranks}, device {self.device} ({versions})"

    def differs_from(self, other: BaselineKey) -> tuple[str, ...]:
        """The parts of the key that another key has otherwise, in words."""
        parts = [
            f"{name} {getattr(other, name)}, not {getattr(self, name)}"
            for name in ("device", "workload", "arm", "world")
            if getattr(self, name) != getattr(other, name)
        ]
        mine, theirs = dict(self.stack), dict(other.stack)
        for name in sorted({*mine, *theirs}):
            if mine.get(name) != theirs.get(name):
                parts.append(f"{name} {theirs.get(name, 'not stated')}, not {mine.get(name, 'not stated')}")
        return tuple(parts)


@dataclass(frozen=True, slots=True)
class BaselineRun:
    """A run in a baseline: what it was made with, and its metrics per rank, with their samples."""

    run: str
    created_utc: str
    settings: dict[str, Value]
    metrics: tuple[Metric, ...]


@dataclass(frozen=True, slots=True)
class HistoryEntry:
    """The figures of a run that was saved once: ``metric@rank`` (``metric`` for one of all ranks) → figure."""

    run: str
    created_utc: str
    figures: dict[str, float]


@dataclass(frozen=True, slots=True)
class Baseline:
    """What a baseline file holds; runs and history oldest first."""

    key: BaselineKey
    runs: tuple[BaselineRun, ...]
    history: tuple[HistoryEntry, ...]

    def run_metrics(self) -> tuple[RunMetrics, ...]:
        """Its runs as they were measured, pooled figures included."""
        return tuple(_measured(self.key, run) for run in self.runs)

    def figures(self) -> dict[tuple[str, int | None], list[float]]:
        """(metric, rank) → its figure in every run of the history."""
        found: dict[tuple[str, int | None], list[float]] = {}
        for entry in self.history:
            for label, value in entry.figures.items():
                found.setdefault(_unlabelled(label), []).append(value)
        return found

    def with_runs(self, runs: Sequence[RunMetrics], keep: int = KEEP_RUNS) -> Baseline:
        """The same with more runs. A run that it has already, by name and time, is not added again."""
        known = {(e.run, e.created_utc) for e in self.history}
        new = [r for r in runs if (r.info.run, r.info.created_utc) not in known]
        order = lambda each: (each.created_utc, each.run)  # noqa: E731
        every = sorted([*self.runs, *(_kept(r) for r in new)], key=order)
        history = sorted([*self.history, *(_entry(r) for r in new)], key=order)
        return Baseline(self.key, tuple(every[-keep:]), tuple(history[-KEEP_HISTORY:]))


# ── the folder ───────────────────────────────────────────────────────────────────────────────────────────────────────


def save(folder: Path, runs: Sequence[RunMetrics], keep: int = KEEP_RUNS) -> tuple[Path, Baseline]:
    """Add runs of one key to their baseline, making it if need be. Raises UsageError when they have several keys."""
    keys = {BaselineKey.of(r.info) for r in runs}
    if len(keys) != 1:
        several = "; ".join(sorted(key.text for key in keys))
        raise UsageError(f"these runs belong to {len(keys)} baselines: {several}", hint="save them one key at a time")
    if interrupted := [r.info.run for r in runs if r.info.settings.get("interrupted")]:
        raise UsageError(f"{', '.join(interrupted)} was interrupted and is no baseline")
    if delayed := [r.info.run for r in runs if r.info.settings.get("delay")]:
        raise UsageError(f"{', '.join(delayed)} was delayed on purpose and is no baseline")
    key = keys.pop()
    path = folder / key.path
    with _locked(path):
        before = load(path) if path.exists() else Baseline(key, (), ())
        after = before.with_runs(runs, keep)
        _write(path, after)
    return path, after


def find(folder: Path, info: RunInfo) -> Baseline:
    """The baseline of a run's key.

    Raises UsageError when there is none, naming the nearest others and how they differ: another key is never used.
    """
    key = BaselineKey.of(info)
    path = folder / key.path
    if path.exists():
        return load(path)
    others = sorted((other.key.differs_from(key), str(other_path)) for other_path, other in all_in(folder))
    nearest = min(others, key=lambda o: len(o[0]), default=None)
    own = "" if folder == Path("baselines") else f" --baselines {folder}"
    beside = "" if nearest is None else f"; the nearest, {nearest[1]}, is of {' and '.join(_turned(nearest[0]))}"
    raise UsageError(
        f"no baseline in {folder} for {key.text}{beside}", hint=f"dflash-bench baseline save {info.run}{own}"
    )


def _turned(parts: Sequence[str]) -> list[str]:
    """``x A, not B`` as ``x B, not A``: told from the nearest baseline's side."""
    found = []
    for part in parts:
        what, other = part.split(", not ", 1)
        name, value = what.split(" ", 1)
        found.append(f"{name} {other}, not {value}")
    return found


def all_in(folder: Path) -> list[tuple[Path, Baseline]]:
    """Every baseline of the folder, by path."""
    return [(path, load(path)) for path in sorted(folder.glob("*/*.json"))]


def prune(path: Path, keep: int, keep_history: int) -> Baseline:
    """Keep the newest runs and history entries of a baseline only."""
    with _locked(path):
        before = load(path)
        after = replace(
            before,
            runs=before.runs[-keep:] if keep else (),
            history=before.history[-keep_history:] if keep_history else (),
        )
        _write(path, after)
    return after


def load(path: Path) -> Baseline:
    """Read a baseline file. Raises DataError when it is damaged, SchemaError when its version is unknown."""
    try:
        raw: Any = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        raise DataError(f"{path} cannot be read: {error}", hint="restore it from version control") from None
    version = raw.get("format_version") if isinstance(raw, dict) else None
    if version is None:
        raise DataError(f"{path} is no baseline: it states no format", hint="dflash-bench baseline list")
    if version != FORMAT_VERSION:
        raise SchemaError(
            f"{path} has baseline format {version}; this version reads {FORMAT_VERSION}", hint="save the baseline again"
        )
    try:
        return _from_json(raw)
    except (KeyError, TypeError, ValueError) as error:
        raise DataError(f"{path} is damaged: {error!r}", hint="restore it from version control") from None


@contextmanager
def _locked(path: Path) -> Iterator[None]:
    """Only one writer of this file at a time, on this host or through a file system that knows locks."""
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        with path.with_name(f".{path.name}.lock").open("a") as lock:
            fcntl.flock(lock, fcntl.LOCK_EX)
            yield
    except OSError as error:
        raise DataError(f"{path} could not be written: {error.strerror or error}") from error


def _write(path: Path, baseline: Baseline) -> None:
    partial = path.with_name(f".{path.name}.{os.getpid()}.partial")
    partial.write_text(json.dumps(_to_json(baseline), indent=1, ensure_ascii=False) + "\n", encoding="utf-8")
    partial.replace(path)


# ── to and from JSON ─────────────────────────────────────────────────────────────────────────────────────────────────


def _slug(text: str) -> str:
    return re.sub(r"[^\w.+]+", "-", text).strip("-.").lower() or "unnamed"


def _label(name: str, rank: int | None) -> str:
    # names of leads hold an @ themselves: the rank stands behind the last one
    return f"{name}@all" if rank is None else f"{name}@{rank}"


def _unlabelled(label: str) -> tuple[str, int | None]:
    name, _, rank = label.rpartition("@")
    return name, None if rank == "all" else int(rank)


def _is_kept(metric: Metric) -> bool:
    """Whether its samples are stored: pooled ones are made of the ranks', and what is never judged is not needed."""
    is_own = metric.rank is not None or spec(metric.name).pool is Pool.NONE
    is_used = noise(metric.name) is not Noise.UNJUDGED or is_composition(metric.name)
    return is_own and is_used and len(metric.values) > 0


def _kept(run: RunMetrics) -> BaselineRun:
    metrics = tuple(m for m in run.metrics if _is_kept(m))
    return BaselineRun(run.info.run, run.info.created_utc, dict(run.info.settings), metrics)


def _entry(run: RunMetrics) -> HistoryEntry:
    judged = [m for m in run.metrics if noise(m.name) is not Noise.UNJUDGED]
    figures = {_label(m.name, m.rank): value for m in judged if (value := figure(m)) is not None}
    return HistoryEntry(run.info.run, run.info.created_utc, figures)


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


def _to_json(baseline: Baseline) -> dict[str, Any]:
    return {
        "format_version": FORMAT_VERSION,
        "key": {**asdict(baseline.key), "stack": dict(baseline.key.stack)},
        "runs": [
            {
                "run": run.run,
                "created_utc": run.created_utc,
                "settings": run.settings,
                "samples": {_label(m.name, m.rank): _metric_json(m) for m in run.metrics},
            }
            for run in baseline.runs
        ],
        "history": [asdict(entry) for entry in baseline.history],
    }


def _metric_json(metric: Metric) -> dict[str, Any]:
    found: dict[str, Any] = {
        "unit": metric.unit,
        "statistic": metric.statistic,
        "figure": figure(metric),
        "values": encode(metric.values),
    }
    if metric.group is not None:
        found["group"] = encode(metric.group)
    if metric.block is not None:
        found["block"] = encode(metric.block)
    if metric.num_samples is not None:
        found["num_samples"] = metric.num_samples
    if metric.coverage is not None:
        found["coverage"] = metric.coverage
    return found


def _from_json(raw: Mapping[str, Any]) -> Baseline:
    key = BaselineKey(**{**raw["key"], "stack": tuple(sorted(raw["key"]["stack"].items()))})
    runs = tuple(
        BaselineRun(
            r["run"], r["created_utc"], r["settings"], tuple(_metric(label, m) for label, m in r["samples"].items())
        )
        for r in raw["runs"]
    )
    return Baseline(key, runs, tuple(HistoryEntry(**entry) for entry in raw["history"]))


def _metric(label: str, raw: Mapping[str, Any]) -> Metric:
    name, rank = _unlabelled(label)
    return Metric(
        name=name,
        rank=rank,
        unit=Unit(raw["unit"]),
        statistic=Statistic(raw["statistic"]),
        values=decode(raw["values"]),
        group=decode(raw["group"]).astype(np.bool_) if "group" in raw else None,
        block=decode(raw["block"]).astype(np.int64) if "block" in raw else None,
        num_samples=raw.get("num_samples"),
        coverage=raw.get("coverage"),
    )
