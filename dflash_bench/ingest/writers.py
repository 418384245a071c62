"""Parquet files of a profile that is being built."""

from __future__ import annotations

from contextlib import ExitStack
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from dflash_bench.ingest.rows import Batch
from dflash_bench.profile import NAME, SCHEMAS, Events

ROW_GROUP_ROWS = 1 << 18


class Writers:
    """One open Parquet file per (table, process), filled row group by row group so that memory stays bounded."""

    def __init__(self, folder: Path, capture: int, stack: ExitStack) -> None:
        self.folder, self.capture, self.stack = folder, capture, stack
        self.files: dict[tuple[Events, int], pq.ParquetWriter] = {}
        self.waiting: dict[tuple[Events, int], list[pa.Table]] = {}
        self.counts: dict[tuple[Events, int], int] = {}

    def add(self, batch: Batch) -> None:
        """Split a batch by process and queue its rows."""
        schema = SCHEMAS[batch.table]
        table = pa.Table.from_arrays([batch.columns[f.name].cast(f.type) for f in schema], schema=schema)
        for process in np.unique(batch.process):
            mine = batch.process == process
            rows = table if mine.all() else table.filter(pa.array(mine))
            key = batch.table, int(process)
            self.counts[key] = self.counts.get(key, 0) + rows.num_rows
            self.waiting.setdefault(key, []).append(rows)
            if sum(t.num_rows for t in self.waiting[key]) >= ROW_GROUP_ROWS:
                self._flush(key)

    def close(self) -> None:
        """Write what is still queued. The files themselves are closed with the stack."""
        for key in list(self.waiting):
            self._flush(key)

    def _flush(self, key: tuple[Events, int]) -> None:
        rows = self.waiting.pop(key, [])
        if not rows:
            return
        schema = SCHEMAS[key[0]]
        if key not in self.files:
            path = self.folder / unranked_path(key[0], self.capture, key[1])
            # without its parents: when an ingest was given up, no process of it brings the folder back
            path.parent.mkdir(exist_ok=True)
            names = [f.name for f in schema if f.type == NAME]
            writer = pq.ParquetWriter(path, schema, compression="zstd", compression_level=1, use_dictionary=names)
            self.files[key] = self.stack.enter_context(writer)
        self.files[key].write_table(pa.concat_tables(rows).unify_dictionaries().combine_chunks())


def unranked_path(table: Events, capture: int, process: int) -> Path:
    """Where the rows of a process lie until its rank is known, relative to the profile."""
    return Path(table) / f"capture{capture}-process{process}.parquet"
