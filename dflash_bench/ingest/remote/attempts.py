"""What a worker of a cluster does: an attempt at tasks, whose captures and results may lie at URLs.

A worker can die, or be cut off while it goes on writing: every attempt at a task writes into a folder of its own, and
the client takes what the one that answered has written.
"""

from __future__ import annotations

import secrets
import shutil
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from pathlib import Path

from dflash_bench.errors import BenchError
from dflash_bench.ingest.source import Source
from dflash_bench.ingest.sources import open_capture
from dflash_bench.ingest.tasks import Task, TaskResult, run_task
from dflash_bench.storage import fetch, put, remove_folder
from dflash_bench.url import Url
from dflash_bench.whole import scratch_folder


@dataclass(frozen=True, slots=True)
class Carriage:
    """What client and workers hand each other through URLs, where they share no file system.

    ``origins``: the URLs of captures that the client has copies of, by the copies' paths. ``staging``: the folder in
    which results wait for the client; None where the folder of the profile is shared.
    """

    origins: dict[Path, Url] = field(default_factory=dict)
    staging: Url | None = None

    def of(self, capture: Path) -> dict[Path, Url]:
        """The origins of a capture: its file, the files in it where it is a folder, and a log beside it."""
        logs = {capture.with_name(f"{capture.name}-{kind}") for kind in ("wal", "journal")}
        own = {capture, *logs}
        return {path: url for path, url in self.origins.items() if path in own or capture in path.parents}

    def clear(self) -> None:
        """Remove what waits for the client. A worker that was cut off may still leave something there later."""
        if self.staging is not None:
            with suppress(BenchError):
                remove_folder(self.staging)


@dataclass(frozen=True, slots=True)
class Attempt:
    """What an attempt at a task has written: files by their path in ``folder``, in the task's folder or at a URL."""

    folder: str
    files: tuple[str, ...]
    result: TaskResult

    def collect(self, folder: Path, carriage: Carriage) -> TaskResult:
        """Bring the files to their place in the profile. By name: a listing can lag behind on a network's file system.

        Raises DataError or OSError.
        """
        for name in self.files:
            if carriage.staging is None:
                (folder / name).parent.mkdir(exist_ok=True)
                (folder / self.folder / name).rename(folder / name)
            else:
                fetch(carriage.staging / self.folder / name, folder / name)
        return self.result


def run_attempts(tasks: Sequence[Task], carriage: Carriage) -> list[Attempt]:
    """Run tasks of one capture, each in a folder of its own. Raises as `run_task` and `fetch` do."""
    origins = carriage.of(tasks[0].source.path)
    if not origins and carriage.staging is None:
        return [_attempt(task, task.folder) for task in tasks]
    with scratch_folder() as scratch:
        try:
            source = _brought(tasks[0].source, origins, scratch) if origins else tasks[0].source
            own = [replace(task, source=source) for task in tasks]
            if carriage.staging is None:
                return [_attempt(task, task.folder) for task in own]
            return [_sent(_attempt(task, scratch), scratch, carriage.staging) for task in own]
        except BenchError as error:
            # the copy's path means nothing to who reads this
            error.args = (error.text.replace(f"{scratch}/", ""),)
            error.text = error.args[0]
            raise


def _attempt(task: Task, parent: Path) -> Attempt:
    folder = parent / f"attempt-{secrets.token_hex(8)}"
    folder.mkdir()
    result = run_task(replace(task, folder=folder))
    files = sorted(path.relative_to(folder).as_posix() for path in folder.rglob("*.parquet"))
    return Attempt(folder.name, tuple(files), result)


def _brought(source: Source, origins: dict[Path, Url], scratch: Path) -> Source:
    for path, url in origins.items():
        fetch(url, scratch / path.relative_to(source.path.parent))
    export = scratch / "export"
    export.mkdir()
    return open_capture(scratch / source.path.name, export)


def _sent(attempt: Attempt, scratch: Path, staging: Url) -> Attempt:
    for name in attempt.files:
        put(scratch / attempt.folder / name, staging / attempt.folder / name)
    shutil.rmtree(scratch / attempt.folder)
    return attempt
