"""``sync.*``: where the host waited for the GPU."""

from __future__ import annotations

import re

import numpy as np

from dflash_bench.metrics.events.arrays import NONE, Names, compact
from dflash_bench.metrics.events.launches import is_launch
from dflash_bench.metrics.measurements import Measurements
from dflash_bench.metrics.view import View
from dflash_bench.model import IntArray

SYNC = re.compile(r"(cuda(Stream|Event|Device)|cu(Stream|Event|Ctx))Synchronize(_pt[sd][sz])?")
"""Calls that block until the GPU gets somewhere. The name tells; the stored sync type differs between nsys versions."""

BLOCKING_COPY = re.compile(r"cu(da)?Memcpy(?!\w*Async)\w*")
"""Copies that block without being called synchronize: a pageable device-to-host copy is a host wait too."""


def measure_waits(view: View, found: Measurements) -> None:
    """Host waits inside steps, on any thread."""
    steps, calls, step = view.steps, view.events.calls, view.step_of_call
    if not len(steps):
        return
    if not len(calls):
        found.warn("no_api_calls", len(steps))
        return
    every, inside = np.arange(len(steps)), step != NONE
    rows = np.flatnonzero(calls.name.matching(SYNC) & inside)
    syncs, of = calls[rows], step[rows]
    duration = syncs.end - syncs.start
    for code in np.unique(syncs.name.codes):
        own = syncs.name.codes == code
        found.add(f"sync.{syncs.name.values[code]}", duration[own], of[own])
    found.add("sync.total_per_step", steps.sum_by(of, duration), every)
    found.add("sync.calls_per_step", steps.sum_by(of), every)
    found.add("launch.calls_per_step", steps.sum_by(step[is_launch(calls.name) & inside]), every)
    threads, thread = compact(syncs.thread)
    api = syncs.name.values, syncs.name.codes
    found.blame("sync.by_thread", [([str(t) for t in threads], thread), api], duration)
    waits = calls[(calls.name.matching(SYNC) | calls.name.matching(BLOCKING_COPY)) & inside]
    found.blame(
        "sync.by_range",
        [range_paths(view, waits.thread, waits.start), (waits.name.values, waits.name.codes)],
        waits.end - waits.start,
    )


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
