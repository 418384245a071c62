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

_MAX_SHIFT = 2
"""Replays that may come before the first launch when replays without an id are joined in order."""


_MIN_LOST = 0.005
"""Share of the calls of a name without work above which work was lost: a few copies leave no row in any capture."""


@dataclass(frozen=True, slots=True)
class Launches:
    """Launches that GPU work was found for, in order of API start. All arrays [n].

    ``call`` and ``piece`` are the places of its call and its work. ``dry`` is when its lane had finished everything
    queued before; ``has_lead`` is false for the first launch of a lane (``is_first``), which has none, and behind work
    of which the capture does not tell when it ended. ``is_by_order``: joined by order of launch, for want of an id.
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
    is_first: BoolArray

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

    ``has_work`` bool [calls]. ``num_waiting``: graph launches that join nothing by their id; ``num_by_order`` of them
    were joined to replays without an id in order, the first of them to replay number ``shift``.
    """

    launches: Launches
    has_work: BoolArray
    work: Work
    num_waiting: int
    num_by_order: int
    shift: int
    num_duplicate_calls: int

    @property
    def is_impossible(self) -> BoolArray:
        """bool [launches]: whose work starts before they do."""
        return self.work.start[self.launches.piece] < self.launches.start

    @property
    def num_unlaunched(self) -> int:
        """Work without a launch."""
        return len(self.work) - len(self.launches)


def is_launch(names: Names) -> BoolArray:
    """Which calls, by name, launch kernels or graphs. A host function is queued like one, but gives the GPU no work."""
    return names.containing("Launch") & ~names.containing("LaunchHostFunc")


def join(calls: ApiCalls, work: Work) -> Join:
    """Join the calls of a process to its GPU work.

    Replays without an id go to the graph launches without work in order, see `_in_order`.
    """
    ids, call_of = _first_call(calls)
    place = np.minimum(np.searchsorted(ids, work.id), max(len(ids) - 1, 0))
    is_known = ids[place] == work.id if len(ids) else np.zeros(len(work), bool)
    call = np.where(is_known, call_of[place], NONE) if len(ids) else np.full(len(work), NONE, np.int64)
    has_work = np.zeros(len(calls), bool)
    has_work[call[is_known]] = True
    waiting = np.flatnonzero(calls.name.containing("GraphLaunch") & ~has_work)
    is_by_order = np.zeros(len(work), bool)
    replay, shift = _in_order(calls.start[waiting], work)
    if len(replay):
        is_by_order[replay] = True
        call[replay] = waiting[-1 - work.id[replay] - shift]
        has_work[call[replay]] = True
    launches = _launches(calls, work, call, is_by_order, _lost_calls(calls, has_work, call_of))
    return Join(
        launches=launches,
        has_work=has_work,
        work=work,
        num_waiting=len(waiting),
        num_by_order=len(replay),
        shift=shift,
        num_duplicate_calls=len(calls) - len(ids),
    )


def _in_order(start: IntArray, work: Work) -> tuple[IntArray, int]:
    """The pieces of replays that go to graph launches in order, and how many replays come before the first launch.

    ``start`` int64 [launches]. Only where there are as many replays as launches: otherwise one is missing anywhere, and
    all leads behind it would be another launch's. The launches of the first few can lie before the capture all the
    same, and the replays of the last few behind it: then work seems to start before its launch.
    """
    replays = np.flatnonzero((work.id < 0) & (work.id >= -work.num_replays))
    number = -1 - work.id[replays]
    for shift in range(_MAX_SHIFT + 1) if len(start) == work.num_replays else ():
        known = number >= shift
        if (work.start[replays[known]] >= start[number[known] - shift]).all():
            return replays[known], shift
    return replays[:0], 0


def _lost_calls(calls: ApiCalls, has_work: BoolArray, first: IntArray) -> BoolArray:
    """bool [calls]: which must have queued work that is not in the capture, as most calls of their name have some.

    ``first``: the calls that do not repeat an id.
    """
    # what is launched while a graph is captured becomes its node, and runs with its replays
    opens, closes = calls.name.containing("StreamBeginCapture"), calls.name.containing("StreamEndCapture")
    is_captured = np.cumsum(opens.astype(np.int64) - closes) > 0
    num_names = len(calls.name.values)
    count = np.bincount(calls.name.codes[~is_captured], minlength=num_names)
    with_work = np.bincount(calls.name.codes[has_work], minlength=num_names)
    is_first = np.zeros(len(calls), bool)
    is_first[first] = True
    is_losing = (2 * with_work > count) & (count - with_work > _MIN_LOST * count)
    lost: BoolArray = is_first & ~has_work & ~is_captured & at_rows(is_losing, calls.name.codes)
    return lost


def _launches(calls: ApiCalls, work: Work, call: IntArray, is_by_order: BoolArray, is_lost: BoolArray) -> Launches:
    """``call`` int64 [work]: the call of each piece, or NONE. ``is_lost`` bool [calls]: whose work is not there."""
    piece = np.flatnonzero(call != NONE)
    alone = np.flatnonzero(call == NONE)
    if not (call[piece][1:] >= call[piece][:-1]).all():
        # calls are in order of start, of equal starts by id
        piece = piece[np.argsort(call[piece], kind="stable")]
    call = call[piece]
    dry, has_lead, is_first = _latest_end_before(work, piece, alone, np.cumsum(is_lost, dtype=np.int64)[call])
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
        is_first=is_first,
    )


def _latest_end_before(
    work: Work, piece: IntArray, alone: IntArray, num_lost: IntArray
) -> tuple[IntArray, BoolArray, BoolArray]:
    """Of each launched piece the latest end of the work before it on its lane, whether that is known, and whether there
    was none.

    ``piece`` in order of launch, ``num_lost`` int64: how many calls before each queued work that is not in the capture.
    Work without a launch (``alone``) comes before what starts after it. After lost work, and work whose end is damaged,
    nobody knows when the lane ran dry.
    """
    lanes_of_work = work.lane
    lane, lane_alone = at_rows(lanes_of_work, piece), at_rows(lanes_of_work, alone)
    dry, has_lead, is_first = np.zeros(len(piece), np.int64), np.ones(len(piece), bool), np.zeros(len(piece), bool)
    for own in distinct(lane):
        rows = np.flatnonzero(lane == own)
        end = work.end[piece[rows]]
        dry[rows[1:]] = np.maximum.accumulate(end)[:-1]
        is_first[rows[:1]] = True
        has_lead[rows[:1]] = False
        has_lead[rows[1:]] = ~work.is_damaged[piece[rows[:-1]]] & (num_lost[rows[1:]] == num_lost[rows[:-1]])
        rest = alone[lane_alone == own]
        if len(rest):
            rest = rest[np.argsort(work.start[rest], kind="stable")]
            latest = np.maximum.accumulate(work.end[rest])
            before = np.searchsorted(work.start[rest], work.start[piece[rows]]) - 1
            later = rows[before >= 0]
            dry[later] = np.maximum(dry[later], latest[before[before >= 0]])
    return dry, has_lead, is_first


def _first_call(calls: ApiCalls) -> tuple[IntArray, IntArray]:
    """Correlation ids, ascending, and the first call of each: ids should be unique in a process, and mostly are."""
    ids = calls.correlation
    if (ids[1:] > ids[:-1]).all():
        return ids, np.arange(len(ids))
    order = np.argsort(ids, kind="stable")
    ids = ids[order]
    first = changes(ids)
    return (ids, order) if first.all() else (ids[first], order[first])
