"""Every text that a file of ours stores, for tests that look for what must not be there.

A short host name turns up in compressed bytes by chance, so tables are read back and texts are compared by whole words.
"""

from __future__ import annotations

import re
import sqlite3
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

import pyarrow.parquet as pq

WORD = re.compile(r"[\w.-]+")


def stored_words(path: Path) -> set[str]:
    """The words of all texts in a Parquet, SQLite or text file, column names and file metadata included."""
    return {word for text in _texts(path) for word in WORD.findall(text)}


def _texts(path: Path) -> Iterator[str]:
    if path.suffix == ".parquet":
        yield from _parquet_texts(path)
    elif path.suffix == ".sqlite":
        yield from _sqlite_texts(path)
    else:
        yield path.read_bytes().decode(errors="replace")


def _parquet_texts(path: Path) -> Iterator[str]:
    table = pq.read_table(path)
    yield str(table.schema)
    for key, value in (pq.read_metadata(path).metadata or {}).items():
        if key != b"ARROW:schema":  # the schema once more, as base64
            yield f"{key.decode()} {value.decode(errors='replace')}"
    for column in table.columns:
        yield from (str(value) for value in column.unique().to_pylist() if isinstance(value, str | bytes))


def _sqlite_texts(path: Path) -> Iterator[str]:
    with closing(sqlite3.connect(path)) as connection:
        connection.text_factory = lambda raw: raw.decode(errors="replace")
        for name, sql in connection.execute("SELECT name, sql FROM sqlite_master").fetchall():
            yield f"{name} {sql}"
            for row in connection.execute(f'SELECT * FROM "{name}"') if sql and sql.startswith("CREATE TABLE") else ():
                yield from (value for value in row if isinstance(value, str))
