"""The rows of an export's table, batch by batch: integer columns by name, names behind ids, rows that are events."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence

import numpy as np
import pyarrow as pa

from dflash_bench.capture.tables import ExportTable
from dflash_bench.ingest.nsys.export import Export
from dflash_bench.ingest.rows import ABSENT, Skipped, chosen, labels, values_of
from dflash_bench.model import IntArray

RowChoice = IntArray | slice
"""Positions of rows."""

_JOINED_BY = {"correlationId", "deviceId", "streamId"}
"""Columns that a table can do without, but not without a word: rows are told apart by them."""


def rows_of(
    export: Export, table: ExportTable, numbers: dict[str, int | None], skipped: Skipped, texts: Sequence[str] = ()
) -> Iterator[pa.RecordBatch]:
    """The rows of a table of an export, `BATCH_ROWS` at a time; none when the table is not there.

    ``numbers``: integer columns, each with what stands for NULL and for an absent column; one whose default is None
    must be there, since without it the rows mean nothing: else they are counted in ``skipped``.
    """
    if table not in export.tables:
        return
    lacking = numbers.keys() - export.tables[table]
    if any(numbers[column] is None for column in lacking):
        skipped.add("table_without_columns", export.stored.num_rows(table))
        return
    if lacking & _JOINED_BY:
        skipped.add("table_without_ids", export.stored.num_rows(table))
    defaults = {column: ABSENT if default is None else default for column, default in numbers.items()}
    yield from export.stored.batches(table, defaults, texts)


def int_column(batch: pa.RecordBatch, column: str) -> IntArray:
    """An integer column, int64 [n]. Raises ArrowInvalid where anything else was stored."""
    found = batch.column(column)
    if found.type != pa.int64() or found.null_count:
        raise pa.ArrowInvalid(f"column {column} holds {found.type} where integers belong")
    return values_of(found)


def named(export: Export, keys: IntArray, what: str, skipped: Skipped, clean: Callable[[str], str] = str) -> pa.Array:
    """The texts behind ids, cleaned. One that the export lacks is ``what`` and the id, and its rows are counted."""
    missing: list[int] = []

    def text_of(key: int) -> str:
        if (text := export.strings.get(key)) is None:
            missing.append(key)
        return f"{what} {key}" if text is None else clean(text)

    found = labels(keys, text_of)
    if missing:
        skipped.add("name_missing", int(np.isin(keys, missing).sum()))
    return found


def usable(batch: pa.RecordBatch, skipped: Skipped, what: str, *, zero_is_absent: bool = False) -> RowChoice:
    """Rows with a start, an end, and end ≥ start. CUPTI writes start = end = 0 for "no timestamp"."""
    start, end = int_column(batch, "start"), int_column(batch, "end")
    absent = (start == ABSENT) | (end == ABSENT)
    if zero_is_absent:
        absent |= (start == 0) & (end == 0)
    backwards = ~absent & (end < start)
    skipped.add(f"{what}_without_time", int(absent.sum()))
    skipped.add(f"{what}_ends_before_start", int(backwards.sum()))
    return chosen(~absent & ~backwards)
