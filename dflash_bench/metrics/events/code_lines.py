"""What a process ran, line by line: the frames and operators of torch traces, and nsys' call chains."""

from __future__ import annotations

import re
import sys
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np

from dflash_bench.layout import Events
from dflash_bench.metrics.events.arrays import NONE, Names, distinct, read_columns
from dflash_bench.metrics.events.intervals import intervals
from dflash_bench.model import IntArray, ProcessInfo
from dflash_bench.profile import Profile

_FRAME = re.compile(r"(?P<path>.+\.py)\((?P<line>\d+)\): (?P<function>.+)")
_LIBRARIES = {"torch", "triton", "numpy", "nvtx", "cuda", "cupy", "wrapt"}
_OWN = "dflash_bench/annotate/"
"""Packages whose functions work for whoever calls them: the line that matters is the caller's."""


def line_of_frame(frame: str) -> str | None:
    """``run_batch (scheduler.py:812)`` of ``srt/scheduler.py(812): run_batch``; None for built-ins and libraries."""
    found = _FRAME.fullmatch(frame)
    if found is None:
        return None
    path = found["path"]
    package = path.partition("/")[0].removesuffix(".py")
    if package in _LIBRARIES or package in sys.stdlib_module_names or _OWN in path:
        return None
    return f"{found['function']} ({path.rpartition('/')[2]}:{found['line']})"


@dataclass(frozen=True)  # without slots: what is asked for first is worked out once
class CodeLines:
    """What a process ran, by thread, as far as its capture tells."""

    profile: Profile
    process: ProcessInfo

    @cached_property
    def is_told(self) -> bool:
        """Whether there are frames, operators or call chains at all."""
        return bool(len(self._running[0]) or len(self._chains[0]))

    @cached_property
    def names(self) -> tuple[str, ...]:
        """All lines that occur."""
        return (*self._running[1].values, *self._chains[1].values)

    @cached_property
    def _running(self) -> tuple[IntArray, Names, IntArray, IntArray]:
        """Thread, line, start and end of what ran: the program's functions, or without any the operators."""
        columns = ("thread", "kind", "name", "start_ns", "end_ns")
        thread, kind, name, start, end = self._read(Events.OPERATORS, columns)
        lines = [line_of_frame(value) for value in name.values]
        is_own = kind.among({"python"}) & np.array([*(line is not None for line in lines), False])[name.codes]
        if is_own.any():
            values = tuple(dict.fromkeys(line for line in lines if line is not None))
            place = {value: k for k, value in enumerate(values)}
            code = np.array([NONE if line is None else place[line] for line in lines], np.int64)[name.codes[is_own]]
            return thread[is_own], Names(code, values), start[is_own], end[is_own]
        is_operator = kind.among({"operator"})
        return thread[is_operator], name[is_operator], start[is_operator], end[is_operator]

    @cached_property
    def _chains(self) -> tuple[IntArray, Names, IntArray]:
        """Start, line and thread of the calls that nsys took a chain of; by start."""
        thread, start, frames = self._read(Events.STACKS, ("thread", "start_ns", "frames"))
        inner = [value.partition(" < ")[0] for value in frames.values]
        values = tuple(dict.fromkeys(inner))
        place = {value: k for k, value in enumerate(values)}
        code = np.array([place[value] for value in inner] or [0], np.int64)[frames.codes]
        order = np.lexsort((thread, start))
        return start[order], Names(code[order], values), thread[order]

    def _read(self, table: Events, columns: tuple[str, ...]) -> list[Any]:
        return list(read_columns(self.profile, table, self.process, columns).values())

    def cut(self, thread: IntArray, start: IntArray, stop: IntArray) -> tuple[IntArray, IntArray, IntArray]:
        """Cut intervals of threads where the innermost line changes. int64 [n] each.

        Returns for each piece the interval it is of, its line, or NONE, and its length.
        """
        rows, lines, lengths = [], [], []
        of_thread, name, begin, end = self._running
        for key in distinct(thread) if len(of_thread) else ():
            own, mine = of_thread == key, np.flatnonzero(thread == key)
            index = intervals(begin[own], end[own])
            edges = np.unique(np.concatenate([index.start, index.end, start[mine], stop[mine]]))
            held = index.holding(edges)
            # NONE is −1: it takes what stands behind the last
            code = np.append(name.codes[own][index.source], NONE)[held]
            first, last = np.searchsorted(edges, start[mine]), np.searchsorted(edges, stop[mine])
            count = last - first
            piece = np.repeat(np.arange(len(mine)), count)
            segment = np.repeat(first - (np.cumsum(count) - count), count) + np.arange(len(piece))
            rows.append(mine[piece])
            lines.append(code[segment])
            lengths.append(edges[segment + 1] - edges[segment])
        if not rows:
            return np.arange(len(start)), np.full(len(start), NONE, np.int64), stop - start
        return np.concatenate(rows), np.concatenate(lines), np.concatenate(lengths)

    def of_calls(self, thread: IntArray, start: IntArray) -> IntArray:
        """The line of the call that began on each thread at an instant, by its chain, or NONE. int64 [n] each."""
        begun, name, own = self._chains
        if not len(begun):
            return np.full(len(start), NONE, np.int64)
        first = np.minimum(np.searchsorted(begun, start), len(begun) - 1)
        is_same = (begun[first] == start) & (own[first] == thread)
        return np.where(is_same, name.codes[first] + len(self._running[1].values), NONE)
