"""Launches: API calls joined to the GPU work they queued, and by how much each came before the GPU ran dry.

The join is by (process, correlation id) and nothing else: GPU work can trail its launch by seconds, so that time tells
nothing. Lead of launch i of a stream, in order of API start: max(end of works 1..i−1) − API start of i.
"""

from __future__ import annotations

from dataclasses import dataclass
from itertools import pairwise

import numpy as np
import pyarrow as pa

from dflash_bench.metrics.events import ApiCalls, GpuRows, Names
from dflash_bench.model import BoolArray, IntArray


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


@dataclass(frozen=True, slots=True)
class Launches:
    """Launches that GPU work was found for, by stream and in order of API start. All arrays [n].

    ``dry`` is when the stream had finished everything queued before; ``has_lead`` is false for the first launch of a
    stream, which has none. ``is_by_order``: joined by order of launch, for want of a correlation id.
    """

    thread: IntArray
    start: IntArray
    end: IntArray
    is_graph: BoolArray
    is_by_order: BoolArray
    dry: IntArray
    has_lead: BoolArray

    @property
    def lead(self) -> IntArray:
        """Lead in ns, [n]. Meaningless where ``has_lead`` is false."""
        return self.dry - self.start

    def __len__(self) -> int:
        return len(self.start)

    def __getitem__(self, index: IntArray | BoolArray) -> Launches:
        return Launches(
            self.thread[index], self.start[index], self.end[index], self.is_graph[index], self.is_by_order[index],
            self.dry[index], self.has_lead[index],
        )  # fmt: skip


@dataclass(frozen=True, slots=True)
class JoinCounts:
    """What the join could not use, and how much it could."""

    num_work: int
    num_matched: int
    num_uncorrelated: int
    num_by_order: int
    num_impossible: int
    num_duplicate_calls: int


def is_launch(names: Names) -> BoolArray:
    """Which calls, by name, launch kernels or graphs. A host function is queued like one, but gives the GPU no work."""
    return names.containing("Launch") & ~names.containing("LaunchHostFunc")


def join(calls: ApiCalls, rows: GpuRows) -> tuple[Launches, BoolArray, JoinCounts]:
    """Join the calls of a process to its GPU work.

    Returns the launches, bool [calls] telling which calls have GPU work, and the counts.
    """
    uncorrelated = rows.correlation == 0
    work = pieces(rows, ~uncorrelated)
    unique, call_of = _first_call(calls)
    place = np.searchsorted(unique, work.correlation)
    matched = (
        np.flatnonzero((place < len(unique)) & (unique[np.minimum(place, len(unique) - 1)] == work.correlation))
        if len(unique)
        else np.zeros(0, np.int64)
    )
    call = call_of[place[matched]]
    launched = np.zeros(len(calls), bool)
    launched[call] = True
    late_call, late_row = _by_order(calls, rows, uncorrelated, launched)
    launched[late_call] = True
    joined = _Joined(
        call=np.concatenate([call, late_call]),
        device=np.concatenate([work.device[matched], rows.device[late_row]]),
        stream=np.concatenate([work.stream[matched], rows.stream[late_row]]),
        start=np.concatenate([work.start[matched], rows.start[late_row]]),
        end=np.concatenate([work.end[matched], rows.end[late_row]]),
        is_by_order=np.repeat([False, True], [len(call), len(late_call)]),
    )
    counts = JoinCounts(
        num_work=len(work) + int(uncorrelated.sum()),
        num_matched=len(joined.call),
        num_uncorrelated=int(uncorrelated.sum()),
        num_by_order=len(late_call),
        num_impossible=int((joined.start < calls.start[joined.call]).sum()),
        num_duplicate_calls=len(calls) - len(unique),
    )
    return _launches(calls, joined), launched, counts


def pieces(rows: GpuRows, keep: BoolArray) -> Work:
    """Merge rows that share (device, stream, correlation id): start = min, end = max."""
    index = np.flatnonzero(keep)
    lane = _lanes(rows.device[index], rows.stream[index])
    by_lane = np.lexsort((rows.correlation[index], lane))
    order, lane = index[by_lane], lane[by_lane]
    correlation = rows.correlation[order]
    first = np.flatnonzero(_changes(lane) | _changes(correlation))
    if not len(first):
        nothing = np.zeros(0, np.int64)
        return Work(nothing, nothing, nothing, nothing, nothing)
    return Work(
        device=rows.device[order[first]],
        stream=rows.stream[order[first]],
        correlation=correlation[first],
        start=np.minimum.reduceat(rows.start[order], first),
        end=np.maximum.reduceat(rows.end[order], first),
    )


def _lanes(device: IntArray, stream: IntArray) -> IntArray:
    """A number for each (device, stream), ascending as they do. int64 [n] each."""
    (device_code, _), (stream_code, num_streams) = _codes(device), _codes(stream)
    return device_code * num_streams + stream_code


def _codes(values: IntArray) -> tuple[IntArray, int]:
    # a hash of few values, not a sort of many
    encoded = pa.array(values).dictionary_encode()
    known = encoded.dictionary.to_numpy()
    place = np.empty(len(known), np.int64)
    place[np.argsort(known)] = np.arange(len(known))
    return place[encoded.indices.to_numpy()], max(1, len(known))


def _changes(values: IntArray) -> BoolArray:
    """bool [n]: where a value differs from the one before; true for the first."""
    changed = np.ones(len(values), bool)
    np.not_equal(values[1:], values[:-1], out=changed[1:])
    return changed


@dataclass(frozen=True, slots=True)
class _Joined:
    call: IntArray
    device: IntArray
    stream: IntArray
    start: IntArray
    end: IntArray
    is_by_order: BoolArray


def _first_call(calls: ApiCalls) -> tuple[IntArray, IntArray]:
    """Correlation ids, ascending, and the first call of each: ids should be unique in a process, and mostly are."""
    order = np.argsort(calls.correlation, kind="stable")
    ids = calls.correlation[order]
    first = _changes(ids)
    return (ids, order) if first.all() else (ids[first], order[first])


def _by_order(
    calls: ApiCalls, rows: GpuRows, uncorrelated: BoolArray, launched: BoolArray
) -> tuple[IntArray, IntArray]:
    """Graph replays without a correlation id (instantiated before the capture opened): k-th launch to k-th replay.

    Only where that cannot be wrong by a shift: as many graph launches without work as replays without launch.
    """
    replay = np.flatnonzero(uncorrelated & rows.is_graph)
    waiting = np.flatnonzero(calls.name.containing("GraphLaunch") & ~launched)
    if len(replay) != len(waiting) or not len(replay):
        return np.zeros(0, np.int64), np.zeros(0, np.int64)
    return waiting, replay[np.argsort(rows.start[replay], kind="stable")]


def _launches(calls: ApiCalls, joined: _Joined) -> Launches:
    lane = _lanes(joined.device, joined.stream)
    order = np.lexsort((calls.correlation[joined.call], calls.start[joined.call], lane))
    first = _changes(lane[order])
    call = joined.call[order]
    return Launches(
        thread=calls.thread[call],
        start=calls.start[call],
        end=calls.end[call],
        is_graph=calls.name.containing("Graph")[call],
        is_by_order=joined.is_by_order[order],
        dry=_latest_end_before(joined.end[order], first),
        has_lead=~first,
    )


def _latest_end_before(end: IntArray, first: BoolArray) -> IntArray:
    """Per lane, the running maximum of ``end`` over the works before each one. ``first`` marks where lanes begin."""
    dry = np.zeros(len(end), np.int64)
    bounds = [*np.flatnonzero(first), len(end)]
    for begin, stop in pairwise(bounds):
        dry[begin + 1 : stop] = np.maximum.accumulate(end[begin : stop - 1])
    return dry
