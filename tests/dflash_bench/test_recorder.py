"""The built-in recorder: what is emitted arrives, paired and in nsys' own layout."""

from __future__ import annotations

import os
import signal
import sqlite3
import subprocess
import sys
import threading
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from stored_texts import stored_words

from dflash_bench import __version__
from dflash_bench.capture.recorder import FOLDER_VARIABLE, ORIGIN_VARIABLE, EventRecorder, Origin, sink
from dflash_bench.capture.tables import EXPORT_COLUMNS, ExportTable
from dflash_bench.errors import CaptureError, DataError


class FakeClock:
    """A clock that moves only when told, and by 1 ns at each reading."""

    def __init__(self, start: int = 1_000) -> None:
        self.now = start

    def __call__(self) -> int:
        self.now += 1
        return self.now


def make(path: Path, start: int = 1_000) -> tuple[EventRecorder, FakeClock]:
    clock = FakeClock(start)
    return EventRecorder(path, origin=Origin(clock_ns=start, utc_ns=1_700_000_000_123_456_789), clock=clock), clock


def rows(path: Path, query: str) -> list[tuple[Any, ...]]:
    database = sqlite3.connect(f"file:{path}?mode=ro", uri=True)
    try:
        return database.execute(query).fetchall()
    finally:
        database.close()


RANGES = (
    'SELECT s.value, n.start, n."end", n.globalTid FROM NVTX_EVENTS n JOIN StringIds s ON s.id = n.textId '
    "WHERE n.eventType = 59 ORDER BY n.start"
)


def test_nested_ranges_are_paired_and_times_count_from_the_session_start(tmp_path: Path) -> None:
    recorder, clock = make(tmp_path / "rank0.sqlite")
    recorder.push("decode_step")  # 1
    clock.now += 10
    recorder.push("fill")  # 12
    recorder.pop()  # 13
    clock.now += 10
    recorder.pop()  # 24
    recorder.close()
    assert [r[:3] for r in rows(recorder.path, RANGES)] == [("decode_step", 1, 24), ("fill", 12, 13)]


def test_a_range_open_at_the_end_has_no_end(tmp_path: Path) -> None:
    recorder, _ = make(tmp_path / "rank0.sqlite")
    recorder.push("decode_step")
    recorder.push("draft")
    recorder.pop()
    recorder.close()
    assert [r[:3] for r in rows(recorder.path, RANGES)] == [("decode_step", 1, None), ("draft", 2, 3)]


def test_a_pop_without_a_push_changes_nothing(tmp_path: Path) -> None:
    recorder, _ = make(tmp_path / "rank0.sqlite")
    recorder.pop()
    recorder.push("a")
    recorder.pop()
    recorder.pop()
    recorder.close()
    assert [r[:3] for r in rows(recorder.path, RANGES)] == [("a", 2, 3)]


def test_ranges_of_two_threads_do_not_close_each_other(tmp_path: Path) -> None:
    recorder, _ = make(tmp_path / "rank0.sqlite")
    recorder.push("main")

    def other() -> None:
        recorder.push("other")
        recorder.pop()
        recorder.pop()

    thread = threading.Thread(target=other, name="sampler")
    thread.start()
    thread.join()
    recorder.pop()
    recorder.close()
    found = {name: (start, end, tid & 0xFFFFFF) for name, start, end, tid in rows(recorder.path, RANGES)}
    assert found["main"][:2] == (1, 5)
    assert found["other"][:2] == (2, 3)
    assert found["main"][2] == threading.get_native_id()
    assert found["other"][2] != found["main"][2]
    names = rows(recorder.path, "SELECT s.value FROM ThreadNames t JOIN StringIds s ON s.id = t.nameId")
    assert ("sampler",) in names


def test_the_file_says_that_it_is_the_recorders_and_has_the_columns_of_nsys(tmp_path: Path) -> None:
    recorder, _ = make(tmp_path / "rank0.sqlite")
    recorder.mark("dflash_bench rank=0 world=1 arm=control")
    recorder.close()
    path = recorder.path
    capture = rows(path, "SELECT name, value FROM META_DATA_CAPTURE")
    assert ("DFLASH_BENCH:RECORDER", __version__) in capture
    assert ("CAPTURE_EVENT_TYPE", "NvtxEvents") in capture
    assert not [value for name, value in capture if name == "DFLASH_BENCH:DEVICE"]
    assert dict(rows(path, "SELECT name, value FROM META_DATA_EXPORT"))["EXPORT_SCHEMA_VERSION"] == "3.20.3"
    assert [r[1] for r in rows(path, "PRAGMA table_info(NVTX_EVENTS)")] == list(EXPORT_COLUMNS[ExportTable.NVTX_EVENTS])
    assert rows(path, "SELECT utcEpochNs FROM TARGET_INFO_SESSION_START_TIME") == [(1_700_000_000_123_456_789,)]
    assert rows(path, "SELECT pid, globalPid >> 24 & 0xFFFFFF FROM PROCESSES") == [(os.getpid(), os.getpid())]
    assert rows(path, "SELECT text, domainId FROM NVTX_EVENTS WHERE eventType = 75") == [("dflash", 1)]
    mark = "SELECT s.value FROM NVTX_EVENTS n JOIN StringIds s ON s.id = n.textId WHERE n.eventType = 34"
    assert rows(path, mark) == [("dflash_bench rank=0 world=1 arm=control",)]
    tables = {name for (name,) in rows(path, "SELECT name FROM sqlite_master WHERE type = 'table'")}
    assert not {t for t in tables if t.startswith("CUPTI")}, "tables without rows are absent, as in a lazy nsys export"


def test_simulated_work_joins_its_launch_and_is_called_simulated(tmp_path: Path) -> None:
    recorder, _ = make(tmp_path / "rank0.sqlite", start=1_000)
    recorder.push("draft")
    recorder.api_call("cudaGraphLaunch_v10000", 1_010, 1_020, 7)
    recorder.gpu_work("graph", "draft graph", 1_030, 1_530, 7, stream=14, graph_exec_id=3)
    recorder.api_call("cuLaunchKernel", 1_021, 1_022, 8)
    recorder.gpu_work("kernel", "fill_kernel", 1_531, 1_541, 8, stream=14)
    recorder.api_call("cudaMemcpyAsync_v3020", 1_023, 1_024, 9)
    recorder.gpu_work("memcpy", "memcpy DtoH", 1_545, 1_550, 9, stream=14, num_bytes=288)
    recorder.api_call("cudaMemsetAsync_v3020", 1_025, 1_026, 10)
    recorder.gpu_work("memset", "memset", 1_551, 1_552, 10, stream=14, num_bytes=4)
    recorder.api_call("cudaStreamSynchronize_v3020", 1_027, 1_560, 11)
    recorder.pop()
    recorder.close()
    path = recorder.path
    joined = (
        'SELECT s.value, r.start, r."end", r.eventClass, w.start, w."end", w.streamId FROM {} w '
        "JOIN CUPTI_ACTIVITY_KIND_RUNTIME r ON r.correlationId = w.correlationId "
        "AND w.globalPid = r.globalTid & ~16777215 JOIN StringIds s ON s.id = r.nameId"
    )
    assert rows(path, joined.format("CUPTI_ACTIVITY_KIND_GRAPH_TRACE")) == [
        ("cudaGraphLaunch_v10000", 10, 20, 0, 30, 530, 14)
    ]
    assert rows(path, joined.format("CUPTI_ACTIVITY_KIND_KERNEL")) == [("cuLaunchKernel", 21, 22, 1, 531, 541, 14)]
    assert rows(path, "SELECT copyKind, bytes FROM CUPTI_ACTIVITY_KIND_MEMCPY") == [(2, 288)]
    assert rows(path, "SELECT bytes FROM CUPTI_ACTIVITY_KIND_MEMSET") == [(4,)]
    assert rows(path, 'SELECT start, "end", syncType FROM CUPTI_ACTIVITY_KIND_SYNCHRONIZATION') == [(27, 560, 2)]
    capture = rows(path, "SELECT name, value FROM META_DATA_CAPTURE")
    assert ("DFLASH_BENCH:DEVICE", "simulated") in capture
    assert ("CAPTURE_EVENT_TYPE", "Cuda") in capture
    for table in ("KERNEL", "MEMCPY", "MEMSET", "GRAPH_TRACE", "RUNTIME", "SYNCHRONIZATION"):
        found = [r[1] for r in rows(path, f"PRAGMA table_info(CUPTI_ACTIVITY_KIND_{table})")]
        assert found == list(EXPORT_COLUMNS[ExportTable(f"CUPTI_ACTIVITY_KIND_{table}")])


def test_work_of_an_unknown_kind_is_refused(tmp_path: Path) -> None:
    recorder, _ = make(tmp_path / "rank0.sqlite")
    with pytest.raises(ValueError, match="teleport"):
        recorder.gpu_work("teleport", "x", 0, 1, 1)


def test_the_columns_are_those_of_a_real_export(request: pytest.FixtureRequest) -> None:
    real = request.config.rootpath / "tests" / "data" / "h200"
    files = sorted(real.glob("*.sqlite"))
    if not files:
        pytest.skip("no real capture in tests/data/h200")
    for table, columns in EXPORT_COLUMNS.items():
        found = [r[1] for r in rows(files[0], f"PRAGMA table_info({table})")]
        assert not found or found == list(columns), table


@given(st.lists(st.sampled_from(["a", "b", "pop"]), max_size=60))
def test_every_push_becomes_one_range_that_holds_its_children(events: list[str]) -> None:
    recorder, _ = make(Path("unused.sqlite"))
    for event in events:
        if event == "pop":
            recorder.pop()
        else:
            recorder.push(event)
    ranges = recorder.recording().ranges
    assert len(ranges) == sum(event != "pop" for event in events)
    for one in ranges:
        assert one.end_ns is None or one.end_ns > one.start_ns
        for other in ranges:
            if other.start_ns > one.start_ns and one.end_ns is not None and other.start_ns < one.end_ns:
                assert other.end_ns is not None
                assert other.end_ns < one.end_ns


def test_closing_twice_writes_once_and_leaves_no_temporary_file(tmp_path: Path) -> None:
    recorder, _ = make(tmp_path / "rank0.sqlite")
    recorder.push("a")
    recorder.close()
    first = recorder.path.read_bytes()
    recorder.pop()
    recorder.close()
    assert recorder.path.read_bytes() == first
    assert [p.name for p in tmp_path.iterdir()] == ["rank0.sqlite"]


def test_a_capture_that_cannot_be_written_leaves_nothing(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    recorder, _ = make(tmp_path / "file" / "rank0.sqlite")
    with pytest.raises(DataError, match="could not be written"):
        recorder.close()
    assert list(tmp_path.iterdir()) == [tmp_path / "file"]


def test_the_sink_refuses_a_folder_that_is_not_there(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(FOLDER_VARIABLE, str(tmp_path / "absent"))
    with pytest.raises(CaptureError, match="is not a folder"):
        sink(rank=1, world=2)


def test_an_origin_that_is_not_two_numbers_is_refused() -> None:
    with pytest.raises(CaptureError, match="two integers"):
        Origin.parse("yesterday")
    assert Origin.parse(str(Origin(5, 6))) == Origin(5, 6)


CHILD = """
import os, signal, sys
from dflash_bench.capture.recorder import sink
s = sink(rank=int(os.environ["RANK"]), world=2)
s.mark("dflash_bench rank=0 world=2 arm=x")
for _ in range(10):
    s.push("decode_step"); s.pop()
s.push("cut")
END
"""


def child(tmp_path: Path, end: str, rank: int = 0) -> subprocess.CompletedProcess[str]:
    environment = {
        **os.environ,
        "RANK": str(rank),
        FOLDER_VARIABLE: str(tmp_path),
        ORIGIN_VARIABLE: "0,1700000000000000000",
        "SECRET_TOKEN": "hunter2-in-the-environment",
    }
    code = CHILD.replace("END", end)
    return subprocess.run(
        [sys.executable, "-c", code, "--password=hunter2-argument"],
        env=environment,
        capture_output=True,
        text=True,
        check=False,
    )


@pytest.mark.parametrize(
    ("end", "code"),
    [
        ("", 0),
        ("sys.exit(3)", 3),
        ("os.kill(os.getpid(), signal.SIGTERM)", -signal.SIGTERM),
        ("os.kill(os.getpid(), signal.SIGINT)", -signal.SIGINT),
        ("raise ValueError('boom')", 1),
        ("\nif os.fork() == 0: sys.exit(0)\nos.wait()", 0),
    ],
    ids=["end", "exit", "sigterm", "sigint", "exception", "fork"],
)
def test_however_the_program_ends_the_ranges_are_there(tmp_path: Path, end: str, code: int) -> None:
    done = child(tmp_path, end)
    assert done.returncode == code, done.stderr
    counts = "SELECT s.value, count(*) FROM NVTX_EVENTS n JOIN StringIds s ON s.id = n.textId GROUP BY 1"
    assert dict(rows(tmp_path / "rank0.sqlite", counts)) == {
        "dflash_bench rank=0 world=2 arm=x": 1,
        "decode_step": 10,
        "cut": 1,
    }
    assert [p.name for p in tmp_path.iterdir()] == ["rank0.sqlite"]


def test_nothing_of_the_environment_or_the_arguments_is_in_the_file(tmp_path: Path) -> None:
    child(tmp_path, "")
    assert b"hunter2" not in (tmp_path / "rank0.sqlite").read_bytes()
    assert os.uname().nodename not in stored_words(tmp_path / "rank0.sqlite")


def test_two_ranks_of_a_host_share_one_time_axis(tmp_path: Path) -> None:
    child(tmp_path, "", rank=0)
    child(tmp_path, "", rank=1)
    query = "SELECT min(start), max(start) FROM NVTX_EVENTS"
    (first,), (second,) = rows(tmp_path / "rank0.sqlite", query), rows(tmp_path / "rank1.sqlite", query)
    assert first[1] < second[0], "the second process ran after the first, and the files agree"


def test_a_recording_for_which_there_is_no_room_is_one_sentence_and_leaves_nothing(tmp_path: Path) -> None:
    """A limit on the size of files stands in for a full disk: the system refuses the same writes."""
    code = """
import resource, signal
signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
resource.setrlimit(resource.RLIMIT_FSIZE, (8192, 8192))
from dflash_bench.capture.recorder import sink
recorder = sink(rank=0, world=1)
for k in range(5000):
    recorder.push(f"range {k}"); recorder.pop()
recorder.close()
"""
    environment = {**os.environ, FOLDER_VARIABLE: str(tmp_path)}
    done = subprocess.run([sys.executable, "-c", code], env=environment, capture_output=True, text=True, check=False)
    assert done.returncode == 1
    assert done.stderr.splitlines()[-1].startswith("dflash_bench.errors.DataError: ")
    assert "rank0.sqlite could not be written" in done.stderr
    assert list(tmp_path.iterdir()) == []
