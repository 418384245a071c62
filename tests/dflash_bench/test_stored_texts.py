"""The search that privacy tests rest on finds a word wherever a file of ours can hold one."""

from __future__ import annotations

import sqlite3
from contextlib import closing
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
from stored_texts import stored_words


def test_a_word_in_a_value_a_column_name_or_the_metadata_of_a_parquet_file_is_found(tmp_path: Path) -> None:
    texts = pa.array(["a range", "on node-7", None]).dictionary_encode()
    table = pa.table({"name": texts, "node-8": [1, 2, 3]}).replace_schema_metadata({"host": "node-9"})
    pq.write_table(table, tmp_path / "t.parquet", compression="zstd")
    assert {"node-7", "node-8", "node-9"} <= stored_words(tmp_path / "t.parquet")


def test_a_word_in_any_table_of_a_sqlite_file_is_found_and_part_of_a_word_is_not_taken_for_it(tmp_path: Path) -> None:
    with closing(sqlite3.connect(tmp_path / "t.sqlite")) as file:
        file.execute("CREATE TABLE a (n INTEGER, t TEXT)")
        file.execute("INSERT INTO a VALUES (1, 'host=vm')")
        file.execute("CREATE TABLE b (t)")
        file.execute("INSERT INTO b VALUES ('kvmap')")
        file.commit()
    assert "vm" in stored_words(tmp_path / "t.sqlite")
    with closing(sqlite3.connect(tmp_path / "t.sqlite")) as file:
        file.execute("DELETE FROM a")
        file.commit()
    assert "vm" not in stored_words(tmp_path / "t.sqlite")


def test_a_word_in_a_text_file_is_found(tmp_path: Path) -> None:
    (tmp_path / "run.json").write_text('{"host": "vm"}')
    assert "vm" in stored_words(tmp_path / "run.json")
