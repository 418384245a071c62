"""Rows of a table handed out in the order of a key, however the file has them, and no more read than that needs.

Row groups state the least and the greatest key in them, so a group is read once its least key is asked for, and is let
go once its greatest is out. What is held at a time are the groups that overlap: of a table in order one or two; of GPU
work, which comes as one run of kernels, one of copies and so on, as many as there are runs; of a table without any
order all of them, and then nothing is gained, but every figure stays right.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import Generic, Protocol, TypeVar

import numpy as np
import pyarrow as pa

from dflash_bench.metrics.intervals import Index
from dflash_bench.model import BoolArray, IntArray
from dflash_bench.profile import EventFile, Span


class Rows(Protocol):
    """Arrays of one length that are cut together."""

    def __len__(self) -> int: ...

    def __getitem__(self: R, index: Index) -> R: ...


R = TypeVar("R", bound=Rows)


class Ahead(Generic[R]):
    """One table of one process, read ahead by its row groups.

    ``decode`` turns a row group's table into rows that ascend by ``key``; ``join`` makes one of several, in
    order again. ``spans``: the least and the greatest key of each group; None for a group with nothing in it.
    """

    def __init__(
        self,
        file: EventFile | None,
        columns: Sequence[str],
        decode: Callable[[pa.Table], R],
        key: Callable[[R], IntArray],
        join: Callable[[Sequence[R]], R],
        spans: Sequence[Span | None],
    ) -> None:
        self.file, self.columns, self.decode, self.key, self.join = file, columns, decode, key, join
        self.low = {group: span[0] for group, span in enumerate(spans) if span is not None}
        self.unread = sorted(self.low, key=lambda group: (self.low[group], group))
        self.begun: dict[int, R] = {}
        self.held: dict[int, int] = {}

    def until(self, stop: int | None) -> R:
        """The rows with a key below ``stop`` that were not handed out yet; without it all that are left."""
        while self.unread and (stop is None or self.low[self.unread[0]] < stop):
            self._read_next()
        taken = []
        for group in sorted(self.begun):
            rows = self.begun.pop(group)
            cut = len(rows) if stop is None else int(np.searchsorted(self.key(rows), stop))
            if cut:
                taken.append(rows[:cut])
            if cut < len(rows):
                self.begun[group] = self._lean(group, rows[cut:])
        return self.join(taken)

    def _lean(self, group: int, rows: R) -> R:
        """What is left of a group: a view, which holds all of it, until it is less than half of what is held."""
        if 2 * len(rows) > self.held[group]:
            return rows
        self.held[group] = len(rows)
        return rows[np.arange(len(rows))]

    def rest(self) -> Iterator[R]:
        """All rows that are left, group after group."""
        while self.unread:
            self._read_next()
            yield self.until(self.low[self.unread[0]] if self.unread else None)
        yield self.until(None)

    def _read_next(self) -> None:
        assert self.file is not None
        group = self.unread.pop(0)
        self.begun[group] = self.decode(self.file.read(group, self.columns))
        self.held[group] = len(self.begun[group])


def spans(file: EventFile | None, column: str) -> list[Span | None]:
    """What each row group states of a column."""
    return [] if file is None else [file.span(group, column) for group in range(file.num_groups)]


def cuts(files: Sequence[EventFile | None], num_rows: int) -> list[int]:
    """Instants that part the rows of some tables into windows of about this many, as if groups were filled evenly."""
    groups = [(f.num_rows(g), *f.span(g, "start_ns")) for f in files if f is not None for g in range(f.num_groups)]
    num_windows = -(-sum(rows for rows, _, _ in groups) // num_rows)
    if num_windows <= 1:
        return []
    edges = np.unique([edge for _, low, high in groups for edge in (low, high)]).astype(np.float64)
    before = np.zeros(len(edges))
    for rows, low, high in groups:
        before += rows * np.clip((edges - low) / max(high - low, 1), 0, 1)
    found = np.interp(before[-1] * np.arange(1, num_windows) / num_windows, before, edges)
    return sorted({int(cut) for cut in found})


def within(values: IntArray, spans: Sequence[Span]) -> BoolArray:
    """bool [n]: which values lie in any of these spans."""
    found = np.zeros(len(values), bool)
    if not spans or not len(values):
        return found
    near = np.flatnonzero((values >= min(low for low, _ in spans)) & (values <= max(high for _, high in spans)))
    for low, high in spans if len(near) else ():
        found[near] |= (values[near] >= low) & (values[near] <= high)
    return found
