"""The tasks of an ingest on a Dask cluster, for captures that are too many or too large for one machine.

Each worker reads captures where they lie and writes into the profile that is being built, on a file system that client
and workers share; or it fetches captures from their URLs, and leaves what it wrote at one (`attempts`). The tasks are
those of one machine (`tasks.plan`), and so are the bytes. Dask is the extra ``cluster``.
"""

from __future__ import annotations

import logging
import re
import secrets
import shutil
import socket
import warnings
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import CancelledError
from contextlib import contextmanager, suppress
from functools import partial
from importlib import import_module
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from dflash_bench.errors import DataError, UsageError
from dflash_bench.ingest.remote.attempts import Attempt, Carriage, run_attempts
from dflash_bench.ingest.tasks import Task, TaskResult
from dflash_bench.ingest.workers import Progress, RunTasks, Tally

_CONNECT_S = 8
"""How long a scheduler may take to answer, and a cluster to show its first worker."""
_GREETING_BYTES = 1 << 16
"""More than a scheduler's greeting ever is; the first letters of other servers read as far larger numbers."""
_POLL_S = 1.0
"""How often is looked whether there still are workers."""
_PATIENCE_S = 60
"""How long a cluster may have no worker before an ingest is given up: a new one takes the place of one that died."""
_SAME = ("dflash_bench", "distributed", "pyarrow")
"""Packages whose versions decide what a task means and which bytes it writes."""


@contextmanager
def cluster(address: str, carriage: Carriage | None = None) -> Iterator[RunTasks]:
    """What runs tasks on the cluster of the scheduler at ``address``, such as ``tcp://host:8786``.

    ``carriage``: what client and workers do not share; it is looked at when tasks are run.

    Raises UsageError when Dask is missing, nobody answers, or client and workers differ in what must be the same. What
    it yields raises what `run_task` raises, of the first task that fails, and DataError when the cluster fails.
    """
    if find_spec("distributed") is None:
        text = "--scheduler needs Dask, which is not installed"
        raise UsageError(text, hint="pip install 'dflash-bench[cluster]'")
    # before Dask is imported, which takes seconds
    _check_answers(address)
    with _quiet():
        client = _connect(address)
        try:
            _check_versions(client, address)
            yield partial(_run_tasks, client, address, carriage or Carriage())
        finally:
            client.close(timeout=_CONNECT_S)


def _unseen(token: Path | None, files: Sequence[tuple[Path, int]]) -> Path | None:
    """On a worker: the first of these paths that is not here as the client has it (path, size); None when all are."""
    if token is not None and not token.exists():
        return token.parent
    return next((path for path, size in files if not path.exists() or _size(path) != size), None)


def _distributed() -> Any:
    """Dask's package. Its types are half there, and differ from version to version."""
    return import_module("distributed")


def _connect(address: str) -> Any:
    try:
        with warnings.catch_warnings():
            # which versions differ is looked at below
            warnings.simplefilter("ignore")
            client = _distributed().Client(address, timeout=_CONNECT_S)
    except OSError:
        hint = "look at its log: it may be of another version, or want tls://"
        raise UsageError(f"--scheduler {address}: the scheduler there did not let us in", hint=hint) from None
    try:
        client.wait_for_workers(1, timeout=_CONNECT_S)
    except TimeoutError:
        client.close(timeout=_CONNECT_S)
        hint = f"dask worker {address} --nthreads 1 --nworkers N"
        raise UsageError(f"--scheduler {address}: no worker is connected to it", hint=hint) from None
    return client


def _check_answers(address: str) -> None:
    """Raises UsageError when no scheduler listens there.

    Dask itself goes on trying where nobody listens, and waits without end for another server's first word.
    """
    hint = "start one with `dask scheduler`, and give the address that it prints, such as tcp://host:8786"
    match = re.fullmatch(r"(?P<scheme>[a-z]+)://(?P<host>[^/]+):(?P<port>\d+)", address)
    if match is None:
        raise UsageError(f"--scheduler {address}: it is no address of a scheduler", hint=hint)
    try:
        peer = socket.create_connection((match["host"].strip("[]"), int(match["port"])), timeout=_CONNECT_S)
    except (OSError, OverflowError):
        raise UsageError(f"--scheduler {address}: nobody answers there", hint=hint) from None
    with peer:
        if match["scheme"] == "tcp" and not _greets_as_dask(peer):
            raise UsageError(f"--scheduler {address}: what listens there is no Dask scheduler", hint=hint)


def _greets_as_dask(peer: socket.socket) -> bool:
    """Whether the first message is a Dask greeting: it comes unasked, and begins with its length."""
    head = b""
    with suppress(OSError):
        while len(head) < 8 and (piece := peer.recv(8 - len(head))):
            head += piece
    return len(head) == 8 and 0 < int.from_bytes(head, "little") < _GREETING_BYTES


def _check_versions(client: Any, address: str) -> None:
    found = client.get_versions(packages=list(_SAME))
    own = {name: found["client"]["packages"].get(name) for name in _SAME}
    for worker, its in found["workers"].items():
        for name in _SAME:
            there = its["packages"].get(name)
            if there != own[name]:
                text = f"worker {worker} has {name} {there}" if there else f"worker {worker} does not have {name}"
                hint = f"install {name} {own[name]} on the workers of {address}, and start them again"
                raise UsageError(f"{text}, and here it is {own[name]}", hint=hint)


def _check_sight(client: Any, tasks: Sequence[Task], carriage: Carriage) -> None:
    """Raises UsageError when a worker does not see the captures, or the folder of the profile, as this process does."""
    paths = {task.source.path for task in tasks if not carriage.of(task.source.path)}
    token = None
    if carriage.staging is None:
        token = tasks[0].folder / f"seen-{secrets.token_hex(8)}"
        token.touch()
    # a worker that dies meanwhile has nothing to say
    found = client.run(_unseen, token, [(path, _size(path)) for path in sorted(paths)], on_error="ignore")
    for worker, path in found.items():
        if path is not None:
            raise UsageError(
                f"worker {worker} does not see {path} as it is here",
                hint="keep captures and profiles on a file system that all workers share, or at URLs",
            )
    if token is not None:
        token.unlink()


def _run_tasks(
    client: Any, address: str, carriage: Carriage, tasks: Sequence[Task], progress: Progress | None
) -> list[TaskResult]:
    if not tasks:
        return []
    _check_sight(client, tasks, carriage)
    tally = Tally(tasks, progress)
    futures: dict[Any, list[int]] = {}
    for own in _portions(tasks, carriage):
        futures[client.submit(run_attempts, [tasks[index] for index in own], carriage, pure=False)] = own
    captures = {future: tasks[own[0]].source.path for future, own in futures.items()}
    results: dict[int, TaskResult] = {}
    try:
        for future, attempts in _completed(client, address, captures):
            own = futures[future]
            for index, attempt in zip(own, attempts, strict=True):
                results[index] = attempt.collect(tasks[index].folder, carriage)
                tally.finish(index)
    finally:
        # those that are done lose nothing by it
        client.cancel(list(futures), force=True)
        carriage.clear()
    for left in tasks[0].folder.glob("attempt-*"):
        shutil.rmtree(left, ignore_errors=True)
    return [results[index] for index in range(len(tasks))]


def _portions(tasks: Sequence[Task], carriage: Carriage) -> list[list[int]]:
    """Which tasks go together: those of a capture that must be fetched for them. The longest first, as everywhere."""
    portions: dict[object, list[int]] = {}
    for index, task in enumerate(tasks):
        portions.setdefault(task.source.path if carriage.of(task.source.path) else index, []).append(index)
    return sorted(portions.values(), key=lambda own: -sum(tasks[index].section.num_rows for index in own))


def _completed(client: Any, address: str, captures: Mapping[Any, Path]) -> Iterator[tuple[Any, list[Attempt]]]:
    """The futures as they are done, with what they give; ``captures``: what each reads.

    Raises DataError when there is no worker any more that could do the rest.
    """
    waiting, without = set(captures), 0.0
    while waiting:
        try:
            done, waiting = _distributed().wait(waiting, timeout=_POLL_S, return_when="FIRST_COMPLETED")
        except TimeoutError:
            without = 0.0 if _has_workers(client, address) else without + _POLL_S
            if without >= _PATIENCE_S:
                raise DataError(f"the cluster of {address} has no worker left", hint="start workers again") from None
            continue
        except CancelledError:
            raise _lost(address) from None
        for future in done:
            if (found := _outcome(future, captures[future])) is None:
                waiting.add(future)
            else:
                yield future, found


def _has_workers(client: Any, address: str) -> bool:
    if client.status == "running":
        with suppress(OSError):
            return bool(client.nthreads())
    raise _lost(address)


def _lost(address: str) -> DataError:
    return DataError(f"the scheduler at {address} does not answer any more", hint="start it, and ingest again")


def _outcome(future: Any, capture: Path) -> list[Attempt] | None:
    """What a task gives; None when its worker died with it, and the task begins anew."""
    try:
        found: list[Attempt] = future.result(timeout=_PATIENCE_S)
    except TimeoutError:
        return None
    except _distributed().KilledWorker as error:
        text = f"{error.allowed_failures + 1} workers died while they read it, as when memory runs out"
        hint = "give the workers more memory, or start fewer of them on a machine"
        raise DataError(f"{capture}: {text}", hint=hint) from None
    return found


def _size(path: Path) -> int:
    return path.stat().st_size if path.is_file() else 0


@contextmanager
def _quiet() -> Iterator[None]:
    """Without what Dask logs of a failure: it comes as an exception too, and becomes one sentence."""
    _distributed()  # it sets levels of its own when it is imported
    levels = {name: logging.getLogger(name).level for name in logging.root.manager.loggerDict if _is_dasks(name)}
    for name in levels:
        logging.getLogger(name).setLevel(logging.CRITICAL + 1)
    try:
        yield
    finally:
        for name, level in levels.items():
            logging.getLogger(name).setLevel(level)


def _is_dasks(logger: str) -> bool:
    return logger.split(".")[0] == "distributed"
