"""A second reading of captures with no code of ours: joins, leads, stalls, causes and costs in SQL (DuckDB).

`plain_reading.py` is the first, in loops over rows.
"""

from __future__ import annotations

import sqlite3
from contextlib import closing
from pathlib import Path

import duckdb
import pandas as pd

SQL = [Path(__file__).with_name(name).read_text(encoding="utf-8") for name in ("oracle.sql", "oracle_costs.sql")]
_COLUMNS = {
    "strings": (("StringIds",), ("id", "value")),
    "nvtx": (("NVTX_EVENTS",), ("globalTid", "domainId", "start", "end", "eventType", "text", "textId")),
    "runtime": (
        ("CUPTI_ACTIVITY_KIND_RUNTIME",),
        ("globalTid", "correlationId", "start", "end", "nameId", "eventClass"),
    ),
    "work": (
        tuple(f"CUPTI_ACTIVITY_KIND_{kind}" for kind in ("KERNEL", "MEMCPY", "MEMSET", "GRAPH_TRACE")),
        ("globalPid", "deviceId", "streamId", "correlationId", "start", "end", "graphExecId"),
    ),
}
_TEXTS = ("value", "text")


def read(capture: Path, step_name: str = "decode_step") -> duckdb.DuckDBPyConnection:
    """The views of ``oracle.sql`` and ``oracle_costs.sql`` over one nsys export."""
    found = duckdb.connect()
    with closing(sqlite3.connect(f"file:{capture}?mode=ro&immutable=1", uri=True)) as database:
        for name, (tables, columns) in _COLUMNS.items():
            rows = [row for table in tables for row in _rows(database, table, columns)]
            frame = pd.DataFrame(rows, columns=list(columns)).astype(
                {column: "string" if column in _TEXTS else "Int64" for column in columns}
            )
            found.register("frame", frame)
            found.execute(f"CREATE TABLE {name} AS SELECT * FROM frame")
            found.unregister("frame")
    found.execute(f"CREATE MACRO step_name() AS '{step_name}'")
    for script in SQL:
        found.execute(script)
    return found


def _rows(database: sqlite3.Connection, table: str, columns: tuple[str, ...]) -> list[tuple]:
    """The rows of a table, without those of the columns that it lacks; none where there is no such table."""
    known = {name for (name,) in database.execute("SELECT name FROM pragma_table_info(?)", (table,))}
    names = ", ".join(f'"{column}"' if column in known else "NULL" for column in columns)
    return database.execute(f"SELECT {names} FROM {table}").fetchall() if known else []
