"""The generator's events as a Chrome trace of the torch profiler: one rank's, with the operators and frames around."""

from __future__ import annotations

import gzip
import json
from collections.abc import Iterator
from pathlib import Path

from generator.about import FIRST_PID
from generator.events import CALLS, FIRST_COPY, FIRST_GRAPH, KERNEL_NAMES, MEMSET, RANGES, Chunk, chunks
from generator.faults import faulted
from generator.rows import COPY_BYTES, STREAM
from generator.spec import Spec

BASE_NS = 1_750_000_000_000_000_000
COPY_LABELS = {FIRST_COPY: "Memcpy HtoD (Pinned -> Device)", FIRST_COPY + 1: "Memcpy DtoH (Device -> Pinned)"}


def write_trace(path: Path, spec: Spec, rank: int) -> Path:
    """Write ``.json`` or ``.json.gz``, event by event. Graphs appear as one kernel each."""
    opener = gzip.open if path.suffix == ".gz" else open
    about = {
        "distributedInfo": {"backend": "nccl", "rank": rank, "world_size": spec.ranks},
        "baseTimeNanoseconds": BASE_NS,
    }
    about |= {
        "schemaVersion": 1,
        "host_name": "secret-host",
        "deviceProperties": [{"id": 0, "name": "Generated GPU 0"}],
    }
    with opener(path, "wt", encoding="utf-8") as file:
        file.write(json.dumps(about)[:-1] + ',\n"traceEvents": [\n')
        for k, event in enumerate(_events(spec, rank)):
            file.write((",\n" if k else "") + json.dumps(event))
        file.write(f'\n], "traceName": "{path}"}}\n')
    return path


def _events(spec: Spec, rank: int) -> Iterator[dict[str, object]]:
    pid = FIRST_PID + rank
    yield {"ph": "M", "name": "process_name", "ts": 0.0, "pid": pid, "tid": 0, "args": {"name": "python"}}
    for chunk in (faulted(spec, made) for made in chunks(spec, (rank,))):
        yield from _host(chunk, pid)
        yield from _device(chunk)


def _host(chunk: Chunk, pid: int) -> Iterator[dict[str, object]]:
    where = {"ph": "X", "pid": pid, "tid": pid}
    names = (*RANGES, "kv_alloc")
    for name, start, end in zip(
        chunk.range_name.tolist(), chunk.range_start.tolist(), chunk.range_end.tolist(), strict=True
    ):
        yield {**where, "cat": "user_annotation", "name": names[name], **_times(start, end), "args": {"Ev Idx": 1}}
        yield {**where, "cat": "cpu_op", "name": "aten::add", **_times(start, end), "args": {"Sequence number": 3}}
    calls = zip(*(c.tolist() for c in (chunk.call_name, chunk.call_start, chunk.call_end, chunk.call_id)), strict=True)
    for name, start, end, number in calls:
        arguments = {"External id": 1, "cbid": 211, "correlation": number}
        plain = CALLS[name].partition("_v")[0]
        yield {**where, "cat": "cuda_runtime", "name": plain, **_times(start, end), "args": arguments}


def _device(chunk: Chunk) -> Iterator[dict[str, object]]:
    rows = zip(*(c.tolist() for c in (chunk.work_kind, chunk.work_start, chunk.work_end, chunk.work_id)), strict=True)
    for kind, start, end, number in rows:
        arguments: dict[str, object] = {"device": 0, "context": 1, "stream": STREAM, "correlation": number}
        event: dict[str, object] = {"ph": "X", "pid": 0, "tid": STREAM, **_times(start, end), "args": arguments}
        if kind in COPY_LABELS:
            event |= {"cat": "gpu_memcpy", "name": COPY_LABELS[kind], "args": {**arguments, "bytes": COPY_BYTES}}
        elif kind == MEMSET:
            event |= {"cat": "gpu_memset", "name": "Memset (Device)", "args": {**arguments, "bytes": COPY_BYTES}}
        else:
            name = KERNEL_NAMES[kind % len(KERNEL_NAMES)] if kind < FIRST_GRAPH else "graph kernel"
            event |= {"cat": "kernel", "name": name}
        yield event
        yield {
            "ph": "f",
            "id": number,
            "pid": 0,
            "tid": STREAM,
            "ts": event["ts"],
            "cat": "ac2g",
            "name": "ac2g",
            "bp": "e",
        }


def _times(start_ns: int, end_ns: int) -> dict[str, object]:
    # microseconds with three decimals; below 2^53 ns no digit is lost
    return {"ts": start_ns / 1000, "dur": (end_ns - start_ns) / 1000}
