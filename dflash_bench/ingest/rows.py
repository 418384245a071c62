"""How a table of an export is queried: integer columns by name, names behind ids, batch by batch.

ADBC hands over Arrow record batches without a Python object per cell. It takes a column's type from the first batch, so
every nullable column goes through COALESCE with a sentinel, and texts travel as bytes (they need not be UTF-8).
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

import adbc_driver_manager
import adbc_driver_sqlite
import numpy as np
import pyarrow as pa

from dflash_bench.model import IntArray
from dflash_bench.profile import Events

if TYPE_CHECKING:
    from dflash_bench.ingest.export import Export

BATCH_ROWS = 1 << 16
"""Rows per batch: 65,536 rows of the widest query are about 5 MB, and larger batches read no faster."""

ABSENT = -(1 << 63)
"""Stands for NULL inside a query."""


@dataclass(frozen=True, slots=True)
class Batch:
    """Rows of one event table. ``process`` int64 [n] tells whose they are; ``columns`` follow the table's schema."""

    table: Events
    process: IntArray
    columns: dict[str, pa.Array]


@dataclass(slots=True)
class Skipped:
    """Rows of an export that are no events, counted by reason. The one mutable thing here: it grows while streaming."""

    counts: dict[str, int] = field(default_factory=dict)

    def add(self, code: str, count: int) -> None:
        if count:
            self.counts[code] = self.counts.get(code, 0) + count

    def add_all(self, other: Skipped) -> None:
        for code, count in other.counts.items():
            self.add(code, count)


@contextmanager
def connected(uri: str) -> Iterator[adbc_driver_manager.AdbcConnection]:
    """An ADBC connection to an SQLite file. The DB-API layer above it would import pandas in every process."""
    with adbc_driver_sqlite.connect(uri) as database, adbc_driver_manager.AdbcConnection(database) as connection:
        yield connection


def query(connection: adbc_driver_manager.AdbcConnection, sql: str) -> Iterator[pa.RecordBatch]:
    """The batches of a query, `BATCH_ROWS` rows each."""
    with adbc_driver_manager.AdbcStatement(connection) as statement:
        statement.set_options(**{"adbc.sqlite.query.batch_rows": str(BATCH_ROWS)})
        statement.set_sql_query(sql)
        stream, _ = statement.execute_query()
        with pa.RecordBatchReader.from_stream(stream) as reader:
            yield from reader


def select(export: Export, table: str, columns: dict[str, int | None], where: str = "") -> str | None:
    """SQL for integer columns by name; an absent or NULL one becomes its default. None: the table cannot be read.

    A column whose default is None must exist; without it the rows mean nothing.
    """
    if table not in export.tables or any(d is None and c not in export.tables[table] for c, d in columns.items()):
        return None
    parts = []
    for column, default in columns.items():
        fallback = ABSENT if default is None else default
        known = column in export.tables[table]
        parts.append(f'COALESCE("{column}", {fallback}) AS "{column}"' if known else f'{fallback} AS "{column}"')
    return f'SELECT {", ".join(parts)} FROM "{table}" {where}'


def int_column(batch: pa.RecordBatch, column: str) -> IntArray:
    """An integer column, int64 [n]. Raises ArrowInvalid where anything else was stored."""
    found: IntArray = batch.column(column).to_numpy(zero_copy_only=False)
    if found.dtype != np.int64:
        raise pa.ArrowInvalid(f"column {column} holds {found.dtype} where integers belong")
    return found


def process_of(ids: IntArray) -> IntArray:
    """Process id of each globalTid or globalPid: the thread id is in bits 0–23, process and machine above."""
    return ids >> 24


def thread_of(ids: IntArray) -> IntArray:
    """Thread id of each globalTid."""
    return ids & 0xFFFFFF


def nullable(values: IntArray) -> pa.Array:
    """An Arrow column in which `ABSENT` is null."""
    return pa.array(values, mask=values == ABSENT)


UNNAMED = "(unnamed)"
"""The name of a range that has none: NVTX allows it."""


def constant(text: str, n: int) -> pa.Array:
    """A name column with one text n times."""
    return pa.DictionaryArray.from_arrays(np.zeros(n, np.int32), pa.array([text], pa.string()))


def labels(keys: IntArray, label: dict[int, str], missing: str) -> pa.Array:
    """Names for integer keys; only names in use enter the dictionary, since the string table holds secrets too."""
    used, index = np.unique(keys, return_inverse=True)
    texts = [label.get(int(key), missing.format(int(key))) for key in used]
    merged = {text: position for position, text in enumerate(dict.fromkeys(texts))}
    place = np.fromiter((merged[text] for text in texts), np.int32, len(texts))
    return pa.DictionaryArray.from_arrays(place[index].astype(np.int32), pa.array(list(merged), pa.string()))


def usable(batch: pa.RecordBatch, skipped: Skipped, what: str, *, zero_is_absent: bool = False) -> IntArray:
    """Rows with a start, an end, and end ≥ start. CUPTI writes start = end = 0 for "no timestamp"."""
    start, end = int_column(batch, "start"), int_column(batch, "end")
    absent = (start == ABSENT) | (end == ABSENT)
    if zero_is_absent:
        absent |= (start == 0) & (end == 0)
    backwards = ~absent & (end < start)
    skipped.add(f"{what}_without_time", int(absent.sum()))
    skipped.add(f"{what}_ends_before_start", int(backwards.sum()))
    return np.flatnonzero(~absent & ~backwards)
