"""Columns of a profile as NumPy arrays, names as codes into a list."""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass, fields
from typing import TYPE_CHECKING, Any, TypeVar

import numpy as np
import pyarrow as pa

from dflash_bench.layout import SCHEMAS, Events
from dflash_bench.model import BoolArray, IntArray, ProcessInfo
from dflash_bench.profile import Profile

if TYPE_CHECKING:
    from _typeshed import DataclassInstance

Rows = TypeVar("Rows", bound="DataclassInstance")
Index = IntArray | BoolArray | slice

OPEN = -(1 << 63)
"""The end of a range that has none."""

NONE = -1
"""No row. The only place where −1 stands for absence: these are indices and codes inside NumPy arrays."""


@dataclass(frozen=True, slots=True)
class Names:
    """A column of names: ``codes`` int [n] into ``values``."""

    codes: IntArray
    values: tuple[str, ...]

    def __len__(self) -> int:
        return len(self.codes)

    def __getitem__(self, index: Index) -> Names:
        return Names(at_rows(self.codes, index), self.values)

    def text(self) -> list[str]:
        """The names themselves."""
        return [self.values[code] for code in self.codes]

    def codes_at(self, rows: IntArray) -> IntArray:
        """The code of the name of each row, NONE for NONE. int64 [n]."""
        return np.where(rows == NONE, NONE, self.codes[rows]) if len(self.codes) else np.full(len(rows), NONE, np.int64)

    def among(self, wanted: set[str]) -> BoolArray:
        """bool [n]: whether the name is one of these."""
        return self._where([value in wanted for value in self.values])

    def matching(self, pattern: re.Pattern[str]) -> BoolArray:
        """bool [n]: whether the pattern matches the whole name."""
        return self._where([pattern.fullmatch(value) is not None for value in self.values])

    def any_matches(self, pattern: re.Pattern[str]) -> bool:
        """Whether the pattern matches any name that may occur."""
        return any(pattern.fullmatch(value) is not None for value in self.values)

    def containing(self, part: str) -> BoolArray:
        """bool [n]: whether the name contains this text."""
        return self._where([part in value for value in self.values])

    def _where(self, is_wanted: list[bool]) -> BoolArray:
        # names are few and rows many: one look into a table each is three times as fast as numpy.isin
        return at_rows(np.array(is_wanted, bool), self.codes)


def selected(rows: Rows, index: Index) -> Rows:
    """Some rows of a dataclass of columns."""
    columns = (getattr(rows, column.name) for column in fields(rows))
    return type(rows)(*(c[index] if isinstance(c, Names) else at_rows(c, index) for c in columns))


def stacked(parts: Sequence[Rows]) -> Rows:
    """Rows of one kind, a dataclass of columns, one part behind another; at least one part."""
    kind = type(parts[0])
    return kind(*(_stacked_column([getattr(part, column.name) for part in parts]) for column in fields(kind)))


def _stacked_column(parts: Sequence[Any]) -> Any:
    if not isinstance(parts[0], Names):
        return _one_behind_another(parts)
    values = tuple(dict.fromkeys(value for part in parts for value in part.values))
    place = {value: k for k, value in enumerate(values)}
    codes = [np.array([place[value] for value in part.values] or [0], np.int64)[part.codes] for part in parts]
    return Names(np.concatenate(codes), values)


def at_rows(values: Any, index: Index) -> Any:
    """``values[index]``; where all values are one number in memory, or all of the index is, so is what comes out."""
    if isinstance(index, np.ndarray) and index.dtype != np.bool_ and index.strides == (0,) and len(index):
        return np.broadcast_to(values[index[0]], index.shape)
    if isinstance(index, slice) or values.strides != (0,) or not len(values):
        return values[index]
    return np.broadcast_to(values[0], int(np.count_nonzero(index)) if index.dtype == np.bool_ else len(index))


def slim(values: IntArray) -> IntArray:
    """The same numbers, read-only and in the memory of a single one where they are all equal, as threads mostly are."""
    if len(values) < 2 or values[0] != values[-1] or not (values == values[0]).all():
        return values
    return np.broadcast_to(values[0], values.shape)


def order_of(start: IntArray, *then: IntArray) -> IntArray | None:
    """Rows by start, of equal starts by other keys; None: they are in order. Most tables are, or nearly."""
    later = start[1:] > start[:-1]
    if later.all():
        return None
    order = np.argsort(start, kind="stable")
    ordered = start[order]
    if not (ordered[1:] > ordered[:-1]).all():
        order = np.lexsort((*reversed(then), start))
    return None if (order[1:] > order[:-1]).all() else order


def by_code(codes: IntArray) -> IntArray:
    """Order by small numbers from 0, stable: of up to 32,767 a sort that does not compare, ten times as fast."""
    return np.argsort(codes.astype(np.int16) if codes.max(initial=0) < 1 << 15 else codes, kind="stable")


def changes(values: IntArray) -> BoolArray:
    """bool [n]: where a value differs from the one before; true for the first."""
    changed = np.ones(len(values), bool)
    np.not_equal(values[1:], values[:-1], out=changed[1:])
    return changed


def distinct(values: IntArray) -> list[int]:
    """The numbers that occur, ascending: as ``numpy.unique``, but at once where they are all the same."""
    if len(values) and (values.strides == (0,) or (values == values[0]).all()):
        return [int(values[0])]
    return [int(value) for value in np.unique(values)]


def compact(values: IntArray) -> tuple[IntArray, IntArray]:
    """Which numbers occur, ascending, and for each its place among those: ``numpy.unique`` with its inverse.

    By counting instead of sorting where they are small or lie close together.
    """
    low, high = (int(values.min()), int(values.max())) if len(values) else (0, 0)
    if high - low > max(len(values), 1 << 12):
        return np.unique(values, return_inverse=True)
    used = np.flatnonzero(np.bincount(values - low, minlength=high - low + 1))
    place = np.zeros(high - low + 1, np.int64)
    place[used] = np.arange(len(used))
    return used + low, place[values - low]


def read_columns(profile: Profile, table: Events, process: ProcessInfo, columns: Sequence[str]) -> dict[str, Any]:
    """Some columns of a process's table, each as one array, names as codes. Row group by row group, to copy little."""
    file = profile.event_file(table, process)
    parts: dict[str, list[IntArray]] = {name: [np.zeros(0, np.int64)] for name in columns}
    known: dict[str, dict[str, int]] = {name: {} for name in columns}
    is_name = {name: pa.types.is_dictionary(SCHEMAS[table].field(name).type) for name in columns}
    for group in range(0 if file is None else file.num_groups):
        assert file is not None
        read = file.read(group, columns)
        for name in columns:
            column = read.column(name)
            parts[name].append(
                slim(_codes(column, known[name]) if is_name[name] else int_values(column, _ABSENT[name]))
            )
    found: dict[str, Any] = {}
    for name in columns:
        whole = _one_behind_another(parts.pop(name))
        found[name] = Names(whole, tuple(known[name])) if is_name[name] else whole
    return found


_ABSENT = defaultdict(lambda: OPEN, dict.fromkeys(("graph_node_id", "graph_exec_id", "return_value"), NONE))
"""How a null of a column is read."""


def _one_behind_another(parts: Sequence[Any]) -> Any:
    full = [part for part in parts if len(part)]
    if full and all(part.strides == (0,) and part[0] == full[0][0] for part in full):
        return np.broadcast_to(full[0][0], sum(map(len, full)))
    return np.concatenate(full) if full else parts[0]


def _codes(column: pa.ChunkedArray, known: dict[str, int]) -> IntArray:
    """The number of each name of a dictionary column: row groups of one file number the same names differently."""
    parts = [np.zeros(0, np.int32)]
    for chunk in column.chunks:
        codes = [known.setdefault(text, len(known)) for text in chunk.dictionary.to_pylist()]
        parts.append(np.asarray(codes, np.int32)[_buffer(chunk.indices, np.int32)] if codes else parts[0])
    return np.concatenate(parts)


def int_values(column: pa.ChunkedArray, absent: int = OPEN) -> IntArray:
    """An int64 column as NumPy, what is null as ``absent``.

    From the buffers themselves: Arrow's ``to_numpy`` and ``fill_null`` import pandas, which takes longer than to read a
    small profile.
    """
    parts = [_filled(chunk, absent) for chunk in column.chunks]
    return parts[0] if len(parts) == 1 else np.concatenate([np.zeros(0, np.int64), *parts])


def _filled(array: pa.Array, absent: int) -> IntArray:
    if array.null_count == len(array):
        return np.broadcast_to(np.int64(absent), len(array))
    values = _buffer(array, np.int64)
    if not array.null_count:
        return values
    bits = np.frombuffer(array.buffers()[0], np.uint8)
    is_valid = np.unpackbits(bits, bitorder="little")[array.offset : array.offset + len(array)].view(bool)
    return np.where(is_valid, values, absent)


def _buffer(array: pa.Array, kind: type) -> IntArray:
    values = array.buffers()[1]
    if values is None or not len(array):
        return np.zeros(0, kind)
    return np.frombuffer(values, kind, len(array), array.offset * np.dtype(kind).itemsize)
