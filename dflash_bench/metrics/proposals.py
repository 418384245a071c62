"""What could be the steps of a capture in which none were found, with the option to type."""

from __future__ import annotations

import shlex
from dataclasses import dataclass

import numpy as np

from dflash_bench.metrics.events.arrays import NONE, distinct
from dflash_bench.metrics.events.intervals import intervals
from dflash_bench.metrics.events.launches import is_launch
from dflash_bench.metrics.events.tools import is_of_tool
from dflash_bench.metrics.measurements import Measurements
from dflash_bench.metrics.reading import CALL
from dflash_bench.metrics.view import View

_MIN_COUNT = 3
_SHOWN = 3


@dataclass(frozen=True, slots=True)
class StepProposal:
    """Ranges of one name and thread that follow one another. ``share``: of the launches that they hold, or where the
    capture has none, of the time.
    """

    name: str
    count: int
    share: float

    @property
    def option(self) -> str:
        """What makes them the steps."""
        return f"--step-range {shlex.quote(self.name)}"


def proposals(view: View) -> list[StepProposal]:
    """Names that could be the step, the best first: those that hold most launches, of equals the outermost."""
    ranges, calls = view.events.ranges, view.events.calls
    own = ranges[~is_of_tool(ranges)]
    launches = calls[is_launch(calls.name)]
    span = int(own.end.max() - own.start.min()) if len(own) else 1
    found: list[tuple[float, int, StepProposal]] = []
    for thread in distinct(own.thread):
        of_thread = own[own.thread == thread]
        starts = launches.start[launches.thread == thread]
        for code in np.unique(of_thread.name.codes).tolist():
            same = of_thread[of_thread.name.codes == code]
            if len(same) < _MIN_COUNT or (same.start[1:] < same.end[:-1]).any():
                continue
            time = int((same.end - same.start).sum())
            held = (intervals(same.start, same.end).holding(starts) != NONE).sum()
            share = held / len(launches) if len(launches) else time / max(span, 1)
            if share > 0:
                name = own.name.values[code]
                found.append((round(share, 2), time, StepProposal(name, len(same), float(share))))
    best = [each for *_, each in sorted(found, key=lambda each: each[:2], reverse=True)[:_SHOWN]]
    graphs = calls[calls.name.containing("GraphLaunch")]
    if not best and len(graphs) >= _MIN_COUNT:
        best.append(StepProposal(f"{CALL}{graphs.name.values[graphs.name.codes[0]]}", len(graphs), 1.0))
    return best


def measure_proposals(view: View, found: Measurements) -> None:
    """The warning of a process without steps: what is computed all the same, and what its steps could be."""
    if len(view.all_steps):
        return
    names, calls = view.events.ranges.name, view.events.calls
    whole = "figures are over the whole capture" if len(calls) else "no step, lead, stall or wait figures"
    step = view.reading.step
    reason = f"no range named {step!r}" if len(names) else "no NVTX ranges in the capture"
    if view.reading.is_step(view.events.unclosed).any():
        reason = (
            f"no range named {step!r} was closed, and one was open at the end: it died, or was cut, in its first step"
        )
    best = proposals(view)
    texts = [
        f"{each.option} ({each.count:,} in a row, {each.share:.0%} of {'launches' if len(calls) else 'the time'})"
        for each in best
    ]
    hint = f"; what could be steps: {', '.join(texts)}" if texts else ""
    option = best[0].option if best else ""
    found.warn("no_steps", len(names), reason=reason, whole=whole, hint=hint, option=option)
