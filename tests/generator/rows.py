"""Generated events as rows of nsys' tables: which event lands in which table, under which columns."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from dflash_bench.capture.recording_file import DOMAIN_ID, global_tid
from dflash_bench.capture.tables import ExportTable
from generator.about import STRING_IDS, cuda_pid, pid_of
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
from generator.layout import GRAPH_EVENTS, GRAPH_NODE_EVENTS, OVERHEAD, sync_codes
from generator.spec import Fault, Mode, Schema, Spec

TOOL_DOMAIN_ID = 7
PUSH_POP, START_END, MARK, DOMAIN_CREATE = 59, 60, 34, 75
NODE_BITS = 32
"""nsys' graphNodeId: the graph above these bits, the node below."""
COPY_BYTES = 4096
STREAM = 7
INT_MAX = (1 << 31) - 1
NODE_CREATED, EXEC_CREATED, GRAPH_CREATED = 77, 94, 95

Rows = dict[str, "Ints | int | pa.Array"]
"""Columns by name: arrays of one length, or one number for all rows."""


def first_rows(spec: Spec, chunk: Chunk) -> Rows:
    """What a process says first: its domain and its rank."""
    said = [(DOMAIN_CREATE, DOMAIN_ID, "dflash")]
    if spec.has(Fault.TOOL_RANGES):
        said.append((DOMAIN_CREATE, TOOL_DOMAIN_ID, "GIL Trace"))
    if not spec.faults & {Fault.NO_MARKS, Fault.RANGES_LOST}:
        said.append((MARK, DOMAIN_ID, f"dflash_bench rank={chunk.rank} world={spec.ranks} arm={spec.arm}"))
    kinds, domains, texts = zip(*said, strict=True)
    return {
        "start": np.full(len(texts), int(chunk.range_start[0]) - 1000),
        "end": NULL,
        "eventType": np.array(kinds),
        "globalTid": _tid(chunk.rank),
        "domainId": np.array(domains),
        "text": pa.array(texts, pa.string()),
    }


def graph_rows(spec: Spec, chunk: Chunk) -> Iterator[tuple[str, Rows]]:
    """The making of a process's graphs, a second before its first step: not there when the capture began later."""
    if spec.has(Fault.CORRELATION_ZERO):
        return
    at = np.full(2, int(chunk.range_start[0]) - 1_000_000_000)
    made: Rows = {"start": at, "end": at + 40_000, "globalTid": _tid(chunk.rank)}
    graph = np.array([1, 2])
    if spec.has_graph_trace:
        yield GRAPH_EVENTS, {**made, "eventClass": GRAPH_CREATED, "graphId": graph}
        yield GRAPH_EVENTS, {**made, "eventClass": EXEC_CREATED, "graphId": graph, "graphExecId": graph + 10}
    if spec.mode is not Mode.GRAPH:
        node = (np.repeat(graph, NODES) << NODE_BITS) + np.tile(np.arange(NODES), 2) + 1
        nodes = {**made, "start": np.repeat(at, NODES), "end": np.repeat(at, NODES), "graphNodeId": node}
        table = GRAPH_NODE_EVENTS if spec.schema >= Schema.V3_13 else GRAPH_EVENTS
        yield table, {**nodes, "eventClass": NODE_CREATED}


def _tid(rank: int) -> int:
    return global_tid(pid_of(rank), pid_of(rank))


def _cuda_tid(spec: Spec, rank: int) -> int:
    return global_tid(cuda_pid(spec, rank), cuda_pid(spec, rank))


def event_rows(spec: Spec, chunk: Chunk) -> Iterator[tuple[str, Rows]]:
    if not spec.has(Fault.RANGES_LOST):
        yield ExportTable.NVTX_EVENTS, _nvtx(spec, chunk)
    if spec.has(Fault.STEPS_DOUBLED):
        step = np.flatnonzero(chunk.range_name == 0)
        inner = _nvtx_rows(spec, chunk.rank, chunk.range_start[step] + 5_000_000, chunk.range_end[step] - 1000)
        yield ExportTable.NVTX_EVENTS, {**inner, "textId": STRING_IDS[RANGES[0]]}
    if spec.has(Fault.TOOL_RANGES):
        at = np.repeat(chunk.range_start, 2) + np.tile([0, 500], len(chunk.range_start))
        tool = _nvtx_rows(spec, chunk.rank, at, at + 400)
        yield ExportTable.NVTX_EVENTS, {**tool, "domainId": TOOL_DOMAIN_ID, "textId": STRING_IDS["Holding GIL"]}
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
        "eventClass": 1 if spec.has(Fault.DRIVER_CALLS_ONLY) else 0,
        "globalTid": _cuda_tid(spec, chunk.rank),
        "correlationId": chunk.call_id[keep],
        "nameId": names[keep],
        "callchainId": NULL,
    }
    yield ExportTable.RUNTIME, rows
    if spec.has(Fault.BACKTRACES):
        yield ExportTable.RUNTIME, {**rows, "eventClass": 67}
    if spec.has(Fault.DUPLICATE_CALLS):
        yield ExportTable.RUNTIME, _at(rows, np.arange(int(keep.sum())) % 10 == 0)


def _syncs(spec: Spec, chunk: Chunk) -> Iterator[tuple[str, Rows]]:
    codes = sync_codes(spec.schema)
    for place in range(FIRST_SYNC, len(CALLS)):
        mine = chunk.call_name == place
        code = next(code for part, code in codes.items() if part in CALLS[place])
        work = {"start": chunk.call_start[mine] + 500, "end": chunk.call_end[mine] - 500}
        yield (
            ExportTable.SYNCHRONIZATION,
            {
                **_on_gpu(spec, chunk, **work),
                "correlationId": chunk.call_id[mine],
                "syncType": code,
                "eventId": 0xFFFFFFFF,
            },
        )


def _on_gpu(spec: Spec, chunk: Chunk, **columns: Ints) -> Rows:
    process = global_tid(cuda_pid(spec, chunk.rank), 0)
    return {**columns, "deviceId": 0, "contextId": 1, "streamId": STREAM, "globalPid": process}


def _work(spec: Spec, chunk: Chunk) -> Iterator[tuple[str, Rows]]:
    start, end = chunk.work_start.copy(), chunk.work_end.copy()
    if spec.has(Fault.NO_TIMES):
        start[::50], end[::50] = 0, 0
    if spec.has(Fault.BACKWARDS):
        end[7::50] = start[7::50] - 5
    kind, ids = chunk.work_kind, chunk.work_id

    def rows(mine: Ints) -> Rows:
        return {**_on_gpu(spec, chunk, start=start[mine], end=end[mine]), "correlationId": ids[mine]}

    eager = np.flatnonzero(kind < FIRST_COPY)
    kernels = {**rows(eager), **_kernel_names(kind[eager]), "graphNodeId": NULL, **_SHAPE}
    if spec.has(Fault.KERNELS_UNCORRELATED):
        kernels["correlationId"] = np.where(np.arange(len(eager)) % 10 == 0, 0, ids[eager])
    yield ExportTable.KERNEL, kernels
    copies = np.flatnonzero((kind >= FIRST_COPY) & (kind < MEMSET))
    yield (
        ExportTable.MEMCPY,
        {**rows(copies), "bytes": COPY_BYTES, "copyKind": 1 + kind[copies] % 2, "graphNodeId": NULL},
    )
    memsets = np.flatnonzero(kind == MEMSET)
    yield ExportTable.MEMSET, {**rows(memsets), "bytes": COPY_BYTES, "graphNodeId": NULL}
    graphs = np.flatnonzero(kind >= FIRST_GRAPH)
    if spec.has(Fault.NO_GRAPH_WORK):
        return
    is_draft = kind[graphs] == FIRST_GRAPH
    graph_id = np.where(is_draft, 1, 2)
    if spec.has(Fault.GRAPH_IDS_REUSED):
        graph_id = np.where(chunk.work_step[graphs] >= spec.steps // 2, 3 - graph_id, graph_id)
    found = rows(graphs)
    if spec.has(Fault.CORRELATION_ZERO):
        found["correlationId"] = np.zeros(len(graphs), np.int64)
    if spec.has(Fault.CORRELATION_ZERO_DRAFT):
        found["correlationId"] = np.where(is_draft, 0, ids[graphs])
    if spec.has(Fault.HOST_FIRST_NODE):
        found |= {column: np.where(is_draft, INT_MAX, found[column]) for column in ("deviceId", "contextId")}
    by_node = {Mode.NODE: np.ones_like(is_draft), Mode.MIXED: is_draft, Mode.GRAPH: np.zeros_like(is_draft)}[spec.mode]
    yield ExportTable.KERNEL, _nodes(_at(found, by_node), graph_id[by_node])
    if spec.has_graph_trace:
        whole = graph_id[~by_node]
        yield ExportTable.GRAPH_TRACE, {**_at(found, ~by_node), "graphId": whole, "graphExecId": whole + 10}


def _at(rows: Rows, keep: npt.NDArray[np.bool_]) -> Rows:
    return {column: value if isinstance(value, int) else value[keep] for column, value in rows.items()}


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
    each = {c: v if isinstance(v, int) else np.repeat(v, NODES) for c, v in graphs.items()}
    return {
        **each,
        "start": start + share * node,
        "end": np.where(is_last, end, start + share * (node + 1)),
        **_kernel_names(node),
        **_SHAPE,
        "graphNodeId": (np.repeat(graph_id, NODES) << NODE_BITS) + node + 1,
        "graphId": np.repeat(graph_id, NODES),
    }
