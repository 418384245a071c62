"""nsys keeps the environment, arguments, user and host of what it profiles. None of that may get out."""

from __future__ import annotations

import logging
import shutil
import sqlite3
from contextlib import closing

import pyarrow.parquet as pq
import pytest
from generator.folders import FolderKind, write_folder

SECRET = "hunter2-{}-TOKEN"
PLACES = {
    "META_DATA_CAPTURE": ("name TEXT, value TEXT", "('PROCESS_0:ENVIRONMENT_VARIABLE', ?)"),
    "META_DATA_EXPORT": ("name TEXT, value TEXT", "('EXPORT_PARAM_OUTPUT_FILE', ?)"),
    "StringIds": ("id INTEGER PRIMARY KEY, value TEXT", "(99999999, ?)"),
    "ProcessStreams": ("globalPid INTEGER, filenameId INTEGER, contentId TEXT", "(1, 1, ?)"),
    "TARGET_INFO_SYSTEM_ENV": (
        "globalVid INTEGER, devStateName TEXT, name TEXT, value TEXT",
        "(1, 'x', 'Hostname', ?)",
    ),
    "PROCESSES": ("globalPid INTEGER, pid INTEGER, name TEXT", "(1, 1, ?)"),
    "ThreadNames": ("nameId INTEGER, priority TEXT, globalTid INTEGER", "(1, ?, 1)"),
    "DIAGNOSTIC_EVENT": (
        "timestamp INTEGER, timestampType INTEGER, source INTEGER, severity INTEGER, text TEXT, globalPid INTEGER",
        "(0, 0, 0, 2, ?, 1)",
    ),
}
KEPT = ("StringIds", "META_DATA_CAPTURE", "META_DATA_EXPORT")
"""Tables that the reading needs as they are; the others are laid out anew, as some version has them."""

DIAGNOSTICS = (
    "Not all NVTX events might have been collected. {}",
    "Installed CUDA driver version (99 {}) is not supported by this build",
    "CUDA profiling might have not been started correctly. {}",
)


def secret(place):
    return SECRET.format(place)


@pytest.fixture(params=["sqlite", *FolderKind])
def capture(tmp_path, h200, request):
    """A real capture with a secret in every table where nsys keeps something private, in each form of an export."""
    path = planted(tmp_path, h200)
    return path if request.param == "sqlite" else as_folder(path, request.param)


def as_folder(path, kind):
    """The same as a folder of tables, with a secret in what Parquet and Arrow files hold beside their rows too."""
    folder = write_folder(path, kind)
    path.unlink()
    strings = next(folder.glob("StringIds.*"))
    (folder / f"{secret('file')}{strings.suffix}").write_bytes(strings.read_bytes())
    for file in folder.glob("*.parquet"):
        pq.write_table(pq.read_table(file).replace_schema_metadata({"machine": secret("metadata")}), file)
    return folder


def planted(tmp_path, h200):
    folder = tmp_path / secret("folder")
    folder.mkdir()
    path = shutil.copyfile(h200 / "h200x2_sync_rank0.sqlite", folder / "report.sqlite")
    path.chmod(0o644)
    with closing(sqlite3.connect(path)) as db:
        for table, (columns, values) in PLACES.items():
            named = [c.split()[0] for c in columns.split(", ")]
            if table not in KEPT:
                db.execute(f"DROP TABLE IF EXISTS {table}")
                db.execute(f"CREATE TABLE {table} ({columns})")
            db.execute(f"INSERT INTO {table} ({', '.join(named)}) VALUES {values}", (secret(table),))
        for text in DIAGNOSTICS:
            db.execute("INSERT INTO DIAGNOSTIC_EVENT VALUES (0, 0, 0, 2, ?, 1)", (text.format(secret("diagnostic")),))
        options = [
            ("EXPORT_PRODUCT_VERSION", "2025.3.1 on {}"),
            ("EXPORT_SCHEMA_VERSION", "3.20 {}"),
            ("DERIVED_BY", "{}"),
        ]
        db.execute("DELETE FROM META_DATA_EXPORT WHERE name IN ('EXPORT_PRODUCT_VERSION', 'EXPORT_SCHEMA_VERSION')")
        for name, value in options:
            db.execute("INSERT INTO META_DATA_EXPORT VALUES (?, ?)", (name, value.format(secret("version"))))
        for name in ("USER_NAME", "WORKING_DIR", "ARGUMENT_1", "CUDA_GRAPH_TRACE_OPTIONS:MODE", "CAPTURE_EVENT_TYPE"):
            db.execute("INSERT INTO META_DATA_CAPTURE VALUES (?, ?)", (name, secret("option")))
        db.commit()
    return path


def test_no_secret_of_any_table_reaches_profile_output_or_log(cli, capture, tmp_path, caplog):
    profiles = tmp_path / "profiles"
    caplog.set_level(logging.DEBUG)
    said = []
    for words in (
        ("-v", "ingest", capture),
        ("metrics", "report"),
        ("metrics", "report", "--json"),
        ("compare", "report", "report", "--markdown", tmp_path / "out.md"),
        ("report", "report", "report", "-o", tmp_path / "out.html", "--perfetto", tmp_path / "out.json"),
    ):
        found = cli(*words, "--profiles", profiles)
        assert found.exit_code == 0, found.output
        said += [found.stdout, found.stderr.replace(str(capture), "")]
    said += [record.getMessage().replace(str(capture), "") for record in caplog.records]
    said += [(tmp_path / name).read_text() for name in ("out.md", "out.html", "out.json")]
    assert "nvtx_incomplete" in "".join(said), "the diagnostics were read"
    assert "driver_not_supported" in "".join(said)
    for text in said:
        assert "hunter2" not in text
    files = [p for p in profiles.rglob("*") if p.is_file()]
    assert len(files) > 5
    for path in files:
        raw = path.read_bytes()
        assert b"hunter2" not in raw, path
        assert "hunter2" not in str(path.relative_to(profiles)), path


def test_the_profile_also_hides_no_secret_inside_compressed_columns(cli, capture, tmp_path):
    """Parquet is compressed: a search of its bytes alone would prove nothing."""
    profiles = tmp_path / "profiles"
    assert cli("ingest", capture, "--profiles", profiles).exit_code == 0
    seen = 0
    for path in profiles.rglob("*.parquet"):
        table = pq.ParquetFile(path).read()
        assert "hunter2" not in str(table.schema.metadata)
        for column in table.itercolumns():
            for chunk in column.chunks:
                values = chunk.dictionary if hasattr(chunk, "dictionary") else chunk
                seen += len(values)
                assert not any("hunter2" in str(value) for value in values.to_pylist()), path
    assert seen > 1000


def test_a_refusal_tells_no_secret_either(cli, capture, tmp_path):
    if capture.is_dir():
        for file in capture.glob("NVTX_EVENTS.*"):
            file.write_bytes(secret("row").encode() * 40)
    else:
        with closing(sqlite3.connect(capture)) as db:
            db.execute("UPDATE NVTX_EVENTS SET start = ?", (secret("row"),))
            db.commit()
    found = cli("-v", "ingest", capture, "--profiles", tmp_path / "profiles")
    assert found.exit_code == 5
    assert "hunter2" not in found.output.replace(str(capture), "")
