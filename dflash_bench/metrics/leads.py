"""``launch.lead``, ``graph.lead``, ``step.lead``: how far ahead of the GPU the host was."""

from __future__ import annotations

import numpy as np

from dflash_bench.metrics.coverage import Coverage, measure_coverage
from dflash_bench.metrics.events.arrays import NONE, changes
from dflash_bench.metrics.events.launches import Launches
from dflash_bench.metrics.kinds import kinds_of, timed
from dflash_bench.metrics.measurements import Measurements
from dflash_bench.metrics.stalls import measure_stalls
from dflash_bench.metrics.view import View
from dflash_bench.model import IntArray

BACKPRESSURE_FACTOR = 10


def measure_leads(view: View, found: Measurements) -> None:
    """Launches and their leads, and what was lost where they came late; withheld where too few can be joined."""
    if not len(view.events.gpu):
        return
    launches = view.join.launches
    step = view.step_of_call[launches.call] if len(view.steps) else np.full(len(launches), NONE, np.int64)
    launches, step = launches[step != NONE], step[step != NONE]
    is_launching = view.steps.sum_by(step) > 0
    coverage = measure_coverage(view, is_launching, found)
    if coverage is None or not launches.has_lead.any():
        return
    _add_step_leads(view, launches, step, coverage, found)
    launches, step = launches[launches.has_lead], step[launches.has_lead]
    lead, share = launches.lead, coverage.share
    found.add("launch.lead", lead, step, coverage=share)
    found.add("launch.run_ahead_fraction", lead > 0, step, coverage=share)
    # far longer than usual although work was queued ahead: the queue was full, not the host slow
    length = launches.end - launches.start
    is_blocked = (length > BACKPRESSURE_FACTOR * np.median(length)) & (lead > 0)
    found.add_value("launch.backpressure", int(is_blocked.sum()), len(launches))
    _add_graph_leads(view, launches[launches.is_graph], step[launches.is_graph], share, found)
    measure_stalls(view, launches, step, is_launching, share, found)


def _add_graph_leads(view: View, graphs: Launches, step: IntArray, share: float, found: Measurements) -> None:
    if not len(graphs):
        return
    found.add("graph.lead", graphs.lead, step, coverage=share)
    found.add("graph.run_ahead_fraction", graphs.lead > 0, step, coverage=share)
    code = view.own.name.codes_at(view.own_index.innermost(graphs.thread, graphs.start))
    for own in np.unique(code[code != NONE]):
        rows = code == own
        found.add(f"graph.lead@{view.own.name.values[own]}", graphs.lead[rows], step[rows], coverage=share)


def _add_step_leads(view: View, launches: Launches, step: IntArray, coverage: Coverage, found: Measurements) -> None:
    """The first graph launch of each step, without graphs the first launch; of each kind of steps in the same way."""
    of_kind = ((f"step.lead@{kind}", own) for kind, own in timed(kinds_of(view)))
    for name, steps in (("step.lead", np.ones(len(view.steps), bool)), *of_kind):
        own = steps[step]
        chosen = own & launches.is_graph if (own & launches.is_graph).any() else own
        first = np.flatnonzero(chosen)
        first = first[changes(step[first])] if len(first) else first
        first = first[launches.has_lead[first]]
        if len(first) or name == "step.lead":
            found.add(name, launches.lead[first], step[first], coverage=coverage.share)
