"""Ingest through the command line: whole or not there, the same twice, and the rank from the best source there is."""

from __future__ import annotations

import json
import os
import shutil
import signal
import sqlite3
import subprocess
import sys
import time
from contextlib import closing
from dataclasses import replace
from pathlib import Path

import pyarrow.parquet as pq
import pytest
from handmade import Call, Range, Work, mark, write

from dflash_bench.errors import ExitCode, UsageError
from dflash_bench.ingest.build import build_profile
from dflash_bench.ingest.nsys.source import open_export
from dflash_bench.ingest.sources import IngestOptions, ingest
from dflash_bench.profile import open_profile

RANK_0 = "h200x2_nosync_rank0.sqlite"
STEPS = [Range("decode_step", k * 100, k * 100 + 90) for k in range(5)]


@pytest.fixture
def profiles(tmp_path):
    return tmp_path / "profiles"


@pytest.fixture
def run(cli, profiles):
    """A command with the profiles folder of this test; expects exit code 0 and returns what it said."""

    def go(*words):
        found = cli(*words, "--profiles", profiles)
        assert found.exit_code == 0, found.output
        return found

    return go


def snapshot(folder):
    """Every file of a folder with its bytes and the time of its last change."""
    return {p: (p.read_bytes(), p.stat().st_mtime_ns) for p in folder.rglob("*") if p.is_file()}


def names(folder):
    return sorted(p.name for p in folder.iterdir()) if folder.exists() else []


def start(*words):
    return subprocess.Popen(
        [sys.executable, "-m", "dflash_bench", *map(str, words)],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )


# ── twice, and two at once ──────────────────────────────────────────────────────────────────────────────────────────


@pytest.mark.parametrize("words", [[], ["--run", "mine"], ["--arm", "sync", "--workload", "w"]])
def test_the_same_ingest_twice_changes_nothing(run, profiles, h200, words):
    first = run("ingest", h200 / RANK_0, *words)
    before = snapshot(profiles)
    second = run("ingest", h200 / RANK_0, *words)
    assert snapshot(profiles) == before
    assert second.stdout == first.stdout


def test_a_folder_and_its_files_one_by_one_are_the_same_captures(run, profiles, h200):
    run("ingest", h200)
    before = snapshot(profiles)
    run("metrics", *sorted(h200.glob("*_sync_*")), "--json")
    assert snapshot(profiles) == before


def test_metrics_keeps_what_it_ingested_on_the_way(run, profiles, h200):
    run("metrics", h200 / RANK_0, "--json")
    before = snapshot(profiles)
    assert names(profiles) == ["h200x2_nosync"]
    run("metrics", h200 / RANK_0, "--json")
    run("metrics", "h200x2_nosync", "--json")
    assert snapshot(profiles) == before


def test_two_at_once_give_one_whole_profile(profiles, h200, cli):
    both = [start("ingest", h200 / RANK_0, "--profiles", profiles) for _ in range(2)]
    said = [p.communicate(timeout=120) for p in both]
    assert [p.returncode for p in both] == [0, 0], said
    assert said[0][0] == said[1][0]
    assert names(profiles) == ["h200x2_nosync"]
    assert cli("metrics", profiles / "h200x2_nosync").exit_code == 0


def test_of_two_writers_of_one_name_the_later_finds_the_first_ones_profile(tmp_path, profiles, monkeypatch):
    """The race itself, made certain: the other writer publishes just before this one renames."""
    export = open_export(write(tmp_path / "a.sqlite", STEPS))
    options = IngestOptions(profiles=profiles)
    rename = Path.rename

    def late(self, target):
        if self.name.endswith(".partial") and not getattr(late, "is_done", False):
            late.is_done = True
            build_profile([export], "a", options)
        return rename(self, target)

    monkeypatch.setattr(Path, "rename", late)
    profile = build_profile([export], "a", options)
    assert profile.info.run == "a"
    assert names(profiles) == ["a"]


# ── names ───────────────────────────────────────────────────────────────────────────────────────────────────────────


def test_a_taken_name_is_refused_and_the_old_profile_stays(cli, run, profiles, h200):
    run("ingest", h200 / RANK_0, "--run", "x")
    before = snapshot(profiles)
    found = cli("ingest", h200 / "h200x2_sync_rank0.sqlite", "--run", "x", "--profiles", profiles)
    assert found.exit_code == 2
    assert "already holds another run" in found.stderr
    assert "--replace" in found.stderr
    assert snapshot(profiles) == before


def test_replace_puts_the_new_run_in_the_old_ones_place(run, profiles, h200):
    run("ingest", h200 / RANK_0, "--run", "x")
    run("ingest", h200 / "h200x2_sync_rank0.sqlite", "--run", "x", "--replace")
    assert names(profiles) == ["x"]
    assert json.loads((profiles / "x" / "run.json").read_text())["arm"] == "sync"


def test_a_name_that_is_no_profile_is_never_replaced(cli, profiles, tmp_path):
    (profiles / "x").mkdir(parents=True)
    (profiles / "x" / "thesis.txt").write_text("mine")
    path = write(tmp_path / "a.sqlite", STEPS)
    for words in ([], ["--replace"]):
        found = cli("ingest", path, "--run", "x", *words, "--profiles", profiles)
        assert found.exit_code == 2, found.output
        assert "is not a profile" in found.stderr
        assert (profiles / "x" / "thesis.txt").read_text() == "mine"
    assert names(profiles) == ["x"]


def test_runs_whose_files_are_called_the_same_are_told_apart_by_their_folders(run, profiles, tmp_path):
    for folder, end in (("monday", 10), ("tuesday", 20)):
        (tmp_path / folder).mkdir()
        write(tmp_path / folder / "report1.sqlite", [Range("decode_step", 0, end)])
    run("ingest", tmp_path / "monday", tmp_path / "tuesday")
    assert names(profiles) == ["monday-report1", "tuesday-report1"]


def test_runs_whose_folders_are_called_the_same_too_are_numbered(run, profiles, tmp_path):
    """Two hosts' folders of one layout: the second run must not be refused because the first took its name."""
    for host, end in (("a", 10), ("b", 20)):
        (tmp_path / host / "captures").mkdir(parents=True)
        write(tmp_path / host / "captures/report1.sqlite", [Range("decode_step", 0, end)])
    run("ingest", tmp_path / "a", tmp_path / "b")
    assert names(profiles) == ["captures-report1", "captures-report1-2"]


@pytest.mark.parametrize("letter", ["x", "ü"])
def test_the_number_of_a_run_with_a_long_name_stays_within_what_a_name_may_have(run, profiles, tmp_path, letter):
    long = letter * (200 // len(letter.encode()))
    for host, end in (("a", 10), ("b", 20)):
        (tmp_path / host / long).mkdir(parents=True)
        write(tmp_path / host / long / "report1.sqlite", [Range("decode_step", 0, end)])
    run("ingest", tmp_path / "a", tmp_path / "b")
    assert len(names(profiles)) == 2
    assert all(len(name.encode()) <= 200 for name in names(profiles))


def test_captures_that_profiles_keep_are_not_found_in_a_folder_around_them(run, profiles, tmp_path):
    """``dflash-bench ingest .`` beside ``profiles/``: what is ingested already is no new capture."""
    raw = tmp_path / "raw"
    raw.mkdir()
    export = open_export(write(raw / "kept.sqlite", [mark(0, 1), *STEPS]))
    build_profile([export], "old", IngestOptions(profiles=profiles, captures=raw))
    write(tmp_path / "new.sqlite", [mark(0, 1, "other"), *STEPS])
    run("ingest", tmp_path)
    assert names(profiles) == ["new", "old"]
    assert "old" in run("metrics", profiles / "old" / "captures").stdout


def test_one_file_named_twice_is_one_file(run, profiles, tmp_path):
    path = write(tmp_path / "a.sqlite", STEPS)
    (tmp_path / "link.sqlite").symlink_to(path)
    run("ingest", path, tmp_path, tmp_path / "link.sqlite")
    assert names(profiles) == ["a"]


def test_metrics_gives_a_capture_whose_name_is_taken_another_one(run, profiles, tmp_path):
    path = write(tmp_path / "a.sqlite", STEPS)
    run("metrics", path, "--json")
    path.unlink()
    write(path, [*STEPS, Range("more", 1, 2)])
    assert "range.more" in run("metrics", path, "--json").stdout
    first, second = names(profiles)
    assert (first, second[:2]) == ("a", "a-")


# ── ranks ───────────────────────────────────────────────────────────────────────────────────────────────────────────


def test_the_rank_comes_from_the_mark_whatever_the_file_is_called(run, tmp_path):
    path = write(tmp_path / "x_rank7.sqlite", [mark(3, 4, "topup"), *STEPS])
    said = run("ingest", path).stdout
    assert "arm topup" in said
    assert "1 of 4 ranks, read from the mark" in said
    assert "rank 3: 5 ranges" in said
    assert "no capture of rank 0, 1, 2 (world 4) [rank_missing]" in said


def test_without_a_mark_the_rank_comes_from_the_file_name(run, tmp_path):
    for k in (0, 1, 11):
        write(tmp_path / f"x.rank{k}.sqlite", STEPS)
    said = run("ingest", tmp_path, "--run", "x").stdout
    assert "3 ranks, read from the file name" in said
    assert [line.split()[1] for line in said.splitlines() if "ranges," in line] == ["0", "1", "11"]


def test_a_pattern_reads_the_rank_of_other_file_names(run, tmp_path):
    for k in (2, 5):
        write(tmp_path / f"gpu{k}-node.sqlite", STEPS)
    said = run("ingest", tmp_path, "--run", "x", "--rank-pattern", r"gpu(\d+)").stdout
    assert "rank 2 (file name, gpu2-node.sqlite): 5 ranges" in said
    assert "rank 5 (file name, gpu5-node.sqlite): 5 ranges" in said


def test_without_either_the_rank_is_the_order_of_processes_that_did_something(run, tmp_path):
    launcher = [Call("cudaGetDeviceCount", 0, 5, id=1, pid=10, tid=10)]
    ranks = [Range("decode_step", 0, 90, pid=pid, tid=pid) for pid in (30, 20)]
    said = run("ingest", write(tmp_path / "all.sqlite", ranks, launcher)).stdout
    assert "2 ranks, read from the process order" in said
    assert "1 process has no rank" in said
    info = json.loads((tmp_path / "profiles" / "all" / "run.json").read_text())
    assert {p["pid"]: p["rank"] for p in info["processes"]} == {10: None, 20: 0, 30: 1}


def test_with_marks_a_process_without_one_is_no_rank(run, tmp_path):
    rows = [mark(0, 1, pid=20), Range("decode_step", 0, 9, pid=20), Range("import", 0, 9, pid=10, tid=10)]
    said = run("ingest", write(tmp_path / "a.sqlite", rows)).stdout
    assert "no rank: 1 ranges" in said
    assert "process 10 holds 1 ranges (import) and is no rank" in said


def merged(path, parts):
    """Two files of one rank each as one file of both: rows appended, string ids mapped to those of the first file."""
    shutil.copyfile(parts[0], path)
    path.chmod(0o644)
    columns = {"NVTX_EVENTS": ("textId", "jsonTextId")}
    columns |= {f"CUPTI_ACTIVITY_KIND_{t}": () for t in ("MEMCPY", "MEMSET", "GRAPH_TRACE", "SYNCHRONIZATION")}
    columns |= {"CUPTI_ACTIVITY_KIND_KERNEL": ("demangledName", "shortName", "mangledName")}
    columns |= {"CUPTI_ACTIVITY_KIND_RUNTIME": ("nameId",), "PROFILER_OVERHEAD": ("nameId",)}
    with closing(sqlite3.connect(path)) as db:
        db.execute("ATTACH ? AS other", (f"file:{parts[1]}?mode=ro&immutable=1",))
        known = {value: key for key, value in db.execute("SELECT id, value FROM main.StringIds")}
        place, free = {None: None}, max(known.values()) + 1
        for key, value in db.execute("SELECT id, value FROM other.StringIds").fetchall():
            if value not in known:
                known[value], free = free, free + 1
                db.execute("INSERT INTO main.StringIds VALUES (?, ?)", (known[value], value))
            place[key] = known[value]
        for table, ids in columns.items():
            names = [row[1] for row in db.execute(f"PRAGMA other.table_info({table})")]
            rows = db.execute(f"SELECT * FROM other.{table}").fetchall()
            rows = [[place[v] if n in ids else v for n, v in zip(names, row, strict=True)] for row in rows]
            marks = ", ".join("?" * len(names))
            db.executemany(f"INSERT INTO main.{table} ({', '.join(names)}) VALUES ({marks})", rows)
        db.commit()
    return path


def comparable(document):
    """Figures by (rank, metric), without what must differ: the run's name, and clocks that one file makes one."""
    kept = {}
    for row in document["metrics"]:
        if not row["metric"].startswith(("dp.", "clock.")):
            kept[row["rank"], row["metric"]] = {k: v for k, v in row.items() if k != "run"}
    tables = {
        name: [{k: v for k, v in row.items() if k != "run"} for row in rows]
        for name, rows in document["tables"].items()
        if not name.startswith("dp.")
    }
    return kept, tables


def test_one_file_with_all_ranks_gives_the_metrics_of_one_file_per_rank(run, tmp_path, h200):
    parts = [h200 / f"h200x2_nosync_rank{k}.sqlite" for k in (0, 1)]
    both = merged(tmp_path / "both.sqlite", parts)
    apart = json.loads(run("metrics", *parts, "--json").stdout)
    together = json.loads(run("metrics", both, "--json").stdout)
    assert [r["ranks"] for r in together["runs"]] == [[0, 1]]
    (figures, tables), (apart_figures, apart_tables) = comparable(together), comparable(apart)
    assert figures == apart_figures
    assert tables == apart_tables
    clocks = [m["value"] for m in together["metrics"] if m["metric"] == "clock.offset"]
    assert clocks == [0.0, 0.0], "one file has one clock"


# ── interrupted, killed, full ───────────────────────────────────────────────────────────────────────────────────────


@pytest.fixture
def slow(tmp_path):
    """A capture that takes long enough to read that it can be interrupted: 150,000 ranges."""
    path = write(tmp_path / "slow.sqlite", STEPS)
    with closing(sqlite3.connect(path)) as db:
        db.execute(
            "INSERT INTO NVTX_EVENTS SELECT start + 1000 * value, end + 1000 * value, eventType, text || (value % 50),"
            " globalTid, textId, domainId FROM NVTX_EVENTS, (WITH RECURSIVE n(value) AS"
            " (SELECT 1 UNION ALL SELECT value + 1 FROM n LIMIT 30000) SELECT value FROM n) WHERE eventType = 59"
        )
        db.commit()
    return path


def wait_for_partial(profiles, process):
    deadline = time.monotonic() + 60
    while process.poll() is None and time.monotonic() < deadline:
        if any(p.name.endswith(".partial") for p in profiles.glob(".*")):
            return
        time.sleep(0.005)
    raise AssertionError(f"the ingest ended before it could be met in the middle: {process.communicate()}")


def test_ctrl_c_leaves_nothing_and_exits_130(slow, profiles):
    process = start("ingest", slow, "--profiles", profiles)
    wait_for_partial(profiles, process)
    process.send_signal(signal.SIGINT)
    said, complaint = process.communicate(timeout=60)
    assert (process.returncode, said, complaint) == (130, "", "interrupted\n")
    assert names(profiles) == []


def test_a_killed_ingest_leaves_no_profile_and_does_not_disturb_the_next(slow, profiles, cli):
    process = start("ingest", slow, "--profiles", profiles)
    wait_for_partial(profiles, process)
    process.kill()
    process.communicate()
    assert not (profiles / "slow").exists()
    found = cli("metrics", "slow", "--profiles", profiles)
    assert found.exit_code == 2, "what a killed ingest left is no profile"
    with closing(sqlite3.connect(slow)) as db:
        db.execute("DELETE FROM NVTX_EVENTS WHERE rowid > 10")
        db.commit()
    assert cli("ingest", slow, "--profiles", profiles).exit_code == 0
    assert "slow" in names(profiles)


def test_captures_that_move_with_a_profile_come_back_when_it_cannot_be_published(tmp_path, profiles):
    """The raw captures of a run are the one thing that nobody can make again."""
    captures = tmp_path / "raw"
    captures.mkdir()
    path = write(captures / "a.sqlite", STEPS)
    export = open_export(path)
    (profiles / "a").mkdir(parents=True)
    (profiles / "a" / "other").write_text("")
    with pytest.raises(UsageError):
        build_profile([export], "a", IngestOptions(profiles=profiles, captures=captures))
    assert names(captures) == ["a.sqlite"]
    profile = build_profile([export], "b", IngestOptions(profiles=profiles, captures=captures))
    assert names(profile.path / "captures") == ["a.sqlite"]
    assert not captures.exists()


def test_a_rename_that_fails_gives_the_captures_back(tmp_path, profiles, monkeypatch):
    captures = tmp_path / "raw"
    captures.mkdir()
    export = open_export(write(captures / "a.sqlite", STEPS))
    rename = Path.rename

    def taken(self, target):
        if self.name.endswith(".partial"):
            write_other(target)
        return rename(self, target)

    def write_other(target):
        target.mkdir()
        (target / "run.json").write_text("{}")

    monkeypatch.setattr(Path, "rename", taken)
    with pytest.raises(Exception, match=r"run\.json"):
        build_profile([export], "a", IngestOptions(profiles=profiles, captures=captures))
    assert names(captures) == ["a.sqlite"]


# ── what the rows become ────────────────────────────────────────────────────────────────────────────────────────────


def test_rows_that_are_no_events_are_counted_and_named(run, tmp_path):
    calls = [
        Call("cudaLaunchKernel", 10, 20, id=1),
        Call("cudaLaunchKernel", 10, 20, id=1, event_class=67),
        Call("cudaLaunchKernel", 30, 20, id=2),
    ]
    work = [Work(30, 40, id=1), Work(0, 0, id=2), Work(50, 40, id=3)]
    path = write(tmp_path / "a.sqlite", [*STEPS, Range("late", 50, 40), Range("open", 3, None)], calls, work)
    found = json.loads(run("metrics", path, "--json").stdout)
    codes = {w["code"]: w["count"] for w in found["warnings"]}
    assert codes["range_ends_before_start"] == 1
    assert codes["api_row_is_backtrace"] == 1
    assert codes["api_call_ends_before_start"] == 1
    assert codes["gpu_work_without_time"] == 1
    assert codes["gpu_work_ends_before_start"] == 1
    figures = {m["metric"]: m for m in found["metrics"] if m["rank"] == 0}
    assert figures["coverage.open_ranges"]["value"] == 1
    assert figures["gpu_work_without_launch"]["n"] == 1
    assert "range.late" not in figures
    assert "range.open" not in figures


def test_a_range_takes_its_own_text_or_its_registered_string_or_is_unnamed(run, tmp_path):
    rows = [
        Range("plain", 0, 1),
        Range("registered", 2, 3, is_registered=True),
        Range("start-end", 4, 5, kind=60),
        Range(None, 6, 7),
        Range("from nvtxt", 8, 9, kind=70),
        Range("default domain", 8, 9, domain=""),
    ]
    found = json.loads(run("metrics", write(tmp_path / "a.sqlite", rows), "--json").stdout)
    ranges = {m["metric"].removeprefix("range.") for m in found["metrics"] if m["metric"].startswith("range.")}
    assert ranges == {"plain", "registered", "start-end", "(unnamed)", "from nvtxt", "default domain"}


def test_registered_strings_and_own_texts_are_told_apart_whatever_their_ids_are(run, tmp_path):
    # by letters: names that differ in numbers are one name
    keys = (-1, -2, -3, -(2**63) + 1, 2**63 - 1)
    registered = {key: f"registered {letter}" for key, letter in zip(keys, "abcde", strict=True)}
    path = write(
        tmp_path / "a.sqlite", [Range("own", 0, 1), Range("other", 2, 3), Range("x", 4, 5, is_registered=True)]
    )
    with closing(sqlite3.connect(path)) as db:
        for key, name in registered.items():
            db.execute("INSERT INTO StringIds VALUES (?, ?)", (key, name))
            db.execute(
                "INSERT INTO NVTX_EVENTS (start, end, eventType, globalTid, textId, domainId)"
                " SELECT start + 10, end + 10, eventType, globalTid, ?, domainId FROM NVTX_EVENTS WHERE text = 'own'",
                (key,),
            )
        db.commit()
    found = json.loads(run("metrics", path, "--json").stdout)
    ranges = {m["metric"].removeprefix("range.") for m in found["metrics"] if m["metric"].startswith("range.")}
    assert ranges == {"own", "other", "x", *registered.values()}


def test_more_processes_than_a_run_can_have_are_one_sentence_that_names_the_file(cli, tmp_path, profiles):
    """Each process gets files of its own: so many that the system would refuse to open them."""
    path = write(tmp_path / "a.sqlite", [Range("decode_step", 0, 90, pid=pid, tid=pid) for pid in range(1, 1200)])
    found = cli("ingest", path, "--profiles", profiles)
    assert found.exit_code == 5
    assert "a.sqlite: holds rows of more than 900 processes" in found.stderr
    assert names(profiles) == []


def test_negative_times_are_normal(run, tmp_path):
    path = write(tmp_path / "a.sqlite", [Range("decode_step", -10_900, -100), Range("decode_step", -90, 10)])
    found = json.loads(run("metrics", path, "--json").stdout)
    assert {m["p50"] for m in found["metrics"] if m["metric"] == "step.period"} == {10_810}


def test_the_frame_of_a_table_holds_all_ranks(tmp_path, h200, profiles):
    (profile,) = ingest([h200 / f"h200x2_nosync_rank{k}.sqlite" for k in (0, 1)], IngestOptions(profiles, run="x"))
    frame = profile.frame("ranges")
    assert set(frame["rank"]) == {0, 1}
    assert (frame["name"] == "decode_step").sum() == 400
    with closing(sqlite3.connect(f"file:{h200 / RANK_0}?mode=ro&immutable=1", uri=True)) as db:
        (n,) = db.execute("SELECT COUNT(*) FROM NVTX_EVENTS WHERE eventType IN (59, 60)").fetchone()
    assert (frame["rank"] == 0).sum() == n


def test_partitions_can_be_read_as_they_are(h200, profiles):
    """``pandas.read_parquet("profiles/x/ranges")``: the folders are Hive partitions."""
    import pandas as pd

    (profile,) = ingest([h200 / RANK_0], IngestOptions(profiles))
    frame = pd.read_parquet(profile.path / "ranges")
    assert set(frame["rank"].astype(int)) == {0}
    assert os.listdir(profile.path / "ranges") == ["rank=0"]  # noqa: PTH208


def test_the_code_behind_a_call_comes_from_its_call_chain(tmp_path):
    """As nsys 2022 writes it: the chain stands in a backtrace row of the call's id, CUDA's own frames on top of it."""
    path = write(tmp_path / "a.sqlite", STEPS, [Call("cudaStreamSynchronize", 10, 20, 5)])
    with closing(sqlite3.connect(path)) as db, db:
        names = ["0x7fd9", "libcupti.so.11.7", "cudaSync", "/usr/lib/libcudart.so.12", "fill", "/home/ada/a.so"]
        db.executemany("INSERT INTO StringIds VALUES (?, ?)", [(90 + k, name) for k, name in enumerate(names)])
        db.execute("ALTER TABLE CUPTI_ACTIVITY_KIND_RUNTIME ADD COLUMN callchainId INTEGER")
        db.execute("CREATE TABLE CUDA_CALLCHAINS (id INTEGER, symbol INTEGER, module INTEGER, stackDepth INTEGER)")
        frames = [(3, 90, 91, 0), (3, 92, 93, 1), (3, 94, 95, 2), (3, 94, 95, 3)]
        db.executemany("INSERT INTO CUDA_CALLCHAINS VALUES (?, ?, ?, ?)", frames)
        db.execute(
            "INSERT INTO CUPTI_ACTIVITY_KIND_RUNTIME SELECT start, end, 67, globalTid, correlationId, nameId, 0, 3"
            " FROM CUPTI_ACTIVITY_KIND_RUNTIME"
        )
    (profile,) = ingest([path], IngestOptions(profiles=tmp_path / "profiles"))
    stacks, calls = profile.frame("stacks"), profile.frame("api_calls")
    assert stacks[["correlation_id", "frames"]].to_numpy().tolist() == [[5, "fill (a.so) < fill (a.so)"]]
    assert calls[["name", "return_value"]].to_numpy().tolist() == [["cudaStreamSynchronize", 0]]


def test_a_profile_of_the_first_format_is_read(tmp_path, h200, profiles):
    """Columns that came later are null in it, and nothing else differs."""
    (profile,) = ingest([h200 / "h200x2_sync_rank0.sqlite"], IngestOptions(profiles, run="x"))
    new = profile.frame("api_calls")
    for file in profile.path.glob("api_calls/*/*.parquet"):
        pq.write_table(pq.ParquetFile(file).read().drop_columns(["return_value"]), file)
    run = json.loads((profile.path / "run.json").read_text())
    run["format_version"] = 1
    del run["arms"]
    for each in run["processes"]:
        del each["group"], each["role"]
    for each in run["captures"]:
        del each["file"]
    (profile.path / "run.json").write_text(json.dumps(run))
    old = open_profile(profile.path)
    assert old.info == replace(profile.info, captures=tuple(replace(c, file=None) for c in profile.info.captures))
    found = old.frame("api_calls")
    assert found.return_value.isna().all()
    assert found.drop(columns="return_value").equals(new.drop(columns="return_value"))


def test_one_bad_file_does_not_stop_the_others(tmp_path, cli):
    """What was read is kept and told, what was not is told with its reason, and the exit code is that of bad data."""
    for run in ("a", "b"):
        (tmp_path / "in" / run).mkdir(parents=True)
        for rank in (0, 1):
            write(tmp_path / "in" / run / f"rank{rank}.sqlite", STEPS)
    (tmp_path / "in" / "b" / "rank1.sqlite").write_bytes(b"<html>not found</html>")
    found = cli("ingest", tmp_path / "in", "--profiles", tmp_path / "p")
    assert found.exit_code == ExitCode.BAD_DATA
    assert "rank1.sqlite: not a SQLite database (an HTML page, as a failed download leaves)" in found.stderr
    assert "read and kept: a, b" in found.stderr
    assert (tmp_path / "p" / "a" / "run.json").exists()
    assert "1 of the captures beside these could not be read (rank1.sqlite)" in found.stdout
    assert [path.name for path in (tmp_path / "p").iterdir() if path.name.startswith(".")] == []


def test_a_run_that_cannot_be_made_does_not_stop_the_others(tmp_path, cli):
    """A capture that opens and is damaged further in."""
    for run in ("a", "b"):
        (tmp_path / "in" / run).mkdir(parents=True)
        write(tmp_path / "in" / run / "rank0.sqlite", STEPS)
    with closing(sqlite3.connect(tmp_path / "in" / "b" / "rank0.sqlite")) as db, db:
        db.execute("UPDATE NVTX_EVENTS SET start = 'x'")
    found = cli("ingest", tmp_path / "in", "--profiles", tmp_path / "p")
    assert found.exit_code == ExitCode.BAD_DATA
    assert "in/b/rank0.sqlite: damaged: column start holds" in found.stderr
    assert "read and kept: a" in found.stderr
    assert sorted(path.name for path in (tmp_path / "p").iterdir()) == ["a"]
