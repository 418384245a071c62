"""``cost.NAME``, ``host.busy_per_step``, ``sync.exposed_per_step``: what the host costs, its waits taken out.

A longer wait of a host that is ahead of the GPU is good, and a median does not see a cost that falls on every third
step: so these are means over all steps, of the thread that emits the steps, less what it waited.
"""

from __future__ import annotations

import numpy as np

from dflash_bench.metrics.events.arrays import NONE, by_code, changes
from dflash_bench.metrics.events.host import Ranges
from dflash_bench.metrics.measurements import Measurements
from dflash_bench.metrics.view import View
from dflash_bench.metrics.waits import doubt_of, exposed_part, waits_of
from dflash_bench.model import BoolArray, IntArray

_MAX_LISTED = 100
"""Names with a cost of their own, those with most ranges: each holds a number for every step."""


def measure_costs(view: View, found: Measurements) -> None:
    """Costs per step: of each range name, and of everything that is neither wait nor agreement."""
    steps, share = view.steps, found.coverage.calls
    if not len(steps) or share is None or not len(view.events.calls):
        return
    traced = np.flatnonzero(view.is_traced)
    own = view.own[view.own.thread == view.step_thread]
    waits = waits_of(view)
    waits = waits[waits.thread == view.step_thread]
    waited, doubt = _TimeInside(waits.start, waits.end), doubt_of(view, waits)
    is_agreement = own.name.among({view.reading.agreement})
    agreement = own[is_agreement]
    outside = waits[~_TimeInside(agreement.start, agreement.end).holds(waits.start)]
    # start to start: the last step has no next one
    followed = traced[steps.is_followed[traced]]
    busy = steps.stop - steps.start
    for taken in (outside, agreement):
        busy -= steps.sum_by(steps.covering(taken.start), taken.end - taken.start)
    known = share * _known(busy[followed], doubt)
    found.add("host.busy_per_step", busy[followed], followed, coverage=known)
    is_step = view.reading.is_step(own)
    of_ranges = own[~is_step & ~is_agreement]
    _add_ranges(view, of_ranges, waited, waits.start[doubt > 0], doubt[doubt > 0], traced, share, found)
    if found.coverage.launches is not None:
        whole = np.flatnonzero(view.is_whole)
        if not len(whole):
            return
        exposed, step = exposed_part(view, waits), steps.covering(waits.start)
        slack = steps.sum_by(step, waits.end - waits.start - exposed)
        found.add("sync.exposed_per_step", steps.sum_by(step, exposed)[whole], whole, coverage=found.coverage.launches)
        found.add("sync.slack_per_step", slack[whole], whole, coverage=found.coverage.launches)


def _add_ranges(
    view: View,
    ranges: Ranges,
    waited: _TimeInside,
    polled: IntArray,
    doubt: IntArray,
    traced: IntArray,
    share: float,
    found: Measurements,
) -> None:
    """``polled``: the starts of waits whose ends are known to ``doubt`` only."""
    step = view.steps.covering(ranges.start)
    order = by_code(ranges.name.codes)
    order = order[step[order] != NONE]
    code = ranges.name.codes[order]
    first = np.flatnonzero(changes(code)) if len(code) else code
    groups = np.split(order, first[1:]) if len(first) else []
    for rows in sorted(groups, key=len, reverse=True)[:_MAX_LISTED]:
        outermost = rows[_is_outermost(ranges.end[rows])]
        start, end = ranges.start[outermost], ranges.end[outermost]
        cost = view.steps.sum_by(step[outermost], end - start - waited.between(start, end))
        name = ranges.name.values[ranges.name.codes[rows[0]]]
        known = _known(cost[traced], doubt[_TimeInside(start, end).holds(polled)]) if len(polled) else 1.0
        found.add(f"cost.{name}", cost[traced], traced, coverage=share * known)


def _known(cost: IntArray, doubt: IntArray) -> float:
    """The share of a cost that is known to be work, and no part of waits that were polled."""
    total, doubtful = float(cost.sum()), float(doubt.sum())
    return max(total, 0.0) / (max(total, 0.0) + doubtful) if doubtful else 1.0


def _is_outermost(end: IntArray) -> BoolArray:
    """Which of some intervals, ascending by start, end after all that start before them."""
    outermost = np.ones(len(end), bool)
    outermost[1:] = end[1:] > np.maximum.accumulate(end)[:-1]
    return outermost


class _TimeInside:
    """How much time lies inside any of some intervals."""

    def __init__(self, start: IntArray, end: IntArray) -> None:
        order = np.argsort(start, kind="stable")
        start, end = start[order], np.maximum.accumulate(end[order]) if len(end) else end
        first = np.ones(len(start), bool)
        first[1:] = start[1:] > end[:-1]
        self.start = start[first]
        self.end = end[np.append(np.flatnonzero(first)[1:], len(end)) - 1] if len(end) else end
        self.before = np.concatenate([[0], np.cumsum(self.end - self.start)])

    def holds(self, t: IntArray) -> BoolArray:
        """bool [n]: whether any interval holds each instant."""
        found = np.searchsorted(self.start, t, side="right") - 1
        return (found >= 0) & (t < np.append(self.end, 0)[found])

    def between(self, start: IntArray, end: IntArray) -> IntArray:
        """The time inside between two instants, int64 [n] each."""
        return self._until(end) - self._until(start)

    def _until(self, t: IntArray) -> IntArray:
        found = np.searchsorted(self.start, t, side="right") - 1
        started, stopped = np.append(self.start, 0)[found], np.append(self.end, 0)[found]
        return np.where(found < 0, 0, self.before[found] + np.minimum(t, stopped) - started)
