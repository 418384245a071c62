"""The Parquet files of a profile: every row once and in order, in row groups that do not outgrow the memory meant."""

from __future__ import annotations

from contextlib import ExitStack
from pathlib import Path

import numpy as np
import pyarrow.parquet as pq
import pytest

from dflash_bench.ingest import writers
from dflash_bench.ingest.rows import ABSENT, Batch, ints, labels, nullable
from dflash_bench.ingest.writers import Writers, unranked_path
from dflash_bench.layout import Events


def batch(first: int, rows: int, processes: int) -> Batch:
    """Rows numbered from ``first``; which process one belongs to changes from row to row, and so does its name."""
    number = np.arange(first, first + rows)
    return Batch(
        Events.RANGES,
        number % processes,
        {
            "thread": ints(number),
            "domain": labels(number % 2, ("", "dflash").__getitem__),
            "name": labels(number // 10, lambda key: f"name {key}"),
            "kind": labels(number * 0, lambda _: "push_pop"),
            "start_ns": ints(number * 100),
            "end_ns": nullable(np.where(number % 7 == 0, ABSENT, number * 100 + 50)),
        },
    )


def write(folder: Path, batches: list[Batch]) -> Writers:
    with ExitStack() as stack:
        made = Writers(folder, 0, stack)
        for each in batches:
            made.add(each)
        made.close()
    return made


@pytest.mark.parametrize("processes", [1, 3, 40])
def test_every_row_is_in_the_file_of_its_process_once_and_in_order(tmp_path: Path, processes: int) -> None:
    made = write(tmp_path, [batch(k * 1000, 1000, processes) for k in range(5)])
    for process in range(processes):
        number = np.arange(5000)[np.arange(5000) % processes == process]
        rows = pq.read_table(tmp_path / unranked_path(Events.RANGES, 0, process)).to_pydict()
        assert rows["thread"] == number.tolist()
        assert rows["start_ns"] == (number * 100).tolist()
        assert rows["name"] == [f"name {k // 10}" for k in number]
        assert rows["domain"] == [("", "dflash")[k % 2] for k in number]
        assert rows["end_ns"] == [None if k % 7 == 0 else k * 100 + 50 for k in number]
        assert made.counts[Events.RANGES, process] == len(number)


def test_a_file_of_many_processes_gets_smaller_row_groups_instead_of_more_memory(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(writers, "_ROW_GROUP_ROWS", 2000)
    monkeypatch.setattr(writers, "_WAITING_ROWS", 6000)
    held = []
    with ExitStack() as stack:
        made = Writers(tmp_path, 0, stack)
        for k in range(40):
            made.add(batch(k * 1000, 1000, 20))
            held.append(made.num_waiting.total())
        made.close()
    assert max(held) < 6000
    assert max(held) > 4000, "files are written in pieces smaller than memory calls for"
    files = [pq.ParquetFile(tmp_path / unranked_path(Events.RANGES, 0, process)) for process in range(20)]
    assert sum(file.metadata.num_rows for file in files) == 40_000
    assert {file.metadata.num_rows for file in files} == {2000}
    assert all(file.num_row_groups > 1 for file in files)
    for file in files:
        file.close()


def test_integers_are_stored_as_differences_with_their_bounds(tmp_path: Path) -> None:
    """Readers go by the bounds of a row group; the encoding is what makes files small and quick to read."""
    write(tmp_path, [batch(0, 1000, 1)])
    with pq.ParquetFile(tmp_path / unranked_path(Events.RANGES, 0, 0)) as file:
        group = file.metadata.row_group(0)
        columns = {group.column(k).path_in_schema: group.column(k) for k in range(group.num_columns)}
        assert (columns["start_ns"].statistics.min, columns["start_ns"].statistics.max) == (0, 99_900)
        assert "DELTA_BINARY_PACKED" in columns["start_ns"].encodings
        assert "RLE_DICTIONARY" in columns["name"].encodings
