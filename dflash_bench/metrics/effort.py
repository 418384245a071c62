"""How much is spent on measuring a run: processes, and the rows that one of them holds at a time."""

from __future__ import annotations

import multiprocessing
import os
import signal
import threading
from collections.abc import Iterator
from concurrent.futures import ProcessPoolExecutor
from concurrent.futures.process import BrokenProcessPool
from contextlib import contextmanager
from dataclasses import dataclass, field
from multiprocessing.connection import wait
from pathlib import Path

from dflash_bench.errors import DataError
from dflash_bench.metrics.events import Reading
from dflash_bench.metrics.rank import Measured, measure_process
from dflash_bench.metrics.shelf import Shelf, give_back
from dflash_bench.metrics.windows import WINDOW_ROWS
from dflash_bench.model import ProcessInfo, RankSource
from dflash_bench.profile import Profile

LARGE_ROWS = 1_000_000
"""Event rows of a run from which more processes and a file for samples pay: below, starting them takes longer."""

_THREADS = "OPENBLAS_NUM_THREADS"


def _cores() -> int:
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


@dataclass(frozen=True, slots=True)
class Effort:
    """``num_processes`` measure large runs, ranks side by side; ``window_rows`` ranges and calls are held by each."""

    num_processes: int = field(default_factory=_cores)
    window_rows: int = WINDOW_ROWS
    large_rows: int = LARGE_ROWS

    def is_large(self, profile: Profile) -> bool:
        """Whether the run has too many rows to be held in memory by one process."""
        rows = sum(p.num_ranges + p.num_api_calls + p.num_gpu_work for p in profile.info.processes)
        return rows >= self.large_rows


def each_rank(
    profile: Profile, reading: Reading, effort: Effort, folder: Path | None
) -> Iterator[tuple[int, list[Measured]]]:
    """What each process of each rank gives. ``folder``: where samples go; None keeps them in memory.

    Raises DataError when a process that measures ends before its time (for lack of memory, mostly).
    """
    ranks = [(rank, process) for rank in profile.info.ranks for process in profile.info.processes_of(rank)]
    task = _Task(profile, tuple(process for _, process in ranks), reading, effort.window_rows, folder)
    helpers = min(effort.num_processes, len(ranks)) - 1
    found = _take(task) if folder is None or helpers < 1 else _side_by_side(task, helpers)
    for rank in profile.info.ranks:
        yield rank, [found[index] for index, (own, _) in enumerate(ranks) if own == rank]


@dataclass(frozen=True, slots=True)
class _Task:
    """What several share: each takes one process of the run after the other until none is left."""

    profile: Profile
    processes: tuple[ProcessInfo, ...]
    reading: Reading
    window_rows: int
    folder: Path | None

    @property
    def order(self) -> list[int]:
        """The places of the processes, the largest first: begun last, it would be waited for by all others."""
        rows = [p.num_ranges + p.num_api_calls + p.num_gpu_work for p in self.processes]
        return sorted(range(len(rows)), key=lambda index: -rows[index])

    def claim(self, index: int) -> bool:
        """Whether this process of the run is still to be measured; who is told so measures it."""
        if self.folder is None:
            return True
        try:
            (self.folder / f"{index}.taken").touch(exist_ok=False)
        except FileExistsError:
            return False
        return True

    def measured(self, index: int) -> Measured:
        shelf = None if self.folder is None else Shelf(self.folder / f"{index}")
        # a foreign rank mark would be odd, but only ours promises that every allocation is inside a range
        is_own_loop = self.profile.info.rank_source is RankSource.MARK
        return measure_process(
            self.profile,
            self.processes[index],
            self.reading,
            is_own_loop=is_own_loop,
            shelf=shelf,
            window_rows=self.window_rows,
        )


def _take(task: _Task) -> dict[int, Measured]:
    """Measure what nobody else does, by place among the processes."""
    found = {}
    for index in task.order:
        if task.claim(index):
            found[index] = task.measured(index)
            give_back()
    return found


def _side_by_side(task: _Task, num_helpers: int) -> dict[int, Measured]:
    """Measure in this process and some others: it knows all modules already, which the others take long to read."""
    # not forked: threads of Arrow may hold locks
    context = multiprocessing.get_context("spawn")
    with ProcessPoolExecutor(num_helpers, mp_context=context, initializer=_ends_with_its_parent) as executor:
        with _one_thread_each():
            waiting = [executor.submit(_take, task) for _ in range(num_helpers)]
        try:
            found = _take(task)
            for each in waiting:
                found |= each.result()
        except BrokenProcessPool:
            text = f"{task.profile.path}: a process that measured it ended before its time"
            raise DataError(text, hint="see whether the machine ran out of memory, and measure again") from None
        finally:
            # when it fails here, the others have nothing more to begin
            for index in task.order:
                task.claim(index)
    return found


@contextmanager
def _one_thread_each() -> Iterator[None]:
    """Processes that start in it get no threads for linear algebra, of which nothing here makes use.

    NumPy's library starts one for each core as it is read, and each spins for 0.1 s before it sleeps.
    """
    old = os.environ.get(_THREADS)
    os.environ[_THREADS] = "1"
    try:
        yield
    finally:
        del os.environ[_THREADS]
        if old is not None:
            os.environ[_THREADS] = old


def _ends_with_its_parent() -> None:
    """Ctrl-C reaches every process: the one that started these says so, and they just end, as when it is killed."""
    signal.signal(signal.SIGINT, signal.SIG_DFL)
    parent = multiprocessing.parent_process()
    assert parent is not None
    threading.Thread(target=_end_after, args=(parent.sentinel,), daemon=True).start()


def _end_after(sentinel: int) -> None:
    wait([sentinel])
    os._exit(1)
