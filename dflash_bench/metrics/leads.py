"""``launch.lead``, ``graph.lead``, ``step.lead``: how far ahead of the GPU the host was."""

from __future__ import annotations

import numpy as np

from dflash_bench.metrics.events.arrays import NONE, at_rows, changes, compact
from dflash_bench.metrics.events.launches import Launches
from dflash_bench.metrics.kinds import timed
from dflash_bench.metrics.measurements import Measurements
from dflash_bench.metrics.view import View
from dflash_bench.model import BoolArray, IntArray

_BACKPRESSURE_FACTOR = 10


def measure_leads(view: View, found: Measurements) -> None:
    """The leads of launches inside steps: all, those of graphs, the first of each step."""
    launches, share = view.launches, found.coverage.launches
    if share is None or not launches.has_lead.any():
        return
    step = view.step_of_call[launches.call]
    _add_step_leads(view, launches, step, share, found)
    launches, step = launches[launches.has_lead], step[launches.has_lead]
    _add_graph_leads(view, launches[launches.is_graph], step[launches.is_graph], share, found)
    _add_launch_leads("", launches, step, share, found)
    is_main = at_rows(view.join.work.lane, launches.piece) == main_lane(view)
    _add_launch_leads("@main", launches[is_main], step[is_main], share, found)
    found.add_value("launch.backpressure", int(_is_blocked(view, launches).sum()), len(launches))


def _add_launch_leads(lane: str, launches: Launches, step: IntArray, share: float, found: Measurements) -> None:
    if len(launches):
        found.add(f"launch.lead{lane}", launches.lead, step, coverage=share)
        found.add(f"launch.run_ahead_fraction{lane}", launches.lead > 0, step, coverage=share)


def main_lane(view: View) -> int:
    """The lane whose pieces, launched inside steps, work longest in all."""
    work, piece = view.join.work, view.launches.piece
    time = np.zeros(int(work.lane.max()) + 1)
    np.add.at(time, at_rows(work.lane, piece), (work.end - work.start)[piece])
    return int(time.argmax())


def _is_blocked(view: View, launches: Launches) -> BoolArray:
    """Launch calls far longer than others of the same name in the same range, although work was queued ahead.

    The queue was full, not the host slow. A long graph takes long to launch every time: hence among its like.
    """
    held = view.own.name.codes_at(view.own_index.innermost(launches.thread, launches.start))
    names = view.events.calls.name
    _, like = compact(held * len(names.values) + names.codes[launches.call])
    length = launches.end - launches.start
    order = np.lexsort((length, like))
    first = np.flatnonzero(changes(like[order]))
    count = np.diff(np.append(first, len(order)))
    low, high = order[first + (count - 1) // 2], order[first + count // 2]
    median = (length[low] + length[high]) / 2
    return (length > _BACKPRESSURE_FACTOR * median[like]) & (launches.lead > 0)


def _add_graph_leads(view: View, graphs: Launches, step: IntArray, share: float, found: Measurements) -> None:
    if not len(graphs):
        return
    found.add("graph.lead", graphs.lead, step, coverage=share)
    found.add("graph.run_ahead_fraction", graphs.lead > 0, step, coverage=share)
    code = view.own.name.codes_at(view.own_index.innermost(graphs.thread, graphs.start))
    for own in np.unique(code[code != NONE]):
        rows = code == own
        found.add(f"graph.lead@{view.own.name.values[own]}", graphs.lead[rows], step[rows], coverage=share)


def _add_step_leads(view: View, launches: Launches, step: IntArray, share: float, found: Measurements) -> None:
    """The first graph launch of each step, without graphs the first launch; of each kind of steps in the same way."""
    if not len(view.steps):
        return
    of_kind = ((f"step.lead@{kind}", own) for kind, own in timed(view))
    for name, steps in (("step.lead", np.ones(len(view.scope), bool)), *of_kind):
        own = steps[step]
        chosen = own & launches.is_graph if (own & launches.is_graph).any() else own
        first = np.flatnonzero(chosen)
        first = first[changes(step[first])] if len(first) else first
        first = first[launches.has_lead[first]]
        if len(first) or name == "step.lead":
            found.add(name, launches.lead[first], step[first], coverage=share)
