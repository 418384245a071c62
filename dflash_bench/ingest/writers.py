"""Parquet files of a profile that is being built."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from contextlib import ExitStack
from itertools import pairwise
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from dflash_bench.ingest.rows import Batch, ints
from dflash_bench.layout import NAME, SCHEMAS, Events
from dflash_bench.model import IntArray

_ROW_GROUP_ROWS = 1 << 17
"""Rows of a row group: what a reader holds at least, and 9 MB in memory at most."""
_WAITING_ROWS = 1 << 19
"""Rows that wait in all, 38 MB at most: files of many processes get smaller row groups."""


class Writers:
    """One open Parquet file per (table, process), filled row group by row group so that memory stays bounded."""

    def __init__(self, folder: Path, capture: int, stack: ExitStack) -> None:
        self.folder, self.capture, self.stack = folder, capture, stack
        self.files: dict[tuple[Events, int], pq.ParquetWriter] = {}
        self.waiting: dict[tuple[Events, int], list[pa.Table]] = {}
        self.num_waiting: Counter[tuple[Events, int]] = Counter()
        self.counts: Counter[tuple[Events, int]] = Counter()

    def add(self, batch: Batch) -> None:
        """Split a batch by process and queue its rows."""
        schema = SCHEMAS[batch.table]
        table = pa.Table.from_arrays([batch.columns[f.name].cast(f.type) for f in schema], schema=schema)
        for process, rows in _by_process(batch.process, table):
            key = batch.table, process
            self.counts[key] += rows.num_rows
            self.num_waiting[key] += rows.num_rows
            self.waiting.setdefault(key, []).append(rows)
            if self.num_waiting[key] >= _ROW_GROUP_ROWS:
                self._flush(key)
        while self.num_waiting.total() >= _WAITING_ROWS:
            self._flush(max(self.num_waiting, key=lambda key: self.num_waiting[key]))

    def close(self) -> None:
        """Write what is still queued. The files themselves are closed with the stack."""
        for key in list(self.waiting):
            self._flush(key)

    def _flush(self, key: tuple[Events, int]) -> None:
        rows = self.waiting.pop(key)
        del self.num_waiting[key]
        if key not in self.files:
            self.files[key] = self.stack.enter_context(self._opened(key))
        self.files[key].write_table(pa.concat_tables(rows).unify_dictionaries().combine_chunks())

    def _opened(self, key: tuple[Events, int]) -> pq.ParquetWriter:
        schema = SCHEMAS[key[0]]
        path = self.folder / unranked_path(key[0], self.capture, key[1])
        # without its parents: when an ingest was given up, no process of it brings the folder back
        path.parent.mkdir(exist_ok=True)
        return pq.ParquetWriter(
            path,
            schema,
            compression="zstd",
            compression_level=1,
            use_dictionary=[f.name for f in schema if f.type == NAME],
            # neighbours differ little: half the time to write, a third of the time to read, three quarters of the size
            column_encoding={f.name: "DELTA_BINARY_PACKED" for f in schema if f.type == pa.int64()},
        )


def _by_process(process: IntArray, table: pa.Table) -> Iterator[tuple[int, pa.Table]]:
    if not len(process):
        return
    if (process == process[0]).all():
        yield int(process[0]), table
        return
    order = np.argsort(process, kind="stable")
    table, process = table.take(ints(order)), process[order]
    begins = [0, *(np.flatnonzero(np.diff(process)) + 1).tolist(), len(process)]
    for begin, end in pairwise(begins):
        yield int(process[begin]), table.slice(begin, end - begin)


def unranked_path(table: Events, capture: int, process: int) -> Path:
    """Where the rows of a process lie until its rank is known, relative to the profile."""
    return Path(table) / f"capture{capture}-process{process}.parquet"
