"""Which rank a process is: from the mark it wrote, else from the name of its file, else from the order of processes."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass, replace

from dflash_bench.errors import DataError, UsageError, quoted
from dflash_bench.model import ProcessInfo, RankSource

DEFAULT_RANK_PATTERN = r"rank[-_.]?(?P<rank>\d+)"
MARK = re.compile(r"^dflash_bench rank=(?P<rank>\d+) world=(?P<world>\d+)(?: arm=(?P<arm>.*))?$", re.DOTALL)


@dataclass(frozen=True, slots=True)
class RankMark:
    """What a process says of itself, in the NVTX mark ``dflash_bench rank=R world=W arm=A``.

    Where several arms take turns it names none, and a torch-profiler trace states rank and world (``source``) alone.
    """

    rank: int
    world: int
    arm: str | None
    source: RankSource = RankSource.MARK

    @classmethod
    def parse(cls, text: str) -> RankMark | None:
        """The mark in a text, or None when the text is another one."""
        found = MARK.match(text)
        if found is None:
            return None
        return cls(int(found["rank"]), int(found["world"]), None if found["arm"] is None else found["arm"].strip())


def compile_pattern(pattern: str) -> re.Pattern[str]:
    """The ``--rank-pattern``: a regular expression whose group ``rank`` (or only group) is the rank.

    Raises UsageError when it does not compile or captures nothing.
    """
    try:
        compiled = re.compile(pattern, re.IGNORECASE)
    except re.error as error:
        raise UsageError(f"--rank-pattern {quoted(pattern)} is no regular expression: {error}") from None
    if "rank" not in compiled.groupindex and compiled.groups != 1:
        raise UsageError(
            f"--rank-pattern {quoted(pattern)} captures no rank",
            hint=f"write one group, as in {quoted(DEFAULT_RANK_PATTERN)}",
        )
    return compiled


def rank_in_name(name: str, pattern: re.Pattern[str]) -> int | None:
    """The rank that a file name states, or None."""
    found = pattern.search(name)
    if found is None:
        return None
    text = found["rank"] if "rank" in pattern.groupindex else found[1]
    if text is None or not text.isdecimal():
        raise UsageError(f"--rank-pattern found {quoted(text)} in {quoted(name)}, which is no rank number")
    return int(text)


def assign_ranks(
    processes: Sequence[ProcessInfo],
    marks: dict[tuple[int, int], RankMark],
    file_names: Sequence[str],
    pattern: re.Pattern[str],
) -> tuple[ProcessInfo, ...]:
    """Give every process its rank, by the best source that the run offers.

    ``marks`` is keyed by (capture, process). A source is used for the whole run or not at all: mixing them could give
    one rank twice. With marks, a process without one stays without rank (the launcher, helpers). Raises DataError when
    two captures claim one rank.
    """
    if any((p.capture, p.process) in marks for p in processes):
        ranked = tuple(_by_mark(p, marks.get((p.capture, p.process))) for p in processes)
    elif all(rank_in_name(name, pattern) is not None for name in file_names):
        ranked = tuple(
            replace(p, rank=rank_in_name(file_names[p.capture], pattern), rank_source=RankSource.FILE_NAME)
            for p in processes
        )
    else:
        ranked = _by_order(processes)
    _check_unique(ranked, file_names)
    return ranked


def _by_mark(process: ProcessInfo, mark: RankMark | None) -> ProcessInfo:
    if mark is None:
        return process
    return replace(process, rank=mark.rank, rank_source=mark.source, world=mark.world, arm=mark.arm)


def _by_order(processes: Sequence[ProcessInfo]) -> tuple[ProcessInfo, ...]:
    # a launcher or a shell makes a few API calls at most: where others have ranges or GPU work, only those are ranks
    busy = [p for p in processes if p.num_ranges or p.num_gpu_work] or list(processes)
    order = {(p.capture, p.process): k for k, p in enumerate(sorted(busy, key=lambda p: (p.capture, p.pid)))}
    return tuple(
        replace(p, rank=order[p.capture, p.process], rank_source=RankSource.PROCESS_ORDER)
        if (p.capture, p.process) in order
        else p
        for p in processes
    )


def _check_unique(processes: Sequence[ProcessInfo], file_names: Sequence[str]) -> None:
    seen: dict[int, int] = {}
    for process in processes:
        if process.rank is None:
            continue
        first = seen.setdefault(process.rank, process.capture)
        if first != process.capture:
            raise DataError(
                f"{file_names[first]} and {file_names[process.capture]} both hold rank {process.rank}",
                hint="ingest each run on its own, with --run NAME",
            )
