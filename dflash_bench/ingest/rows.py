"""How the rows of an export are read: integer columns by name, names behind ids, batch by batch."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

import numpy as np
import pyarrow as pa

from dflash_bench.ingest.tables import ABSENT
from dflash_bench.model import IntArray
from dflash_bench.profile import Events

if TYPE_CHECKING:
    from dflash_bench.ingest.export import Export

JOINED_BY = {"correlationId", "deviceId", "streamId"}
"""Columns that a table can do without, but not without a word: rows are told apart by them."""


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


def rows_of(
    export: Export, table: str, numbers: dict[str, int | None], skipped: Skipped, texts: Sequence[str] = ()
) -> Iterator[pa.RecordBatch]:
    """The rows of a table of an export, `tables.BATCH_ROWS` at a time; none when the table is not there.

    ``numbers``: integer columns, each with what stands for NULL and for an absent column; one whose default is None
    must be there, since without it the rows mean nothing: else they are counted in ``skipped``.
    """
    if table not in export.tables:
        return
    lacking = numbers.keys() - export.tables[table]
    if any(numbers[column] is None for column in lacking):
        skipped.add("table_without_columns", export.stored.num_rows(table))
        return
    if lacking & JOINED_BY:
        skipped.add("table_without_ids", export.stored.num_rows(table))
    defaults = {column: ABSENT if default is None else default for column, default in numbers.items()}
    yield from export.stored.batches(table, defaults, texts)


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
