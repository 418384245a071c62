"""Launches: API calls joined to the GPU work they queued, and by how much each came before the GPU ran dry.

The join is by (process, correlation id) and nothing else: GPU work can trail its launch by seconds, so that time tells
nothing. Lead of launch i of a lane, in order of API start: max(end of works 1..i−1) − API start of i.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from dflash_bench.metrics.events.arrays import NONE, Index, Names, at_rows, changes, distinct, selected
from dflash_bench.metrics.events.gpu import Work
from dflash_bench.metrics.events.host import ApiCalls
from dflash_bench.model import BoolArray, IntArray


@dataclass(frozen=True, slots=True)
class Launches:
    """Launches that GPU work was found for, in order of API start. All arrays [n].

    ``call`` and ``piece`` are the places of its call and its work. ``dry`` is when its lane had finished everything
    queued before; ``has_lead`` is false for the first launch of a lane, which has none. ``is_by_order``: joined by
    order of launch, for want of a correlation id.
    """

    call: IntArray
    piece: IntArray
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

    def __getitem__(self, index: Index) -> Launches:
        return selected(self, index)


@dataclass(frozen=True, slots=True)
class Join:
    """Calls joined to their work, and what the join could not use.

    ``has_work`` bool [calls]. ``num_waiting``: graph launches that join nothing by their id.
    """

    launches: Launches
    has_work: BoolArray
    work: Work
    num_waiting: int
    num_by_order: int
    num_impossible: int
    num_duplicate_calls: int

    @property
    def num_unlaunched(self) -> int:
        """Work without a launch."""
        return len(self.work) - len(self.launches)


def is_launch(names: Names) -> BoolArray:
    """Which calls, by name, launch kernels or graphs. A host function is queued like one, but gives the GPU no work."""
    return names.containing("Launch") & ~names.containing("LaunchHostFunc")


def join(calls: ApiCalls, work: Work) -> Join:
    """Join the calls of a process to its GPU work.

    Replays without an id go to the graph launches without work, the k-th to the k-th, if there are as many of one as
    of the other: otherwise every lead could be wrong by a shift.
    """
    ids, call_of = _first_call(calls)
    place = np.minimum(np.searchsorted(ids, work.id), max(len(ids) - 1, 0))
    is_known = ids[place] == work.id if len(ids) else np.zeros(len(work), bool)
    call = np.where(is_known, call_of[place], NONE) if len(ids) else np.full(len(work), NONE, np.int64)
    has_work = np.zeros(len(calls), bool)
    has_work[call[is_known]] = True
    waiting = np.flatnonzero(calls.name.containing("GraphLaunch") & ~has_work)
    is_by_order = np.zeros(len(work), bool)
    if work.num_replays and work.num_replays == len(waiting):
        is_by_order = (work.id < 0) & (work.id >= -work.num_replays)
        call[is_by_order] = waiting[-1 - work.id[is_by_order]]
        has_work[waiting] = True
    launches = _launches(calls, work, call, is_by_order)
    return Join(
        launches=launches,
        has_work=has_work,
        work=work,
        num_waiting=len(waiting),
        num_by_order=len(waiting) if is_by_order.any() else 0,
        num_impossible=int((work.start[launches.piece] < launches.start).sum()),
        num_duplicate_calls=len(calls) - len(ids),
    )


def _launches(calls: ApiCalls, work: Work, call: IntArray, is_by_order: BoolArray) -> Launches:
    """``call`` int64 [work]: the call of each piece, or NONE."""
    piece = np.flatnonzero(call != NONE)
    if not (call[piece][1:] >= call[piece][:-1]).all():
        # calls are in order of start, of equal starts by id
        piece = piece[np.argsort(call[piece], kind="stable")]
    call = call[piece]
    dry, has_lead = _latest_end_before(at_rows(work.lane, piece), work.end[piece])
    return Launches(
        call=call,
        piece=piece,
        thread=at_rows(calls.thread, call),
        start=calls.start[call],
        end=calls.end[call],
        is_graph=calls.name.containing("Graph")[call],
        is_by_order=is_by_order[piece],
        dry=dry,
        has_lead=has_lead,
    )


def _latest_end_before(lane: IntArray, end: IntArray) -> tuple[IntArray, BoolArray]:
    """Of each piece the latest end of those before it on its lane, and whether there are any."""
    dry, has_lead = np.zeros(len(end), np.int64), np.ones(len(end), bool)
    for own in distinct(lane):
        rows = np.flatnonzero(lane == own)
        dry[rows[1:]] = np.maximum.accumulate(end[rows])[:-1]
        has_lead[rows[:1]] = False
    return dry, has_lead


def _first_call(calls: ApiCalls) -> tuple[IntArray, IntArray]:
    """Correlation ids, ascending, and the first call of each: ids should be unique in a process, and mostly are."""
    ids = calls.correlation
    if (ids[1:] > ids[:-1]).all():
        return ids, np.arange(len(ids))
    order = np.argsort(ids, kind="stable")
    ids = ids[order]
    first = changes(ids)
    return (ids, order) if first.all() else (ids[first], order[first])
