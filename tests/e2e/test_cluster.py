"""An ingest on a real Dask cluster: one scheduler and two workers, each a process of its own."""

from __future__ import annotations

import json
import logging
import os
import signal
import socket
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from importlib.metadata import version
from pathlib import Path

import pytest
from generator import Spec, write_ranks
from profile_files import contents

from dflash_bench.errors import DataError, UsageError
from dflash_bench.ingest.remote import cluster as module
from dflash_bench.ingest.remote.attempts import Carriage
from dflash_bench.ingest.remote.cluster import cluster
from dflash_bench.ingest.remote.mirror import _CLAIM, mirrored
from dflash_bench.ingest.sources import IngestOptions, ingest
from dflash_bench.url import location

distributed = pytest.importorskip("distributed", reason="the extra cluster is not installed")

HOLD = Path(__file__).with_name("hold_a_task.py")
PATIENCE_S = 60


@dataclass
class Cluster:
    """A running scheduler and its workers. ``hold``: a file ``hold`` in there makes a task stop (hold_a_task.py)."""

    address: str
    scheduler: subprocess.Popen[bytes]
    workers: list[subprocess.Popen[bytes]]
    hold: Path


@contextmanager
def running(folder: Path, num_workers: int) -> Iterator[Cluster]:
    started: list[subprocess.Popen[bytes]] = []

    def start(*words: str) -> subprocess.Popen[bytes]:
        line = [sys.executable, "-m", "dask", *words, "--no-dashboard"]
        environment = {**os.environ, "HOLD_FOLDER": str(folder)}
        with (folder / f"{len(started)}.log").open("wb") as log:
            started.append(subprocess.Popen(line, stdout=log, stderr=log, env=environment, cwd=folder))
        return started[-1]

    note = folder / "scheduler.json"
    try:
        scheduler = start("scheduler", "--host", "127.0.0.1", "--port", "0", "--scheduler-file", str(note))
        # a worker waits for the note by itself
        own = ["--scheduler-file", str(note), "--nthreads", "1", "--no-nanny", "--preload", str(HOLD)]
        workers = [start("worker", *own, "--local-directory", str(folder / f"w{k}")) for k in range(num_workers)]
        wait_for(lambda: note.exists() and note.stat().st_size)
        yield Cluster(json.loads(note.read_text())["address"], scheduler, workers, folder)
    finally:
        for process in started:
            process.kill()
            process.wait()


def wait_for(condition) -> None:
    until = time.monotonic() + PATIENCE_S
    while not condition():
        assert time.monotonic() < until, "it did not come about"
        time.sleep(0.02)


@pytest.fixture(scope="module")
def dask_cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cluster]:
    with running(tmp_path_factory.mktemp("cluster"), 2) as found:
        yield found


@pytest.fixture(scope="module")
def captures(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("captures") / "night"
    folder.mkdir()
    write_ranks(folder, Spec(rows=20_000, ranks=2), "night")
    return folder


@pytest.fixture(scope="module")
def wanted(captures: Path, tmp_path_factory: pytest.TempPathFactory) -> dict[str, bytes]:
    """What one machine makes of the captures."""
    return contents(ingest([captures], IngestOptions(profiles=tmp_path_factory.mktemp("wanted")))[0].path)


def on_cluster(address: str, captures: Path, profiles: Path, progress=None) -> Path:
    with cluster(address) as run_tasks:
        return ingest([captures], IngestOptions(profiles=profiles, run_tasks=run_tasks), progress)[0].path


def command(*words: object, cwd: Path) -> subprocess.CompletedProcess[str]:
    line = [sys.executable, "-m", "dflash_bench", *map(str, words)]
    return subprocess.run(line, cwd=cwd, capture_output=True, text=True, check=False)


@contextmanager
def meanwhile(action) -> Iterator[None]:
    """Do something in another thread while the block runs; what fails there fails here."""
    failed = []

    def act() -> None:
        try:
            action()
        except AssertionError as error:
            failed.append(error)

    thread = threading.Thread(target=act)
    thread.start()
    try:
        yield
    finally:
        thread.join()
    assert not failed, failed


def test_a_cluster_makes_the_same_profile_byte_by_byte(dask_cluster, captures, wanted, tmp_path):
    seen = []
    profile = on_cluster(dask_cluster.address, captures, tmp_path / "p", lambda *step: seen.append(step))
    assert contents(profile) == wanted
    assert [p.name for p in (tmp_path / "p").iterdir()] == ["night"]
    for path in captures.iterdir():
        last = [(done, total) for file, done, total in seen if file == path][-1]
        assert last[0] == last[1] > 0


def test_a_capture_that_is_damaged_is_one_error_and_leaves_nothing(dask_cluster, captures, tmp_path):
    whole = (captures / "night_rank0.sqlite").read_bytes()
    broken = tmp_path / "c" / "broken.sqlite"
    broken.parent.mkdir()
    # the head and the catalogue are whole, the pages of the tables are not
    broken.write_bytes(whole[: 1 << 16] + b"\xff" * (len(whole) - (1 << 16)))
    with pytest.raises(DataError, match=r"broken.sqlite: "):
        on_cluster(dask_cluster.address, broken, tmp_path / "p")
    assert not any((tmp_path / "p").iterdir())


def test_workers_of_another_version_are_refused(dask_cluster, captures, tmp_path, monkeypatch):
    real = distributed.Client.get_versions

    def older(self, **more):
        found = real(self, **more)
        next(iter(found["workers"].values()))["packages"]["dflash_bench"] = "0.0.1"
        return found

    monkeypatch.setattr(distributed.Client, "get_versions", older)
    own = version("dflash_bench")
    with pytest.raises(UsageError, match=rf"worker tcp://.* has dflash_bench 0.0.1, and here it is {own}") as caught:
        on_cluster(dask_cluster.address, captures, tmp_path / "p")
    assert caught.value.hint.startswith(f"install dflash_bench {own} on the workers")
    assert not (tmp_path / "p").exists()


def test_captures_that_workers_see_otherwise_are_refused(dask_cluster, captures, tmp_path, monkeypatch):
    monkeypatch.setattr(module, "_size", lambda path: 1)
    with pytest.raises(UsageError, match=r"worker tcp://.* does not see .*night_rank0.sqlite as it is here") as caught:
        on_cluster(dask_cluster.address, captures, tmp_path / "p")
    assert "a file system that all workers share" in caught.value.hint
    assert not any((tmp_path / "p").iterdir())


def test_the_command_takes_a_scheduler(dask_cluster, captures, wanted, tmp_path):
    # by paths that mean nothing in the working directory of a worker
    words = ["ingest", "night", "--profiles", os.path.relpath(tmp_path / "p", captures.parent)]
    done = command(*words, "--scheduler", dask_cluster.address, cwd=captures.parent)
    assert (done.returncode, done.stderr) == (0, "")
    assert contents(tmp_path / "p" / "night") == wanted


@pytest.mark.parametrize("is_profile_at_url", [True, False])
def test_captures_and_profiles_at_urls_need_no_shared_folder(
    dask_cluster, captures, wanted, tmp_path, is_profile_at_url, monkeypatch
):
    # local:// is a protocol of fsspec as any other, and the only one that several processes have without a server
    urls = f"local://{captures}", f"local://{tmp_path}/p"
    (tmp_path / "scratch").mkdir()
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path / "scratch"))
    with mirrored(location(urls[1] if is_profile_at_url else str(tmp_path / "p")), urls) as mirror:
        near = Path(mirror.near(urls[0]))
        hidden = near.with_name("hidden")
        with cluster(dask_cluster.address, Carriage(mirror.origins, mirror.staging())) as run_tasks:

            def without_copies(tasks, progress):
                # no worker can see what the client has fetched
                near.rename(hidden)
                try:
                    return run_tasks(tasks, progress)
                finally:
                    hidden.rename(near)

            ingest([near], IngestOptions(profiles=mirror.profiles, run_tasks=without_copies))
        mirror.publish()
    assert {k: v for k, v in contents(tmp_path / "p" / "night").items() if k != _CLAIM} == wanted
    assert [p.name for p in (tmp_path / "p").iterdir()] == ["night"]
    assert list((tmp_path / "scratch").iterdir()) == []


def test_a_worker_killed_in_the_middle_changes_nothing(dask_cluster, captures, wanted, tmp_path):
    (dask_cluster.hold / "hold").touch()

    def kill() -> None:
        wait_for((dask_cluster.hold / "held").exists)
        begun = [p for p in (tmp_path / "p").rglob("*.parquet") if p.parent.parent.name.startswith("attempt-")]
        assert begun, "the task that is killed has begun to write"
        pid = int((dask_cluster.hold / "held").read_text())
        assert pid in [worker.pid for worker in dask_cluster.workers]
        os.kill(pid, signal.SIGKILL)

    with meanwhile(kill):
        profile = on_cluster(dask_cluster.address, captures, tmp_path / "p")
    assert sorted(worker.poll() is None for worker in dask_cluster.workers) == [False, True]
    assert contents(profile) == wanted
    assert [p.name for p in (tmp_path / "p").iterdir()] == ["night"]
    assert {p.name for p in profile.iterdir()} == {Path(name).parts[0] for name in wanted}


@pytest.mark.parametrize(
    ("victim", "sentence"),
    [
        ("scheduler", r"the scheduler at tcp://.* does not answer any more"),
        ("only worker", r"the cluster of tcp://.* has no worker left"),
    ],
)
def test_a_cluster_that_is_lost_in_the_middle_is_one_sentence_and_leaves_nothing(
    captures, tmp_path, caplog, monkeypatch, victim, sentence
):
    monkeypatch.setattr(module, "_PATIENCE_S", 2)
    folder = tmp_path / "own"
    folder.mkdir()
    with running(folder, 1) as own:
        (folder / "hold").touch()

        def kill() -> None:
            wait_for((folder / "held").exists)
            (own.scheduler if victim == "scheduler" else own.workers[0]).kill()

        with meanwhile(kill), pytest.raises(DataError, match=sentence):
            on_cluster(own.address, captures, tmp_path / "p")
    assert not any((tmp_path / "p").iterdir())
    assert [r for r in caplog.records if r.name.startswith("distributed") and r.levelno >= logging.WARNING] == []


def test_an_unreachable_scheduler_is_one_sentence_and_exit_code_2(captures, tmp_path):
    address = "tcp://127.0.0.1:1"
    done = command("ingest", captures, "--profiles", tmp_path / "p", "--scheduler", address, cwd=tmp_path)
    assert done.returncode == 2
    assert done.stderr.splitlines()[0] == f"error: --scheduler {address}: nobody answers there"
    assert not (tmp_path / "p").exists()


def test_what_cannot_be_an_address_is_said():
    for address in ("tcp://127.0.0.1", "somewhere", "tcp://:x"):
        with pytest.raises(UsageError, match="it is no address of a scheduler"), cluster(address):
            pass
    with pytest.raises(UsageError, match="nobody answers there"), cluster("tcp://127.0.0.1:99999"):
        pass


@pytest.mark.parametrize("first_words", [b"", b"SSH-2.0-OpenSSH_9.2\r\n"])
def test_another_server_is_not_taken_for_a_scheduler(monkeypatch, first_words):
    monkeypatch.setattr(module, "_CONNECT_S", 1)

    def greet() -> None:
        peer = other.accept()[0]
        with peer:
            peer.sendall(first_words)
            with suppress(ConnectionError):
                peer.recv(1)  # until the other side has gone

    with socket.create_server(("127.0.0.1", 0)) as other:
        greeter = threading.Thread(target=greet)
        greeter.start()
        address = f"tcp://127.0.0.1:{other.getsockname()[1]}"
        with pytest.raises(UsageError, match="what listens there is no Dask scheduler"), cluster(address):
            pass
        greeter.join()


def test_a_cluster_without_workers_is_said(monkeypatch, tmp_path):
    with running(tmp_path, 0) as empty:
        monkeypatch.setattr(module, "_CONNECT_S", 3)
        with pytest.raises(UsageError, match="no worker is connected to it") as caught, cluster(empty.address):
            pass
    assert caught.value.hint == f"dask worker {empty.address} --nthreads 1 --nworkers N"


def test_a_missing_dask_is_named(monkeypatch):
    monkeypatch.setattr(module, "find_spec", lambda name: None)
    with pytest.raises(UsageError, match="needs Dask, which is not installed") as caught, cluster("tcp://127.0.0.1:1"):
        pass
    assert caught.value.hint == "pip install 'dflash-bench[cluster]'"
