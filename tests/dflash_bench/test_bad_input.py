"""Whatever is given as a capture: one sentence, the right exit code, nothing left behind, and the file untouched."""

from __future__ import annotations

import json
import os
import shutil
import sqlite3
import subprocess
import sys
from contextlib import closing

import pytest
from handmade import Range, mark, write

USAGE, BAD_DATA = 2, 5
MAGIC = b"SQLite format 3\x00"


@pytest.fixture
def place(tmp_path):
    """An empty folder for the captures of a test; profiles go beside it."""
    folder = tmp_path / "in"
    folder.mkdir()
    return folder


@pytest.fixture
def refuse(cli, tmp_path):
    """Ingest through the command line, expecting a refusal: returns its one sentence."""

    def run(path, code):
        before = contents(path)
        found = cli("ingest", path, "--profiles", tmp_path / "profiles")
        assert found.exit_code == code, found.output
        assert contents(path) == before, "captures are never changed, and nothing is left beside them"
        assert left(tmp_path / "profiles") == []
        lines = found.stderr.splitlines()
        assert lines[0].startswith("error: "), found.stderr
        assert len(lines) <= 2, found.stderr
        assert all(line.startswith("try:   ") for line in lines[1:]), found.stderr
        assert found.stdout == ""
        return lines[0].removeprefix("error: ")

    return run


def contents(path):
    """Every file in the folder of a path, byte by byte."""
    return {p: p.read_bytes() for p in sorted(path.parent.iterdir()) if p.is_file()}


def left(folder):
    return sorted(p.name for p in folder.iterdir()) if folder.exists() else []


def unboxed(text):
    """What the command line says of a wrong option, without the box around it and the lines it is broken into."""
    return " ".join(text.replace("│", " ").split())


def step_medians(found):
    assert found.exit_code == 0, found.output
    rows = json.loads(found.stdout)["metrics"]
    return [m["p50"] for m in rows if m["metric"] == "range.decode_step" and m["rank"] == 0]


def whole(place, h200):
    return shutil.copyfile(h200 / "h200x2_nosync_rank0.sqlite", place / "a_rank0.sqlite")


def test_a_path_that_is_not_there_is_a_usage_error(refuse, place):
    assert refuse(place / "nothing.sqlite", USAGE) == f"{place / 'nothing.sqlite'}: no such file or folder"


def test_a_word_that_names_no_profile_lists_those_that_there_are(cli, tmp_path, place):
    write(place / "one.sqlite", [Range("decode_step", 0, 10)])
    cli("ingest", place, "--profiles", tmp_path / "profiles")
    found = cli("metrics", "two", "--profiles", tmp_path / "profiles")
    assert found.exit_code == USAGE
    assert "two: no such profile, file or folder" in found.stderr
    assert "one" in found.stderr


def test_a_folder_without_captures_is_a_usage_error(cli, tmp_path, place):
    (place / "notes.txt").write_text("nothing here")
    found = cli("ingest", place, "--profiles", tmp_path / "profiles")
    assert found.exit_code == USAGE
    assert f"error: {place}: no captures in this folder (.sqlite, .nsys-rep" in found.stderr
    assert "try:   name a capture, or a folder that holds some" in found.stderr


def test_a_profile_is_not_taken_for_a_folder_without_captures(cli, tmp_path, place):
    write(place / "one.sqlite", [Range("decode_step", 0, 10)])
    cli("ingest", place, "--profiles", tmp_path / "profiles")
    profile = tmp_path / "profiles" / "one"
    found = cli("ingest", profile, "--profiles", tmp_path / "profiles")
    assert found.exit_code == USAGE
    assert f"error: {profile} is a profile already, and keeps no captures" in found.stderr
    assert f"try:   dflash-bench metrics {profile}" in found.stderr


def test_an_empty_file(refuse, place):
    path = place / "a.sqlite"
    path.touch()
    assert refuse(path, BAD_DATA) == f"{path}: the file is empty (0 bytes)"


def test_a_git_lfs_pointer(refuse, place):
    path = place / "a.sqlite"
    path.write_text("version https://git-lfs.github.com/spec/v1\noid sha256:0\nsize 548864\n")
    assert refuse(path, BAD_DATA) == f"{path}: a Git LFS pointer, not the capture itself"


@pytest.mark.parametrize(
    ("content", "what"),
    [
        (b"<!DOCTYPE html>\n<html><body>404</body></html>", "an HTML page, as a failed download leaves"),
        (b"\n <html>", "an HTML page, as a failed download leaves"),
        (b'{"message": "not found"}', "JSON text"),
        (b"PK\x03\x04", "a ZIP archive"),
        (b"\x1f\x8b\x08\x00", "gzip data: unpack it first"),
        (b"\x00" * 600, "unknown content"),
        (MAGIC[:10], "unknown content"),
    ],
)
def test_a_file_of_another_kind_is_named_for_what_it_is(refuse, place, content, what):
    path = place / "a.sqlite"
    path.write_bytes(content)
    assert refuse(path, BAD_DATA) == f"{path}: not a SQLite database ({what})"


@pytest.mark.parametrize("size", [50, 4096, 200_000])
def test_a_truncated_file(refuse, place, h200, size):
    path = whole(place, h200)
    path.write_bytes(path.read_bytes()[:size])
    sentence = refuse(path, BAD_DATA)
    assert sentence.startswith(f"{path}: truncated: {size:,} of ")


def test_an_empty_database(refuse, place):
    path = place / "a.sqlite"
    with closing(sqlite3.connect(path)) as db:
        db.execute("CREATE TABLE t (x)")
        db.execute("DROP TABLE t")
        db.commit()
    assert refuse(path, BAD_DATA) == f"{path}: an empty SQLite database, without any table"


def test_a_database_of_something_else(refuse, place):
    path = place / "a.sqlite"
    with closing(sqlite3.connect(path)) as db:
        db.execute("CREATE TABLE users (name TEXT)")
    assert refuse(path, BAD_DATA) == f"{path}: a SQLite database, but no nsys export (its tables: users)"


def test_an_export_without_events_says_what_is_missing(refuse, place):
    path = write(place / "a.sqlite")
    assert "nothing to measure" in refuse(path, BAD_DATA)


@pytest.mark.parametrize("page", [b"\x00", b"\xff"])
def test_a_damaged_page_in_the_middle(refuse, place, h200, page):
    path = whole(place, h200)
    raw = bytearray(path.read_bytes())
    with closing(sqlite3.connect(f"file:{path}?mode=ro&immutable=1", uri=True)) as db:
        (size,) = db.execute("PRAGMA page_size").fetchone()
        (root,) = db.execute("SELECT rootpage FROM sqlite_master WHERE name = 'CUPTI_ACTIVITY_KIND_RUNTIME'").fetchone()
    raw[(root - 1) * size : root * size] = page * size
    path.write_bytes(raw)
    assert refuse(path, BAD_DATA).startswith(f"{path}: damaged: ")


def test_a_damaged_schema(refuse, place, h200):
    path = whole(place, h200)
    raw = bytearray(path.read_bytes())
    raw[100:1000] = b"\x07" * 900
    path.write_bytes(raw)
    assert refuse(path, BAD_DATA).startswith(f"{path}: damaged: ")


@pytest.mark.parametrize(
    ("table", "column", "value"),
    [
        ("NVTX_EVENTS", "start", "soon"),
        ("NVTX_EVENTS", "globalTid", "main"),
        ("CUPTI_ACTIVITY_KIND_RUNTIME", "correlationId", 1.5),
        ("CUPTI_ACTIVITY_KIND_KERNEL", "end", b"\x00"),
    ],
)
@pytest.mark.parametrize("rows", ["all", "the last"])
def test_a_column_of_the_wrong_type(refuse, place, h200, table, column, value, rows):
    path = whole(place, h200)
    path.chmod(0o644)
    where = "" if rows == "all" else f"WHERE rowid = (SELECT MAX(rowid) FROM {table})"
    with closing(sqlite3.connect(path)) as db:
        db.execute(f'UPDATE {table} SET "{column}" = ? {where}', (value,))
        db.commit()
    sentence = refuse(path, BAD_DATA)
    assert sentence.startswith(f"{path}: damaged: ")


@pytest.mark.parametrize("has_index", [True, False])
def test_a_file_with_a_live_write_ahead_log_is_read_with_its_newest_rows(cli, tmp_path, place, has_index):
    path = write(place / "a.sqlite", [Range("decode_step", 0, 10)])
    writer = sqlite3.connect(path)
    writer.execute("PRAGMA journal_mode = WAL")
    writer.execute("UPDATE NVTX_EVENTS SET end = 99 WHERE eventType = 59")
    writer.commit()
    copy = place / "copied"
    copy.mkdir()
    for file in place.glob("a.sqlite*"):
        if has_index or not file.name.endswith("-shm"):
            shutil.copyfile(file, copy / file.name)
    writer.close()
    before = contents(copy / "a.sqlite")
    assert any(p.name.endswith("-wal") for p in before)
    found = cli("metrics", copy / "a.sqlite", "--json", "--profiles", tmp_path / "profiles")
    assert step_medians(found) == [99]
    assert contents(copy / "a.sqlite") == before


def test_a_log_that_changes_makes_another_capture_of_the_file(cli, tmp_path, place):
    path = write(place / "a.sqlite", [Range("decode_step", 0, 10)])
    with closing(sqlite3.connect(path)) as writer:
        writer.execute("PRAGMA journal_mode = WAL")
        for end in (50, 60):
            writer.execute(f"UPDATE NVTX_EVENTS SET end = {end} WHERE eventType = 59")
            writer.commit()
            found = cli("metrics", path, "--json", "--profiles", tmp_path / "profiles")
            assert step_medians(found) == [end]


def test_a_file_in_write_ahead_mode_without_a_log_is_read_in_place(cli, tmp_path, place):
    path = write(place / "a.sqlite", [Range("decode_step", 0, 10)])
    with closing(sqlite3.connect(path)) as writer:
        writer.execute("PRAGMA journal_mode = WAL")
    before = contents(path)
    assert cli("ingest", path, "--profiles", tmp_path / "profiles").exit_code == 0
    assert contents(path) == before


def test_a_rollback_journal_of_a_killed_writer_is_rolled_back_in_the_copy_only(cli, tmp_path, place):
    path = write(place / "a.sqlite", [Range("decode_step", 0, 10)] + [Range("x", k, k + 1) for k in range(5000)])
    writer = sqlite3.connect(path, isolation_level=None)
    writer.execute("PRAGMA cache_size = 1")
    writer.execute("BEGIN")
    writer.execute("UPDATE NVTX_EVENTS SET end = 777 WHERE eventType = 59")
    copy = place / "copied"
    copy.mkdir()
    for file in place.glob("a.sqlite*"):
        shutil.copyfile(file, copy / file.name)
    writer.execute("ROLLBACK")
    writer.close()
    before = contents(copy / "a.sqlite")
    assert any(p.name.endswith("-journal") for p in before)
    found = cli("metrics", copy / "a.sqlite", "--json", "--profiles", tmp_path / "profiles")
    assert step_medians(found) == [10]
    assert contents(copy / "a.sqlite") == before


def test_a_file_in_a_folder_that_cannot_be_written(cli, tmp_path, place, h200):
    path = whole(place, h200)
    path.chmod(0o444)
    place.chmod(0o555)
    try:
        assert cli("ingest", path, "--profiles", tmp_path / "profiles").exit_code == 0
        assert left(place) == ["a_rank0.sqlite"]
    finally:
        place.chmod(0o755)


def test_profiles_that_cannot_be_written_there(cli, tmp_path, place):
    path = write(place / "a.sqlite", [Range("decode_step", 0, 10)])
    (tmp_path / "file").write_text("")
    found = cli("ingest", path, "--profiles", tmp_path / "file" / "profiles")
    assert found.exit_code == BAD_DATA
    assert "could not be written" in found.stderr


@pytest.mark.parametrize("words", [["ingest", "a.sqlite"], ["metrics", "a"], ["run", "--arm", "control", "--dry-run"]])
def test_a_file_for_the_folder_of_profiles_is_a_usage_error(cli, tmp_path, words):
    file = tmp_path / "file"
    file.write_text("")
    found = cli(*words, "--profiles", file)
    assert found.exit_code == USAGE
    assert f"error: {file} is a file, and profiles lie in a folder" in found.stderr
    assert file.read_text() == ""


@pytest.mark.parametrize(
    "words",
    [
        ["compare", "a", "b", "--markdown"],
        ["report", "a", "b", "--perfetto"],
        ["gate", "a", "--junit"],
        ["gate", "a", "--comment"],
        ["calibrate", "a", "-o"],
        ["scrub", "a.sqlite"],
    ],
)
def test_a_folder_for_a_file_to_write_is_refused_before_any_work(cli, place, words):
    found = cli(*words, place)
    assert found.exit_code == USAGE
    assert "is a directory" in unboxed(found.stderr)
    assert found.stdout == ""
    assert left(place) == []


@pytest.mark.parametrize("words", [["baseline", "list"], ["gate", "a"], ["baseline", "save", "a"]])
def test_a_file_for_the_folder_of_baselines_is_a_usage_error(cli, tmp_path, words):
    file = tmp_path / "file"
    file.write_text("")
    found = cli(*words, "--baselines", file)
    assert found.exit_code == USAGE
    assert "is a file" in unboxed(found.stderr)
    assert file.read_text() == ""


@pytest.mark.parametrize(
    ("words", "hint"),
    [
        (["report", "a", "b", "--perfetto-steps", "0:5"], "add --perfetto FILE"),
        (["gate", "a", "--inject", "step.period=0.1"], "add --self-test"),
    ],
)
def test_an_option_that_says_nothing_without_another_is_not_passed_over(cli, tmp_path, words, hint):
    found = cli(*words, "--profiles", tmp_path / "profiles")
    assert found.exit_code == USAGE
    assert f"try:   {hint}" in found.stderr


def test_a_list_of_no_baselines_says_so_and_how_to_make_one(cli, tmp_path):
    folder = tmp_path / "baselines"
    found = cli("baseline", "list", "--baselines", folder)
    assert (found.exit_code, found.stdout) == (0, "")
    assert unboxed(found.stderr) == f"no baselines in {folder}; dflash-bench baseline save RUN… makes one"
    assert json.loads(cli("baseline", "list", "--json", "--baselines", folder).stdout) == []
    assert not folder.exists()


def test_scrub_wants_one_file_that_is_there(cli, place, tmp_path):
    for source, sentence in (
        (place, "is a folder, and captures are scrubbed one by one"),
        (place / "x", "no such file"),
    ):
        found = cli("scrub", source, tmp_path / "out.sqlite")
        assert found.exit_code == USAGE
        assert sentence in found.stderr
        assert "try:   " in found.stderr
    assert left(tmp_path) == ["in"]


# ── options ─────────────────────────────────────────────────────────────────────────────────────────────────────────


@pytest.mark.parametrize(
    ("pattern", "sentence"),
    [
        ("rank(", "--rank-pattern 'rank(' is no regular expression"),
        (r"rank\d+", r"--rank-pattern 'rank\d+' captures no rank"),
        (r"(\w+)_rank", "--rank-pattern found 'a' in 'a_rank0', which is no rank number"),
    ],
)
def test_a_bad_rank_pattern_is_a_usage_error(cli, tmp_path, place, pattern, sentence):
    path = write(place / "a_rank0.sqlite", [Range("decode_step", 0, 10)])
    found = cli("metrics", path, "--rank-pattern", pattern, "--profiles", tmp_path / "profiles")
    assert found.exit_code == USAGE
    assert sentence in found.stderr
    assert left(tmp_path / "profiles") == []


def test_a_bad_step_range_is_a_usage_error(cli, tmp_path, place):
    path = write(place / "a.sqlite", [Range("decode_step", 0, 10)])
    found = cli("metrics", path, "--step-range", "re:step[", "--profiles", tmp_path / "profiles")
    assert found.exit_code == USAGE
    assert "--step-range 're:step[' is no regular expression" in found.stderr


@pytest.mark.parametrize("run", ["", ".hidden", "a/b", "x" * 300])
def test_a_run_name_that_is_no_folder_name_is_a_usage_error(cli, tmp_path, place, run):
    path = write(place / "a.sqlite", [Range("decode_step", 0, 10)])
    found = cli("ingest", path, "--run", run, "--profiles", tmp_path / "profiles")
    assert found.exit_code == USAGE
    assert "cannot name a run" in found.stderr


def test_two_captures_of_one_rank_are_not_one_run(cli, tmp_path, place):
    for k in range(2):
        write(place / f"{k}.sqlite", [mark(0, 2), Range("decode_step", 0, 10 + k)])
    found = cli("ingest", place, "--run", "both", "--profiles", tmp_path / "profiles")
    assert found.exit_code == BAD_DATA
    assert "0.sqlite and 1.sqlite both hold rank 0" in found.stderr
    assert left(tmp_path / "profiles") == []


# ── profiles ────────────────────────────────────────────────────────────────────────────────────────────────────────


@pytest.fixture
def profile(cli, tmp_path, place):
    path = write(place / "a.sqlite", [mark(0, 1), Range("decode_step", 0, 10), Range("decode_step", 20, 30)])
    assert cli("ingest", path, "--run", "a", "--profiles", tmp_path / "profiles").exit_code == 0
    return tmp_path / "profiles" / "a"


def refused(cli, profile):
    found = cli("metrics", profile)
    assert found.exit_code == BAD_DATA, found.output
    assert found.stdout == ""
    return found.stderr


def test_a_profile_of_another_format_version(cli, profile):
    run = profile / "run.json"
    run.write_text(run.read_text().replace('"format_version": 2', '"format_version": 99'))
    assert f"{run} has profile format 99; this version reads 1 to 2" in refused(cli, profile)


def test_a_table_that_is_gone_is_not_taken_for_one_without_rows(cli, profile):
    (ranges,) = (profile / "ranges").rglob("*.parquet")
    ranges.unlink()
    assert f"{ranges} is missing: run.json counts 2 rows in it" in refused(cli, profile)


@pytest.mark.parametrize("content", ["[]", "{}", '{"name": "something else"}'])
def test_a_run_file_that_is_not_of_a_profile(cli, profile, content):
    run = profile / "run.json"
    run.write_text(content)
    assert f"{run} is not of a profile: it states no format" in refused(cli, profile)


@pytest.mark.parametrize("content", ["", "{", "[]", "null", '{"format_version": 1}', "\x00"])
def test_a_damaged_run_file(cli, profile, content):
    (profile / "run.json").write_text(content)
    assert str(profile / "run.json") in refused(cli, profile)


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("processes", None),
        ("processes", [{}]),
        ("captures", 7),
        ("findings", [1]),
        ("devices", None),
        ("counters", 3),
        ("counters", {"0": {"retracted": "many"}}),
        ("settings", []),
        ("created_utc", 5),
    ],
)
def test_a_run_file_with_a_field_of_the_wrong_shape(cli, profile, field, value):
    run = profile / "run.json"
    run.write_text(json.dumps(json.loads(run.read_text()) | {field: value}))
    assert f"{run} is damaged" in refused(cli, profile)


@pytest.mark.parametrize("keep", [0, 100, -20])
def test_a_damaged_parquet_file(cli, profile, keep):
    (part,) = profile.glob("ranges/*/*.parquet")
    part.write_bytes(part.read_bytes()[:keep])
    assert f"{part}: cannot be read as Parquet" in refused(cli, profile)


def test_a_parquet_file_of_another_layout(cli, profile):
    (ranges,) = profile.glob("ranges/*/*.parquet")
    (marks,) = profile.glob("marks/*/*.parquet")
    shutil.copyfile(marks, ranges)
    assert f"{ranges}: columns differ from profile format 2" in refused(cli, profile)


def test_a_damaged_profile_is_named_and_left_out_of_the_list(cli, profile, caplog):
    (profile / "run.json").write_text("{")
    found = cli("compare", "--profiles", profile.parent)
    assert found.exit_code == USAGE
    assert "holds no two arms" in found.stderr
    assert any(str(profile / "run.json") in record.getMessage() for record in caplog.records)


# ── pipes ───────────────────────────────────────────────────────────────────────────────────────────────────────────


@pytest.mark.parametrize("words", [["--json"], []])
def test_a_reader_that_has_seen_enough_is_no_error(profile, words):
    """``dflash-bench metrics … | head -1``: no traceback, and not the exit code of a crash."""
    command = [sys.executable, "-m", "dflash_bench", "metrics", str(profile), *words]
    shell = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    shell.stdout.close()
    _, complaint = shell.communicate(timeout=60)
    assert complaint == ""
    assert shell.returncode == 0


def test_a_terminal_that_knows_ascii_only_is_no_crash(profile):
    command = [sys.executable, "-m", "dflash_bench", "metrics", str(profile)]
    done = subprocess.run(
        command, capture_output=True, text=True, check=False, env={**os.environ, "PYTHONIOENCODING": "ascii"}
    )
    assert (done.returncode, done.stderr) == (0, "")
    assert "\\xb5s" in done.stdout, "µs, spelled out"
