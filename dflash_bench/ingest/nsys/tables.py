"""The seam between an export and how its tables are stored: one SQLite file, or a folder of one file per table."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Protocol

import pyarrow as pa

Cell = bytes | int | float | None
"""A value of a small query; texts come as bytes, since they need not be UTF-8."""

BATCH_ROWS = 1 << 16
"""Rows per batch: 65,536 rows of the widest query are about 5 MB, and larger batches read no faster."""

ABSENT = -(1 << 63)
"""Stands for NULL in a batch."""


NSYS_TABLES = {
    "NVTX_EVENTS", *(f"CUPTI_ACTIVITY_KIND_{k}" for k in ("RUNTIME", "KERNEL", "MEMCPY", "MEMSET", "GRAPH_TRACE")),
    "StringIds", "ANALYSIS_DETAILS", "META_DATA_EXPORT", "EXPORT_META_DATA", "ProcessStreams", "OSRT_API",
}  # fmt: skip
"""Any of these makes it an nsys export."""


def is_null(column: str) -> str:
    """The name of the column that tells, 0 or 1, where a text column of a batch is NULL."""
    return f"{column} is null"


class Tables(Protocol):
    """The tables of an export. They pickle, and hold nothing open.

    ``columns`` maps each table to its columns; only these may be asked for, unless a method says otherwise. Every
    method raises DataError when the file is damaged.
    """

    @property
    def columns(self) -> dict[str, frozenset[str]]: ...

    @property
    def left_out(self) -> frozenset[str]:
        """What bears a name and is no table that can be read."""

    def num_rows(self, table: str) -> int:
        """How many rows a table has, as far as that is known without reading it."""

    def cells(self, table: str, columns: Sequence[str]) -> list[tuple[Cell, ...]]:
        """The rows of a small table."""

    def distinct(self, table: str, columns: Sequence[str], where: tuple[str, int]) -> list[tuple[Cell, ...]]:
        """The different rows among those in which a column (of integers) has a value; few, of any table."""

    def batches(self, table: str, numbers: dict[str, int], texts: Sequence[str] = ()) -> Iterator[pa.RecordBatch]:
        """All rows of a table, `BATCH_ROWS` at a time, in the order in which they are stored.

        ``numbers``: integer columns, each with what stands for NULL; a column that the table lacks is that throughout.
        ``texts``: text columns as bytes, empty where they are NULL or the table lacks them, each with `is_null`.
        """
