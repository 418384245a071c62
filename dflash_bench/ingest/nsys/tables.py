"""The seam between an export and how its tables are stored: one SQLite file, or a folder of one file per table."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from enum import IntEnum
from typing import Protocol

import pyarrow as pa

from dflash_bench.capture.tables import ExportTable

Cell = bytes | int | float | None
"""A value of a small query; texts come as bytes, since they need not be UTF-8."""

NSYS_TABLES = {
    *(ExportTable.NVTX_EVENTS, ExportTable.RUNTIME, ExportTable.KERNEL, ExportTable.MEMCPY, ExportTable.MEMSET),
    *(ExportTable.GRAPH_TRACE, ExportTable.STRING_IDS, ExportTable.ANALYSIS_DETAILS, ExportTable.META_DATA_EXPORT),
    *(ExportTable.OLD_META_DATA_EXPORT, ExportTable.PROCESS_STREAMS, ExportTable.OSRT_API),
}
"""Any of these makes it an nsys export."""


class NvtxEvent(IntEnum):
    """Event types of the NVTX table."""

    MARK = 34
    PUSH_POP = 59
    START_END = 60
    NVTXT_PUSH_POP = 70
    NVTXT_START_END = 71
    DOMAIN_CREATE = 75
    DOMAIN_DESTROY = 76


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
