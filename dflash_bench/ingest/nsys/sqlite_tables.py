"""The tables of an export in one SQLite file, opened read-only and immutable: no lock, journal or index beside it.

ADBC hands over Arrow record batches without a Python object per cell. It takes a column's type from the first batch, so
every nullable column goes through COALESCE with a sentinel, and texts travel as bytes (they need not be UTF-8).
"""

from __future__ import annotations

import shutil
import sqlite3
from collections.abc import Iterator, Sequence
from contextlib import closing, contextmanager
from dataclasses import dataclass
from pathlib import Path
from urllib.parse import quote

import adbc_driver_manager
import adbc_driver_sqlite
import pyarrow as pa

from dflash_bench.errors import DataError
from dflash_bench.ingest.nsys.tables import Cell, is_null
from dflash_bench.ingest.rows import BATCH_ROWS


@dataclass(frozen=True, slots=True)
class SqliteTables:
    """A file's tables (`tables.Tables`). ``path`` is what a person calls the file, ``uri`` where it lies.

    A view is no table: it is a program, and one from a stranger's file may never end.
    """

    path: Path
    uri: str
    columns: dict[str, frozenset[str]]
    left_out: frozenset[str]

    @classmethod
    def of(cls, file: Path, path: Path) -> SqliteTables:
        """Look which tables there are. Raises DataError when the file is damaged."""
        uri = f"file:{quote(str(file.resolve()))}?mode=ro&immutable=1"
        with _reading(path), closing(sqlite3.connect(uri, uri=True)) as connection:
            kinds = dict(connection.execute("SELECT name, type FROM sqlite_master WHERE type IN ('table', 'view')"))
            columns = {
                name: frozenset(c for (c,) in connection.execute("SELECT name FROM pragma_table_info(?)", (name,)))
                for name, kind in kinds.items()
                if kind == "table"
            }
        return cls(path, uri, columns, frozenset(kinds.keys() - columns.keys()))

    def num_rows(self, table: str) -> int:
        """The highest row id, which in files that nsys wrote is the number of rows."""
        found = self._rows(f"SELECT MAX(rowid) FROM {_quoted(table)}")[0][0]
        return found if isinstance(found, int) else 0

    def cells(self, table: str, columns: Sequence[str]) -> list[tuple[Cell, ...]]:
        return self._rows(f"SELECT {', '.join(map(_quoted, columns))} FROM {_quoted(table)}")

    def distinct(self, table: str, columns: Sequence[str], where: tuple[str, int]) -> list[tuple[Cell, ...]]:
        column, value = where
        sql = f"SELECT DISTINCT {', '.join(map(_quoted, columns))} FROM {_quoted(table)}"
        return self._rows(f"{sql} WHERE {_quoted(column)} = {value}")

    def batches(self, table: str, numbers: dict[str, int], texts: Sequence[str] = ()) -> Iterator[pa.RecordBatch]:
        known, parts = self.columns[table], []
        for column, default in numbers.items():
            value = f"COALESCE({_quoted(column)}, {default})" if column in known else str(default)
            parts.append(f"{value} AS {_quoted(column)}")
        for column in texts:
            text = _quoted(column) if column in known else "NULL"
            parts.append(f"CAST(COALESCE({text}, '') AS BLOB) AS {_quoted(column)}")
            parts.append(f"{text} IS NULL AS {_quoted(is_null(column))}")
        with _reading(self.path), _connected(self.uri) as connection:
            yield from _query(connection, f"SELECT {', '.join(parts)} FROM {_quoted(table)}")

    def _rows(self, sql: str) -> list[tuple[Cell, ...]]:
        with _reading(self.path), closing(sqlite3.connect(self.uri, uri=True)) as connection:
            connection.text_factory = bytes
            return connection.execute(sql).fetchall()


def logs_beside(path: Path) -> list[Path]:
    """The write-ahead log or rollback journal beside a SQLite file: what it holds is part of the content."""
    logs = (path.with_name(path.name + suffix) for suffix in ("-wal", "-journal"))
    return [log for log in logs if log.exists() and log.stat().st_size > 0]


def settled(path: Path, scratch: Path) -> Path:
    """The file itself, or, when a log lies beside it, a copy in ``scratch`` that the log is worked into.

    Opening such a file in place would write beside it, and would fail in a folder that cannot be written.
    """
    logs = logs_beside(path)
    if not logs:
        return path
    copy = scratch / path.name
    for file in (path, *logs):
        shutil.copyfile(file, scratch / file.name)
    with _reading(path), closing(sqlite3.connect(copy)) as connection:
        connection.execute("PRAGMA journal_mode = DELETE").fetchall()
    return copy


@contextmanager
def _reading(path: Path) -> Iterator[None]:
    """Turn what SQLite and ADBC say of a damaged file into DataError."""
    try:
        yield
    except (sqlite3.DatabaseError, UnicodeDecodeError, adbc_driver_manager.Error) as error:
        # a damaged page can hold a name, or make SQLite say something, that is no UTF-8
        reason = str(error).splitlines()[0].removeprefix("[SQLite] ")
        raise DataError(f"{path}: damaged: {reason}", hint="copy or export the file again") from None


@contextmanager
def _connected(uri: str) -> Iterator[adbc_driver_manager.AdbcConnection]:
    """An ADBC connection to an SQLite file. The DB-API layer above it would import pandas in every process."""
    with adbc_driver_sqlite.connect(uri) as database, adbc_driver_manager.AdbcConnection(database) as connection:
        yield connection


def _query(connection: adbc_driver_manager.AdbcConnection, sql: str) -> Iterator[pa.RecordBatch]:
    """The batches of a query, `BATCH_ROWS` rows each."""
    with adbc_driver_manager.AdbcStatement(connection) as statement:
        statement.set_options(**{"adbc.sqlite.query.batch_rows": str(BATCH_ROWS)})
        statement.set_sql_query(sql)
        stream, _ = statement.execute_query()
        with pa.RecordBatchReader.from_stream(stream) as reader:
            yield from reader


def _quoted(name: str) -> str:
    return '"' + name.replace('"', '""') + '"'
