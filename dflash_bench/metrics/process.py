"""Everything that one process of one rank gives by itself: a short loop over the meters."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from dflash_bench.metrics.agreement import Arrivals, arrivals_of
from dflash_bench.metrics.allocation import measure_allocation
from dflash_bench.metrics.events.launches import is_launch
from dflash_bench.metrics.events.process import load
from dflash_bench.metrics.kinds import measure_kinds
from dflash_bench.metrics.leads import measure_leads
from dflash_bench.metrics.measurements import Measurements
from dflash_bench.metrics.ranges import measure_ranges
from dflash_bench.metrics.reading import Reading
from dflash_bench.metrics.steps import measure_steps
from dflash_bench.metrics.view import View
from dflash_bench.metrics.waits import measure_waits
from dflash_bench.model import ProcessInfo
from dflash_bench.profile import Profile

Meter = Callable[[View, Measurements], None]
"""Looks at a process and adds the figures of one word of a report, and what must be known to read them."""


def measure_traced(view: View, found: Measurements) -> None:
    """Warnings where API calls or device rows are missing as such."""
    if not (num_calls := len(view.events.calls)):
        return
    num_launches = int(is_launch(view.events.calls.name).sum())
    if not num_launches:
        found.warn("no_launch_calls", num_calls)
    if not len(view.events.gpu):
        found.warn("no_gpu_rows", num_launches, where="")


METERS: tuple[Meter, ...] = (
    measure_ranges,
    measure_steps,
    measure_kinds,
    measure_allocation,
    measure_waits,
    measure_traced,
    measure_leads,
)


@dataclass(frozen=True, slots=True)
class ProcessMeasurements:
    """What one process gave. ``step_time``: that of all its steps, ns."""

    found: Measurements
    step_time: int
    arrivals: Arrivals | None


def measure_process(
    profile: Profile, process: ProcessInfo, reading: Reading, *, is_own_loop: bool
) -> ProcessMeasurements:
    """All figures of a process. ``is_own_loop``: the capture carries the rank mark of a loop that wraps every
    allocation in a range, so that no such range means no allocation.
    """
    view = View(profile, load(profile, process, reading.rules), reading, is_own_loop)
    found = Measurements(process.rank, view.steps.pair)
    for measure in METERS:
        measure(view, found)
    steps = view.steps
    return ProcessMeasurements(found, int((steps.end - steps.start).sum()), arrivals_of(view))
