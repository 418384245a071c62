"""The processes of a run measured side by side."""

from __future__ import annotations

import multiprocessing
import os
import signal
import threading
from collections.abc import Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor
from concurrent.futures.process import BrokenProcessPool
from contextlib import contextmanager
from dataclasses import dataclass, field
from multiprocessing.connection import wait

from dflash_bench.errors import DataError
from dflash_bench.layout import Events
from dflash_bench.metrics.process import ProcessMeasurements, measure_process
from dflash_bench.metrics.reading import Reading
from dflash_bench.model import ProcessInfo, RankSource
from dflash_bench.profile import Profile

_THREADS = "OPENBLAS_NUM_THREADS"
_Found = dict[tuple[int, int], ProcessMeasurements]
"""By capture and process."""


def _cores() -> int:
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


@dataclass(frozen=True, slots=True)
class Workers:
    """How many measure side by side. Below ``least_rows`` in a run starting them takes longer than it saves; with
    more than ``most_rows`` in one process of it, several at once would hold more than 600 MB.
    """

    count: int = field(default_factory=_cores)
    least_rows: int = 1_000_000
    most_rows: int = 1_000_000

    def for_rows(self, num_rows: Sequence[int]) -> int:
        """How many measure processes with so many rows each."""
        is_worth_it = sum(num_rows) >= self.least_rows and max(num_rows, default=0) <= self.most_rows
        return min(self.count, len(num_rows)) if is_worth_it else 1


def each_rank(profile: Profile, reading: Reading, workers: Workers) -> Iterator[tuple[int, list[ProcessMeasurements]]]:
    """What each process of each rank gives.

    Raises DataError when a process that measures ends before its time (for lack of memory, mostly).
    """
    tasks = [process for rank in profile.info.ranks for process in profile.info.processes_of(rank)]
    rows = [p.num_ranges + p.num_api_calls + p.num_gpu_work for p in tasks]
    num = workers.for_rows(rows)
    # the largest first, dealt out in turn
    largest = sorted(range(len(tasks)), key=lambda index: -rows[index])
    shares = [[tasks[index] for index in largest[k::num]] for k in range(num)]
    found = _measured(profile, reading, shares[0]) if num < 2 else _side_by_side(profile, reading, shares)
    for rank in profile.info.ranks:
        yield rank, [found.pop((p.capture, p.process)) for p in profile.info.processes_of(rank)]


def _measured(profile: Profile, reading: Reading, processes: Sequence[ProcessInfo]) -> _Found:
    # a foreign rank mark would be odd, but only ours promises that every allocation is inside a range
    is_own_loop = profile.info.rank_source is RankSource.MARK and not _allocates_elsewhere(profile, reading)
    return {(p.capture, p.process): measure_process(profile, p, reading, is_own_loop=is_own_loop) for p in processes}


def _allocates_elsewhere(profile: Profile, reading: Reading) -> bool:
    """Whether a process that is no rank takes pages: the core of an engine, mostly."""
    others = [p for p in profile.info.processes if p.rank is None and p.num_ranges]
    names = (profile.events(Events.RANGES, p, ["name"]).column("name").to_pylist() for p in others)
    return any(reading.alloc in found for found in names)


def _side_by_side(profile: Profile, reading: Reading, shares: Sequence[Sequence[ProcessInfo]]) -> _Found:
    """Measure in this process and some others: it knows all modules already, which the others take long to read."""
    # not forked: threads of Arrow may hold locks
    context = multiprocessing.get_context("spawn")
    with ProcessPoolExecutor(len(shares) - 1, mp_context=context, initializer=_ends_with_its_parent) as executor:
        with _one_thread_each():
            others = [executor.submit(_measured, profile, reading, share) for share in shares[1:]]
        try:
            found = _measured(profile, reading, shares[0])
            for other in others:
                found |= other.result()
        except BrokenProcessPool:
            text = f"{profile.path}: a process that measured it ended before its time"
            raise DataError(text, hint="see whether the machine ran out of memory, and measure again") from None
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
