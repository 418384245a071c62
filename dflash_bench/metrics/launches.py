"""Launches: API calls joined to the GPU work they queued, and by how much each came before the GPU ran dry.

The join is by (process, correlation id) and nothing else: GPU work can trail its launch by seconds, so that time tells
nothing. Lead of launch i of a stream, in order of API start: max(end of works 1..i−1) − API start of i.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import pairwise

import numpy as np

from dflash_bench.metrics.ahead import within
from dflash_bench.metrics.columns import Names
from dflash_bench.metrics.events import ApiCalls, GpuRows
from dflash_bench.metrics.intervals import Index, taken
from dflash_bench.metrics.work import NO_WORK, Work, by_code, changes, lanes, pieces, replays_of
from dflash_bench.model import BoolArray, IntArray
from dflash_bench.profile import Span


@dataclass(frozen=True, slots=True)
class Launches:
    """Launches that GPU work was found for, by stream and in order of API start. All arrays [n].

    ``call`` is the place of its call among those that were joined. ``dry`` is when the stream had finished everything
    queued before; ``has_lead`` is false for the first launch of a stream, which has none. ``is_by_order``: joined by
    order of launch, for want of a correlation id.
    """

    call: IntArray
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
        return Launches(
            self.call[index], taken(self.thread, index), self.start[index], self.end[index], self.is_graph[index],
            self.is_by_order[index], self.dry[index], self.has_lead[index],
        )  # fmt: skip


@dataclass(frozen=True, slots=True)
class JoinCounts:
    """What the join could not use, and how much it could.

    ``num_replays``, ``num_waiting``: graph replays without an id, and graph launches that join nothing by theirs.
    """

    num_work: int
    num_matched: int
    num_uncorrelated: int
    num_by_order: int
    num_impossible: int
    num_duplicate_calls: int
    num_replays: int
    num_waiting: int

    @property
    def num_unlaunched(self) -> int:
        """Work without a launch."""
        return self.num_work - self.num_matched


def is_launch(names: Names) -> BoolArray:
    """Which calls, by name, launch kernels or graphs. A host function is queued like one, but gives the GPU no work."""
    return names.containing("Launch") & ~names.containing("LaunchHostFunc")


def join(calls: ApiCalls, rows: GpuRows) -> tuple[Launches, BoolArray, JoinCounts]:
    """Join the calls of a process to its GPU work, all at once.

    Returns the launches, bool [calls] telling which calls have GPU work, and the counts.
    """
    work, replays = pieces(rows[rows.correlation != 0]), replays_of([rows[rows.correlation == 0].by_start()])
    joiner = Joiner(lambda _: work, replays=replays.work)
    launches, launched = joiner.feed(calls)
    if replays.num and joiner.num_waiting != replays.num:
        joiner = Joiner(lambda _: work)
        launches, launched = joiner.feed(calls)
    return launches, launched, joiner.counts(replays.num_rows, replays.num_pieces, replays.num)


class Joiner:
    """Joins calls to the GPU work they queued, window by window in order of API start.

    ``work_until`` gives the pieces of work with an id up to a number that it has not given yet, all rows of an id at
    once.
    ``replays`` are pieces without an id, their number in place of one (0, 1, … in order of start): they go to the graph
    launches without work, the k-th to the k-th. What comes of that is right only if there are as many of one as of the
    other (``num_waiting``), since otherwise every lead could be wrong by a shift.

    Holds the work and ids that later calls may bear, and one number a stream.
    """

    def __init__(
        self,
        work_until: Callable[[int], Work],
        replays: Work = NO_WORK,
    ) -> None:
        self.work_until, self.replays = work_until, replays
        self.early, self.seen = NO_WORK, np.zeros(0, np.int64)
        self.dry: dict[tuple[int, int], int] = {}
        self.num_work = self.num_matched = self.num_impossible = self.num_duplicate_calls = self.num_by_order = 0
        self.num_waiting = 0

    def feed(self, calls: ApiCalls, coming: Sequence[Span] = ()) -> tuple[Launches, BoolArray]:
        """The launches among these calls, by stream, and bool [calls] telling which have GPU work.

        ``coming``: in which spans the ids of later calls lie, so that only work and ids in these need be kept.
        """
        call, work = self._by_id(calls, coming)
        launched = np.zeros(len(calls), bool)
        launched[call] = True
        waiting = np.flatnonzero(calls.name.containing("GraphLaunch") & ~launched)
        late = self._next_replays(len(waiting))
        by_order = waiting[late.correlation - self.num_waiting]
        self.num_waiting += len(waiting)
        self.num_by_order += len(np.unique(by_order))
        launched[by_order] = True
        found = _Joined(
            call=np.concatenate([call, by_order]),
            work=Work.joined([work, late]) if len(late) else work,
            is_by_order=np.repeat([False, True], [len(call), len(by_order)]),
        )
        self.num_matched += len(found.call)
        self.num_impossible += int((found.work.start < calls.start[found.call]).sum())
        return self._launches(calls, found), launched

    def add_unlaunched(self, work: Work) -> None:
        """Count work with an id that no call was fed for."""
        self.num_work += len(work)

    def counts(self, num_uncorrelated: int, num_pieces: int, num_replays: int) -> JoinCounts:
        """What was joined so far. The work without an id: its rows, its pieces, and the replays that they make up."""
        return JoinCounts(
            num_work=self.num_work + num_pieces,
            num_matched=self.num_matched,
            num_uncorrelated=num_uncorrelated,
            num_by_order=self.num_by_order,
            num_impossible=self.num_impossible,
            num_duplicate_calls=self.num_duplicate_calls,
            num_replays=num_replays,
            num_waiting=self.num_waiting,
        )

    def _by_id(self, calls: ApiCalls, coming: Sequence[Span]) -> tuple[IntArray, Work]:
        """The call of each piece of work that has one, and the pieces. Ids ought to be unique, and the first counts."""
        ids, call_of = _first_call(calls)
        fresh = self.work_until(int(ids[-1])) if len(ids) else NO_WORK
        self.num_work += len(fresh)
        work = Work.joined([self.early, fresh])
        repeated = np.isin(ids, self.seen) if len(self.seen) else np.zeros(len(ids), bool)
        self.num_duplicate_calls += len(calls) - len(ids) + int(repeated.sum())
        ids, call_of = (ids[~repeated], call_of[~repeated]) if repeated.any() else (ids, call_of)
        known = np.concatenate([self.seen, ids])
        self.seen = known[within(known, coming)]
        if not len(ids):
            self.early = work[within(work.correlation, coming)]
            return np.zeros(0, np.int64), NO_WORK
        place = np.minimum(np.searchsorted(ids, work.correlation), len(ids) - 1)
        is_matched = ids[place] == work.correlation
        lone = np.flatnonzero(~is_matched)
        self.early = work[lone[within(work.correlation[lone], coming)]]
        return (call_of[place], work) if not len(lone) else (call_of[place[is_matched]], work[is_matched])

    def _next_replays(self, num: int) -> Work:
        first, last = np.searchsorted(self.replays.correlation, [self.num_waiting, self.num_waiting + num])
        return self.replays[first:last]

    def _launches(self, calls: ApiCalls, joined: _Joined) -> Launches:
        work = joined.work
        lane = lanes(work.device, work.stream)
        # calls are in order of start, of equal starts by id
        order = by_code(lane) if (joined.call[1:] >= joined.call[:-1]).all() else np.lexsort((joined.call, lane))
        first = changes(lane[order])
        call, work = joined.call[order], work[order]
        dry, has_lead = self._latest_end_before(work, np.flatnonzero(first))
        return Launches(
            call=call,
            thread=taken(calls.thread, call),
            start=calls.start[call],
            end=calls.end[call],
            is_graph=calls.name.containing("Graph")[call],
            is_by_order=joined.is_by_order[order],
            dry=dry,
            has_lead=has_lead,
        )

    def _latest_end_before(self, work: Work, first: IntArray) -> tuple[IntArray, BoolArray]:
        """Of each piece the latest end of those before it on its stream, and whether there are any.

        ``first``: where the pieces of each stream begin.
        """
        dry, has_lead = np.zeros(len(work), np.int64), np.ones(len(work), bool)
        for begin, stop in pairwise([*first.tolist(), len(work)]):
            lane = int(work.device[begin]), int(work.stream[begin])
            latest = np.maximum.accumulate(work.end[begin:stop])
            dry[begin + 1 : stop] = latest[:-1]
            if lane in self.dry:
                dry[begin:stop] = np.maximum(dry[begin:stop], self.dry[lane])
                dry[begin] = self.dry[lane]
            else:
                has_lead[begin] = False
            self.dry[lane] = max(int(latest[-1]), self.dry.get(lane, int(latest[-1])))
        return dry, has_lead


@dataclass(frozen=True, slots=True)
class _Joined:
    """``call`` int64 [n]: the call of each piece of work."""

    call: IntArray
    work: Work
    is_by_order: BoolArray


def _first_call(calls: ApiCalls) -> tuple[IntArray, IntArray]:
    """Correlation ids, ascending, and the first call of each: ids should be unique in a process, and mostly are."""
    ids = calls.correlation
    if (ids[1:] > ids[:-1]).all():
        return ids, np.arange(len(ids))
    order = np.argsort(ids, kind="stable")
    ids = ids[order]
    first = changes(ids)
    return (ids, order) if first.all() else (ids[first], order[first])
