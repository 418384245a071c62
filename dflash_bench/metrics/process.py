"""Everything that one process of one rank gives by itself: a short loop over the meters."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace

from dflash_bench.metrics.agreement import Agreements, agreements_of
from dflash_bench.metrics.allocation import measure_allocation
from dflash_bench.metrics.costs import measure_costs
from dflash_bench.metrics.coverage import measure_coverage
from dflash_bench.metrics.dry import measure_dry
from dflash_bench.metrics.endings import measure_endings
from dflash_bench.metrics.events.host import shortened
from dflash_bench.metrics.events.process import load_events
from dflash_bench.metrics.kinds import measure_kinds
from dflash_bench.metrics.lanes import measure_lanes
from dflash_bench.metrics.leads import measure_leads
from dflash_bench.metrics.measurements import Measurements
from dflash_bench.metrics.presets import engine_of
from dflash_bench.metrics.proposals import measure_proposals
from dflash_bench.metrics.ranges import measure_ranges
from dflash_bench.metrics.reading import Reading
from dflash_bench.metrics.stalls import measure_stalls
from dflash_bench.metrics.steps import measure_steps
from dflash_bench.metrics.view import View
from dflash_bench.metrics.waits import measure_waits
from dflash_bench.metrics.warm_up import measure_warm_up
from dflash_bench.model import ProcessInfo
from dflash_bench.profile import Profile

Meter = Callable[[View, Measurements], None]
"""Looks at a process and adds the figures of one word of a report, and what must be known to read them."""


METERS: tuple[Meter, ...] = (
    measure_ranges,
    measure_steps,
    measure_proposals,
    measure_kinds,
    measure_warm_up,
    measure_endings,
    measure_allocation,
    measure_waits,
    measure_costs,
    measure_leads,
    measure_lanes,
    measure_stalls,
    measure_dry,
)


@dataclass(frozen=True, slots=True)
class ProcessMeasurements:
    """What one process gave. ``step``: the range that its steps are. ``time``: that of all its steps, ns; without steps
    that of the capture."""

    found: Measurements
    step: str
    num_steps: int
    time: int
    agreements: Agreements | None


def measure_process(
    profile: Profile, process: ProcessInfo, reading: Reading, *, is_own_loop: bool
) -> ProcessMeasurements:
    """All figures of a process. ``is_own_loop``: the capture carries the rank mark of a loop that wraps every
    allocation in a range, so that no such range means no allocation.
    """
    events = load_events(profile, process, reading.rules)
    engine = engine_of(events.ranges, reading) if reading.is_open else None
    if engine is not None:
        preset, reading = engine
        events = replace(events, ranges=shortened(events.ranges, reading.rules))
    view = View(profile, events, reading, is_own_loop)
    found = Measurements(process.rank, view.steps.pair)
    if engine is not None:
        found.warn("preset_found", len(view.steps), preset=preset, step=reading.step)
    found = replace(found, coverage=measure_coverage(view, found))
    for measure in METERS:
        measure(view, found)
    time = int((view.scope.end - view.scope.start).sum())
    return ProcessMeasurements(found, reading.step, len(view.steps), time, agreements_of(view))
