"""A generated export as an SQLite file in the layout of one nsys schema family."""

from __future__ import annotations

import sqlite3
from dataclasses import replace
from pathlib import Path

import adbc_driver_sqlite.dbapi
import numpy as np
import pyarrow as pa

from dflash_bench.capture.tables import ExportTable
from generator.about import write_about
from generator.events import NULL, chunks
from generator.faults import faulted
from generator.layout import Columns, columns_of
from generator.rows import Rows, event_rows, first_rows, graph_rows
from generator.spec import Fault, Spec

NO_DISK = "PRAGMA journal_mode=OFF; PRAGMA synchronous=OFF"
"""The file is made anew each time: a journal protects nothing, and waiting for the disk at each row was most of it."""


def write_ranks(folder: Path, spec: Spec, stem: str = "run") -> list[Path]:
    """One file per rank, as nsys started per process writes them."""
    paths = [folder / f"{stem}_rank{rank}.sqlite" for rank in range(spec.ranks)]
    for rank, path in enumerate(paths):
        write_export(path, spec, (rank,))
    return paths


def write_export(path: Path, spec: Spec, ranks: tuple[int, ...] | None = None) -> Path:
    """One file that holds these ranks, by default all of them. An existing file is replaced."""
    ranks = tuple(range(spec.ranks)) if ranks is None else ranks
    if len(ranks) > 1:
        # one file has one clock
        spec = replace(spec, faults=spec.faults - {Fault.OWN_CLOCKS})
    path.unlink(missing_ok=True)
    tables = _known_tables(spec)
    with sqlite3.connect(path, isolation_level=None) as database:
        database.executescript(NO_DISK)
        for table, columns in tables.items():
            database.execute(f"CREATE TABLE {table} ({', '.join(f'{c} {kind}' for c, kind in columns.items())})")
        write_about(database, tables, spec, ranks)
    database.close()
    _write_events(path, tables, spec, ranks)
    _finish(path, tables, spec)
    return path


def _known_tables(spec: Spec) -> dict[str, Columns]:
    tables = columns_of(spec.schema)
    gone = {
        Fault.NO_NVTX: [ExportTable.NVTX_EVENTS],
        Fault.NO_RUNTIME: [ExportTable.RUNTIME],
        Fault.NO_KERNEL: [ExportTable.KERNEL],
        Fault.NO_GPU_WORK: [ExportTable.KERNEL, ExportTable.MEMCPY, ExportTable.MEMSET, ExportTable.GRAPH_TRACE],
        Fault.NO_PROCESSES: [ExportTable.PROCESSES],
        Fault.NO_STRINGS: [ExportTable.STRING_IDS],
        Fault.NO_SESSION_START: [ExportTable.SESSION_START],
    }
    for fault in spec.faults & gone.keys():
        for table in gone[fault]:
            tables.pop(table, None)
    if spec.has(Fault.NO_GLOBAL_PID):
        del tables[ExportTable.KERNEL]["globalPid"]
    return tables


def _write_events(path: Path, tables: dict[str, Columns], spec: Spec, ranks: tuple[int, ...]) -> None:
    with (
        adbc_driver_sqlite.dbapi.connect(f"file:{path}", autocommit=True) as connection,
        connection.cursor() as cursor,
    ):
        for pragma in [*NO_DISK.split(";"), "PRAGMA cache_size=-65536"]:
            cursor.execute(pragma)
            cursor.fetchall()
        cursor.execute("BEGIN")
        seen: set[int] = set()
        for chunk in chunks(spec, ranks):
            shown = faulted(spec, chunk)
            if chunk.rank not in seen:
                seen.add(chunk.rank)
                _ingest(cursor, tables, ExportTable.NVTX_EVENTS, first_rows(spec, shown))
                for table, columns in graph_rows(spec, shown):
                    _ingest(cursor, tables, table, columns)
            for table, columns in event_rows(spec, shown):
                _ingest(cursor, tables, table, columns)
        cursor.execute("COMMIT")


def _ingest(
    cursor: adbc_driver_sqlite.dbapi.Cursor,
    tables: dict[str, Columns],
    table: str,
    columns: Rows,
) -> None:
    if table not in tables:
        return
    n = max(len(v) for v in columns.values() if not isinstance(v, int))
    required = {c: 0 for c, kind in tables[table].items() if kind.endswith("NOT NULL") and c not in columns}
    arrays = {}
    for column, value in (columns | required).items():
        if column not in tables[table]:
            continue
        if column == "tensorSizeMinusOneElements":
            arrays[column] = pa.array([""] * n)
        elif isinstance(value, pa.Array):
            arrays[column] = value
        else:
            numbers = np.broadcast_to(np.asarray(value, np.int64), (n,))
            arrays[column] = pa.array(numbers, mask=numbers == NULL)
    if n:
        cursor.adbc_ingest(table, pa.table(arrays), mode="append")


def _finish(path: Path, tables: dict[str, Columns], spec: Spec) -> None:
    database = sqlite3.connect(path, isolation_level=None)
    database.executescript(NO_DISK)
    if not spec.has(Fault.EMPTY_TABLES):
        # a lazy export has a table only when it has rows
        for table in tables:
            if database.execute(f"SELECT NOT EXISTS (SELECT 1 FROM {table})").fetchone()[0]:
                database.execute(f"DROP TABLE {table}")
    if spec.has(Fault.EXTRA_COLUMNS):
        for table in {ExportTable.RUNTIME, ExportTable.MEMCPY} & tables.keys():
            database.execute(f"ALTER TABLE {table} ADD COLUMN name TEXT")
            database.execute(f"CREATE INDEX by_id_{table} ON {table} (correlationId)")
    if spec.has(Fault.WAL):
        database.execute("PRAGMA journal_mode=WAL")
    database.close()
