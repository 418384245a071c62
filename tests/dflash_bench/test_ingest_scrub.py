"""A scrubbed export has the same events and not one byte of what was private in the original."""

from __future__ import annotations

import sqlite3
from contextlib import closing
from dataclasses import replace
from pathlib import Path

import pytest
from generator import Fault, Mode, Schema, Spec, write_export

from dflash_bench.errors import DataError, UsageError
from dflash_bench.ingest.nsys.scrub import _without_paths, scrub
from dflash_bench.ingest.nsys.source import open_export
from dflash_bench.ingest.sources import IngestOptions, ingest
from dflash_bench.metrics.measure import measure
from dflash_bench.model import RunMetrics

H200 = sorted((Path(__file__).parent.parent / "data" / "h200").glob("*.sqlite"))
SECRET = "s3cr3t-Kuchenrezept"


def measured(path: Path, folder: Path) -> RunMetrics:
    (profile,) = ingest([path], IngestOptions(profiles=folder, run="r"))
    return measure(profile)


def plant(path: Path) -> None:
    """Put the secret wherever nsys keeps what is private, and where only a hand could have put it."""
    with closing(sqlite3.connect(path, isolation_level=None)) as database:
        database.execute("PRAGMA synchronous=OFF")  # a test waits for no disk
        for k in range(3):
            database.execute("INSERT INTO StringIds VALUES (?, ?)", (900_000 + k, f"TOKEN={SECRET}{k}"))
        for key in ("PROCESS_0:ENVIRONMENT_VARIABLE", "PROCESS_0:USER_NAME", "PROCESS_0:ARGUMENT_1", "HOST_NAME"):
            database.execute("INSERT INTO META_DATA_CAPTURE VALUES (?, ?)", (key, SECRET))
        database.execute("INSERT INTO META_DATA_CAPTURE VALUES (?, 'Cuda')", (SECRET,))
        database.execute("INSERT INTO META_DATA_CAPTURE VALUES ('CAPTURE_EVENT_TYPE', ?)", (SECRET,))
        database.execute("INSERT INTO META_DATA_EXPORT VALUES ('EXPORT_PARAM_OUTPUT_FILE', ?)", (SECRET,))
        database.execute("INSERT INTO META_DATA_EXPORT VALUES ('DERIVED_BY', ?)", (SECRET,))
        database.execute("UPDATE META_DATA_EXPORT SET value = value || ? WHERE name LIKE '%VERSION'", (f"-{SECRET}",))
        database.execute("UPDATE PROCESSES SET name = ?", (f"/home/{SECRET}/python",))
        database.execute("UPDATE TARGET_INFO_GPU SET uuid = ?, busLocation = ?", (SECRET, SECRET))
        database.execute(f"UPDATE TARGET_INFO_SESSION_START_TIME SET localTime = '{SECRET}'")
        database.execute("CREATE TABLE TARGET_INFO_SYSTEM_ENV (name TEXT, value TEXT)")
        database.execute("INSERT INTO TARGET_INFO_SYSTEM_ENV VALUES ('Hostname', ?)", (SECRET,))
        database.execute("CREATE TABLE ProcessStreams (globalPid INTEGER, contentId INTEGER)")
        database.execute("INSERT INTO ProcessStreams VALUES (1, 900001)")
        database.execute("CREATE TABLE ThreadNames (nameId INTEGER, globalTid INTEGER)")
        database.execute("INSERT INTO ThreadNames VALUES (900002, 1)")
        database.execute("CREATE TABLE DIAGNOSTIC_EVENT (text TEXT)")
        text = f"Installed CUDA driver version ({SECRET}) is not supported"
        database.execute("INSERT INTO DIAGNOSTIC_EVENT VALUES (?)", (text,))
        database.execute(f'CREATE TABLE "{SECRET}" ("{SECRET}" TEXT DEFAULT \'{SECRET}\')')
        database.execute(f"CREATE VIEW v AS SELECT '{SECRET}' AS \"{SECRET}\"")
        database.execute(f"ALTER TABLE CUPTI_ACTIVITY_KIND_RUNTIME ADD COLUMN name TEXT DEFAULT '{SECRET}'")
        database.execute(f'ALTER TABLE NVTX_EVENTS ADD COLUMN "{SECRET}" TEXT')
        database.execute(
            f"UPDATE NVTX_EVENTS SET jsonText = '{SECRET}', binaryData = '{SECRET}', category = '{SECRET}'"
        )
        database.execute("UPDATE CUPTI_ACTIVITY_KIND_MEMCPY SET srcKind = ?", (SECRET,))
        thread_name = "INSERT INTO NVTX_EVENTS (start, eventType, text) VALUES (0, 39, ?)"
        database.execute(thread_name, (SECRET,))
        at_path = "UPDATE StringIds SET value = ? WHERE value = 'kernel_b'"
        database.execute(at_path, (f"kernel_b::lambda at /home/{SECRET}/src/x.cu:12",))
        # freed pages keep what was deleted
        database.execute("CREATE TABLE gone (x TEXT)")
        database.executemany("INSERT INTO gone VALUES (?)", [(SECRET * 50,)] * 200)
        database.execute("DROP TABLE gone")


def without_names(run: RunMetrics) -> list[object]:
    return [replace(m, values=m.values.tolist(), block=None, group=None) for m in run.metrics]


@pytest.mark.parametrize("mode", Mode)
def test_no_byte_of_a_planted_secret_is_left_and_every_figure_stays(tmp_path: Path, mode: Mode) -> None:
    source = write_export(tmp_path / "in.sqlite", Spec(rows=4000, mode=mode, is_sync=True))
    plant(source)
    before = source.read_bytes()
    assert before.count(SECRET.encode()) > 200
    done = scrub(source, tmp_path / "out.sqlite")
    assert SECRET.encode() not in done.path.read_bytes()
    assert b"/home/" not in done.path.read_bytes()
    assert done.num_names_changed == 1
    assert source.read_bytes() == before
    original, shared = measured(source, tmp_path / "a"), measured(done.path, tmp_path / "b")
    assert without_names(shared) == without_names(original)
    assert shared.tables == original.tables
    assert shared.findings == original.findings
    assert {f.code for f in shared.findings} >= {"driver_not_supported", "clipped_window"}
    assert {p.name for p in tmp_path.iterdir()} == {"in.sqlite", "out.sqlite", "a", "b"}


@pytest.mark.parametrize("schema", Schema)
def test_every_family_keeps_its_events(tmp_path: Path, schema: Schema) -> None:
    source = write_export(tmp_path / "in.sqlite", Spec(rows=2000, schema=schema))
    done = scrub(source, tmp_path / "out.sqlite")
    assert without_names(measured(done.path, tmp_path / "b")) == without_names(measured(source, tmp_path / "a"))
    old, new = open_export(source), open_export(done.path)
    assert (new.info.schema_version, new.info.exporter_version) == (old.info.schema_version, old.info.exporter_version)
    assert new.gpu_names == old.gpu_names


@pytest.mark.parametrize("fault", Fault)
def test_odd_exports_are_scrubbed_too(tmp_path: Path, fault: Fault) -> None:
    source = write_export(tmp_path / "in.sqlite", Spec(rows=1500, faults=frozenset({fault})))
    done = scrub(source, tmp_path / "out.sqlite")
    original, shared = measured(source, tmp_path / "a"), measured(done.path, tmp_path / "b")
    assert without_names(shared) == without_names(original)
    assert shared.findings == original.findings


@pytest.mark.parametrize("source", H200, ids=lambda p: p.stem)
def test_real_captures_keep_their_figures(tmp_path: Path, source: Path) -> None:
    done = scrub(source, tmp_path / "out.sqlite")
    assert without_names(measured(done.path, tmp_path / "b")) == without_names(measured(source, tmp_path / "a"))
    assert done.size_bytes < source.stat().st_size


@pytest.mark.parametrize(
    ("name", "cleaned"),
    [
        ("forward at /home/me/model.py:12", "forward at <path>:12"),
        ("{'file': '/mnt/x/y/z.py'}", "{'file': '<path>'}"),
        (r"C:\Users\me\x.py", "<path>"),
        (r"\\host\share\x", "<path>"),
        ("~/src/x.py", "<path>"),
        ("tp/2/layer", "tp/2/layer"),
        ("a / b", "a / b"),
        ("void f<T, (int)4>(T*)", "void f<T, (int)4>(T*)"),
        ("https://x.org/a/b", "https://x.org/a/b"),
    ],
)
def test_paths_and_nothing_else_are_taken_out_of_names(name: str, cleaned: str) -> None:
    assert _without_paths(name) == cleaned


def test_an_existing_file_is_replaced_only_on_demand_and_the_source_never(tmp_path: Path) -> None:
    source = write_export(tmp_path / "in.sqlite", Spec(rows=1000))
    target = tmp_path / "out.sqlite"
    target.write_text("mine")
    with pytest.raises(UsageError, match="exists"):
        scrub(source, target)
    assert target.read_text() == "mine"
    scrub(source, target, is_replace=True)
    with pytest.raises(UsageError, match="exists"):
        scrub(source, source, is_replace=True)


def test_a_damaged_source_leaves_nothing(tmp_path: Path) -> None:
    source = write_export(tmp_path / "in.sqlite", Spec(rows=4000))
    content = bytearray(source.read_bytes())
    content[8192:] = b"\xee" * (len(content) - 8192)
    source.write_bytes(content)
    with pytest.raises(DataError, match="damaged"):
        scrub(source, tmp_path / "out.sqlite")
    assert [p.name for p in tmp_path.iterdir()] == ["in.sqlite"]


def test_a_target_that_cannot_be_written_is_named(tmp_path: Path) -> None:
    source = write_export(tmp_path / "in.sqlite", Spec(rows=1000))
    with pytest.raises(DataError, match="could not be written"):
        scrub(source, source / "out.sqlite")
