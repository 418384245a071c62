"""From the tables of an export to event tables: each source table streamed once."""

from __future__ import annotations

from collections.abc import Callable, Iterator

import numpy as np
import pyarrow as pa

from dflash_bench.capture.tables import ExportTable
from dflash_bench.errors import DataError
from dflash_bench.ingest.nsys.columns import RowChoice, int_column, named, rows_of, usable
from dflash_bench.ingest.nsys.export import Export
from dflash_bench.ingest.nsys.nvtx import nvtx_batches
from dflash_bench.ingest.rows import (
    ABSENT,
    Batch,
    Skipped,
    constant,
    ints,
    labels,
    nullable,
    process_of,
    thread_of,
    without_version,
)
from dflash_bench.ingest.source import Section
from dflash_bench.layout import Events

_NO_DEVICE = (1 << 31) - 1
"""What CUPTI writes for the device of a graph whose first node runs on the host."""
_MEMCPY_KINDS = {
    1: "HtoD",
    2: "DtoH",
    3: "HtoA",
    4: "AtoH",
    5: "AtoA",
    6: "AtoD",
    7: "DtoA",
    8: "DtoD",
    9: "HtoH",
    10: "PtoP",
}


def sections(export: Export) -> tuple[Section, ...]:
    """The parts of an export that have rows, as far as row ids tell."""
    found = (
        Section(name, sum(export.stored.num_rows(table) for table in tables if table in export.tables))
        for name, (tables, _) in _SECTIONS.items()
    )
    return tuple(section for section in found if section.num_rows)


def stream(export: Export, skipped: Skipped, section: Section | None = None) -> Iterator[Batch]:
    """The events of a section, or all. Raises DataError when the file is damaged or a column holds what it must not."""
    names = _SECTIONS if section is None else (section.name,)
    try:
        for reader in (reader for name in names for reader in _SECTIONS[name][1]):
            yield from reader(export, skipped)
    except (OSError, pa.ArrowException) as error:
        reason = str(error).splitlines()[0]
        raise DataError(f"{export.path}: damaged: {reason}", hint="copy or export the file again") from None


def _api_calls(export: Export, skipped: Skipped) -> Iterator[Batch]:
    columns = {"start": None, "end": None, "globalTid": None, "correlationId": None, "nameId": None, "eventClass": 0}
    more = {"returnValue": ABSENT, "callchainId": ABSENT}
    for batch in rows_of(export, ExportTable.RUNTIME, {**columns, **more}, skipped):
        keep = usable(batch, skipped, "api_call")
        yield from _stacks(export, batch, keep)
        event_class = int_column(batch, "eventClass")
        is_call = (event_class == 0) | (event_class == 1)
        if not is_call.all():
            is_usable = np.zeros(len(is_call), bool)
            is_usable[keep] = True
            skipped.add("api_row_is_backtrace", int((is_usable & ~is_call).sum()))
            keep = np.flatnonzero(is_usable & is_call)
        ids = int_column(batch, "globalTid")[keep]
        yield Batch(
            Events.API_CALLS,
            process_of(ids),
            {
                "thread": ints(thread_of(ids)),
                "correlation_id": ints(int_column(batch, "correlationId")[keep]),
                "name": named(export, int_column(batch, "nameId")[keep], "api", skipped, without_version),
                "start_ns": ints(int_column(batch, "start")[keep]),
                "end_ns": ints(int_column(batch, "end")[keep]),
                "return_value": nullable(int_column(batch, "returnValue")[keep]),
            },
        )


def _stacks(export: Export, batch: pa.RecordBatch, keep: RowChoice) -> Iterator[Batch]:
    """Which code made the calls. The chain stands in the call's own row, or in a backtrace row of the same id."""
    if not export.has(ExportTable.CUDA_CALLCHAINS):
        return
    chain, is_usable = int_column(batch, "callchainId"), np.zeros(batch.num_rows, bool)
    is_usable[keep] = True
    rows = np.flatnonzero(is_usable & np.isin(chain, list(export.call_chains)))
    if not len(rows):
        return
    ids = int_column(batch, "globalTid")[rows]
    columns = {
        "thread": ints(thread_of(ids)),
        "correlation_id": ints(int_column(batch, "correlationId")[rows]),
        "start_ns": ints(int_column(batch, "start")[rows]),
        "frames": labels(chain[rows], export.call_chains.__getitem__),
    }
    yield Batch(Events.STACKS, process_of(ids), columns)


_WORK = {"start": None, "end": None, "deviceId": 0, "streamId": 0, "correlationId": 0, "globalPid": None}


def _work(batch: pa.RecordBatch, keep: RowChoice, kind: str, name: pa.Array, **extra: str) -> Batch:
    """A batch of GPU work. ``extra``: the column that holds what not all kinds of work have."""
    ids = int_column(batch, "globalPid")[keep]
    return Batch(
        Events.GPU_WORK,
        process_of(ids),
        {
            "device": ints(int_column(batch, "deviceId")[keep]),
            "stream": ints(int_column(batch, "streamId")[keep]),
            "correlation_id": ints(int_column(batch, "correlationId")[keep]),
            "kind": constant(kind, len(ids)),
            "name": name,
            "start_ns": ints(int_column(batch, "start")[keep]),
            "end_ns": ints(int_column(batch, "end")[keep]),
            **{
                column: nullable(int_column(batch, extra[column])[keep])
                if column in extra
                else pa.nulls(len(ids), pa.int64())
                for column in ("graph_exec_id", "graph_node_id", "bytes")
            },
        },
    )


def _kernels(export: Export, skipped: Skipped) -> Iterator[Batch]:
    columns = {**_WORK, "shortName": ABSENT, "graphNodeId": ABSENT}
    for batch in rows_of(export, ExportTable.KERNEL, columns, skipped):
        keep = usable(batch, skipped, "gpu_work", zero_is_absent=True)
        name = named(export, int_column(batch, "shortName")[keep], "kernel", skipped)
        yield _work(batch, keep, "kernel", name, graph_node_id="graphNodeId")


def _copies(export: Export, skipped: Skipped) -> Iterator[Batch]:
    columns = {**_WORK, "copyKind": 0, "graphNodeId": ABSENT, "bytes": ABSENT}
    for batch in rows_of(export, ExportTable.MEMCPY, columns, skipped):
        keep = usable(batch, skipped, "gpu_work", zero_is_absent=True)
        name = labels(int_column(batch, "copyKind")[keep], lambda k: f"memcpy {_MEMCPY_KINDS.get(k, f'kind {k}')}")
        yield _work(batch, keep, "memcpy", name, graph_node_id="graphNodeId", bytes="bytes")


def _memsets(export: Export, skipped: Skipped) -> Iterator[Batch]:
    columns = {**_WORK, "graphNodeId": ABSENT, "bytes": ABSENT}
    for batch in rows_of(export, ExportTable.MEMSET, columns, skipped):
        keep = usable(batch, skipped, "gpu_work", zero_is_absent=True)
        name = constant("memset", len(int_column(batch, "start")[keep]))
        yield _work(batch, keep, "memset", name, graph_node_id="graphNodeId", bytes="bytes")


def _graphs(export: Export, skipped: Skipped) -> Iterator[Batch]:
    columns = {**_WORK, "graphExecId": ABSENT}
    for batch in rows_of(export, ExportTable.GRAPH_TRACE, columns, skipped):
        keep = usable(batch, skipped, "gpu_work", zero_is_absent=True)
        device = int_column(batch, "deviceId")[keep]
        skipped.add("gpu_work_without_device", int((device == _NO_DEVICE).sum()))
        name = constant("graph", len(device))
        yield _work(batch, keep, "graph", name, graph_exec_id="graphExecId")


def _overhead(export: Export, skipped: Skipped) -> Iterator[Batch]:
    columns = {"start": None, "end": None, "globalTid": None, "nameId": ABSENT}
    for table in _OVERHEAD:
        for batch in rows_of(export, table, columns, skipped):
            keep = usable(batch, skipped, "overhead")
            ids = int_column(batch, "globalTid")[keep]
            name = named(export, int_column(batch, "nameId")[keep], "overhead", skipped)
            yield Batch(
                Events.OVERHEAD,
                process_of(ids),
                {
                    "thread": ints(thread_of(ids)),
                    "name": name,
                    "start_ns": ints(int_column(batch, "start")[keep]),
                    "end_ns": ints(int_column(batch, "end")[keep]),
                },
            )


_Reader = Callable[[Export, Skipped], Iterator[Batch]]
_OVERHEAD = (ExportTable.PROFILER_OVERHEAD, ExportTable.CUPTI_OVERHEAD)
_WORK_TABLES = (ExportTable.KERNEL, ExportTable.MEMCPY, ExportTable.MEMSET, ExportTable.GRAPH_TRACE)
_SECTIONS: dict[str, tuple[tuple[ExportTable, ...], tuple[_Reader, ...]]] = {
    "nvtx": ((ExportTable.NVTX_EVENTS,), (nvtx_batches,)),
    "api calls": ((ExportTable.RUNTIME,), (_api_calls,)),
    "GPU work": (_WORK_TABLES, (_kernels, _copies, _memsets, _graphs)),
    "overhead": (_OVERHEAD, (_overhead,)),
}
"""What is read together, since it ends in the same files: the source tables, and what reads them, in order."""
