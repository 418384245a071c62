"""GPU work: rows of the capture made into the pieces that launches queue, and replays found where no id tells.

A CUDA graph that was instantiated before the capture opened can leave its work without a correlation id. Traced as a
graph, each row is a replay. Traced node by node, a replay must be put together: every replay of a graph runs each of
its nodes once, so the k-th row of every node belongs to the graph's k-th replay.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np

from dflash_bench.layout import Events
from dflash_bench.metrics.events.arrays import NONE, Index, changes, compact, read_columns, selected, slim
from dflash_bench.model import BoolArray, IntArray, ProcessInfo
from dflash_bench.profile import Profile

_MAX_OVERLAP_NS = 10_000
_MAX_DAMAGED = 0.05
"""Share of rows up to which those that overlap the next of their stream by more than that, or outlast the capture, are
taken as damaged. Of 160 processes in real captures none has a single one."""

_TIE = 0.01
"""Share of its time by which a stream must lead another to be where a piece mostly runs."""

_GRAPH_BITS = 32
"""nsys' graphNodeId: the graph above these bits, the node below."""


@dataclass(frozen=True, slots=True)
class GpuRows:
    """GPU rows of the capture, in any order. All arrays [n]. ``is_replay``: rows that are a whole graph replay.

    ``node``, ``graph``: the graph node that a row ran, and the graph, NONE where it is not known to be of one.
    ``is_damaged``: rows whose end cannot be; it is cut to where the next row of the stream starts.
    """

    device: IntArray
    stream: IntArray
    correlation: IntArray
    is_replay: BoolArray
    start: IntArray
    end: IntArray
    node: IntArray
    graph: IntArray
    is_damaged: BoolArray

    def __len__(self) -> int:
        return len(self.start)

    def __getitem__(self, index: Index) -> GpuRows:
        return selected(self, index)


@dataclass(frozen=True, slots=True)
class Work:
    """Pieces of GPU work, ascending by id: rows of one (device, correlation id) are one, on however many streams.

    ``id`` is the correlation id. Work without one has a negative id of its own: −1 is the first graph replay by start,
    −2 the second, … ``num_replays``, and after these come rows that belong to none. ``stream`` is the one that holds
    most of the piece's time, and of the pieces of one graph the one that most of them have.
    """

    device: IntArray
    stream: IntArray
    id: IntArray
    start: IntArray
    end: IntArray
    is_damaged: BoolArray
    num_rows: IntArray
    first_row: IntArray
    num_replays: int
    num_uncorrelated_rows: int

    def __len__(self) -> int:
        return len(self.start)

    @property
    def lane(self) -> IntArray:
        """A number for each (device, stream) that occurs, ascending as they do. int64 [n]."""
        return lanes(self.device, self.stream)


def read_gpu_rows(profile: Profile, process: ProcessInfo) -> GpuRows:
    """The GPU rows of a process, those that cannot be marked."""
    columns = (
        "device", "stream", "correlation_id", "kind", "start_ns", "end_ns", "graph_node_id", "graph_exec_id",
    )  # fmt: skip
    device, stream, correlation, kind, start, end, node, graph = read_columns(
        profile, Events.GPU_WORK, process, columns
    ).values()
    graph = slim(np.where(graph == NONE, node >> _GRAPH_BITS, graph))
    rows = GpuRows(
        device, stream, correlation, kind.among({"graph"}), start, end, node, graph, np.zeros(len(end), bool)
    )
    return plausible(rows, profile.info.captures[process.capture].last_ns)


def plausible(rows: GpuRows, last: int | None) -> GpuRows:
    """The rows, marked and cut where one ends after the capture, or long after the next of its stream began.

    Where more than a few do one of these, it is how this GPU or this clock works, and no damage; never both.
    """
    lane = lanes(rows.device, rows.stream)
    order = np.lexsort((rows.start, lane)) if lane.strides != (0,) else np.argsort(rows.start, kind="stable")
    has_next = np.append(lane[order][1:] == lane[order][:-1], False)[: len(order)]
    next_start = np.where(has_next, np.append(rows.start[order][1:], 0)[: len(order)], rows.end[order])
    end = rows.end[order]
    overlaps = end - next_start > _MAX_OVERLAP_NS
    is_late = np.zeros(len(end), bool) if last is None else end > last
    damaged = overlaps & is_late
    for found in (overlaps, is_late):
        if 0 < found.sum() <= max(_MAX_DAMAGED * len(end), 1):
            damaged |= found
    if not damaged.any():
        return rows
    cut = np.where(has_next, next_start, rows.start[order])
    is_damaged, ends = rows.is_damaged.copy(), rows.end.copy()
    is_damaged[order[damaged]] = True
    ends[order[damaged]] = cut[damaged]
    return replace(rows, end=ends, is_damaged=is_damaged)


def pieces(rows: GpuRows) -> Work:
    """Put rows together that one launch queued: start = min, end = max."""
    ids, num_replays = _identified(rows)
    num_uncorrelated = int((ids < 0).sum())
    lane = lanes(rows.device, rows.stream)
    device, _ = compact(rows.device)
    order = np.argsort(ids, kind="stable")
    ids = ids[order]
    if len(device) > 1:
        # an id is mostly on one device
        order = order[np.lexsort((rows.device[order], ids))]
    first = changes(ids) if len(device) < 2 else changes(ids) | changes(rows.device[order])
    if first.all():
        begins, row, start, end = np.arange(len(ids)), order, rows.start[order], rows.end[order]
    else:
        begins = np.flatnonzero(first)
        start = np.minimum.reduceat(rows.start[order], begins)
        end = np.maximum.reduceat(rows.end[order], begins)
        row = _longest_lane(rows, lane, order, begins)
    stream = _lane_of_graph(rows.stream[row], rows.graph[row])
    return Work(
        device=slim(rows.device[row]),
        stream=slim(stream),
        id=ids[begins],
        start=start,
        end=end,
        is_damaged=rows.is_damaged[order] if first.all() else np.logical_or.reduceat(rows.is_damaged[order], begins),
        num_rows=np.diff(np.append(begins, len(ids))),
        first_row=order[begins],
        num_replays=num_replays,
        num_uncorrelated_rows=num_uncorrelated,
    )


def _longest_lane(rows: GpuRows, lane: IntArray, order: IntArray, begins: IntArray) -> IntArray:
    """A row of each piece that lies on the stream with most of its time, of equals (to `_TIE`) the lowest."""
    piece = np.repeat(np.arange(len(begins)), np.diff(np.append(begins, len(order))))
    own = lane[order]
    by_lane = np.lexsort((own, piece))
    first = np.flatnonzero(changes(piece[by_lane]) | changes(own[by_lane]))
    time = np.add.reduceat((rows.end - rows.start)[order][by_lane], first)
    place, row = piece[by_lane][first], order[by_lane[first]]
    # lanes come in order: of those that are nearly as long as the longest the first counts
    longest = np.maximum.reduceat(time, np.flatnonzero(changes(place)))
    kept = np.flatnonzero(time >= (1 - _TIE) * longest[place])
    return row[kept[changes(place[kept])]]


def _lane_of_graph(stream: IntArray, graph: IntArray) -> IntArray:
    """The stream of each piece, those of one graph all on the one that most of them have."""
    known = np.flatnonzero(graph != NONE)
    if not len(known) or stream.strides == (0,):
        return stream
    _, number = compact(graph[known])
    streams, own = compact(stream[known])
    count = np.zeros((int(number.max()) + 1, len(streams)), np.int64)
    np.add.at(count, (number, own), 1)
    found = stream.copy()
    found[known] = streams[count.argmax(axis=1)[number]]
    return found


def lanes(device: IntArray, stream: IntArray) -> IntArray:
    """A number for each (device, stream), ascending as they do. int64 [n] each."""
    (_, device_code), (streams, stream_code) = compact(device), compact(stream)
    return slim(device_code * len(streams) + stream_code)


def _identified(rows: GpuRows) -> tuple[IntArray, int]:
    """The id of the piece that each row belongs to, negative where the capture gives none, and the number of replays.

    A graph whose nodes were not all seen equally often, because the capture cut a replay or its id was used again for
    another graph, gives no replay.
    """
    lone = np.flatnonzero(rows.correlation == 0)
    if not len(lone):
        return rows.correlation, 0
    lone = lone[np.argsort(rows.start[lone], kind="stable")]
    ids = rows.correlation.copy()
    # rows of whole replays have no node: as rows of one node they are as many replays as they are rows
    of_graph = lone[rows.is_replay[lone] | (rows.node[lone] != NONE)]
    nodes, place, count = np.unique(rows.node[of_graph], return_inverse=True, return_counts=True)
    graph = nodes >> _GRAPH_BITS
    is_even = np.array([len(set(count[graph == own].tolist())) == 1 for own in graph.tolist()], bool)
    of_graph, place = (of_graph[is_even[place]], place[is_even[place]]) if len(nodes) else (of_graph, place)
    occurrence = _occurrences(place)
    _, graph_code = np.unique(graph, return_inverse=True)
    _, replay = np.unique(graph_code[place] * (occurrence.max(initial=0) + 1) + occurrence, return_inverse=True)
    num = int(replay.max(initial=-1)) + 1
    begin = np.full(num, np.iinfo(np.int64).max)
    np.minimum.at(begin, replay, rows.start[of_graph])
    number = np.empty(num, np.int64)
    number[np.argsort(begin, kind="stable")] = np.arange(num)
    ids[of_graph] = -1 - number[replay]
    rest = lone[ids[lone] == 0]
    ids[rest] = -1 - num - np.arange(len(rest))
    return ids, num


def _occurrences(place: IntArray) -> IntArray:
    """How many equal numbers came before each, int64 [n]."""
    order = np.argsort(place, kind="stable")
    first = np.flatnonzero(changes(place[order]))
    number = np.empty(len(place), np.int64)
    number[order] = np.arange(len(place)) - np.repeat(first, np.diff(np.append(first, len(place))))
    return number
