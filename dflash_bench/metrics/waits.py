"""``sync.*``: where the host waited for the GPU."""

from __future__ import annotations

import re
from dataclasses import replace

import numpy as np

from dflash_bench.metrics.events.arrays import NONE, Names, compact, distinct, stacked
from dflash_bench.metrics.events.host import ApiCalls, calls_in_order
from dflash_bench.metrics.events.launches import is_launch
from dflash_bench.metrics.measurements import Measurements
from dflash_bench.metrics.view import View
from dflash_bench.model import BoolArray, IntArray

SYNC = re.compile(
    r"(cuda(Stream|Event|Device)|cu(Stream|Event|Ctx)|hip(Stream|Event|Device|Ctx))Synchronize(_pt[sd][sz]|_spt)?"
    r"|hipMemcpyWithStream(_spt)?"
)
"""Calls that block until the GPU gets somewhere. The name tells; the stored sync type differs between nsys versions."""

BLOCKING_COPY = re.compile(r"(cu(da)?|hip)Memcpy(?!\w*Async)\w*")
"""Copies that block without being called synchronize: a pageable device-to-host copy is a host wait too."""

_QUERY = re.compile(r"(cuda|cu|hip)(Event|Stream)Query(_pt[sd][sz]|_spt)?")
_NOT_READY = 600
_MIN_QUERIES = 10
"""Queries in a row, with nothing between them, that are a wait where a capture does not say what they returned."""
_POLLED = " (polled)"


def host_waits(view: View) -> ApiCalls:
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
    long_enough = (calls.result[first] == _NOT_READY) | (last - first + 1 >= _MIN_QUERIES)
    first, last = first[long_enough], last[long_enough]
    names = Names(calls.name.codes, tuple(f"{name}{_POLLED}" for name in calls.name.values))
    found = replace(calls, name=names)[first]
    return replace(found, end=calls.end[last])


def measure_waits(view: View, found: Measurements) -> None:
    """Host waits inside steps, on any thread."""
    steps, calls, step = view.steps, view.events.calls, view.step_of_call
    if not len(steps):
        return
    if not len(calls):
        found.warn("no_api_calls", len(steps))
        return
    every, waits = np.arange(len(steps)), host_waits(view)
    of_wait = steps.of_ascending(waits.start)
    rows = np.flatnonzero(is_sync(waits.name) & (of_wait != NONE))
    syncs, of = waits[rows], of_wait[rows]
    duration = syncs.end - syncs.start
    for code in np.unique(syncs.name.codes):
        own = syncs.name.codes == code
        found.add(f"sync.{syncs.name.values[code]}", duration[own], of[own])
    found.add("sync.total_per_step", steps.sum_by(of, duration), every)
    found.add("sync.calls_per_step", steps.sum_by(of), every)
    found.add("launch.calls_per_step", steps.sum_by(step[is_launch(calls.name) & (step != NONE)]), every)
    threads, thread = compact(syncs.thread)
    api = syncs.name.values, syncs.name.codes
    found.blame("sync.by_thread", [([str(t) for t in threads], thread), api], duration)
    waits = waits[of_wait != NONE]
    paths = range_paths(view, waits.thread, waits.start)
    found.blame("sync.by_range", [paths, (waits.name.values, waits.name.codes)], waits.end - waits.start)


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
