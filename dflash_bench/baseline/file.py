"""A baseline's file: JSON that can be read in a diff, written by one at a time.

It holds the samples of its newest runs (one line per metric and rank, see `samples.py`) and a history: the figures of
every run ever saved, from which the drift of the machine is learned. Two writers take turns through a lock file and
each adds to what the other left; a file is replaced whole or not at all.

Format history (``_FORMAT``)
  1  first version
  2  each entry of the history says its session (machine, day, job) and its commit; of older ones the day is known
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import asdict
from pathlib import Path
from typing import Any

import numpy as np

from dflash_bench.baseline.key import BaselineKey
from dflash_bench.baseline.runs import Baseline, BaselineRun, HistoryEntry, metric_label, name_and_rank
from dflash_bench.errors import DataError, SchemaError
from dflash_bench.metrics.summary import figure
from dflash_bench.model import Metric, Statistic, Unit
from dflash_bench.samples import decode, encode
from dflash_bench.session import Session
from dflash_bench.whole import write_text

_FORMAT = 2


def read_baseline(path: Path) -> Baseline:
    """Read a baseline file. Raises DataError when it is damaged, SchemaError when its version is unknown."""
    try:
        raw: Any = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        raise DataError(f"{path} cannot be read: {error}", hint="restore it from version control") from None
    version = raw.get("format_version") if isinstance(raw, dict) else None
    if version is None:
        raise DataError(f"{path} is no baseline: it states no format", hint="dflash-bench baseline list")
    if version not in (1, _FORMAT):
        raise SchemaError(
            f"{path} has baseline format {version}; this version reads {_FORMAT}", hint="save the baseline again"
        )
    try:
        return _from_json(raw)
    except (KeyError, TypeError, ValueError) as error:
        raise DataError(f"{path} is damaged: {error!r}", hint="restore it from version control") from None


def write(path: Path, baseline: Baseline) -> None:
    """Replace the file, whole or not at all. Its writer is the only one (`whole.one_writer`)."""
    write_text(path, json.dumps(_to_json(baseline), indent=1, ensure_ascii=False) + "\n")


def _to_json(baseline: Baseline) -> dict[str, Any]:
    return {
        "format_version": _FORMAT,
        "key": {**asdict(baseline.key), "stack": dict(baseline.key.stack)},
        "runs": [
            {
                "run": run.run,
                "created_utc": run.created_utc,
                "settings": run.settings,
                "samples": {metric_label(m.name, m.rank): _metric_json(m) for m in run.metrics},
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
    return Baseline(key, runs, tuple(_entry(entry) for entry in raw["history"]))


def _entry(raw: Mapping[str, Any]) -> HistoryEntry:
    own = raw.get("session") or {"machine": None, "day": raw["created_utc"][:10], "job": None}
    return HistoryEntry(raw["run"], raw["created_utc"], raw["figures"], Session(**own), raw.get("commit"))


def _metric(label: str, raw: Mapping[str, Any]) -> Metric:
    name, rank = name_and_rank(label)
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
