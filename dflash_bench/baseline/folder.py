"""The folder of baselines, one file per key: ``baselines/<device>/<workload>-<arm>-w<world>-<stack>.json``."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

from dflash_bench.baseline.file import read_baseline, write
from dflash_bench.baseline.key import BaselineKey
from dflash_bench.baseline.runs import KEEP_RUNS, Baseline
from dflash_bench.errors import UsageError
from dflash_bench.model import RunInfo, RunMetrics
from dflash_bench.whole import one_writer


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
    with one_writer(path):
        before = read_baseline(path) if path.exists() else Baseline(key, (), ())
        after = before.with_runs(runs, keep)
        write(path, after)
    return path, after


def find(folder: Path, info: RunInfo) -> Baseline:
    """The baseline of a run's key.

    Raises UsageError when there is none, naming the nearest others and how they differ: another key is never used.
    """
    key = BaselineKey.of(info)
    path = folder / key.path
    if path.exists():
        return read_baseline(path)
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
    return [(path, read_baseline(path)) for path in sorted(folder.glob("*/*.json"))]


def prune(path: Path, keep: int, keep_history: int) -> Baseline:
    """Keep the newest runs and history entries of a baseline only."""
    with one_writer(path):
        before = read_baseline(path)
        after = replace(
            before,
            runs=before.runs[-keep:] if keep else (),
            history=before.history[-keep_history:] if keep_history else (),
        )
        write(path, after)
    return after
