"""How much is spent on measuring a run: processes, and the rows that one of them holds at a time."""

from __future__ import annotations

import multiprocessing
import os
import signal
import threading
from collections.abc import Iterator
from concurrent.futures import Future, ProcessPoolExecutor
from concurrent.futures.process import BrokenProcessPool
from dataclasses import dataclass, field
from multiprocessing.connection import wait
from pathlib import Path

from dflash_bench.errors import DataError
from dflash_bench.metrics.events import Reading
from dflash_bench.metrics.rank import Measured, measure_process
from dflash_bench.metrics.shelf import Shelf
from dflash_bench.metrics.windows import WINDOW_ROWS
from dflash_bench.model import ProcessInfo, RankSource
from dflash_bench.profile import Profile

LARGE_ROWS = 1_000_000
"""Event rows of a run from which more processes and a file for samples pay: below, starting them takes longer."""


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
    processes = [(rank, process) for rank in profile.info.ranks for process in profile.info.processes_of(rank)]
    if folder is None or effort.num_processes < 2 or len(processes) < 2:
        found = [_measure(profile, process, reading, effort.window_rows, folder) for _, process in processes]
    else:
        found = _side_by_side(profile, [process for _, process in processes], reading, effort, folder)
    for rank in profile.info.ranks:
        yield rank, [part for (own, _), part in zip(processes, found, strict=True) if own == rank]


def _measure(
    profile: Profile, process: ProcessInfo, reading: Reading, window_rows: int, folder: Path | None
) -> Measured:
    shelf = None if folder is None else Shelf(folder / f"capture{process.capture}-process{process.process}")
    # a foreign rank mark would be odd, but only ours promises that every allocation is inside a range
    is_own_loop = profile.info.rank_source is RankSource.MARK
    return measure_process(profile, process, reading, is_own_loop=is_own_loop, shelf=shelf, window_rows=window_rows)


def _side_by_side(
    profile: Profile, processes: list[ProcessInfo], reading: Reading, effort: Effort, folder: Path
) -> list[Measured]:
    # not forked: threads of Arrow may hold locks
    context = multiprocessing.get_context("spawn")
    num = min(effort.num_processes, len(processes))
    with ProcessPoolExecutor(num, mp_context=context, initializer=_ends_with_its_parent) as executor:
        waiting: list[Future[Measured]] = [
            executor.submit(_measure, profile, process, reading, effort.window_rows, folder) for process in processes
        ]
        try:
            return [each.result() for each in waiting]
        except BrokenProcessPool:
            text = f"{profile.path}: a process that measured it ended before its time"
            raise DataError(text, hint="see whether the machine ran out of memory, and measure again") from None


def _ends_with_its_parent() -> None:
    """Ctrl-C reaches every process: the one that started these says so, and they just end, as when it is killed."""
    signal.signal(signal.SIGINT, signal.SIG_DFL)
    parent = multiprocessing.parent_process()
    assert parent is not None
    threading.Thread(target=_end_after, args=(parent.sentinel,), daemon=True).start()


def _end_after(sentinel: int) -> None:
    wait([sentinel])
    os._exit(1)
