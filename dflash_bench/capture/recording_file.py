"""The recorder's file: an SQLite database with the tables and columns of an nsys export (schema 3.20.3).

So everything behind it reads one layout. Like nsys' own lazy export, a table is there only when it has rows. Two rows
of META_DATA_CAPTURE say what it really is: ``DFLASH_BENCH:RECORDER`` (this tool's version) and, when a simulated device
took part, ``DFLASH_BENCH:DEVICE`` = ``simulated``. Unlike an nsys report, the file holds no host name, environment or
argument.
"""

from __future__ import annotations

import sqlite3
from collections.abc import Iterable
from contextlib import closing
from datetime import UTC, datetime
from pathlib import Path

from dflash_bench import __version__
from dflash_bench.capture.recording import RecordedCall, RecordedWork, Recording, WorkKind
from dflash_bench.capture.tables import EXPORT_COLUMNS, EXPORT_ENUMS, SCHEMA_VERSION, ExportTable
from dflash_bench.errors import DataError
from dflash_bench.whole import whole_file

_RECORDER_ROW = "DFLASH_BENCH:RECORDER"
_DEVICE_ROW = "DFLASH_BENCH:DEVICE"
VM_ID = 1 << 48
"""The upper 16 bits of every id, always 1 in real files."""
DOMAIN_ID = 1

PUSH_POP, MARK, DOMAIN_CREATE = 59, 34, 75
RUNTIME_CLASS, DRIVER_CLASS = 0, 1
_SYNC_TYPES = {"EventSynchronize": 1, "StreamSynchronize": 2, "DeviceSynchronize": 4, "CtxSynchronize": 4}
"""SYNCHRONIZATION.syncType as schema 3.20 stores it, by what the API name holds."""
_COPY_KINDS = {"HtoD": 1, "DtoH": 2, "DtoD": 8, "PtoP": 10}

_Row = dict[str, object]


def global_tid(pid: int, tid: int) -> int:
    """nsys' 64-bit thread id: machine 1, process in bits 24-47, thread in bits 0-23. A process has thread 0."""
    return VM_ID | (pid & 0xFFFFFF) << 24 | (tid & 0xFFFFFF)


def write_recording(recording: Recording, path: Path) -> None:
    """Write the file, whole or not at all. Raises DataError when it cannot be written."""
    try:
        with whole_file(path) as partial, closing(sqlite3.connect(partial, isolation_level=None)) as database:
            # The file is renamed into place when whole, so a journal protects nothing.
            database.executescript("PRAGMA journal_mode=OFF; PRAGMA synchronous=OFF; BEGIN")
            for table, rows in _tables(recording).items():
                _insert(database, table, rows)
            database.execute("COMMIT")
    except sqlite3.Error as error:
        raise DataError(f"{path} could not be written: {error}") from error


def _insert(database: sqlite3.Connection, table: ExportTable, rows: list[_Row]) -> None:
    if not rows:
        return
    columns = EXPORT_COLUMNS[table]
    database.execute(f"CREATE TABLE {table} ({', '.join(f'{name} {kind}' for name, kind in columns.items())})")
    # The names come from EXPORT_COLUMNS and from the code below, never from data.
    marks = ", ".join("?" * len(columns))
    database.executemany(f"INSERT INTO {table} VALUES ({marks})", ([row.get(c) for c in columns] for row in rows))


class _Strings:
    """StringIds: one id per text, counted from 1."""

    def __init__(self) -> None:
        self._ids: dict[str, int] = {}

    def __call__(self, text: str) -> int:
        return self._ids.setdefault(text, len(self._ids) + 1)

    def rows(self) -> list[_Row]:
        return [{"id": number, "value": text} for text, number in self._ids.items()]


def _tables(recording: Recording) -> dict[ExportTable, list[_Row]]:
    strings = _Strings()
    process = global_tid(recording.pid, 0)
    tables: dict[ExportTable, list[_Row]] = {
        ExportTable.META_DATA_EXPORT: _meta_export(recording),
        ExportTable.META_DATA_CAPTURE: _meta_capture(recording),
        ExportTable.NVTX_EVENTS: _nvtx(recording, strings),
        ExportTable.RUNTIME: [_runtime(call, recording.pid, strings) for call in recording.api_calls],
        ExportTable.SYNCHRONIZATION: _synchronizations(recording),
        ExportTable.KERNEL: [_kernel(w, process, strings) for w in _of_kind(recording, WorkKind.KERNEL)],
        ExportTable.MEMCPY: [_memcpy(w, process) for w in _of_kind(recording, WorkKind.MEMCPY)],
        ExportTable.MEMSET: [_memset(w, process) for w in _of_kind(recording, WorkKind.MEMSET)],
        ExportTable.GRAPH_TRACE: [_graph(w, process) for w in _of_kind(recording, WorkKind.GRAPH)],
        ExportTable.PROCESSES: [{"globalPid": process, "pid": recording.pid, "name": "python"}],
        ExportTable.THREAD_NAMES: [
            {"nameId": strings(t.name), "priority": None, "globalTid": global_tid(recording.pid, t.tid)}
            for t in recording.threads
        ],
        ExportTable.SESSION_START: [_session_start(recording)],
        ExportTable.ANALYSIS_DETAILS: [
            {"globalVid": VM_ID, "duration": recording.duration_ns, "startTime": 0, "stopTime": recording.duration_ns}
        ],
        ExportTable.STRING_IDS: [],
    }
    tables[ExportTable.STRING_IDS] = strings.rows()
    for table, refers_to in (
        (ExportTable.ENUM_EVENT_TYPE, ExportTable.NVTX_EVENTS),
        (ExportTable.ENUM_EVENT_CLASS, ExportTable.RUNTIME),
    ):
        tables[table] = [
            dict(zip(EXPORT_COLUMNS[table], row, strict=True)) for row in EXPORT_ENUMS[table] if tables[refers_to]
        ]
    return tables


def _of_kind(recording: Recording, kind: WorkKind) -> Iterable[RecordedWork]:
    return (w for w in recording.gpu_work if w.kind is kind)


def _named(pairs: Iterable[tuple[str, str]]) -> list[_Row]:
    return [{"name": name, "value": value} for name, value in pairs]


def _meta_export(recording: Recording) -> list[_Row]:
    major, minor, micro = SCHEMA_VERSION.split(".")
    return _named(
        [
            ("EXPORT_PRODUCT_NAME", "dflash-bench built-in recorder"),
            ("EXPORT_PRODUCT_VERSION", __version__),
            ("EXPORT_SCHEMA_VERSION", SCHEMA_VERSION),
            ("EXPORT_SCHEMA_VERSION_MAJOR", major),
            ("EXPORT_SCHEMA_VERSION_MINOR", minor),
            ("EXPORT_SCHEMA_VERSION_MICRO", micro),
            ("EXPORT_PARAM_LAZY", "true"),
            ("EXPORT_PARAM_TIME_NORMALIZE", "false"),
            ("EXPORT_PARAM_TIME_SHIFT", "0"),
        ]
    )


def _meta_capture(recording: Recording) -> list[_Row]:
    rows = [(_RECORDER_ROW, __version__), ("CAPTURE_EVENT_TYPE", "NvtxEvents")]
    if recording.is_simulated:
        rows += [("CAPTURE_EVENT_TYPE", "Cuda"), (_DEVICE_ROW, "simulated")]
    return _named(rows)


def _session_start(recording: Recording) -> _Row:
    utc = datetime.fromtimestamp(recording.utc_origin_ns // 1_000_000_000, UTC).strftime("%Y-%m-%dT%H:%M:%S")
    return {"utcEpochNs": recording.utc_origin_ns, "utcTime": utc, "localTime": utc}


def _nvtx(recording: Recording, strings: _Strings) -> list[_Row]:
    rows: list[_Row] = []
    for r in sorted(recording.ranges, key=lambda r: r.start_ns):
        tid = global_tid(recording.pid, r.tid)
        where = {"start": r.start_ns, "end": r.end_ns, "globalTid": tid, "domainId": DOMAIN_ID}
        rows.append({**where, "eventType": PUSH_POP, "textId": strings(r.name)})
    for m in recording.marks:
        where = {"start": m.at_ns, "globalTid": global_tid(recording.pid, m.tid), "domainId": DOMAIN_ID}
        rows.append({**where, "eventType": MARK, "textId": strings(m.text)})
    if not rows:
        return []
    first = min(rows, key=lambda row: row["start"])  # type: ignore[arg-type,return-value]
    created = {"start": first["start"], "globalTid": first["globalTid"], "domainId": DOMAIN_ID}
    return [{**created, "eventType": DOMAIN_CREATE, "text": recording.domain}, *rows]


def _runtime(call: RecordedCall, pid: int, strings: _Strings) -> _Row:
    return {
        "start": call.start_ns,
        "end": call.end_ns,
        "eventClass": RUNTIME_CLASS if call.name.startswith("cuda") else DRIVER_CLASS,
        "globalTid": global_tid(pid, call.tid),
        "correlationId": call.correlation_id,
        "nameId": strings(call.name),
        "returnValue": 0,
    }


def _synchronizations(recording: Recording) -> list[_Row]:
    streams = {w.correlation_id: w.stream for w in recording.gpu_work}
    rows: list[_Row] = []
    for call in recording.api_calls:
        code = next((code for part, code in _SYNC_TYPES.items() if part in call.name), None)
        if code is not None:
            row: _Row = {"start": call.start_ns, "end": call.end_ns, "deviceId": 0, "contextId": 1, "syncType": code}
            row |= {"streamId": streams.get(call.correlation_id, 7), "correlationId": call.correlation_id}
            rows.append({**row, "globalPid": global_tid(recording.pid, 0), "eventId": 0xFFFFFFFF})
    return rows


def _work(w: RecordedWork, process: int) -> _Row:
    where = {"deviceId": w.device, "contextId": 1, "streamId": w.stream, "globalPid": process}
    return {"start": w.start_ns, "end": w.end_ns, "correlationId": w.correlation_id, **where}


def _kernel(w: RecordedWork, process: int, strings: _Strings) -> _Row:
    zeros = dict.fromkeys((c for c, kind in EXPORT_COLUMNS[ExportTable.KERNEL].items() if kind.endswith("NOT NULL")), 0)
    name = strings(w.name)
    return {**zeros, **_work(w, process), "demangledName": name, "shortName": name}


def _memcpy(w: RecordedWork, process: int) -> _Row:
    kind = next((code for part, code in _COPY_KINDS.items() if part in w.name), 0)
    return {**_work(w, process), "bytes": w.num_bytes, "copyKind": kind}


def _memset(w: RecordedWork, process: int) -> _Row:
    return {**_work(w, process), "value": 0, "bytes": w.num_bytes}


def _graph(w: RecordedWork, process: int) -> _Row:
    return {**_work(w, process), "graphId": w.graph_exec_id, "graphExecId": w.graph_exec_id}
