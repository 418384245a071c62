"""Tasks run side by side, in processes of their own where that pays."""

from __future__ import annotations

import os
import signal
import threading
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import FIRST_COMPLETED, ProcessPoolExecutor, wait
from concurrent.futures.process import BrokenProcessPool
from contextlib import contextmanager
from functools import partial
from multiprocessing import get_context
from multiprocessing.connection import Connection
from pathlib import Path

import pyarrow as pa

from dflash_bench.errors import DataError
from dflash_bench.ingest.tasks import Task, TaskResult, run_task

Progress = Callable[[Path, int, int], None]
"""Called with (file, rows read, rows in the file)."""

RunTasks = Callable[[Sequence[Task], Progress | None], list[TaskResult]]
"""What runs all tasks of a run and gives their results in the order of the tasks."""

_PARALLEL_ROWS = 1_000_000
"""With fewer rows one process is done before others have begun: each needs half a second of CPU time to start."""
_REPORT_S = 0.1
"""How often the rows that the processes have read are passed on."""

_reporter: Connection | None = None
"""In a process of the pool: where it says how many rows it read."""


def _available_cores() -> int:
    """Cores that this process may use."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def run_tasks(tasks: Sequence[Task], jobs: int | None = None, progress: Progress | None = None) -> list[TaskResult]:
    """Run all tasks, with ``jobs`` processes (None: one per core) where there is enough to do; results in their order.

    Raises what `run_task` raises, of the first task that fails, and DataError when a process dies. However this ends,
    no process is left.
    """
    tally = Tally(tasks, progress)
    count = min(_available_cores() if jobs is None else jobs, len(tasks))
    if count > 1 and sum(task.section.num_rows for task in tasks) >= _PARALLEL_ROWS:
        return _run_in_processes(tasks, count, tally)
    results = []
    for index, task in enumerate(tasks):
        results.append(run_task(task, partial(tally.add, index)))
        tally.finish(index)
    return results


class Tally:
    """Rows read so far, by file, for whoever shows progress."""

    def __init__(self, tasks: Sequence[Task], progress: Progress | None) -> None:
        self.tasks, self.progress = tasks, progress
        self.done = [0] * len(tasks)
        self.by_file: Counter[Path] = Counter()
        self.totals: Counter[Path] = Counter()
        for task in tasks:
            self.totals[task.source.path] += task.section.num_rows

    def add(self, index: int, rows: int) -> None:
        """A task has read more rows."""
        self._set(index, min(self.done[index] + rows, self.tasks[index].section.num_rows))

    def finish(self, index: int) -> None:
        """A task is done. How many rows it would have was an estimate."""
        self._set(index, self.tasks[index].section.num_rows)

    def _set(self, index: int, rows: int) -> None:
        file = self.tasks[index].source.path
        self.by_file[file] += rows - self.done[index]
        self.done[index] = rows
        if self.progress is not None:
            self.progress(file, self.by_file[file], self.totals[file])


def _run_in_processes(tasks: Sequence[Task], count: int, tally: Tally) -> list[TaskResult]:
    results: dict[int, TaskResult] = {}
    # the longest first: a long one that begins last would keep one process busy while the others are idle
    order = sorted(range(len(tasks)), key=lambda index: -tasks[index].section.num_rows)
    with _pool(count) as (pool, reports):
        with _interrupts_held():
            running = {pool.submit(_run, index, tasks[index]): index for index in order}
        waiting = set(running)
        while waiting:
            done, waiting = wait(waiting, _REPORT_S, FIRST_COMPLETED)
            while reports.poll():
                tally.add(*reports.recv())
            for future in done:
                results[running[future]] = future.result()
                tally.finish(running[future])
    return [results[index] for index in range(len(tasks))]


@contextmanager
def _pool(count: int) -> Iterator[tuple[ProcessPoolExecutor, Connection]]:
    """Processes that take tasks, and the end of the pipe in which they report (task, rows).

    They end with the block: at once when it fails, and also when this process is killed.
    """
    context = get_context("spawn")
    leash, held = context.Pipe(duplex=False)
    reports, reporter = context.Pipe(duplex=False)
    pool = ProcessPoolExecutor(count, context, _begin, (leash, reporter))
    try:
        yield pool, reports
        pool.shutdown()
    except BrokenProcessPool:
        raise DataError(
            "a process that read the captures was killed, as the system does when memory runs out",
            hint="dflash-bench ingest PATH --jobs 1",
        ) from None
    finally:
        held.close()
        pool.shutdown(cancel_futures=True)
        for end in (leash, reports, reporter):
            end.close()


@contextmanager
def _interrupts_held() -> Iterator[None]:
    """Ctrl-C waits until the block ends. Processes that start in it never see one: whoever started them ends them."""
    old = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT})
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, old)


def _begin(leash: Connection, reporter: Connection) -> None:
    """What a process of the pool does first."""
    global _reporter
    _reporter = reporter
    # the processes share the cores already
    pa.set_cpu_count(1)
    threading.Thread(target=_end_with, args=(leash,), daemon=True).start()


def _end_with(leash: Connection) -> None:
    """End this process when nobody holds the other end of the leash, whatever it is doing."""
    leash.poll(None)
    os._exit(1)


def _run(index: int, task: Task) -> TaskResult:
    return run_task(task, partial(_report, index))


def _report(index: int, rows: int) -> None:
    assert _reporter is not None
    # far below PIPE_BUF: reports of several processes do not mix
    _reporter.send((index, rows))
