"""Columns of a profile as NumPy arrays, names as codes into a list."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass, fields
from typing import TYPE_CHECKING, Any, TypeVar

import numpy as np
import pyarrow as pa

from dflash_bench.metrics.intervals import Index, slim, taken
from dflash_bench.metrics.names import Rule, short_names
from dflash_bench.model import BoolArray, IntArray

if TYPE_CHECKING:
    from _typeshed import DataclassInstance

Rows = TypeVar("Rows", bound="DataclassInstance")
OPEN = -(1 << 63)
"""The end of a range that has none."""


@dataclass(frozen=True, slots=True)
class Names:
    """A column of names: ``codes`` int64 [n] into ``values``."""

    codes: IntArray
    values: tuple[str, ...]

    def __getitem__(self, index: Index) -> Names:
        return Names(taken(self.codes, index), self.values)

    def among(self, wanted: set[str]) -> BoolArray:
        """bool [n]: whether the name is one of these."""
        return self._where([value in wanted for value in self.values])

    def matching(self, pattern: re.Pattern[str]) -> BoolArray:
        """bool [n]: whether the pattern matches the whole name."""
        return self._where([pattern.fullmatch(value) is not None for value in self.values])

    def containing(self, part: str) -> BoolArray:
        """bool [n]: whether the name contains this text."""
        return self._where([part in value for value in self.values])

    def _where(self, is_wanted: list[bool]) -> BoolArray:
        # names are few and rows many: one look into a table each is three times as fast as numpy.isin
        return np.array(is_wanted, bool)[self.codes]

    def shortened(self, rules: tuple[Rule, ...]) -> Names:
        """The same names after `short_names`; those that become equal share a code."""
        found = short_names(self.values, rules)
        return Names(np.asarray(found.place, np.int64)[self.codes] if self.values else self.codes, found.values)

    @staticmethod
    def joined(parts: Sequence[Names]) -> Names:
        """Several of one vocabulary as one."""
        return Names(_one_behind_another([part.codes for part in parts]), max((part.values for part in parts), key=len))

    def text(self) -> list[str]:
        """The names themselves."""
        return [self.values[code] for code in self.codes]


def stacked(parts: Sequence[Rows]) -> Rows:
    """Rows of one kind, a dataclass of columns, one part behind another; at least one part."""
    kind = type(parts[0])
    return kind(*(_stacked_column([getattr(part, column.name) for part in parts]) for column in fields(kind)))


def _stacked_column(parts: Sequence[Any]) -> Any:
    return Names.joined(parts) if isinstance(parts[0], Names) else _one_behind_another(parts)


def _one_behind_another(parts: Sequence[Any]) -> Any:
    full = [part for part in parts if len(part)]
    if full and all(part.strides == (0,) and part[0] == full[0][0] for part in full):
        return np.broadcast_to(full[0][0], sum(map(len, full)))
    return np.concatenate(parts)


class Vocabulary:
    """The names met so far, each with a number: row groups of one file number the same names differently."""

    def __init__(self) -> None:
        self.code_of: dict[str, int] = {}

    @property
    def values(self) -> tuple[str, ...]:
        return tuple(self.code_of)

    def codes(self, column: pa.ChunkedArray) -> IntArray:
        """The number of each name of a dictionary column, int64 [n]. Names not met before get the next ones."""
        parts = [np.zeros(0, np.int64)]
        for chunk in column.chunks:
            known = [self.code_of.setdefault(text, len(self.code_of)) for text in chunk.dictionary.to_pylist()]
            parts.append(np.asarray(known, np.int64)[_buffer(chunk.indices, np.int32)] if known else parts[0])
        return slim(np.concatenate(parts))


def ints(column: pa.ChunkedArray, absent: int = OPEN) -> IntArray:
    """An int64 column as NumPy, what is null as ``absent``.

    From the buffers themselves: Arrow's ``to_numpy`` imports pandas, which takes longer than to read a small profile.
    """
    whole = column.fill_null(absent) if column.null_count else column
    parts = [_buffer(chunk, np.int64) for chunk in whole.chunks]
    return slim(parts[0] if len(parts) == 1 else np.concatenate([np.zeros(0, np.int64), *parts]))


def _buffer(array: pa.Array, kind: type) -> IntArray:
    values = array.buffers()[1]
    if values is None or not len(array):
        return np.zeros(0, kind)
    return np.frombuffer(values, kind, len(array), array.offset * np.dtype(kind).itemsize)


def names(column: pa.ChunkedArray) -> Names:
    """A dictionary column."""
    vocabulary = Vocabulary()
    return Names(vocabulary.codes(column), vocabulary.values)
