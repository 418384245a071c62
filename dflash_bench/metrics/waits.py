"""``sync.*``: where the host waited for the GPU."""

from __future__ import annotations

import re
from dataclasses import replace

import numpy as np

from dflash_bench.metrics.events.arrays import NONE, Names, compact, distinct, stacked
from dflash_bench.metrics.events.host import ApiCalls, calls_in_order
from dflash_bench.metrics.events.launches import is_launch
from dflash_bench.metrics.lines import blame_lines
from dflash_bench.metrics.measurements import Measurements
from dflash_bench.metrics.per_step import add_per_step
from dflash_bench.metrics.view import View
from dflash_bench.metrics.warm_up import blame_warm_up
from dflash_bench.model import BoolArray, IntArray

SYNC = re.compile(
    r"(cuda(Stream|Event|Device)|cu(Stream|Event|Ctx)|hip(Stream|Event|Device|Ctx))Synchronize(_pt[sd][sz]|_spt)?"
    r"|hipMemcpyWithStream(_spt)?"
)
"""Calls that block until the GPU gets somewhere. The name tells; the stored sync type differs between nsys versions."""

BLOCKING_COPY = re.compile(r"(cu(da)?|hip)Memcpy(?!\w*Async)\w*")
"""Copies that block without being called synchronize: a pageable device-to-host copy is a host wait too."""

_KNOWN_API = re.compile(r"(cuda|cu|hip)[A-Z].*", re.DOTALL)
_QUERY = re.compile(r"(cuda|cu|hip)(Event|Stream)Query(_pt[sd][sz]|_spt)?")
_NOT_READY = 600
_MIN_NOT_READY, _MIN_QUERIES = 3, 10
"""Queries in a row, with nothing between them, that are a wait: where they are known to have returned not-ready, and
where a capture does not say. An allocator asks once or twice about events that it will ask about again."""
_POLLED = " (polled)"


def waits_of(view: View) -> ApiCalls:
    """The calls that return only when the GPU got somewhere, copies too, and runs of queries that stand for one."""
    calls = view.events.calls
    waits = calls[calls.name.matching(SYNC) | calls.name.matching(BLOCKING_COPY)]
    polled = [_polled(calls, thread) for thread in distinct(calls.thread)] if calls.name.any_matches(_QUERY) else []
    return calls_in_order(stacked([waits, *polled])) if any(map(len, polled)) else waits


def is_sync(names: Names) -> BoolArray:
    """Which waits count for ``sync.*``: all but copies that merely block."""
    return names.matching(SYNC) | names.containing(_POLLED)


def _polled(calls: ApiCalls, thread: int) -> ApiCalls:
    """Each run of queries of a thread as one wait, from the start of the first to the end of the last."""
    calls = calls[calls.thread == thread]
    waits = calls.name.matching(_QUERY) & ((calls.result == _NOT_READY) | (calls.result == NONE))
    edges = np.flatnonzero(np.diff(waits, prepend=False, append=False))
    first, last = edges[::2], edges[1::2] - 1
    long_enough = last - first + 1 >= np.where(calls.result[first] == _NOT_READY, _MIN_NOT_READY, _MIN_QUERIES)
    first, last = first[long_enough], last[long_enough]
    names = Names(calls.name.codes, tuple(f"{name}{_POLLED}" for name in calls.name.values))
    found = replace(calls, name=names)[first]
    return replace(found, end=calls.end[last])


def doubt_of(view: View, waits: ApiCalls) -> IntArray:
    """How long after each wait of one thread the GPU may still have been waited for, ns: of polled ones, which end with
    the last not-ready, the time from one query to the next. int64 [waits]."""
    doubt = np.zeros(len(waits), np.int64)
    polled = np.flatnonzero(waits.name.containing(_POLLED))
    if len(polled):
        start, end = waits.start[polled], waits.end[polled]
        calls = view.events.calls.start[view.events.calls.thread == waits.thread[0]]
        doubt[polled] = (end - start) // (np.searchsorted(calls, end) - np.searchsorted(calls, start))
    return doubt


def measure_waits(view: View, found: Measurements) -> None:
    """Host waits inside steps, on any thread."""
    steps, calls, step, share = view.scope, view.events.calls, view.step_of_call, found.coverage.calls
    if not len(calls):
        if len(view.steps):
            found.warn("no_api_calls", len(view.steps))
        return
    if not calls.name.any_matches(_KNOWN_API):
        found.warn("api_unknown", len(calls), name=calls.name.values[0])
        return
    if share is None:
        return
    traced = np.flatnonzero(view.is_traced)
    waits = waits_of(view)
    if num_polled := int(waits.name.containing(_POLLED).sum()):
        found.warn("waits_polled", num_polled)
    of_wait = steps.of_ascending(waits.start)
    rows = np.flatnonzero(is_sync(waits.name) & (of_wait != NONE))
    syncs, of = waits[rows], of_wait[rows]
    duration = syncs.end - syncs.start
    for code in np.unique(syncs.name.codes):
        own = syncs.name.codes == code
        found.add(f"sync.{syncs.name.values[code]}", duration[own], of[own], coverage=share)
    launches = step[is_launch(calls.name) & (step != NONE)]
    add_per_step(view, found, "sync.total_per_step", steps.sum_by(of, duration), traced, share)
    add_per_step(view, found, "sync.calls_per_step", steps.sum_by(of), traced, share)
    add_per_step(view, found, "launch.calls_per_step", steps.sum_by(launches), traced, share)
    threads, thread = compact(syncs.thread)
    api = syncs.name.values, syncs.name.codes
    found.blame("sync.by_thread", [([str(t) for t in threads], thread), api], duration)
    inside = of_wait != NONE
    exposed = None if found.coverage.launches is None else exposed_part(view, waits)[inside]
    waits = waits[inside]
    paths = range_paths(view, waits.thread, waits.start)
    keys = [paths, (waits.name.values, waits.name.codes)]
    found.blame("sync.by_range", keys, waits.end - waits.start)
    blame_warm_up(view, found, "sync.by_range", keys, waits.end - waits.start, of_wait[inside])
    if view.code_lines.is_told:
        where = waits.thread, waits.start, waits.end
        blame_lines(view, found, "sync.by_range", keys, where, waits.start, of_wait[inside])
    if exposed is not None:
        found.blame("sync.by_range.exposed", keys, exposed)


def exposed_part(view: View, waits: ApiCalls) -> IntArray:
    """Of each host wait the part behind which the GPU was dry, int64 [waits].

    What a launch came too late is spread over the waits of its thread since the launch before, the last wait first,
    each at most its length.
    """
    exposed = np.zeros(len(waits), np.int64)
    launches = view.join.launches
    for thread in distinct(waits.thread):
        mine = np.flatnonzero(waits.thread == thread)
        start, length = waits.start[mine], (waits.end - waits.start)[mine]
        of_thread = launches[launches.thread == thread]
        late = np.append(np.where(of_thread.has_lead, np.maximum(-of_thread.lead, 0), 0), 0)
        launch = np.searchsorted(of_thread.start, start, side="right")
        upto = np.concatenate([[0], np.cumsum(length)])
        stop = np.searchsorted(start, np.append(of_thread.start, np.iinfo(np.int64).max)[launch])
        later = upto[stop] - upto[1:]
        exposed[mine] = np.clip(late[launch] - later, 0, length)
    return exposed


def range_paths(view: View, thread: IntArray, t: IntArray) -> tuple[list[str], IntArray]:
    """The paths of ranges that occur, and which of them each thread was in at an instant. int64 [n] each.

    A path holds the names of the ranges around, from the outermost to the innermost, joined by `` > ``.
    """
    names, parents = view.own.name, view.own_index.parents
    ranges, place = np.unique(view.own_index.innermost(thread, t), return_inverse=True)
    path, row = np.zeros(len(ranges), np.int64), ranges
    while (row != NONE).any():
        _, path = np.unique(path * (len(names.values) + 1) + names.codes_at(row) + 1, return_inverse=True)
        row = np.where(row == NONE, NONE, parents[row])
    _, first, code = np.unique(path, return_index=True, return_inverse=True)
    return [_path(names, parents, int(ranges[k])) for k in first], code[place]


def _path(names: Names, parents: IntArray, row: int) -> str:
    path: list[str] = []
    while row != NONE:
        path.insert(0, names.values[names.codes[row]])
        row = int(parents[row])
    return " > ".join(path) or "-"
