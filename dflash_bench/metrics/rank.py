"""Everything that one process of one rank gives by itself."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace

import numpy as np

from dflash_bench.layout import Events
from dflash_bench.metrics.arrivals import ArrivalMeter, ArrivalParts
from dflash_bench.metrics.blame import Blame
from dflash_bench.metrics.collect import Collector, Sampled
from dflash_bench.metrics.columns import ints
from dflash_bench.metrics.events import Ranges, Reading
from dflash_bench.metrics.gpu import GpuFile
from dflash_bench.metrics.intervals import NONE
from dflash_bench.metrics.launches import is_launch
from dflash_bench.metrics.leads import LEADS, LeadMeter
from dflash_bench.metrics.registry import spec
from dflash_bench.metrics.shelf import Shelf, give_back
from dflash_bench.metrics.steps import Steps
from dflash_bench.metrics.strata import StrataMeter, Stratum, timed
from dflash_bench.metrics.waits import WaitMeter
from dflash_bench.metrics.windows import WINDOW_ROWS, HostEvents, Outline
from dflash_bench.metrics.work import by_code, changes
from dflash_bench.model import BoolArray, Finding, FloatArray, IntArray, Metric, ProcessInfo
from dflash_bench.profile import Profile

MAX_RANGE_NAMES = 500
"""Engines that write counts into range names make a name per step: more names than this are noise, not metrics."""

GIVEN_BACK_AFTER = 32
"""Windows after which freed memory is returned: pieces of it add up, and each return costs some 10 ms of CPU time."""


@dataclass(frozen=True, slots=True)
class Measured:
    """What one process gave: its metrics, the samples of its tables, its agreements, and what to know about them."""

    metrics: tuple[Sampled, ...]
    blames: dict[str, Blame]
    step_time: int
    arrivals: ArrivalParts | None
    findings: tuple[Finding, ...]


def metric(
    name: str,
    rank: int | None,
    values: IntArray | FloatArray | BoolArray,
    *,
    block: IntArray | None = None,
    group: BoolArray | None = None,
    num_samples: int | None = None,
    coverage: float | None = None,
) -> Metric:
    """A metric with the unit and statistic of its registry entry."""
    known = spec(name)
    return Metric(
        name, rank, known.unit, known.statistic, np.asarray(values, np.float64), group, block, num_samples, coverage
    )


def measure_process(
    profile: Profile,
    process: ProcessInfo,
    reading: Reading,
    *,
    is_own_loop: bool,
    shelf: Shelf | None = None,
    window_rows: int = WINDOW_ROWS,
) -> Measured:
    """All per-rank metrics of a process.

    ``is_own_loop``: the capture carries the rank mark, so its loop is known to wrap every allocation in a range, and no
    allocation range means no allocation. ``shelf``: where samples go while they gather; without it they stay in memory.

    Besides the samples it holds a few windows of ``window_rows`` ranges and calls, the row groups that overlap with
    them, a few numbers for each open range and stream, and, without a shelf, for each step and agreement.
    """
    host, gpu, collector = HostEvents(profile, process, reading), GpuFile(profile, process), Collector(shelf)
    outline = host.outline(shelf)
    steps, rank = outline.steps, process.rank
    findings = list(outline.findings)
    collector.add_value("coverage.open_ranges", outline.num_open)
    range_meter = _RangeMeter(outline, rank, collector, findings)
    waits = WaitMeter(steps, collector) if len(steps) and host.num_calls else None
    leads = LeadMeter(host, gpu, steps, collector, window_rows) if gpu.num_rows else None
    arrivals = ArrivalMeter(process, outline, reading, shelf) if len(steps) else None
    if len(steps):
        _add_step_metrics(profile, process, outline, reading, is_own_loop, collector, findings)
    else:
        findings.append(_no_steps(outline, reading, rank))
    kinds = StrataMeter(outline, reading) if len(steps) else None
    del outline
    num_launches = 0
    for number, window in enumerate(host.windows(steps.domain, window_rows)):
        if shelf is not None and number % GIVEN_BACK_AFTER == 0:
            give_back()
        range_meter.see(window.ranges)
        num_launches += int(is_launch(window.calls.name).sum())
        step = steps.of_ascending(window.calls.start)
        if kinds is not None:
            kinds.see(window, step)
        if waits is not None:
            waits.see(window, step)
        if leads is not None:
            leads.see(window, step)
        if arrivals is not None:
            arrivals.see(window)
        steps.let_go()
    strata = {} if kinds is None else kinds.finish()
    _add_strata(steps, strata, collector)
    coverage = None
    if waits is not None:
        waits.finish()
    elif len(steps):
        text = "no CUDA API calls captured: host waits cannot be told"
        findings.append(Finding("no_api_calls", rank, len(steps), text))
    if host.num_calls and not num_launches:
        text = f"{host.num_calls:,} API calls captured and none of them a launch: an old nsys under a new driver?"
        findings.append(Finding("no_launch_calls", rank, host.num_calls, text))
    if leads is not None:
        coverage, found = leads.finish(lambda: host.windows(steps.domain, window_rows), strata)
        findings += found
    elif host.num_calls:
        text = "no device rows captured: nothing is known of what the GPU did, idle or busy"
        findings.append(Finding("no_gpu_rows", rank, num_launches, text))
    return Measured(
        metrics=tuple(_covered(collector.sampled(), coverage)),
        blames={
            table: Blame({label: growing.parts() for label, growing in causes.items()})
            for table, causes in collector.causes.items()
        },
        step_time=int((steps.end - steps.start).sum()),
        arrivals=None if arrivals is None else arrivals.arrivals(),
        findings=tuple(findings),
    )


def _covered(found: list[Sampled], coverage: float | None) -> Iterator[Sampled]:
    """The metrics, those that rest on joined launches with their coverage."""
    for each in found:
        rests_on_launches = each.name in LEADS or each.name.startswith(("graph.lead@", "step.lead@"))
        is_counted = each.name == "launch.backpressure"
        yield replace(each, coverage=coverage) if rests_on_launches and not is_counted else each


def _no_steps(outline: Outline, reading: Reading, rank: int | None) -> Finding:
    lost = "no step, lead, stall or wait figures"
    counts = outline.counts.sum(axis=0)
    if not counts.sum():
        return Finding("no_steps", rank, 0, f"no NVTX ranges in the capture, so {lost}")
    common = np.argsort(-counts, kind="stable")[:5]
    some = ", ".join(f"{outline.names[k]!r}" for k in common)
    text = f"no range named {reading.step!r}, so {lost} (choose one with --step-range; the most frequent are {some})"
    return Finding("no_steps", rank, int(counts.sum()), text)


class _RangeMeter:
    """``range.NAME`` of every name. One that several domains use counts in the step range's domain alone, if there."""

    def __init__(self, outline: Outline, rank: int | None, collector: Collector, findings: list[Finding]) -> None:
        self.collector = collector
        self.is_own_domain = np.array([name == outline.steps.domain for name in outline.domains], bool)
        total, own = outline.counts.sum(axis=0), outline.counts[self.is_own_domain].sum(axis=0)
        self.is_own_name = own > 0
        num_others = int((total - own)[self.is_own_name].sum())
        if num_others:
            text = "ranges bear a name of the step range's domain in another domain and do not count for it"
            findings.append(Finding("name_in_two_domains", rank, num_others, f"{num_others:,} {text}"))
        counted = np.where(self.is_own_name, own, total)
        self.is_listed = counted > 0
        num_names = int(self.is_listed.sum())
        if num_names > MAX_RANGE_NAMES:
            text = f"{num_names:,} range names: only the {MAX_RANGE_NAMES} with most ranges are listed"
            findings.append(Finding("too_many_range_names", rank, num_names - MAX_RANGE_NAMES, text))
            self.is_listed[np.argsort(-counted, kind="stable")[MAX_RANGE_NAMES:]] = False

    def see(self, ranges: Ranges) -> None:
        """Take in the ranges of a window."""
        names = ranges.name
        kept = self.is_listed[names.codes]
        if not self.is_own_domain.all():
            kept &= self.is_own_domain[ranges.domain.codes] | ~self.is_own_name[names.codes]
        rows = np.flatnonzero(kept)
        rows = rows[by_code(names.codes[rows])]
        length, codes = (ranges.end - ranges.start)[rows], names.codes[rows]
        first = np.flatnonzero(changes(codes))
        for code, own in zip(codes[first].tolist(), np.split(length, first[1:]), strict=True) if len(first) else ():
            self.collector.add(f"range.{names.values[code]}", own)


def _add_step_metrics(
    profile: Profile,
    process: ProcessInfo,
    outline: Outline,
    reading: Reading,
    is_own_loop: bool,
    collector: Collector,
    findings: list[Finding],
) -> None:
    steps, every = outline.steps, np.arange(len(outline.steps))
    collector.add("step.period", np.diff(steps.start), every[1:])
    overhead = profile.events(Events.OVERHEAD, process, ("start_ns", "end_ns"))
    touched = _steps_touched(steps, ints(overhead.column("start_ns")), ints(overhead.column("end_ns")))
    collector.add_value("coverage.steps_with_overhead", touched, len(steps))
    alloc, prepare = outline.own(reading.alloc).start, outline.own(reading.prepare)
    if not len(alloc) and not (is_own_loop and len(prepare)):
        if len(prepare):
            text = f"no range named {reading.alloc!r}: whether steps allocated cannot be told"
            findings.append(Finding("no_alloc_ranges", process.rank, len(steps), text))
        return
    is_alloc = steps.holding_any(alloc)
    collector.add("alloc.step_share", is_alloc, every)
    step = steps.of(prepare.start)
    inside = step != NONE
    group = is_alloc[step[inside]]
    if group.any() and not group.all():
        collector.add("alloc.step_cost", (prepare.end - prepare.start)[inside], step[inside], group)


def _add_strata(steps: Steps, strata: dict[Stratum, BoolArray], collector: Collector) -> None:
    for kind, is_own in strata.items():
        collector.add_value(f"steps@{kind}", int(is_own.sum()), len(steps))
    period = np.diff(steps.start)
    for kind, is_own in timed(strata):
        # until the next step starts: the last one has none
        own = np.flatnonzero(is_own[:-1])
        collector.add(f"step.period@{kind}", period[own], own)


def _steps_touched(steps: Steps, start: IntArray, end: IntArray) -> int:
    """How many steps any of these intervals overlaps."""
    first = np.searchsorted(steps.end, start, side="right")
    last = np.searchsorted(steps.start, end, side="left")
    change = np.zeros(len(steps) + 1, np.int64)
    overlapping = first < last
    np.add.at(change, first[overlapping], 1)
    np.add.at(change, last[overlapping], -1)
    return int((np.cumsum(change)[:-1] > 0).sum())
