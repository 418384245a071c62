"""A copy of an nsys export that can be shared: the same events, and nothing that tells whose machine they are from.

An export holds the environment, the arguments and the output of the profiled program, user and host names, and paths.
So nothing is removed from a copy; instead a new file is written with what is known to be harmless:

- event tables, column by column from a list, and of these only numbers;
- names that an event refers to, with paths taken out of them (the string table also holds the environment);
- of the metadata, single keys with values from closed sets: versions, what was traced, how graphs were traced;
- diagnostics that say what is missing, in fixed words.

Process and thread ids, the names of ranges and kernels and the time of the capture stay. What a program writes into the
name of a range is its own: look through the names before sharing, if yours hold more than code.
"""

from __future__ import annotations

import re
import sqlite3
from contextlib import closing
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path

from dflash_bench.capture.tables import EXPORT_COLUMNS, ExportTable
from dflash_bench.errors import DataError, UsageError
from dflash_bench.ingest.nsys.export import Export
from dflash_bench.ingest.nsys.source import open_export
from dflash_bench.ingest.nsys.sqlite_tables import SqliteTables
from dflash_bench.whole import whole_file

_EVENT_TABLES = (
    ExportTable.NVTX_EVENTS, ExportTable.KERNEL, ExportTable.RUNTIME, ExportTable.MEMCPY, ExportTable.MEMSET,
    ExportTable.GRAPH_TRACE, ExportTable.SYNCHRONIZATION, ExportTable.ANALYSIS_DETAILS,
    ExportTable.SESSION_START, ExportTable.PROCESSES,
)  # fmt: skip
_LATER_KERNEL_COLUMNS = (
    "graphId", "clusterX", "clusterY", "clusterZ", "clusterSchedulingPolicy", "maxPotentialClusterSize",
    "maxActiveClusters", "qmdBulkReleaseDone", "qmdPreexitDone", "qmdLastCtaDone", "sharedMemoryRequestedPercentage",
)  # fmt: skip
_OTHER_TABLES = {
    "PROFILER_OVERHEAD": "start end globalTid correlationId nameId returnValue overheadType",
    "CUPTI_ACTIVITY_KIND_OVERHEAD": "start end eventClass globalTid correlationId nameId overheadType",
    "CUPTI_ACTIVITY_KIND_CUDA_EVENT": "timestamp deviceId contextId greenContextId streamId correlationId globalPid"
    " eventId eventSyncId",
    "CUDA_GRAPH_EVENTS": "start end eventClass globalTid nameId graphId originalGraphId graphExecId graphNodeId"
    " originalGraphNodeId",
    "CUDA_GRAPH_NODE_EVENTS": "start end eventClass globalTid nameId graphNodeId originalGraphNodeId",
    "TARGET_INFO_CUDA_DEVICE": "gpuId cudaId pid numMultiprocessors",
    "TARGET_INFO_CUDA_CONTEXT_INFO": "nullStreamId hwId vmId processId deviceId contextId parentContextId"
    " isGreenContext",
    "TARGET_INFO_GPU": "vmId id deviceId cuDevice smCount totalMemory memoryBandwidth clockRate",
}
_NUMBERS: dict[str, tuple[str, ...]] = {
    **{str(t): tuple(c for c, kind in EXPORT_COLUMNS[t].items() if not kind.startswith("TEXT")) for t in _EVENT_TABLES},
    **{table: tuple(columns.split()) for table, columns in _OTHER_TABLES.items()},
}
_NUMBERS[ExportTable.KERNEL] += _LATER_KERNEL_COLUMNS
"""ExportTable → columns that are copied, as far as they hold numbers."""

_STRING_COLUMNS = ("nameId", "textId", "shortName", "demangledName", "mangledName")
"""Columns that refer to StringIds and whose texts are names of code."""

_RANGE_EVENTS = "34, 59, 60, 70, 71, 75, 76"
"""NVTX ranges, marks and domains. Thread names and categories are no events, and are left out."""

_DIAGNOSTICS = (
    (r"driver version .* is not supported", "Installed CUDA driver version (not stated) is not supported"),
    (r"Not all NVTX events might have been collected", "Not all NVTX events might have been collected"),
    (r"CUDA profiling might have not been started", "CUDA profiling might have not been started correctly"),
)

_GPU = "TARGET_INFO_GPU"
_GPU_MODEL = re.compile(r"(NVIDIA|Tesla|Quadro|GeForce|Generated GPU)[\w .()-]{0,60}")
_VERSION = re.compile(r"\d+(\.\d+){0,5}")
_SETTING = re.compile(r"(true|false|\d{1,20})\Z", re.IGNORECASE)
_EXPORT_ROWS: dict[str, re.Pattern[str] | str] = {
    "EXPORT_PRODUCT_VERSION": _VERSION,
    **{f"EXPORT_SCHEMA_VERSION{part}": _VERSION for part in ("", "_MAJOR", "_MINOR", "_MICRO")},
    **{f"EXPORT_{part}": _SETTING for part in ("LAZY", "PARAM_LAZY", "PARAM_TIME_NORMALIZE", "PARAM_TIME_SHIFT")},
    # that they are there is what counts
    **dict.fromkeys(("EXPORT_PARAM_TABLES_TO_EXPORT", "EXPORT_PARAM_TIMES_TO_EXPORT", "DERIVED_BY"), "taken out"),
}  # fmt: skip
_CAPTURE_ROWS = {
    "CAPTURE_EVENT_TYPE": re.compile(r"(Cuda|NvtxEvents|OSRuntime|OsRuntime|CompositeEvent|Sched|Cublas|Cudnn|Mpi)\Z"),
    "CUDA_GRAPH_TRACE_OPTIONS:MODE": re.compile(r"(Graph|Node)\Z", re.IGNORECASE),
    "CUDA_SKIP_SOME_API_CALLS": _SETTING,
    "DFLASH_BENCH:RECORDER": _VERSION,
    "DFLASH_BENCH:DEVICE": re.compile(r"simulated\Z"),
}
_PROCESS_PREFIX = re.compile(r"PROCESS_\d{1,6}:")
_PATH = re.compile(r"""(?<![\w/.])~?/(?:[\w.@+-]+/)+[\w.@+-]*|\b[A-Za-z]:\\[^\s"'|<>]+|\\\\[\w.-]+\\[^\s"'|<>]+""")
_PATH_TAKEN_OUT = "<path>"


@dataclass(frozen=True, slots=True)
class Scrubbed:
    """What the shareable file holds: rows by table, how many tables were left out, how many names had paths in them."""

    path: Path
    size_bytes: int
    rows: dict[str, int]
    num_tables_left_out: int
    num_names_changed: int


def scrub(source: Path, target: Path, *, is_replace: bool = False) -> Scrubbed:
    """Write a shareable copy of an SQLite export, whole or not at all; the source is only read.

    Raises UsageError when the target exists (or is the source), DataError when the source is no readable export or the
    target cannot be written.
    """
    if target.exists() and (not is_replace or target.samefile(source)):
        raise UsageError(f"{target} exists already", hint="choose another name, or pass --replace")
    export = open_export(source)
    if not isinstance(export.stored, SqliteTables):
        raise UsageError(f"{source} is a folder of tables", hint="scrub the export of type sqlite of the same report")
    try:
        with whole_file(target) as partial, closing(_connect(partial)) as database:
            copier = _Copier(database, export, export.stored.uri)
            rows = copier.copy()
    except sqlite3.DatabaseError as error:
        blamed = target if "full" in str(error) or "unable to open" in str(error) else source
        raise DataError(f"{blamed}: {'damaged' if blamed is source else 'could not be written'}: {error}") from None
    return Scrubbed(
        path=target,
        size_bytes=target.stat().st_size,
        rows=rows,
        num_tables_left_out=len(export.tables.keys() - rows.keys()),
        num_names_changed=copier.num_names_changed,
    )


def _connect(path: Path) -> sqlite3.Connection:
    database = sqlite3.connect(path.resolve().as_uri(), uri=True, isolation_level=None)
    # renamed into place when whole: a journal would protect nothing
    database.executescript("PRAGMA journal_mode=OFF; PRAGMA synchronous=OFF")
    return database


def _without_paths(text: str) -> str:
    """A name with every absolute path in it replaced."""
    return _PATH.sub(_PATH_TAKEN_OUT, text)


class _Copier:
    """Copies from one export into one database; counts what it changed."""

    def __init__(self, database: sqlite3.Connection, export: Export, uri: str) -> None:
        self.database, self.export = database, export
        self.changed: set[bytes] = set()
        database.create_function("clean_name", 1, lru_cache(1 << 16)(self._clean_name), deterministic=True)
        database.create_function("gpu_model", 1, _gpu_model, deterministic=True)
        database.execute("ATTACH DATABASE ? AS source", (uri,))

    @property
    def num_names_changed(self) -> int:
        return len(self.changed)

    def copy(self) -> dict[str, int]:
        """Copy everything harmless. Returns the rows of each table that was written."""
        self.database.execute("BEGIN")
        rows = {table: self._numbers(table) for table in _NUMBERS if self.export.has(table)}
        rows |= self._strings(list(rows)) | self._metadata() | self._diagnostics()
        self.database.execute("COMMIT")
        return {table: count for table, count in rows.items() if self.export.has(table)}

    def _clean_name(self, raw: bytes | int | float | None) -> str | None:
        if not isinstance(raw, bytes):
            return None
        text = raw.decode("utf-8", "replace")
        cleaned = _without_paths(text)
        if cleaned != text:
            self.changed.add(raw)
        return cleaned

    def _numbers(self, table: str) -> int:
        """The listed columns of a table where they hold numbers; the text of ranges, the model of GPUs."""
        columns = [c for c in _NUMBERS[table] if self.export.has(table, c)]
        # SQLite lets any column hold any text: only what is a number is one
        values = [f"""CASE WHEN typeof("{c}") IN ('integer', 'real') THEN "{c}" END""" for c in columns]
        declared = [f'"{c}" INTEGER' for c in columns]
        for owner, column, function in ((ExportTable.NVTX_EVENTS, "text", "clean_name"), (_GPU, "name", "gpu_model")):
            if table == owner and self.export.has(table, column):
                columns.append(column)
                values.append(f"{function}(CAST({column} AS BLOB))")
                declared.append(f"{column} TEXT")
        if not columns:
            return 0
        where = f"WHERE eventType IN ({_RANGE_EVENTS})" if "eventType" in columns else ""
        self.database.execute(f'CREATE TABLE main."{table}" ({", ".join(declared)})')
        sql = f'INSERT INTO main."{table}" SELECT {", ".join(values)} FROM source."{table}" {where}'
        return self.database.execute(sql).rowcount

    def _strings(self, tables: list[str]) -> dict[str, int]:
        """The texts that the copied rows refer to."""
        if not self.export.has("StringIds", "id", "value"):
            return {}
        self.database.execute("CREATE TABLE main.StringIds (id INTEGER NOT NULL PRIMARY KEY, value TEXT NOT NULL)")
        for table in tables:
            for column in _STRING_COLUMNS:
                if column in _NUMBERS[table] and self.export.has(table, column):
                    self.database.execute(
                        "INSERT OR IGNORE INTO main.StringIds SELECT id, clean_name(CAST(value AS BLOB))"
                        " FROM source.StringIds WHERE typeof(id) = 'integer' AND value IS NOT NULL"
                        f' AND id IN (SELECT "{column}" FROM main."{table}")'
                    )
        return {"StringIds": self._count("StringIds")}

    def _metadata(self) -> dict[str, int]:
        rows: dict[str, int] = {}
        about = next((t for t in ("META_DATA_EXPORT", "EXPORT_META_DATA") if self.export.has(t, "name", "value")), None)
        if about is not None:
            kept = [(k, _allowed(_EXPORT_ROWS.get(k), v)) for k, v in sorted(self.export.about_export.items())]
            rows[about] = self._pairs(about, [(k, v) for k, v in kept if v is not None])
        found = []
        for key, values in sorted(self.export.about_capture.items()):
            plain = _PROCESS_PREFIX.sub("", key, count=1)
            found += [(key, v) for v in values if _allowed(_CAPTURE_ROWS.get(plain), v) is not None]
        if found:
            rows["META_DATA_CAPTURE"] = self._pairs("META_DATA_CAPTURE", found)
        return rows

    def _pairs(self, table: str, pairs: list[tuple[str, str | None]] | list[tuple[str, str]]) -> int:
        self.database.execute(f"CREATE TABLE main.{table} (name TEXT NOT NULL, value TEXT)")
        self.database.executemany(f"INSERT INTO main.{table} VALUES (?, ?)", pairs)
        return len(pairs)

    def _diagnostics(self) -> dict[str, int]:
        table = "DIAGNOSTIC_EVENT"
        if not self.export.has(table, "text"):
            return {}
        found = self.export.cells(table, "text")
        texts = [raw.decode("utf-8", "replace") for (raw,) in found if isinstance(raw, bytes)]
        said = [plain for text in texts for pattern, plain in _DIAGNOSTICS if re.search(pattern, text, re.IGNORECASE)]
        self.database.execute(f"CREATE TABLE main.{table} (text TEXT NOT NULL)")
        self.database.executemany(f"INSERT INTO main.{table} VALUES (?)", [(text,) for text in said])
        return {table: len(said)}

    def _count(self, table: str) -> int:
        return int(self.database.execute(f'SELECT COUNT(*) FROM main."{table}"').fetchone()[0])


def _gpu_model(raw: bytes | int | float | None) -> str | None:
    name = raw.decode("utf-8", "replace") if isinstance(raw, bytes) else ""
    return name if _GPU_MODEL.fullmatch(name) else None


def _allowed(rule: re.Pattern[str] | str | None, value: str) -> str | None:
    """The value that may stand in the shared file, or None. Of a version, what follows the numbers is left out."""
    if rule is None or isinstance(rule, str):
        return rule
    found = rule.match(value)
    return found[0] if found else None
