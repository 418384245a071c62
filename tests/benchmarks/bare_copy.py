"""The peer: the columns that ingest reads, copied from SQLite to Parquet by ADBC, with nothing done to them.

``python bare_copy.py EXPORT FOLDER [--processes 2]``. What no ingest in Python can be much faster than.
"""

from __future__ import annotations

import argparse
import multiprocessing
from contextlib import closing
from pathlib import Path

import adbc_driver_sqlite.dbapi
import pyarrow.parquet as pq

BATCH_ROWS = 1 << 16
WORK = '"start", "end", deviceId, streamId, correlationId, globalPid'
COPIES = {
    # a column that is all NULL in the first batch would become an integer for good
    "NVTX_EVENTS": (
        '"start", COALESCE("end", -1) AS "end", eventType, globalTid, domainId, '
        "COALESCE(text, '') AS text, COALESCE(textId, -1) AS textId"
    ),
    "CUPTI_ACTIVITY_KIND_RUNTIME": '"start", "end", globalTid, correlationId, nameId, eventClass',
    "CUPTI_ACTIVITY_KIND_KERNEL": f"{WORK}, shortName, COALESCE(graphNodeId, -1) AS graphNodeId",
    "CUPTI_ACTIVITY_KIND_MEMCPY": f"{WORK}, copyKind, COALESCE(graphNodeId, -1) AS graphNodeId, bytes",
    "CUPTI_ACTIVITY_KIND_MEMSET": f"{WORK}, COALESCE(graphNodeId, -1) AS graphNodeId, bytes",
    "CUPTI_ACTIVITY_KIND_GRAPH_TRACE": f"{WORK}, graphExecId",
}


def copy(export: Path, folder: Path, table: str) -> None:
    """Copy one table; one that the export lacks is nothing to copy."""
    options = {"adbc.sqlite.query.batch_rows": str(BATCH_ROWS)}
    with (
        adbc_driver_sqlite.dbapi.connect(f"file:{export}?mode=ro&immutable=1") as connection,
        closing(connection.cursor(adbc_stmt_kwargs=options)) as cursor,
    ):
        cursor.execute("SELECT COUNT(*) FROM sqlite_master WHERE name = ?", (table,))
        if cursor.fetchone() == (0,):
            return
        cursor.execute(f"SELECT {COPIES[table]} FROM {table}")
        reader = cursor.fetch_record_batch()
        with pq.ParquetWriter(
            folder / f"{table}.parquet", reader.schema, compression="zstd", compression_level=1
        ) as out:
            for batch in reader:
                out.write_batch(batch, row_group_size=BATCH_ROWS)


def main() -> None:
    """Copy every table, in one process or several."""
    parser = argparse.ArgumentParser()
    parser.add_argument("export", type=Path)
    parser.add_argument("folder", type=Path)
    parser.add_argument("--processes", type=int, default=1)
    args = parser.parse_args()
    args.folder.mkdir(parents=True, exist_ok=True)
    tasks = [(args.export, args.folder, table) for table in COPIES]
    if args.processes == 1:
        for task in tasks:
            copy(*task)
        return
    # children of this process itself and waited for, so that whoever measures it sees their CPU time
    with multiprocessing.get_context("spawn").Pool(args.processes) as pool:
        pool.starmap(copy, tasks, chunksize=1)
        pool.close()
        pool.join()


if __name__ == "__main__":
    main()
