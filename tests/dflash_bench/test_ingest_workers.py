"""An ingest shared by several processes: the same bytes, the same errors, and no process left however it ends."""

from __future__ import annotations

import os
import random
import resource
import signal
import sqlite3
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

import pytest
from generator import Fault, Mode, Spec, write_export, write_ranks
from profile_files import contents

from dflash_bench.errors import DataError
from dflash_bench.ingest import workers
from dflash_bench.ingest.sources import IngestOptions, ingest
from dflash_bench.ingest.workers import _available_cores

ALWAYS = (
    "from dflash_bench.ingest import workers; workers._PARALLEL_ROWS = 0; from dflash_bench.cli import main; main()"
)
"""The command line, which here shares small captures too."""


@pytest.fixture(scope="module")
def one_file(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_export(tmp_path_factory.mktemp("one") / "run.sqlite", Spec(rows=30_000, ranks=3, mode=Mode.NODE))


@pytest.fixture(scope="module")
def rank_files(tmp_path_factory: pytest.TempPathFactory) -> list[Path]:
    folder = tmp_path_factory.mktemp("ranks")
    return write_ranks(folder, Spec(rows=20_000, ranks=3, faults=frozenset({Fault.NO_TIMES, Fault.TOOL_RANGES})))


@pytest.fixture
def always(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(workers, "_PARALLEL_ROWS", 0)


@pytest.mark.usefixtures("always")
@pytest.mark.parametrize(("kind", "many"), [("one_file", 2), ("rank_files", 3)])
def test_the_profile_is_the_same_to_the_byte_with_any_number_of_processes(
    kind: str, many: int, request: pytest.FixtureRequest, tmp_path: Path
) -> None:
    captures = request.getfixturevalue(kind)
    paths = captures if isinstance(captures, list) else [captures]
    written = []
    for jobs in (1, many):
        (profile,) = ingest(paths, IngestOptions(profiles=tmp_path / str(jobs), run="r", jobs=jobs))
        written.append(contents(profile.path))
    assert len(written[0]) > 12
    assert written[1] == written[0]


@pytest.mark.usefixtures("always")
@pytest.mark.parametrize("jobs", [1, 2])
def test_the_progress_of_every_file_grows_to_its_end(rank_files: list[Path], tmp_path: Path, jobs: int) -> None:
    seen: dict[Path, list[tuple[int, int]]] = {}
    ingest(
        rank_files,
        IngestOptions(profiles=tmp_path, run="r", jobs=jobs),
        lambda path, done, total: seen.setdefault(path, []).append((done, total)),
    )
    assert set(seen) == set(rank_files)
    for steps in seen.values():
        assert [done for done, _ in steps] == sorted(done for done, _ in steps)
        assert len({total for _, total in steps}) == 1
        assert steps[-1][0] == steps[-1][1] > 6_000


def test_a_small_capture_starts_no_process(one_file: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*_: object) -> None:
        raise AssertionError("a process was started")

    monkeypatch.setattr(workers, "_pool", refuse)
    ingest([one_file], IngestOptions(profiles=tmp_path, run="r", jobs=8))


def test_by_default_every_core_this_process_may_use_reads(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "sched_getaffinity", lambda _pid: {3, 5, 6}, raising=False)
    assert _available_cores() == 3


@pytest.mark.usefixtures("always")
def test_what_is_wrong_with_one_file_of_several_is_said_as_without_processes(tmp_path: Path) -> None:
    captures = write_ranks(tmp_path, Spec(rows=20_000, ranks=2))
    with closing(sqlite3.connect(captures[1])) as database:
        database.execute("UPDATE CUPTI_ACTIVITY_KIND_RUNTIME SET correlationId = 'text' WHERE rowid > 100")
        database.commit()
    said = []
    for jobs in (1, 2):
        with pytest.raises(DataError, match="damaged") as error:
            ingest(captures, IngestOptions(profiles=tmp_path / "p", run="r", jobs=jobs))
        said.append((error.value.text, error.value.hint))
        assert not any((tmp_path / "p").iterdir())
    assert said[0] == said[1]
    assert captures[1].name in said[0][0]


@pytest.mark.usefixtures("always")
def test_a_full_disk_under_the_processes_is_one_sentence_and_leaves_nothing(one_file: Path, tmp_path: Path) -> None:
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    old = signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
    resource.setrlimit(resource.RLIMIT_FSIZE, (20_000, hard))
    try:
        with pytest.raises(DataError, match="could not be written"):
            ingest([one_file], IngestOptions(profiles=tmp_path / "p", run="r", jobs=2))
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))
        signal.signal(signal.SIGXFSZ, old)
    assert not any((tmp_path / "p").iterdir())


# ── killed from outside ─────────────────────────────────────────────────────────────────────────────────────────────


def start(capture: Path, tmp_path: Path) -> subprocess.Popen[str]:
    return subprocess.Popen(
        [sys.executable, "-c", ALWAYS, "ingest", capture, "--run", "r", "--jobs", "2", "--profiles", tmp_path / "p"],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        start_new_session=True,
        env={**os.environ, "TMPDIR": str(tmp_path / "tmp")},
    )


@pytest.fixture
def running(one_file: Path, tmp_path: Path) -> Iterator[tuple[subprocess.Popen[str], list[int]]]:
    """An ingest in a process group of its own, and the processes that it has started to read."""
    (tmp_path / "tmp").mkdir()
    process = start(one_file, tmp_path)
    readers: list[int] = []
    while process.poll() is None and len(readers) < 2:
        readers = readers_of(process.pid)
        time.sleep(0.005)
    yield process, readers
    process.kill()
    process.communicate()


def readers_of(parent: int) -> list[int]:
    found = []
    for folder in Path("/proc").glob("[0-9]*"):
        try:
            of = int((folder / "stat").read_text().rpartition(")")[2].split()[1])
            is_reader = b"spawn_main" in (folder / "cmdline").read_bytes()
        except OSError:
            continue  # it ended meanwhile
        if of == parent and is_reader:
            found.append(int(folder.name))
    return found


def wait_until_gone(pids: list[int]) -> None:
    deadline = time.monotonic() + 60
    while any(is_alive(pid) for pid in pids):
        assert time.monotonic() < deadline, "a process that reads outlived the ingest"
        time.sleep(0.01)


def is_alive(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except OSError:
        return False


def left_in(tmp_path: Path) -> list[str]:
    return [p.name for folder in ("p", "tmp") for p in (tmp_path / folder).iterdir()]


def test_a_reading_process_that_is_killed_is_one_sentence_and_leaves_nothing(
    running: tuple[subprocess.Popen[str], list[int]], tmp_path: Path
) -> None:
    process, readers = running
    os.kill(readers[0], signal.SIGKILL)
    said, complaint = process.communicate(timeout=60)
    assert process.returncode == 5
    assert said == ""
    assert complaint.splitlines() == [
        "error: a process that read the captures was killed, as the system does when memory runs out",
        "try:   dflash-bench ingest PATH --jobs 1",
    ]
    wait_until_gone(readers)
    assert left_in(tmp_path) == []


def test_ctrl_c_ends_all_processes_without_a_word_of_theirs(
    running: tuple[subprocess.Popen[str], list[int]], tmp_path: Path
) -> None:
    process, readers = running
    os.killpg(process.pid, signal.SIGINT)
    said, complaint = process.communicate(timeout=60)
    assert (process.returncode, said, complaint) == (130, "", "interrupted\n")
    wait_until_gone(readers)
    assert left_in(tmp_path) == []


def test_the_processes_of_a_killed_ingest_end_with_it(
    running: tuple[subprocess.Popen[str], list[int]], one_file: Path, tmp_path: Path
) -> None:
    process, readers = running
    process.kill()
    process.wait()
    wait_until_gone(readers)
    (profile,) = ingest([one_file], IngestOptions(profiles=tmp_path / "p", run="r"))
    assert left_in(tmp_path) == ["r"]
    assert profile.info.ranks == (0, 1, 2)


@pytest.mark.soak
@pytest.mark.parametrize("seed", range(25))
def test_an_ingest_killed_at_any_moment_leaves_a_whole_profile_or_none(
    one_file: Path, tmp_path: Path, seed: int
) -> None:
    (tmp_path / "tmp").mkdir()
    process = start(one_file, tmp_path)
    while process.poll() is None and not (tmp_path / "p").exists():
        time.sleep(0.002)
    time.sleep(random.Random(seed).random() * 3)
    readers = readers_of(process.pid)
    process.kill()
    process.communicate()
    wait_until_gone(readers)
    killed = tmp_path / "p" / "r"
    left = contents(killed) if killed.exists() else None
    (profile,) = ingest([one_file], IngestOptions(profiles=tmp_path / "whole", run="r"))
    assert left in (None, contents(profile.path))
    ingest([one_file], IngestOptions(profiles=tmp_path / "p", run="r"))
    assert left_in(tmp_path) == ["r"]


def test_scratch_copies_of_a_killed_ingest_are_cleared_up_by_the_next(tmp_path: Path) -> None:
    """A capture with a log beside it is copied before it is read."""
    (tmp_path / "tmp").mkdir()
    export = write_export(tmp_path / "run.sqlite", Spec(rows=30_000, faults=frozenset({Fault.WAL})))
    with closing(sqlite3.connect(export)) as database:
        database.execute("UPDATE NVTX_EVENTS SET start = start - 1 WHERE rowid < 1000")
        database.commit()
        # a second reader keeps the log from being worked in when the writer closes
        command = [sys.executable, "-m", "dflash_bench", "ingest", str(export), "--profiles", str(tmp_path / "p")]
        process = subprocess.Popen(command, env={**os.environ, "TMPDIR": str(tmp_path / "tmp")})
        while process.poll() is None and not list((tmp_path / "p").glob(".scratch*.partial/*/run.sqlite")):
            time.sleep(0.001)
        process.kill()
        process.wait()
        assert any(name.startswith(".scratch") for name in left_in(tmp_path))
        ingest([export], IngestOptions(profiles=tmp_path / "p", run="r"))
    assert left_in(tmp_path) == ["r"]
