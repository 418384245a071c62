"""Profiles of many ranks and steps, written as Parquet at once: what a report of a large run is tested on."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from dflash_bench.layout import SCHEMAS, Events, part_path
from dflash_bench.model import CaptureInfo, ProcessInfo, RankSource, Recorder, RunInfo
from dflash_bench.profile import write_run

RANGES_PER_STEP, CALLS_PER_STEP, GPU_PER_STEP = 4, 3, 2
US = 1_000


def write_large(folder: Path, arm: str, ranks: int, steps: int, *, prepare_us: int, alloc_share: float) -> Path:
    """A run whose ranks meet once a step: some steps allocate, ``prepare_for_decode`` then takes twice as long."""
    path = folder / f"large-{arm}"
    rng = np.random.default_rng(len(arm))
    prepare = (rng.lognormal(np.log(prepare_us), 0.2, (ranks, steps)) * US).astype(np.int64)
    is_alloc = rng.random((ranks, steps)) < alloc_share
    prepare[is_alloc] *= 2
    period = np.maximum(9_000 * US, prepare.max(axis=0) + 8_500 * US)
    start = np.concatenate([[0], np.cumsum(period)[:-1]])
    processes = tuple(_write_rank(path, r, start, prepare[r], is_alloc[r], prepare.max(axis=0)) for r in range(ranks))
    capture = CaptureInfo("0" * 32, 1, Recorder.NSYS, "2025.3.2.0", "1", 0, 0, int(start[-1]))
    devices = ("NVIDIA H200",)
    write_run(
        path,
        RunInfo(path.name, arm, "large", devices[0], devices, ranks, "2026-01-01", "0", (capture,), processes, ()),
    )
    return path


def _write_rank(
    path: Path, rank: int, start: np.ndarray, prepare: np.ndarray, is_alloc: np.ndarray, latest: np.ndarray
) -> ProcessInfo:
    own = (rank + 1) << 24
    numbers = dict(zip(("num_ranges", "num_api_calls", "num_gpu_work"), _sizes(start, is_alloc), strict=True))
    process = ProcessInfo(rank + 1, rank + 1, 0, rank, RankSource.MARK, None, None, **numbers)
    inside = start + 100 * US
    arrived, left = inside + prepare, inside + latest + 20 * US
    allocated = inside[is_alloc]
    ranges = {
        "decode_step": (start, start + 8_400 * US),
        "prepare_for_decode": (inside, inside + prepare),
        "kv_alloc": (allocated, allocated + prepare[is_alloc] // 2),
        "dp_agreement": (arrived, left),
    }
    launched = np.stack([left + 10 * US, left + 100 * US, left + 200 * US])
    calls = {
        "cudaGraphLaunch": (launched[:2].T.ravel(), launched[:2].T.ravel() + 8 * US),
        "cudaEventSynchronize": (launched[2], launched[2] + 6_000 * US),
    }
    ran = np.stack([launched[0] + 20 * US, launched[0] + 1_600 * US])
    work = {"graph": (ran.T.ravel(), ran.T.ravel() + 1_500 * US)}
    _write(path, process, Events.RANGES, ranges, thread=own, domain="dflash", kind="push_pop")
    _write(path, process, Events.API_CALLS, calls, thread=own)
    _write(path, process, Events.GPU_WORK, work, device=0, stream=7, kind="graph")
    return process


def _sizes(start: np.ndarray, is_alloc: np.ndarray) -> tuple[int, int, int]:
    steps = len(start)
    return (RANGES_PER_STEP - 1) * steps + int(is_alloc.sum()), CALLS_PER_STEP * steps, GPU_PER_STEP * steps


def _write(
    path: Path, process: ProcessInfo, table: Events, spans: Mapping[str, tuple[np.ndarray, np.ndarray]], **constant
) -> None:
    """The rows of one table, ascending by start; the k-th call queues the k-th piece of work, by id."""
    names = np.repeat(np.arange(len(spans)), [len(start) for start, _ in spans.values()])
    start, end = (np.concatenate([span[k] for span in spans.values()]) for k in (0, 1))
    columns = {
        "name": pa.DictionaryArray.from_arrays(pa.array(names.astype(np.int32)), list(spans)),
        "start_ns": start,
        "end_ns": end,
        "correlation_id": np.concatenate([np.arange(len(s)) + (1 << 40) * k for k, (s, _) in enumerate(spans.values())])
        + 1,
        **{name: pa.array([value] * len(start)) for name, value in constant.items()},
    }
    schema, order = SCHEMAS[table], np.argsort(start, kind="stable")
    full = [
        pa.array(columns[field.name]).cast(field.type).take(pa.array(order))
        if field.name in columns
        else pa.nulls(len(start), field.type)
        for field in schema
    ]
    file = path / part_path(table, process.rank, process)
    file.parent.mkdir(parents=True, exist_ok=True)
    pq.write_table(pa.Table.from_arrays(full, schema=schema), file)
