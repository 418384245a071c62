"""GPU work as it is drawn: pieces with their names, each with the launch that queued it."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from dflash_bench.layout import Events
from dflash_bench.metrics.columns import Names
from dflash_bench.metrics.events import GpuRows, ProcessEvents
from dflash_bench.metrics.intervals import NONE
from dflash_bench.metrics.launches import Launches, join
from dflash_bench.metrics.work import Work, pieces, replays_of
from dflash_bench.model import BoolArray, IntArray
from dflash_bench.profile import Profile


@dataclass(frozen=True, slots=True)
class GpuWork:
    """All GPU work of a process, one row a piece (`pieces`), and the launch of each. All arrays [n].

    ``launch`` int64 indexes into ``launches``, NONE where no launch was found; ``num_rows`` is how many rows of the
    capture each piece has (a graph traced node by node has many).
    """

    device: IntArray
    stream: IntArray
    start: IntArray
    end: IntArray
    name: Names
    num_rows: IntArray
    launch: IntArray
    launches: Launches

    def __len__(self) -> int:
        return len(self.start)

    def __getitem__(self, index: IntArray | BoolArray) -> GpuWork:
        return GpuWork(
            self.device[index], self.stream[index], self.start[index], self.end[index], self.name[index],
            self.num_rows[index], self.launch[index], self.launches,
        )  # fmt: skip

    @property
    def launched_at(self) -> IntArray:
        """Start of the launch call of each piece; meaningless where ``launch`` is NONE."""
        return self.launches.start[self.launch] if len(self.launches) else np.full(len(self), NONE, np.int64)

    def label(self, row: int) -> str:
        """The piece's name, and how many rows it was made of."""
        name, rows = self.name.values[self.name.codes[row]], int(self.num_rows[row])
        return name if rows == 1 else f"{name} and {rows - 1:,} more"


def gpu_work(profile: Profile, events: ProcessEvents) -> GpuWork:
    """The GPU work of a process, each piece with its launch.

    The launches and their leads are those of `join`: of pieces with a correlation id, then of graph replays without
    one. Rows that belong to neither are a piece each, and have no launch.
    """
    rows, names = events.gpu, _work_names(profile, events)
    launches, _, _ = join(events.calls, rows)
    by_id, lone = rows.correlation != 0, np.flatnonzero(rows.correlation == 0)
    work, replays = pieces(rows[by_id]), replays_of([rows[lone].by_start()]).work
    first, num_rows = _first_row_of_each_piece(events, by_id)
    first_of_replay, num_of_replay, is_in_replay = _rows_of_replays(rows, lone, replays)
    lone = lone[~is_in_replay]
    every = Work.joined([work, replays, Work(*(c[lone] for c in _columns(rows)))])
    launch = np.full(len(every), NONE, np.int64)
    launch[: len(work)] = _launches_by_id(events, work, launches)
    launch[len(work) : len(work) + len(replays)] = _launches_by_order(events, replays, launches)
    return GpuWork(
        device=every.device,
        stream=every.stream,
        start=every.start,
        end=every.end,
        name=names[np.concatenate([first, first_of_replay, lone])],
        num_rows=np.concatenate([num_rows, num_of_replay, np.ones(len(lone), np.int64)]),
        launch=launch,
        launches=launches,
    )


def _columns(rows: GpuRows) -> tuple[IntArray, ...]:
    return rows.device, rows.stream, rows.correlation, rows.start, rows.end


def _launches_by_id(events: ProcessEvents, work: Work, launches: Launches) -> IntArray:
    """int64 [work]: the launch of each piece. Both sides come in one order (stream, API start, id): k-th to k-th."""
    found = np.full(len(work), NONE, np.int64)
    ids, call_of = np.unique(events.calls.correlation, return_index=True)
    known = np.flatnonzero(np.isin(work.correlation, ids))
    called = events.calls.start[call_of[np.searchsorted(ids, work.correlation[known])]]
    order = np.lexsort((work.correlation[known], called, work.stream[known], work.device[known]))
    found[known[order]] = np.flatnonzero(~launches.is_by_order)
    return found


def _launches_by_order(events: ProcessEvents, replays: Work, launches: Launches) -> IntArray:
    """int64 [replays]: the launch of each piece of a replay, where `join` told them by their order."""
    found = np.full(len(replays), NONE, np.int64)
    in_order = np.flatnonzero(launches.is_by_order)
    if len(in_order):
        # the pieces bear the number of their replay, and the k-th graph launch without an id queued the k-th
        call = np.unique(launches.call[in_order])[replays.correlation]
        order = np.lexsort((events.calls.correlation[call], call, replays.stream, replays.device))
        found[order] = in_order
    return found


def _rows_of_replays(rows: GpuRows, lone: IntArray, replays: Work) -> tuple[IntArray, IntArray, BoolArray]:
    """The first row of each piece of a replay, its number of rows, and bool [lone]: which rows belong to a replay.

    A stream runs one thing at a time, so the rows of a piece are those of its stream between its start and its end.
    """
    first, count = np.zeros(len(replays), np.int64), np.zeros(len(replays), np.int64)
    is_inside = np.zeros(len(lone), bool)
    for device, stream in {*zip(replays.device.tolist(), replays.stream.tolist(), strict=True)}:
        of = np.flatnonzero((replays.device == device) & (replays.stream == stream))
        own = np.flatnonzero((rows.device[lone] == device) & (rows.stream[lone] == stream))
        own = own[np.argsort(rows.start[lone[own]], kind="stable")]
        starts = rows.start[lone[own]]
        begin = np.searchsorted(starts, replays.start[of])
        stop = np.maximum(np.searchsorted(starts, replays.end[of]), begin + 1)
        first[of], count[of] = lone[own[begin]], stop - begin
        edges = np.bincount(begin, minlength=len(own) + 1) - np.bincount(stop, minlength=len(own) + 1)
        is_inside[own] = np.cumsum(edges)[:-1] > 0
    return first, count, is_inside


def _work_names(profile: Profile, events: ProcessEvents) -> Names:
    names = profile.events(Events.GPU_WORK, events.process).column("name").unify_dictionaries()
    values = tuple(names.chunk(0).dictionary.to_pylist()) if names.num_chunks else ()
    return Names(np.concatenate([np.zeros(0, np.int64), *(part.indices.to_numpy() for part in names.chunks)]), values)


def _first_row_of_each_piece(events: ProcessEvents, keep: BoolArray) -> tuple[IntArray, IntArray]:
    """Earliest row of each piece and its number of rows, in the order of `pieces`."""
    rows, index = events.gpu, np.flatnonzero(keep)
    order = index[np.lexsort((rows.start[index], rows.correlation[index], rows.stream[index], rows.device[index]))]
    keys = np.stack([rows.device[order], rows.stream[order], rows.correlation[order]])
    is_first = np.concatenate([[True], (keys[:, 1:] != keys[:, :-1]).any(axis=0)]) if len(order) else np.zeros(0, bool)
    place = np.flatnonzero(is_first)
    return order[place], np.diff(np.append(place, len(order)))
