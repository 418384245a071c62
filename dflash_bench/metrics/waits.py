"""Where the host waited for the GPU, and what the GPU lost while it waited for the host."""

from __future__ import annotations

import re

import numpy as np

from dflash_bench.metrics.blame import Blame, blame
from dflash_bench.metrics.events import ApiCalls
from dflash_bench.metrics.intervals import NONE, intervals
from dflash_bench.metrics.launches import Launches
from dflash_bench.metrics.steps import Steps, ThreadRanges
from dflash_bench.model import IntArray

SYNC = re.compile(r"(cuda(Stream|Event|Device)|cu(Stream|Event|Ctx))Synchronize(_pt[sd][sz])?")
"""Calls that block until the GPU gets somewhere. The name tells; the stored sync type differs between nsys versions."""

BLOCKING_COPY = re.compile(r"cu(da)?Memcpy(?!\w*Async)\w*")
"""Copies that block without being called synchronize: a pageable device-to-host copy is a host wait too."""


def sync_calls(calls: ApiCalls, steps: Steps) -> ApiCalls:
    """The synchronize calls inside steps, on any thread."""
    waits = calls[calls.name.matching(SYNC)]
    return waits[steps.of(waits.start) != NONE]


def by_thread(waits: ApiCalls) -> Blame:
    """Sync time by (thread, API)."""
    threads, code = np.unique(waits.thread, return_inverse=True)
    return blame([([str(t) for t in threads], code), (waits.name.values, waits.name.codes)], waits.end - waits.start)


def by_range(calls: ApiCalls, steps: Steps, own: ThreadRanges) -> Blame:
    """Time of host waits by (range path, API): which code made the host wait."""
    waits = calls[calls.name.matching(SYNC) | calls.name.matching(BLOCKING_COPY)]
    waits = waits[steps.of(waits.start) != NONE]
    paths, code = own.paths()
    found = own.innermost(waits.thread, waits.start)
    path = np.where(found == NONE, NONE, code[found]) if len(code) else found
    return blame([(paths, path), (waits.name.values, waits.name.codes)], waits.end - waits.start)


def by_cause(late: Launches, calls: ApiCalls, own: ThreadRanges) -> Blame:
    """GPU time lost by what the launching thread was doing when the stream ran dry. ``late``: launches with lead < 0.

    The label is one text: ``rebuild_compact · cudaStreamSynchronize`` is a host sync, ``fill · -`` CPU work,
    ``- · -`` lies outside the steps.
    """
    held = own.innermost(late.thread, late.dry)
    name = np.where(held == NONE, NONE, own.ranges.name.codes[held]) if len(own.ranges) else held
    found = blame([(own.ranges.name.values, name), (calls.name.values, _call_at(late, calls))], -late.lead)
    return Blame(tuple((" · ".join(label),) for label in found.labels), found.code, found.value)


def _call_at(late: Launches, calls: ApiCalls) -> IntArray:
    """Name code of the API call that held each launch's thread when its stream ran dry, or NONE."""
    name = np.full(len(late), NONE, np.int64)
    for thread in np.unique(late.thread):
        rows = np.flatnonzero(calls.thread == thread)
        mine = np.flatnonzero(late.thread == thread)
        index = intervals(calls.start[rows], calls.end[rows])
        held = index.holding(late.dry[mine])
        inside = held != NONE
        name[mine[inside]] = calls.name.codes[rows[index.source[held[inside]]]]
    return name
