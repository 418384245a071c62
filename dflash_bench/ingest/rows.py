"""How the rows of an export are read: integer columns by name, names behind ids, batch by batch."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from dflash_bench.ingest.nsys.tables import ABSENT
from dflash_bench.layout import Events
from dflash_bench.model import BoolArray, IntArray

if TYPE_CHECKING:
    from dflash_bench.ingest.nsys.export import Export

Rows = IntArray | slice
"""Positions of rows."""

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
    found = batch.column(column)
    if found.type != pa.int64() or found.null_count:
        raise pa.ArrowInvalid(f"column {column} holds {found.type} where integers belong")
    return values_of(found)


# Between Arrow and NumPy by way of the buffers: `pa.array` and `to_numpy` import pandas to ask what it knows, which
# costs every process 0.4 s and 40 MB.


def values_of(column: pa.Array) -> IntArray:
    """The integers of a column without nulls, int64 [n] or int32 [n] as they are stored. Nothing is copied."""
    kind = np.dtype(column.type.to_pandas_dtype())
    if not len(column):
        return np.zeros(0, kind)
    return np.frombuffer(column.buffers()[1], kind, len(column), column.offset * kind.itemsize)


def ints(values: IntArray) -> pa.Array:
    """A column of integers without nulls."""
    return pa.Array.from_buffers(pa.int64(), len(values), [None, pa.py_buffer(np.ascontiguousarray(values))])


def nullable(values: IntArray) -> pa.Array:
    """A column of integers in which `ABSENT` is null."""
    is_valid = values != ABSENT
    if is_valid.all():
        return ints(values)
    bits = pa.py_buffer(np.packbits(is_valid, bitorder="little"))
    return pa.Array.from_buffers(pa.int64(), len(values), [bits, pa.py_buffer(np.ascontiguousarray(values))])


def texts(values: Sequence[str]) -> pa.Array:
    """A column of texts without nulls."""
    encoded = [value.encode() for value in values]
    ends = np.cumsum([0, *map(len, encoded)], dtype=np.int32)
    return pa.StringArray.from_buffers(len(encoded), pa.py_buffer(ends), pa.py_buffer(b"".join(encoded)))


def process_of(ids: IntArray) -> IntArray:
    """Process id of each globalTid or globalPid: the thread id is in bits 0–23, process and machine above."""
    return ids >> 24


def thread_of(ids: IntArray) -> IntArray:
    """Thread id of each globalTid."""
    return ids & 0xFFFFFF


UNNAMED = "(unnamed)"
"""The name of a range that has none: NVTX allows it."""


def constant(text: str, n: int) -> pa.Array:
    """A name column with one text n times."""
    return _names(np.zeros(n, np.int32), [text])


def labels(keys: IntArray, text_of: Callable[[int], str]) -> pa.Array:
    """Names for integer keys; only names in use enter the dictionary, since the string table holds secrets too."""
    encoded = ints(keys).dictionary_encode()
    found = [text_of(key) for key in values_of(encoded.dictionary).tolist()]
    place = {text: position for position, text in enumerate(dict.fromkeys(found))}
    codes = np.fromiter((place[text] for text in found), np.int32, len(found))
    return _names(codes[values_of(encoded.indices)], list(place))


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


def _names(codes: npt.NDArray[np.int32], found: Sequence[str]) -> pa.Array:
    indices = pa.Array.from_buffers(pa.int32(), len(codes), [None, pa.py_buffer(codes)])
    return pa.DictionaryArray.from_arrays(indices, texts(found))


def usable(batch: pa.RecordBatch, skipped: Skipped, what: str, *, zero_is_absent: bool = False) -> Rows:
    """Rows with a start, an end, and end ≥ start. CUPTI writes start = end = 0 for "no timestamp"."""
    start, end = int_column(batch, "start"), int_column(batch, "end")
    absent = (start == ABSENT) | (end == ABSENT)
    if zero_is_absent:
        absent |= (start == 0) & (end == 0)
    backwards = ~absent & (end < start)
    skipped.add(f"{what}_without_time", int(absent.sum()))
    skipped.add(f"{what}_ends_before_start", int(backwards.sum()))
    return chosen(~absent & ~backwards)


def chosen(mask: BoolArray) -> Rows:
    """Where a mask is true: as positions, or as a slice where it is true everywhere, which costs no copy."""
    return slice(None) if mask.all() else np.flatnonzero(mask)
