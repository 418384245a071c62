"""``gpu.dry_per_step``, ``dry.by_cause``: when the GPU had nothing to do, and what the host was doing meanwhile."""

from __future__ import annotations

from dataclasses import dataclass, fields

import numpy as np

from dflash_bench.metrics.events.arrays import NONE, Index, distinct, selected, stacked
from dflash_bench.metrics.lines import blame_lines
from dflash_bench.metrics.measurements import Measurements
from dflash_bench.metrics.per_step import add_per_step
from dflash_bench.metrics.view import View
from dflash_bench.metrics.warm_up import blame_warm_up
from dflash_bench.model import IntArray

_Keys = list[tuple[tuple[str, ...], IntArray]]
"""Names, and for each row which of them it has, NONE for none."""


@dataclass(frozen=True, slots=True)
class DryGaps:
    """Times without GPU work, up to the API start of the launch whose work ends each. All arrays [n], ascending.

    ``thread`` is the launching one, ``step`` the step that holds the API start.
    """

    start: IntArray
    stop: IntArray
    thread: IntArray
    step: IntArray

    def __getitem__(self, index: Index) -> DryGaps:
        return selected(self, index)


@dataclass(frozen=True, slots=True)
class DryPieces:
    """Parts of dry gaps, each with the launching thread and what it did in all of it. All arrays [n].

    ``held`` is the row of the innermost own range, ``call`` that of the API call, both NONE where there is none.
    """

    start: IntArray
    stop: IntArray
    step: IntArray
    held: IntArray
    call: IntArray
    thread: IntArray


def dry_gaps(view: View) -> DryGaps:
    """The dry gaps of a process that end in its steps, all lanes of a device united."""
    work, launches = view.join.work, view.join.launches
    launch_of = np.full(len(work), NONE, np.int64)
    launch_of[launches.piece] = np.arange(len(launches))
    gaps: list[tuple[IntArray, IntArray]] = []
    for device in distinct(work.device):
        own = np.flatnonzero(work.device == device)
        own = own[np.argsort(work.start[own], kind="stable")]
        busy_until = np.maximum.accumulate(work.end[own])
        ends_gap = np.flatnonzero(work.start[own][1:] > busy_until[:-1])
        gaps.append((busy_until[ends_gap], own[ends_gap + 1]))
    start, piece = (np.concatenate([np.zeros(0, np.int64), *(gap[k] for gap in gaps)]) for k in (0, 1))
    launch = launch_of[piece]
    start, piece, launch = start[launch != NONE], piece[launch != NONE], launch[launch != NONE]
    # no work can begin before its launch; where a capture says so, the gap ends with the work
    stop = np.minimum(launches.start[launch], work.start[piece])
    step = view.scope.covering(launches.start[launch])
    kept = np.flatnonzero((stop > start) & (step != NONE))
    kept = kept[np.argsort(start[kept], kind="stable")]
    return DryGaps(start[kept], stop[kept], launches.thread[launch[kept]], step[kept])


def measure_dry(view: View, found: Measurements) -> None:
    """Dry time per step, and each instant of it by what the launching thread did then."""
    share = found.coverage.launches
    if share is None or not len(view.scope) or not len(view.launches):
        return
    gaps, whole = dry_gaps(view), np.flatnonzero(view.is_whole)
    per_step = view.scope.sum_by(gaps.step, gaps.stop - gaps.start)
    add_per_step(view, found, "gpu.dry_per_step", per_step, whole, share)
    cut = dry_pieces(view, gaps[view.is_whole[gaps.step]])
    keys = [
        (names.values, names.codes_at(row))
        for names, row in ((view.own.name, cut.held), (view.events.calls.name, cut.call))
    ]
    if view.code_lines.is_told:
        begun = np.where(cut.call == NONE, NONE, view.events.calls.start[cut.call])
        blame_lines(view, found, "dry.by_cause", keys, (cut.thread, cut.start, cut.stop), begun, cut.step)
    keys, step, total = _by_step(keys, cut.step, cut.stop - cut.start, len(view.scope))
    found.blame("dry.by_cause", keys, total, separator=" · ")
    blame_warm_up(view, found, "dry.by_cause", keys, total, step, separator=" · ")


def _by_step(keys: _Keys, step: IntArray, ns: IntArray, num_steps: int) -> tuple[_Keys, IntArray, IntArray]:
    """One row for each label and step that occur together, with all its time: labels, step and time, int64 [n]."""
    combined = step
    for names, code in reversed(keys):
        combined = combined + num_steps * (code + 1)
        num_steps *= len(names) + 1
    each, place = np.unique(combined, return_inverse=True)
    total = np.bincount(place, weights=ns, minlength=len(each)).astype(np.int64)
    found = []
    for names, _ in keys:
        num_steps //= len(names) + 1
        found.append((names, each // num_steps - 1))
        each = each % num_steps
    return found, each, total


def dry_pieces(view: View, gaps: DryGaps) -> DryPieces:
    """The gaps cut where the launching thread's innermost range or its call changes."""
    cut = [_cut(view, thread, gaps[gaps.thread == thread]) for thread in distinct(gaps.thread)]
    return stacked(cut) if cut else DryPieces(*(np.zeros(0, np.int64) for _ in fields(DryPieces)))


def _cut(view: View, thread: int, gaps: DryGaps) -> DryPieces:
    begins, numbers = [gaps.start], [np.arange(len(gaps.start))]
    for index in (view.own_index.of_thread(thread)[0], view.call_index.of_thread(thread)[0]):
        for edges in (index.start, index.end):
            number = np.searchsorted(gaps.start, edges, side="right") - 1
            inside = (number >= 0) & (edges > gaps.start[number]) & (edges < gaps.stop[number])
            begins.append(edges[inside])
            numbers.append(number[inside])
    begin, gap = np.concatenate(begins), np.concatenate(numbers)
    order = np.lexsort((begin, gap))
    begin, gap = begin[order], gap[order]
    is_last = np.append(gap[1:] != gap[:-1], True)
    end = np.where(is_last, gaps.stop[gap], np.append(begin[1:], 0))
    threads = np.broadcast_to(np.int64(thread), len(begin))
    held, call = (index.innermost(threads, begin) for index in (view.own_index, view.call_index))
    return DryPieces(begin, end, gaps.step[gap], held, call, threads)
