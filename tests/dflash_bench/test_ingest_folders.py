"""Folders of tables (nsys' ``parquetdir`` and ``arrowdir``) give the profile that the SQLite export gives."""

from __future__ import annotations

import shutil
import sqlite3
from collections.abc import Iterator
from contextlib import closing
from dataclasses import replace
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from generator import Fault, Mode, Schema, Spec, write_export, write_ranks
from generator.folders import FolderKind, write_folder

from dflash_bench.errors import DataError, UsageError
from dflash_bench.ingest.nsys import folder_tables
from dflash_bench.ingest.nsys.scrub import scrub
from dflash_bench.ingest.nsys.source import open_export
from dflash_bench.ingest.sources import IngestOptions, expand, ingest
from dflash_bench.layout import Events
from dflash_bench.model import RunInfo
from dflash_bench.profile import Profile

KERNEL = "CUPTI_ACTIVITY_KIND_KERNEL"
SPECS = (
    Spec(rows=1500, schema=Schema.V3_24, mode=Mode.MIXED, is_sync=True),
    Spec(rows=1500, schema=Schema.V3_4, faults=frozenset({Fault.NOT_UTF8, Fault.STEP_NAMES_COUNT, Fault.OPEN_RANGES})),
    Spec(rows=1500, schema=Schema.V3_25, faults=frozenset({Fault.OLD_DRIVER, Fault.BACKTRACES, Fault.NO_TIMES})),
    Spec(rows=1500, faults=frozenset({Fault.NO_MARKS, Fault.NO_GLOBAL_PID, Fault.START_END, Fault.TOOL_RANGES})),
)


def profile_of(path: Path, profiles: Path, run: str) -> Profile:
    (profile,) = ingest([path], IngestOptions(profiles=profiles, run=run))
    return profile


def rows(profile: Profile) -> dict[tuple[Events, int], list[dict[str, object]]]:
    return {
        (table, p.process): profile.events(table, p).to_pylist() for table in Events for p in profile.info.processes
    }


def said(info: RunInfo) -> RunInfo:
    """What a profile says of itself, less what tells its files apart."""
    captures = tuple(replace(c, fingerprint="", size_bytes=0, file=None) for c in info.captures)
    return replace(info, run="", created_utc="", captures=captures)


@pytest.fixture
def parquet(tmp_path: Path) -> Path:
    return write_folder(write_export(tmp_path / "made.sqlite", SPECS[0]), FolderKind.PARQUET)


@pytest.mark.parametrize("kind", FolderKind)
@pytest.mark.parametrize("spec", SPECS, ids=lambda spec: f"{spec.schema}")
def test_a_folder_of_tables_gives_the_profile_of_the_sqlite_file(tmp_path: Path, spec: Spec, kind: FolderKind) -> None:
    export = write_export(tmp_path / "made.sqlite", spec)
    folder = write_folder(export, kind, group_rows=97)
    wanted = profile_of(export, tmp_path / "profiles", "file")
    found = profile_of(folder, tmp_path / "profiles", "folder")
    assert rows(found) == rows(wanted)
    assert said(found.info) == said(wanted.info)
    assert sum(p.num_gpu_work for p in found.info.processes) > 100 or spec.has(Fault.NO_GLOBAL_PID)


@pytest.mark.parametrize("kind", FolderKind)
def test_gpus_without_a_number_are_named_in_any_order(tmp_path: Path, kind: FolderKind) -> None:
    """Then the name itself is what they are put in order by."""
    export = write_export(tmp_path / "made.sqlite", SPECS[0])
    with closing(sqlite3.connect(export)) as database:
        database.executescript(
            "CREATE TABLE named AS SELECT name FROM TARGET_INFO_GPU; DROP TABLE TARGET_INFO_GPU;"
            "ALTER TABLE named RENAME TO TARGET_INFO_GPU"
        )
    wanted = open_export(export).gpu_names
    assert wanted
    assert open_export(write_folder(export, kind)).gpu_names == wanted


def test_ranks_meet_whichever_way_they_were_exported(tmp_path: Path) -> None:
    paths = write_ranks(tmp_path, SPECS[0])
    write_folder(paths[1], FolderKind.PARQUET)
    paths[1].unlink()
    (profile,) = ingest([tmp_path], IngestOptions(profiles=tmp_path / "profiles"))
    assert profile.info.ranks == (0, 1)
    assert profile.info.run == "run"


def test_rows_come_in_batches_of_bounded_size_whatever_the_row_groups_are(
    parquet: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(folder_tables, "BATCH_ROWS", 50)
    batches = list(open_export(parquet).stored.batches(KERNEL, {"start": 0}))
    assert max(b.num_rows for b in batches) == 50
    assert sum(b.num_rows for b in batches) == pq.read_metadata(parquet / f"{KERNEL}.parquet").num_rows


def test_an_unsigned_number_keeps_its_bits(parquet: Path) -> None:
    pq.write_table(pa.table({"a": pa.array([2**64 - 1, None], pa.uint64())}), parquet / "T.parquet")
    (batch,) = open_export(parquet).stored.batches("T", {"a": 7})
    assert batch.column("a").to_pylist() == [-1, 7]


@pytest.mark.parametrize(
    ("beside", "read"),
    [
        (("a.sqlite", "a_pqtdir", "a_arwdir", "a.nsys-rep"), "a.sqlite"),
        (("a_pqtdir", "a_arwdir", "a.nsys-rep", "a.qdstrm"), "a_pqtdir"),
        (("a_arwdir", "a.qdrep"), "a_arwdir"),
        (("a.nsys-rep", "a.qdstrm"), "a.nsys-rep"),
    ],
)
def test_of_several_forms_of_one_capture_the_best_is_read(
    tmp_path: Path, parquet: Path, beside: tuple[str, ...], read: str
) -> None:
    for name in beside:
        shutil.copytree(parquet, tmp_path / "in" / name) if name.endswith("dir") else None
    (tmp_path / "in").mkdir(exist_ok=True)
    for name in beside:
        (tmp_path / "in" / name).exists() or (tmp_path / "in" / name).touch()
    assert [p.name for p in expand([tmp_path / "in"])] == [read]


# ── what is wrong with a folder ──────────────────────────────────────────────────────────────────────────────────────


def refusal(path: Path, tmp_path: Path) -> str:
    with pytest.raises(DataError) as refused:
        profile_of(path, tmp_path / "profiles", "r")
    assert not any((tmp_path / "profiles").iterdir())
    return refused.value.text


def test_a_truncated_table_is_named(tmp_path: Path, parquet: Path) -> None:
    file = parquet / f"{KERNEL}.parquet"
    file.write_bytes(file.read_bytes()[:-20])
    assert refusal(parquet, tmp_path).startswith(f"{parquet}: {KERNEL}.parquet is damaged: ")


def test_a_page_that_was_overwritten_is_named(tmp_path: Path, parquet: Path) -> None:
    file = parquet / f"{KERNEL}.parquet"
    content = bytearray(file.read_bytes())
    content[4:2000] = bytes(1996)
    file.write_bytes(content)
    assert refusal(parquet, tmp_path).startswith(f"{parquet}: {KERNEL}.parquet is damaged: ")


def test_texts_where_numbers_belong_are_refused(tmp_path: Path, parquet: Path) -> None:
    file = parquet / f"{KERNEL}.parquet"
    table = pq.read_table(file)
    at = table.schema.get_field_index("start")
    pq.write_table(table.set_column(at, "start", table.column("start").cast(pa.string())), file)
    assert "holds string where integers belong" in refusal(parquet, tmp_path)


def test_an_arrow_file_whose_texts_lie_outside_of_it_is_refused(tmp_path: Path) -> None:
    """Arrow itself trusts the offsets in a file, and would read what is not there."""
    folder = write_folder(write_export(tmp_path / "made.sqlite", SPECS[0]), FolderKind.ARROW)
    offsets = pa.py_buffer(np.array([0, 1 << 30, 4], np.int32))
    texts = pa.StringArray.from_buffers(2, offsets, pa.py_buffer(b"abcd"))
    table = pa.table({"id": pa.array([1, 2], pa.uint64()), "value": texts})
    with pa.ipc.new_file(folder / "StringIds.arrow", table.schema) as writer:
        writer.write_table(table)
    assert refusal(folder, tmp_path).startswith(f"{folder}: StringIds.arrow is damaged: ")


def test_two_columns_of_one_name_are_refused(tmp_path: Path, parquet: Path) -> None:
    file = parquet / f"{KERNEL}.parquet"
    table = pq.read_table(file)
    pq.write_table(table.append_column("start", table.column("start")), file)
    assert "two columns bear one name" in refusal(parquet, tmp_path)


def test_a_folder_of_other_tables_is_no_capture(tmp_path: Path) -> None:
    (tmp_path / "other").mkdir()
    pq.write_table(pa.table({"a": [1]}), tmp_path / "other" / "users.parquet")
    with pytest.raises(UsageError, match=r"no captures in this folder \(.*_pqtdir, _arwdir"):
        expand([tmp_path / "other"])


def test_a_folder_is_not_scrubbed_and_it_is_said_what_is(tmp_path: Path, parquet: Path) -> None:
    with pytest.raises(UsageError, match="is a folder of tables") as refused:
        scrub(parquet, tmp_path / "out.sqlite")
    assert "type sqlite" in str(refused.value.hint)
    assert not (tmp_path / "out.sqlite").exists()


def files(folder: Path) -> Iterator[tuple[str, bytes]]:
    return ((p.name, p.read_bytes()) for p in sorted(folder.iterdir()))


def test_the_folder_is_left_as_it_is(tmp_path: Path, parquet: Path) -> None:
    before = list(files(parquet))
    profile_of(parquet, tmp_path / "profiles", "r")
    assert list(files(parquet)) == before
