"""What a generated export says about itself, its machine and its processes."""

from __future__ import annotations

import sqlite3
from collections.abc import Iterable

from dflash_bench.capture.recording_file import VM_ID, global_tid
from dflash_bench.capture.tables import ExportTable
from generator.events import CALLS, KERNEL_NAMES, PERIOD_NS, RANGES
from generator.faults import CLOCK_ERROR_NS, CLOCK_SHIFT_NS
from generator.layout import (
    CUDA_DEVICE,
    DIAGNOSTIC,
    GPU,
    OLD_META,
    PRODUCT_VERSIONS,
    SYSTEM_ENV,
    Columns,
)
from generator.spec import Fault, Mode, Schema, Spec

FIRST_PID = 4000
"""Process id of rank 0; rank r has the r-th after it."""
WORKER = 500
"""How far from a rank's process the one is that calls CUDA, where that is another."""
UNREADABLE_KERNEL = b"kernel_\xff\xfe"

_NAMES = (*RANGES, "kv_alloc", *CALLS, *KERNEL_NAMES, "Holding GIL", "Buffer flush")
STRING_IDS = {text: k + 1 for k, text in enumerate(dict.fromkeys(_NAMES))}


def pid_of(rank: int) -> int:
    """The process of a rank that emits its ranges."""
    return FIRST_PID + rank


def cuda_pid(spec: Spec, rank: int) -> int:
    """The process of a rank that calls CUDA: the same one, where nothing is wrong."""
    return pid_of(rank) + (WORKER if spec.has(Fault.CUDA_ELSEWHERE) else 0)


def write_about(database: sqlite3.Connection, tables: dict[str, Columns], spec: Spec, ranks: tuple[int, ...]) -> None:
    def insert(table: str, rows: Iterable[dict[str, object]]) -> None:
        for row in rows if table in tables else ():
            kept = {c: v for c, v in row.items() if c in tables[table]}
            database.execute(
                f"INSERT INTO {table} ({', '.join(kept)}) VALUES ({', '.join('?' * len(kept))})", list(kept.values())
            )

    insert(ExportTable.STRING_IDS, ({"id": k, "value": text} for text, k in STRING_IDS.items()))
    if spec.has(Fault.STRINGS_CUT) and ExportTable.STRING_IDS in tables:
        database.execute(f"DELETE FROM {ExportTable.STRING_IDS} WHERE value = 'sample'")
    if spec.has(Fault.NOT_UTF8) and ExportTable.STRING_IDS in tables:
        sql = f"UPDATE {ExportTable.STRING_IDS} SET value = CAST(? AS TEXT) WHERE value = ?"
        database.execute(sql, (UNREADABLE_KERNEL, KERNEL_NAMES[0]))
    _write_meta(database, tables, spec)
    stop = 2_000_000_000 + spec.steps * PERIOD_NS
    insert(ExportTable.ANALYSIS_DETAILS, [{"globalVid": VM_ID, "duration": stop, "startTime": 0, "stopTime": stop}])
    utc = 1_750_000_000_000_000_000
    if spec.has(Fault.OWN_CLOCKS):
        utc += ranks[0] * (CLOCK_SHIFT_NS + CLOCK_ERROR_NS)
    insert(
        ExportTable.SESSION_START,
        [{"utcEpochNs": utc, "utcTime": "2025-06-15T15:06:40", "localTime": "2025-06-15T15:06:40"}],
    )
    for rank in ranks:
        pid = cuda_pid(spec, rank)
        for own in dict.fromkeys((pid_of(rank), pid)):
            insert(ExportTable.PROCESSES, [{"globalPid": global_tid(own, 0), "pid": own, "name": "python"}])
        gpu = spec.ranks - 1 - rank if spec.has(Fault.GPU_ORDER) else rank
        insert(GPU, [{"vmId": VM_ID, "id": gpu, "cuDevice": rank, "name": f"Generated GPU {rank}", "smCount": 132}])
        insert(CUDA_DEVICE, [{"gpuId": gpu, "cudaId": 0, "pid": pid}])
    said = []
    if spec.has(Fault.OLD_DRIVER):
        said.append("Installed CUDA driver version (13.9) is not supported by this build")
    if spec.has(Fault.DIAGNOSTICS):
        said.append("Not all NVTX events might have been collected.")
    about = {"timestamp": 0, "timestampType": 1, "source": 1, "severity": 2}
    insert(DIAGNOSTIC, ({**about, "text": text} for text in said))
    for table, rows in ((ExportTable.ENUM_EVENT_TYPE, _EVENT_TYPES), (ExportTable.ENUM_EVENT_CLASS, _EVENT_CLASSES)):
        insert(table, ({"id": k, "name": name, "label": name} for k, name in rows))


_EVENT_TYPES = ((34, "NvtxMark"), (59, "NvtxPushPopRange"), (60, "NvtxStartEndRange"), (75, "NvtxDomainCreate"))
_EVENT_CLASSES = ((0, "TRACE_PROCESS_EVENT_CUDA_RUNTIME"), (1, "TRACE_PROCESS_EVENT_CUDA_DRIVER"))


def _write_meta(database: sqlite3.Connection, tables: dict[str, Columns], spec: Spec) -> None:
    if spec.schema is Schema.OLDEST:
        return
    product, version = PRODUCT_VERSIONS[spec.schema]
    if spec.has(Fault.UNKNOWN_SCHEMA):
        product, version = "2031.1.1", "9.1.0"
    export: list[tuple[str, object]] = [
        ("EXPORT_PRODUCT_NAME", "NVIDIA Nsight Systems"),
        ("EXPORT_PRODUCT_VERSION", product),
        ("EXPORT_SCHEMA_VERSION", version),
        ("EXPORT_LAZY" if spec.schema is Schema.V2_9 else "EXPORT_PARAM_LAZY", "true"),
    ]
    if spec.has(Fault.PARTIAL_EXPORT):
        export.append(("EXPORT_PARAM_TABLES_TO_EXPORT", "NVTX_EVENTS"))
    if spec.has(Fault.CLIPPED):
        export += [("DERIVED_BY", "a slicing tool"), ("DERIVED_WINDOW_NS", "0,1000000000")]
    if spec.has(Fault.NOT_UTF8):
        export.append(("EXPORT_TIME_LOCAL", b"15:06 Mitteleurop\xe4ische Zeit"))
    meta = OLD_META if spec.schema < Schema.V3_4 else ExportTable.META_DATA_EXPORT
    database.executemany(f"INSERT INTO {meta} VALUES (?, CAST(? AS TEXT))", export)
    if ExportTable.META_DATA_CAPTURE in tables:
        rows = [("CAPTURE_EVENT_TYPE", "Cuda"), ("CAPTURE_EVENT_TYPE", "NvtxEvents")]
        prefix = "" if spec.schema >= Schema.V3_24 else "PROCESS_0:"
        if spec.mode is not Mode.MIXED:
            rows.append((f"{prefix}CUDA_GRAPH_TRACE_OPTIONS:MODE", spec.mode.capitalize()))
        database.executemany(f"INSERT INTO {ExportTable.META_DATA_CAPTURE} VALUES (?, ?)", rows)
    if spec.has(Fault.NOT_UTF8) and SYSTEM_ENV in tables:
        sql = f"INSERT INTO {SYSTEM_ENV} (globalVid, nameEnum, devStateName, name, value) VALUES (0, 0, '', 'n', ?)"
        database.execute(sql, (b"\x00\xff\x80",))
