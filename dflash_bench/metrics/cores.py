"""One engine in several processes: its core schedules and takes pages for the ranks of its group, and is no rank.

What the core does is shown once, as the group's: under rank ``None``, with ``@core`` behind the name where the ranks
have a figure of that name too. Its steps are those of its own step range, else those of its first worker, all on the
one clock of the host.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace

import numpy as np

from dflash_bench.metrics.allocation import add_share, measure_allocation
from dflash_bench.metrics.events.process import load_events
from dflash_bench.metrics.events.steps import Steps
from dflash_bench.metrics.measurements import Measurements
from dflash_bench.metrics.ranges import measure_ranges
from dflash_bench.metrics.reading import Reading
from dflash_bench.metrics.steps import measure_steps
from dflash_bench.metrics.view import View
from dflash_bench.model import BoolArray, ProcessInfo, ProcessRole
from dflash_bench.profile import Profile

_COMMON = 0.95
"""A range that so many steps hold belongs to every step that does work."""


def measure_cores(profile: Profile, reading: Reading) -> list[tuple[ProcessInfo, Measurements]]:
    """What each core of the run gives."""
    cores = [p for p in profile.info.processes if p.role is ProcessRole.CORE]
    return [(core, _measured(profile, reading, core)) for core in cores]


def _workers_of(core: ProcessInfo, processes: Sequence[ProcessInfo]) -> list[ProcessInfo]:
    """The ranks of a core's group; of a core without a group all those of its capture."""
    ranks = [p for p in processes if p.rank is not None]
    return [p for p in ranks if (p.capture == core.capture if core.group is None else p.group == core.group)]


def _measured(profile: Profile, reading: Reading, core: ProcessInfo) -> Measurements:
    events, found = load_events(profile, core, reading.rules), Measurements(None)
    of_core = replace(reading, step=reading.core)
    has_steps = bool(of_core.is_step(events.ranges).any())
    view = View(profile, events, of_core, is_own_loop=False)
    workers = [w for w in _views(profile, reading, core) if len(w.steps)]
    measure_ranges(view, found)
    if has_steps and len(view.steps):
        measure_steps(view, found)
        measure_allocation(view, found)
        _count_idle(view.steps, workers, found)
    elif workers and len(alloc := view.named_anywhere(reading.alloc).start):
        steps = workers[0].steps
        add_share(steps, steps.sum_by(steps.covering(alloc)) > 0, found)
    for name in [name for name in found.metrics if name.startswith("coverage.")]:
        del found.metrics[name]
    return found


def _views(profile: Profile, reading: Reading, core: ProcessInfo) -> Iterator[View]:
    for worker in _workers_of(core, profile.info.processes):
        # on another clock a step of the worker is at no known time of the core
        if worker.capture == core.capture:
            yield View(profile, load_events(profile, worker, reading.rules), reading, is_own_loop=False)


def _count_idle(steps: Steps, workers: Sequence[View], found: Measurements) -> None:
    """``steps@idle``: the core's steps in which no worker did anything."""
    if not workers:
        return
    is_busy = np.zeros(len(steps), bool)
    for worker in workers:
        is_busy |= steps.sum_by(steps.covering(worker.steps.start[~_is_empty(worker)])) > 0
    if num := int((~is_busy).sum()):
        found.add_value("steps@idle", num, len(steps))


def _is_empty(view: View) -> BoolArray:
    """bool [steps]: which steps lack at least two of the ranges that almost all others hold, or the only one."""
    steps = view.steps
    names = set(view.own[~view.reading.is_step(view.own)].name.text())
    held = [steps.holding_any(view.named(name).start) for name in names]
    common = [own for own in held if own.mean() >= _COMMON]
    if not common:
        return np.zeros(len(steps), bool)
    lacking: BoolArray = (~np.stack(common)).sum(axis=0) >= min(2, len(common))
    return lacking


def of_the_group(
    cores: Sequence[tuple[ProcessInfo, Measurements]],
    processes: Sequence[ProcessInfo],
    of_rank: dict[int, Measurements],
) -> None:
    """Take from the ranks what their core does for them: allocation is no figure of a process that takes no pages."""
    for core, found in cores:
        if not any(name.startswith("alloc.") for name in found.metrics):
            continue
        for worker in _workers_of(core, processes):
            assert worker.rank is not None
            own = of_rank[worker.rank]
            for name in [name for name in own.metrics if name.startswith("alloc.")]:
                del own.metrics[name]
            own.findings[:] = [f for f in own.findings if f.code != "no_alloc_ranges"]
