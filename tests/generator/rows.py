"""Generated events as rows of nsys' tables: which event lands in which table, under which columns."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
import pyarrow as pa

from dflash_bench.capture.recording import DOMAIN_ID, global_tid
from dflash_bench.capture.tables import Table
from generator.about import FIRST_PID, STRING_IDS
from generator.events import (
    CALLS,
    FIRST_COPY,
    FIRST_GRAPH,
    FIRST_SYNC,
    KERNEL_NAMES,
    MEMSET,
    NODES,
    NULL,
    RANGES,
    Chunk,
    Ints,
)
from generator.layout import OVERHEAD, sync_codes
from generator.spec import Fault, Mode, Spec

TOOL_DOMAIN_ID = 7
PUSH_POP, START_END, MARK, DOMAIN_CREATE = 59, 60, 34, 75
NODE_BITS = 32
"""nsys' graphNodeId: the graph above these bits, the node below."""
COPY_BYTES = 4096
STREAM = 7

Rows = dict[str, "Ints | int | pa.Array"]
"""Columns by name: arrays of one length, or one number for all rows."""


def first_rows(spec: Spec, chunk: Chunk) -> Rows:
    """What a process says first: its domain and its rank."""
    mark = f"dflash_bench rank={chunk.rank} world={spec.ranks} arm={spec.arm}"
    texts = ["dflash", "GIL Trace", *([] if spec.has(Fault.NO_MARKS) else [mark])]
    return {
        "start": np.full(len(texts), int(chunk.range_start[0]) - 1000),
        "end": NULL,
        "eventType": np.array([DOMAIN_CREATE, DOMAIN_CREATE, MARK][: len(texts)]),
        "globalTid": _tid(chunk.rank),
        "domainId": np.array([DOMAIN_ID, TOOL_DOMAIN_ID, DOMAIN_ID][: len(texts)]),
        "text": pa.array(texts, pa.string()),
    }


def _tid(rank: int) -> int:
    return global_tid(FIRST_PID + rank, FIRST_PID + rank)


def event_rows(spec: Spec, chunk: Chunk) -> Iterator[tuple[str, Rows]]:
    yield Table.NVTX_EVENTS, _nvtx(spec, chunk)
    if spec.has(Fault.STEPS_DOUBLED):
        step = np.flatnonzero(chunk.range_name == 0)
        inner = _nvtx_rows(spec, chunk.rank, chunk.range_start[step] + 5_000_000, chunk.range_end[step] - 1000)
        yield Table.NVTX_EVENTS, {**inner, "textId": STRING_IDS[RANGES[0]]}
    if spec.has(Fault.TOOL_RANGES):
        at = np.repeat(chunk.range_start, 2) + np.tile([0, 500], len(chunk.range_start))
        tool = _nvtx_rows(spec, chunk.rank, at, at + 400)
        yield Table.NVTX_EVENTS, {**tool, "domainId": TOOL_DOMAIN_ID, "textId": STRING_IDS["Holding GIL"]}
    yield from _calls(spec, chunk)
    yield from _syncs(spec, chunk)
    yield from _work(spec, chunk)
    at = chunk.range_start[:1] + 9_900_000
    yield (
        OVERHEAD,
        {"start": at, "end": at + 50_000, "globalTid": _tid(chunk.rank), "nameId": STRING_IDS["Buffer flush"]},
    )


def _nvtx_rows(spec: Spec, rank: int, start: Ints, end: Ints) -> Rows:
    return {"start": start, "end": end, "eventType": PUSH_POP, "globalTid": _tid(rank), "domainId": DOMAIN_ID}


def _nvtx(spec: Spec, chunk: Chunk) -> Rows:
    ids = np.array([STRING_IDS[name] for name in (*RANGES, "kv_alloc")])[chunk.range_name]
    rows = _nvtx_rows(spec, chunk.rank, chunk.range_start, chunk.range_end)
    is_step = chunk.range_name == 0
    if spec.has(Fault.STEP_NAMES_COUNT):
        texts = pa.array(
            [f"iteration {k}: 32 requests" if s else None for k, s in zip(chunk.step_number, is_step, strict=True)]
        )
        ids = np.where(is_step, NULL, ids)
    else:
        # as in real files: some names registered, others carried by each row
        own = chunk.range_name == RANGES.index("verify")
        texts = pa.array(["verify"], pa.string()).take(pa.array(np.zeros(len(own), np.int64), mask=~own))
        ids = np.where(own, NULL, ids)
    if spec.has(Fault.START_END):
        rows["eventType"] = np.where(is_step, START_END, PUSH_POP)
    if spec.has(Fault.OPEN_RANGES):
        last = chunk.step_number == spec.steps - 1
        rows["end"] = np.where(last, NULL, chunk.range_end)
    return {**rows, "textId": ids, "text": texts}


def _calls(spec: Spec, chunk: Chunk) -> Iterator[tuple[str, Rows]]:
    keep = np.ones(len(chunk.call_id), bool)
    if spec.has(Fault.LAUNCHES_CUT):
        keep = np.arange(len(keep)) >= len(keep) // 2
    names = np.array([STRING_IDS[name] for name in CALLS])[chunk.call_name]
    rows: Rows = {
        "start": chunk.call_start[keep],
        "end": chunk.call_end[keep],
        "eventClass": 0,
        "globalTid": _tid(chunk.rank),
        "correlationId": chunk.call_id[keep],
        "nameId": names[keep],
        "callchainId": NULL,
    }
    yield Table.RUNTIME, rows
    if spec.has(Fault.BACKTRACES):
        yield Table.RUNTIME, {**rows, "eventClass": 67}


def _syncs(spec: Spec, chunk: Chunk) -> Iterator[tuple[str, Rows]]:
    codes = sync_codes(spec.schema)
    for place in range(FIRST_SYNC, len(CALLS)):
        mine = chunk.call_name == place
        code = next(code for part, code in codes.items() if part in CALLS[place])
        work = {"start": chunk.call_start[mine] + 500, "end": chunk.call_end[mine] - 500}
        yield (
            Table.SYNCHRONIZATION,
            {**_on_gpu(chunk, **work), "correlationId": chunk.call_id[mine], "syncType": code, "eventId": 0xFFFFFFFF},
        )


def _on_gpu(chunk: Chunk, **columns: Ints) -> Rows:
    where = {"deviceId": 0, "contextId": 1, "streamId": STREAM, "globalPid": global_tid(FIRST_PID + chunk.rank, 0)}
    return {**columns, **where}


def _work(spec: Spec, chunk: Chunk) -> Iterator[tuple[str, Rows]]:
    start, end = chunk.work_start.copy(), chunk.work_end.copy()
    if spec.has(Fault.NO_TIMES):
        start[::50], end[::50] = 0, 0
    if spec.has(Fault.BACKWARDS):
        end[7::50] = start[7::50] - 5
    kind, ids = chunk.work_kind, chunk.work_id

    def rows(mine: Ints) -> Rows:
        return {**_on_gpu(chunk, start=start[mine], end=end[mine]), "correlationId": ids[mine]}

    eager = np.flatnonzero(kind < FIRST_COPY)
    yield Table.KERNEL, {**rows(eager), **_kernel_names(kind[eager]), "graphNodeId": NULL, **_SHAPE}
    copies = np.flatnonzero((kind >= FIRST_COPY) & (kind < MEMSET))
    yield Table.MEMCPY, {**rows(copies), "bytes": COPY_BYTES, "copyKind": 1 + kind[copies] % 2, "graphNodeId": NULL}
    memsets = np.flatnonzero(kind == MEMSET)
    yield Table.MEMSET, {**rows(memsets), "bytes": COPY_BYTES, "graphNodeId": NULL}
    graphs = np.flatnonzero(kind >= FIRST_GRAPH)
    if spec.has(Fault.NO_GRAPH_WORK):
        return
    graph_id = kind[graphs] - FIRST_GRAPH + 1
    found = rows(graphs)
    if spec.has(Fault.CORRELATION_ZERO):
        found["correlationId"] = np.zeros(len(graphs), np.int64)
    if spec.mode is Mode.NODE:
        yield Table.KERNEL, _nodes(found, graph_id)
    elif spec.has_graph_trace:
        yield Table.GRAPH_TRACE, {**found, "graphId": graph_id, "graphExecId": graph_id + 10}


_SHAPE = {"gridX": 132, "gridY": 1, "gridZ": 1, "blockX": 256, "blockY": 1, "blockZ": 1, "registersPerThread": 64}


def _kernel_names(kind: Ints) -> Rows:
    names = np.array([STRING_IDS[name] for name in KERNEL_NAMES])[kind % len(KERNEL_NAMES)]
    return {"shortName": names, "demangledName": names}


def _nodes(graphs: Rows, graph_id: Ints) -> Rows:
    """Each replay as the kernels of its graph, one after the other over the replay's time."""
    node = np.tile(np.arange(NODES), len(graph_id))
    start, end = np.repeat(graphs["start"], NODES), np.repeat(graphs["end"], NODES)
    share = (end - start) // NODES
    is_last = node == NODES - 1
    return {
        **graphs,
        "start": start + share * node,
        "end": np.where(is_last, end, start + share * (node + 1)),
        "correlationId": np.repeat(graphs["correlationId"], NODES),
        **_kernel_names(node),
        **_SHAPE,
        "graphNodeId": (np.repeat(graph_id, NODES) << NODE_BITS) + node + 1,
        "graphId": np.repeat(graph_id, NODES),
    }
