"""GPU work: rows of the capture made into the pieces that launches queue, and replays found where no id tells.

A CUDA graph that was instantiated before the capture opened can leave its work without a correlation id. Traced as a
graph, each row is a replay. Traced node by node, a replay must be put together: every replay of a graph runs each of
its nodes once, so the k-th row of every node belongs to the graph's k-th replay.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

import numpy as np

from dflash_bench.metrics.columns import stacked
from dflash_bench.metrics.events import GpuRows
from dflash_bench.metrics.intervals import NONE, Index, taken, used_codes
from dflash_bench.model import BoolArray, IntArray

GRAPH_BITS = 32
"""nsys' graphNodeId: the graph above these bits, the node below."""


@dataclass(frozen=True, slots=True)
class Work:
    """Pieces of GPU work: rows of one (device, stream, correlation id) are one piece, as a graph traced by node."""

    device: IntArray
    stream: IntArray
    correlation: IntArray
    start: IntArray
    end: IntArray

    def __len__(self) -> int:
        return len(self.start)

    def __getitem__(self, index: Index) -> Work:
        device, stream = taken(self.device, index), taken(self.stream, index)
        return Work(device, stream, self.correlation[index], self.start[index], self.end[index])

    @staticmethod
    def joined(parts: Sequence[Work]) -> Work:
        """Several as one, in this order."""
        full = [part for part in parts if len(part)]
        if len(full) < 2:
            return full[0] if full else NO_WORK
        return stacked(full)


_NOTHING = np.zeros(0, np.int64)
NO_WORK = Work(_NOTHING, _NOTHING, _NOTHING, _NOTHING, _NOTHING)


def pieces(rows: GpuRows | Work) -> Work:
    """Merge rows that share (device, stream, correlation id): start = min, end = max. By stream, then by id."""
    lane = lanes(rows.device, rows.stream)
    if (rows.correlation[1:] > rows.correlation[:-1]).all():
        # nothing to merge, and by stream it is put at once
        order = by_code(lane)
        return _merged(rows, rows.correlation, order, np.arange(len(order)))
    order, first = grouped(rows.correlation, lane)
    return _merged(rows, rows.correlation, order, first)


def _merged(rows: GpuRows | Work, number: IntArray, order: IntArray, first: IntArray) -> Work:
    """The pieces that begin at ``first`` in this order of rows, under a number each."""
    if not len(first):
        return NO_WORK
    at = order[first]
    if len(at) == len(order):
        return Work(taken(rows.device, at), taken(rows.stream, at), number[at], rows.start[at], rows.end[at])
    return Work(
        device=rows.device[at],
        stream=rows.stream[at],
        correlation=number[at],
        start=np.minimum.reduceat(rows.start[order], first),
        end=np.maximum.reduceat(rows.end[order], first),
    )


def grouped(*keys: IntArray) -> tuple[IntArray, IntArray]:
    """An order by keys, the last one first (as `numpy.lexsort`), and where in it each group of equal keys begins."""
    order = np.lexsort(keys)
    changed = np.zeros(len(order), bool)
    for key in keys:
        changed |= changes(key[order])
    return order, np.flatnonzero(changed)


def by_code(codes: IntArray) -> IntArray:
    """Order by small numbers from 0, stable: of up to 32,767 a sort that does not compare, ten times as fast."""
    return np.argsort(codes.astype(np.int16) if codes.max(initial=0) < 1 << 15 else codes, kind="stable")


def changes(values: IntArray) -> BoolArray:
    """bool [n]: where a value differs from the one before; true for the first."""
    changed = np.ones(len(values), bool)
    np.not_equal(values[1:], values[:-1], out=changed[1:])
    return changed


def lanes(device: IntArray, stream: IntArray) -> IntArray:
    """A number for each (device, stream), ascending as they do. int64 [n] each."""
    (device_code, _), (stream_code, num_streams) = _codes(device), _codes(stream)
    return device_code * num_streams + stream_code


def _codes(values: IntArray) -> tuple[IntArray, int]:
    low, high = (int(values.min()), int(values.max())) if len(values) else (0, 0)
    if low == high:
        return np.zeros(len(values), np.int64), 1
    if high - low < len(values):
        used, place = used_codes(values - low, high - low + 1)
        return place, len(used)
    known, found = np.unique(values, return_inverse=True)
    return found, len(known)


@dataclass(frozen=True, slots=True)
class Replays:
    """GPU work without a correlation id.

    ``work``: that of graph replays, a piece for each stream that a replay ran on; ``correlation`` is the replay's
    number, 0 … ``num`` − 1 in order of start. ``num_lone``: rows that belong to no replay. ``num_rows``: all rows.
    """

    work: Work
    num: int
    num_lone: int
    num_rows: int

    @property
    def num_pieces(self) -> int:
        return len(self.work) + self.num_lone


def replays_of(windows: Iterable[GpuRows]) -> Replays:
    """Find the replays among rows without an id. ``windows``: such rows, each ascending and after the one before.

    A graph whose nodes were not all seen equally often, because the capture cut a replay or its id was used again for
    another graph, gives none. Holds a few numbers for each replay and stream, and one for each node.
    """
    seen: dict[int, int] = {}
    parts, graphs, num_rows, num_found = [NO_WORK], [_NOTHING], 0, 0
    for rows in windows:
        # rows of whole replays have no node: as rows of one node they are as many replays as they are rows
        found = rows[rows.is_graph | (rows.nodes != NONE)]
        num_rows, num_found = num_rows + len(rows), num_found + len(found)
        graph, number = found.nodes >> GRAPH_BITS, _occurrences(found.nodes, seen)
        order, first = grouped(lanes(found.device, found.stream), number, graph)
        parts.append(_merged(found, number, order, first))
        graphs.append(graph[order[first]])
    uneven = _uneven(seen)
    num_uneven = sum(count for node, count in seen.items() if node >> GRAPH_BITS in uneven)
    graph, work = np.concatenate(graphs), Work.joined(parts)
    even = ~np.isin(graph, list(uneven))
    work, num = _numbered(graph[even], work[even])
    return Replays(work, num, num_rows - num_found + num_uneven, num_rows)


def _occurrences(node: IntArray, seen: dict[int, int]) -> IntArray:
    """How many rows of its node came before each row, int64 [n]; counts them in ``seen``."""
    known, place, count = np.unique(node, return_inverse=True, return_counts=True)
    before = np.array([seen.get(each, 0) for each in known.tolist()], np.int64)
    seen.update(zip(known.tolist(), (before + count).tolist(), strict=True))
    order = np.argsort(place, kind="stable")
    number = np.empty(len(node), np.int64)
    number[order] = np.arange(len(node)) - np.repeat(np.cumsum(count) - count, count)
    return number + before[place]


def _uneven(seen: dict[int, int]) -> set[int]:
    """The graphs whose nodes were seen unequally often."""
    counts: dict[int, set[int]] = {}
    for node, count in seen.items():
        counts.setdefault(node >> GRAPH_BITS, set()).add(count)
    return {graph for graph, different in counts.items() if len(different) > 1}


def _numbered(graph: IntArray, work: Work) -> tuple[Work, int]:
    """Pieces of (graph, occurrence) as pieces of replays, numbered in order of start; and the number of replays."""
    order, first = grouped(lanes(work.device, work.stream), work.correlation, graph)
    work, graph = _merged(work, work.correlation, order, first), graph[order[first]]
    is_first = changes(graph) | changes(work.correlation)
    begins = np.flatnonzero(is_first)
    if not len(begins):
        return NO_WORK, 0
    number = np.empty(len(begins), np.int64)
    number[np.argsort(np.minimum.reduceat(work.start, begins), kind="stable")] = np.arange(len(begins))
    correlation = number[np.cumsum(is_first) - 1]
    by_number = np.argsort(correlation, kind="stable")
    return Work(work.device, work.stream, correlation, work.start, work.end)[by_number], len(begins)
