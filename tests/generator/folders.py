"""An SQLite export as the folder of tables that nsys would have exported instead."""

from __future__ import annotations

import sqlite3
from contextlib import closing
from enum import StrEnum
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq


class FolderKind(StrEnum):
    """Type of the export. nsys 2025.3.1 was seen to write ``.arrow`` files as streams; both ways are written."""

    PARQUET = "parquetdir"
    PARQUET_2025_3 = "parquetdir of nsys 2025.3"
    ARROW = "arrowdir"
    ARROW_STREAM = "arrowdir of streams"

    @property
    def is_parquet(self) -> bool:
        return self in (FolderKind.PARQUET, FolderKind.PARQUET_2025_3)


_UNSIGNED = {
    "globalTid", "endGlobalTid", "globalPid", "contextId", "streamId", "graphNodeId", "originalGraphNodeId", "id",
    "nameId", "textId", "shortName", "demangledName", "mangledName",
}  # fmt: skip
_NARROW_IN_ARROW = {"correlationId", "eventClass"}
# as read off an export of nsys 2025.3.1; its texts are large_string
_UINT32_IN_2025_3 = {
    "correlationId", "eventClass", "eventType", "deviceId", "graphId", "graphExecId", "originalGraphId", "textId",
    "returnValue", "launchType", "color", "jsonTextId", "pid", "cudaId",
}  # fmt: skip
_SHAPE = {f"{what}{axis}" for what in ("grid", "block") for axis in "XYZ"}


def write_folder(export: Path, kind: FolderKind, group_rows: int = 1 << 20) -> Path:
    """Write ``STEM_pqtdir`` or ``STEM_arwdir`` beside an SQLite export, every table with the types that nsys gives."""
    folder = export.with_name(f"{export.stem}{'_pqtdir' if kind.is_parquet else '_arwdir'}")
    folder.mkdir()
    with closing(sqlite3.connect(f"file:{export}?mode=ro", uri=True)) as database:
        # texts need not be UTF-8
        database.text_factory = bytes
        names = [
            n.decode() for (n,) in database.execute("SELECT name FROM sqlite_master WHERE type IN ('table', 'view')")
        ]
        for name in names:
            _write(folder / name.replace("/", "_")[:100], _table(database, name, kind), kind, group_rows)
    return folder


def _table(database: sqlite3.Connection, name: str, kind: FolderKind) -> pa.Table:
    quoted = '"' + name.replace('"', '""') + '"'
    declared = database.execute("SELECT name, type FROM pragma_table_info(?)", (name,)).fetchall()
    rows = database.execute(f"SELECT * FROM {quoted}").fetchall()
    values = list(zip(*rows, strict=True)) if rows else [()] * len(declared)
    columns = [
        _column(own, _type(column.decode(), sql, kind)) for own, (column, sql) in zip(values, declared, strict=True)
    ]
    names = [column.decode() for column, _ in declared]
    metadata = None if kind.is_parquet else {"table_name": name}
    return pa.Table.from_arrays(columns, names=names, metadata=metadata)


def _type(column: str, sql: bytes, kind: FolderKind) -> pa.DataType:
    if b"TEXT" in sql:
        return pa.large_string() if kind is FolderKind.PARQUET_2025_3 else pa.string()
    if b"REAL" in sql:
        return pa.float64()
    if kind is FolderKind.PARQUET_2025_3 and column in _UINT32_IN_2025_3:
        return pa.uint32()
    if column in _UNSIGNED:
        return pa.uint64()
    if column in _NARROW_IN_ARROW and not kind.is_parquet:
        return pa.uint32()
    return pa.int32() if column in _SHAPE else pa.int64()


def _column(values: tuple[object, ...], wanted: pa.DataType) -> pa.Array:
    """The values in the wanted type, or in what type they fit where somebody has tampered with them."""
    if wanted in (pa.string(), pa.large_string()) and all(isinstance(v, bytes | None) for v in values):
        plain = pa.large_binary() if wanted == pa.large_string() else pa.binary()
        return pa.array(values, plain).cast(wanted, safe=False)
    for kind in (wanted, pa.int64(), pa.float64()):
        if not any(isinstance(v, bytes | float) for v in values) or kind == pa.float64():
            try:
                return pa.array(values, kind)
            except (pa.ArrowException, OverflowError, TypeError):
                continue
    return pa.array(
        [None if v is None else v if isinstance(v, bytes) else str(v).encode() for v in values], pa.binary()
    )


def _write(path: Path, table: pa.Table, kind: FolderKind, group_rows: int) -> None:
    if kind.is_parquet:
        pq.write_table(table, path.with_name(f"{path.name}.parquet"), row_group_size=group_rows)
        return
    opened = pa.ipc.new_file if kind is FolderKind.ARROW else pa.ipc.new_stream
    with opened(path.with_name(f"{path.name}.arrow"), table.schema) as writer:
        writer.write_table(table, max_chunksize=group_rows)
