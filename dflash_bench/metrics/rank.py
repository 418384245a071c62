"""Everything that one process of one rank gives by itself."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np

from dflash_bench.metrics import waits
from dflash_bench.metrics.agreement import Arrivals, arrivals
from dflash_bench.metrics.blame import Blame
from dflash_bench.metrics.events import ProcessEvents, Reading
from dflash_bench.metrics.intervals import NONE
from dflash_bench.metrics.launches import JoinCounts, Launches, is_launch, join
from dflash_bench.metrics.registry import spec
from dflash_bench.metrics.steps import Steps, ThreadRanges, find_steps, thread_ranges
from dflash_bench.model import BoolArray, Finding, FloatArray, IntArray, Metric

WITHHELD_BELOW = 0.50
WARNED_BELOW = 0.95
"""Coverage under which a lead, stall or share figure is withheld, or shown with a warning."""

BACKPRESSURE_FACTOR = 10
MAX_RANGE_NAMES = 500
"""Engines that write counts into range names make a name per step: more names than this are noise, not metrics."""


@dataclass(frozen=True, slots=True)
class Measured:
    """What one process gave: its metrics, the samples of its tables, its agreements, and what to know about them."""

    metrics: tuple[Metric, ...]
    blames: dict[str, Blame]
    step_time: int
    arrivals: Arrivals | None
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


def measure_process(events: ProcessEvents, reading: Reading, *, is_own_loop: bool) -> Measured:
    """All per-rank metrics of a process.

    ``is_own_loop``: the capture carries the rank mark, so its loop is known to wrap every allocation in a range, and no
    allocation range means no allocation.
    """
    rank = events.process.rank
    steps, findings = find_steps(events, reading)
    own = thread_ranges(events.ranges, steps.domain)
    found = list(findings)
    metrics = [*_range_metrics(events, own, rank, found)]
    blames: dict[str, Blame] = {}
    if len(steps):
        metrics += _step_metrics(events, steps, own, reading, is_own_loop, found)
        metrics += _wait_metrics(events, steps, own, blames, found)
    else:
        found.append(_no_steps(events, reading))
    metrics += _launch_metrics(events, steps, own, blames, found)
    metrics.append(metric("coverage.open_ranges", rank, np.array([events.num_open])))
    return Measured(
        metrics=tuple(metrics),
        blames=blames,
        step_time=int((steps.end - steps.start).sum()),
        arrivals=arrivals(events, steps, own, reading) if len(steps) else None,
        findings=tuple(found),
    )


def _no_steps(events: ProcessEvents, reading: Reading) -> Finding:
    names, rank = events.ranges.name, events.process.rank
    lost = "no step, lead, stall or wait figures"
    if not len(names.codes):
        return Finding("no_steps", rank, 0, f"no NVTX ranges in the capture, so {lost}")
    common = np.argsort(-np.bincount(names.codes, minlength=len(names.values)), kind="stable")[:5]
    some = ", ".join(f"{names.values[k]!r}" for k in common)
    text = f"no range named {reading.step!r}, so {lost} (choose one with --step-range; the most frequent are {some})"
    return Finding("no_steps", rank, len(names.codes), text)


def _range_metrics(
    events: ProcessEvents, own: ThreadRanges, rank: int | None, findings: list[Finding]
) -> Iterator[Metric]:
    """``range.NAME`` of every name. One that several domains use counts in the step range's domain alone, if there."""
    ranges = events.ranges
    names, domains = ranges.name, ranges.domain
    in_own = np.zeros(len(names.values), bool)
    in_own[np.unique(own.ranges.name.codes)] = True
    own_domain = domains.among({domains.values[c] for c in np.unique(own.ranges.domain.codes)})
    other_of_own_name = in_own[names.codes] & ~own_domain
    if other_of_own_name.any():
        text = "ranges bear a name of the step range's domain in another domain and do not count for it"
        findings.append(
            Finding("name_in_two_domains", rank, int(other_of_own_name.sum()), f"{other_of_own_name.sum():,} {text}")
        )
    kept = np.flatnonzero(~other_of_own_name)
    order = kept[np.argsort(names.codes[kept], kind="stable")]
    codes, first = np.unique(names.codes[order], return_index=True)
    parts = np.split(order, first[1:]) if len(codes) else []
    if len(codes) > MAX_RANGE_NAMES:
        text = f"{len(codes):,} range names: only the {MAX_RANGE_NAMES} with most ranges are listed"
        findings.append(Finding("too_many_range_names", rank, len(codes) - MAX_RANGE_NAMES, text))
        parts = sorted(parts, key=len, reverse=True)[:MAX_RANGE_NAMES]
    for rows in sorted(parts, key=lambda rows: names.values[names.codes[rows[0]]]):
        name = names.values[names.codes[rows[0]]]
        yield metric(f"range.{name}", rank, ranges.end[rows] - ranges.start[rows])


def _step_metrics(
    events: ProcessEvents,
    steps: Steps,
    own: ThreadRanges,
    reading: Reading,
    is_own_loop: bool,
    findings: list[Finding],
) -> Iterator[Metric]:
    rank, every = events.process.rank, np.arange(len(steps))
    yield metric("step.period", rank, np.diff(steps.start), block=every[1:])
    touched = _steps_touched(steps, events.overhead_start, events.overhead_end)
    yield metric("coverage.steps_with_overhead", rank, np.array([touched]), num_samples=len(steps))
    alloc = own.ranges.start[own.ranges.name.among({reading.alloc})]
    prepare = own.ranges[own.ranges.name.among({reading.prepare})]
    if not len(alloc) and not (is_own_loop and len(prepare)):
        if len(prepare):
            text = f"no range named {reading.alloc!r}: whether steps allocated cannot be told"
            findings.append(Finding("no_alloc_ranges", rank, len(steps), text))
        return
    is_alloc = steps.holding_any(alloc)
    yield metric("alloc.step_share", rank, is_alloc, block=every)
    step = steps.of(prepare.start)
    inside = step != NONE
    group = is_alloc[step[inside]]
    if group.any() and not group.all():
        duration = (prepare.end - prepare.start)[inside]
        yield metric("alloc.step_cost", rank, duration, block=step[inside], group=group)


def _steps_touched(steps: Steps, start: IntArray, end: IntArray) -> int:
    """How many steps any of these intervals overlaps."""
    first = np.searchsorted(steps.end, start, side="right")
    last = np.searchsorted(steps.start, end, side="left")
    change = np.zeros(len(steps) + 1, np.int64)
    overlapping = first < last
    np.add.at(change, first[overlapping], 1)
    np.add.at(change, last[overlapping], -1)
    return int((np.cumsum(change)[:-1] > 0).sum())


def _wait_metrics(
    events: ProcessEvents, steps: Steps, own: ThreadRanges, blames: dict[str, Blame], findings: list[Finding]
) -> Iterator[Metric]:
    rank, calls = events.process.rank, events.calls
    if not len(calls):
        text = "no CUDA API calls captured: host waits cannot be told"
        findings.append(Finding("no_api_calls", rank, len(steps), text))
        return
    waits_in_steps = waits.sync_calls(calls, steps)
    duration, step = waits_in_steps.end - waits_in_steps.start, steps.of(waits_in_steps.start)
    names = waits_in_steps.name
    for code in np.unique(names.codes):
        rows = names.codes == code
        yield metric(f"sync.{names.values[code]}", rank, duration[rows], block=step[rows])
    per_step = steps.sum_of(waits_in_steps.start, duration)
    every = np.arange(len(steps))
    yield metric("sync.total_per_step", rank, per_step, block=every)
    launches = calls[is_launch(calls.name)]
    for name, own_calls in (("sync", waits_in_steps), ("launch", launches)):
        per_step = steps.sum_of(own_calls.start, np.ones(len(own_calls), np.int64))
        yield metric(f"{name}.calls_per_step", rank, per_step, block=every)
    blames["sync.by_thread"] = waits.by_thread(waits_in_steps)
    blames["sync.by_range"] = waits.by_range(calls, steps, own)


def _launch_metrics(
    events: ProcessEvents, steps: Steps, own: ThreadRanges, blames: dict[str, Blame], findings: list[Finding]
) -> Iterator[Metric]:
    rank, names = events.process.rank, events.calls.name
    seen = is_launch(names)
    if len(events.calls) and not seen.any():
        text = f"{len(events.calls):,} API calls captured and none of them a launch: an old nsys under a new driver?"
        findings.append(Finding("no_launch_calls", rank, len(events.calls), text))
    if not len(events.gpu):
        if len(events.calls):
            text = "no device rows captured: nothing is known of what the GPU did, idle or busy"
            findings.append(Finding("no_gpu_rows", rank, int(seen.sum()), text))
        return
    launches, launched, counts = join(events.calls, events.gpu)
    yield from _join_coverage(rank, counts)
    if len(steps):
        seen &= steps.of(events.calls.start) != NONE
    if seen.any():
        yield metric("coverage.launches_matched", rank, launched[seen])
    coverage = min(launched[seen].mean() if seen.any() else 1.0, counts.num_matched / max(1, counts.num_work))
    findings += _join_findings(rank, counts)
    if lost := int((seen & ~launched).sum()):
        text = f"{lost:,} of {int(seen.sum()):,} launch calls join no GPU work"
        findings.append(Finding("launches_without_work", rank, lost, text))
    is_graph_launch = seen & names.containing("GraphLaunch")
    if is_graph_launch.any() and not launched[is_graph_launch].any():
        text = f"{is_graph_launch.sum():,} graph launches join no GPU work: the rest gives no lead or stall figure"
        findings.append(Finding("graph_launches_without_work", rank, int(is_graph_launch.sum()), text))
        return
    if not len(steps):
        return
    if coverage < WITHHELD_BELOW:
        text = f"only {coverage:.0%} of launches and GPU work could be joined: lead and stall figures are withheld"
        findings.append(Finding("coverage_withheld", rank, counts.num_work - counts.num_matched, text))
        return
    if coverage < WARNED_BELOW:
        text = f"{coverage:.0%} of launches and GPU work could be joined: lead and stall figures rest on these"
        findings.append(Finding("coverage_low", rank, counts.num_work - counts.num_matched, text))
    yield from _leads(rank, launches, steps, own, events, float(coverage), blames, findings)


def _join_coverage(rank: int | None, counts: JoinCounts) -> Iterator[Metric]:
    without = counts.num_work - counts.num_matched
    matched = np.repeat([True, False], [counts.num_matched, without])
    yield metric("gpu_work_without_launch", rank, np.array([without]), num_samples=counts.num_work)
    yield metric("coverage.gpu_work_matched", rank, matched)
    uncorrelated = np.array([counts.num_uncorrelated])
    yield metric("coverage.gpu_work_uncorrelated", rank, uncorrelated, num_samples=counts.num_work)
    impossible = np.array([counts.num_impossible])
    yield metric("coverage.impossible_pairs", rank, impossible, num_samples=counts.num_matched)


def _join_findings(rank: int | None, counts: JoinCounts) -> Iterator[Finding]:
    without = counts.num_work - counts.num_matched
    if without:
        text = f"{without:,} of {counts.num_work:,} pieces of GPU work have no launch call in the capture"
        yield Finding("gpu_work_without_launch", rank, without, text)
    if uncorrelated := counts.num_uncorrelated - counts.num_by_order:
        text = f"{uncorrelated:,} GPU rows have correlation id 0 and join no launch: graphs made before the capture?"
        yield Finding("gpu_work_uncorrelated", rank, uncorrelated, text)
    if counts.num_by_order:
        text = f"{counts.num_by_order:,} graph replays carry no correlation id and were joined in order of launch"
        yield Finding("joined_by_order", rank, counts.num_by_order, text)
    if counts.num_duplicate_calls:
        text = f"{counts.num_duplicate_calls:,} API calls repeat a correlation id; the first of each counts"
        yield Finding("duplicate_api_calls", rank, counts.num_duplicate_calls, text)
    if counts.num_impossible:
        text = f"{counts.num_impossible:,} pieces of GPU work start before their launch call"
        yield Finding("impossible_pairs", rank, counts.num_impossible, text)


def _leads(
    rank: int | None,
    launches: Launches,
    steps: Steps,
    own: ThreadRanges,
    events: ProcessEvents,
    coverage: float,
    blames: dict[str, Blame],
    findings: list[Finding],
) -> Iterator[Metric]:
    step = steps.of(launches.start)
    launched_in = np.bincount(step[step != NONE], minlength=len(steps)) > 0
    if not launched_in.all():
        idle = int((~launched_in).sum())
        text = f"{idle:,} of {len(steps):,} steps launched nothing; no lead or stall figure is computed from them"
        findings.append(Finding("steps_without_launches", rank, idle, text))

    def sampled(name: str, values: IntArray | BoolArray, block: IntArray) -> Metric:
        return metric(name, rank, values, block=block, coverage=coverage)

    first = _first_of_each_step(launches, step)
    first = first[launches.has_lead[first]]
    inside = (step != NONE) & launches.has_lead
    if not inside.any():
        return
    yield sampled("step.lead", launches.lead[first], step[first])
    launches, step = launches[inside], step[inside]
    lead, graph = launches.lead, launches.is_graph
    yield sampled("launch.lead", lead, step)
    yield sampled("launch.run_ahead_fraction", lead > 0, step)
    yield from _backpressure(rank, launches)
    if graph.any():
        yield sampled("graph.lead", lead[graph], step[graph])
        yield sampled("graph.run_ahead_fraction", lead[graph] > 0, step[graph])
        issued_in = own.innermost(launches.thread[graph], launches.start[graph])
        names = own.ranges.name
        code = np.where(issued_in == NONE, NONE, names.codes[issued_in])
        for own_code in np.unique(code[code != NONE]):
            rows = np.flatnonzero(graph)[code == own_code]
            yield sampled(f"graph.lead@{names.values[own_code]}", lead[rows], step[rows])
    lost = np.zeros(len(steps), np.int64)
    np.add.at(lost, step, np.maximum(-lead, 0))
    yield sampled("stall.total_per_step", lost[launched_in], np.flatnonzero(launched_in))
    blames["stall.by_cause"] = waits.by_cause(launches[lead < 0], events.calls, own)


def _first_of_each_step(launches: Launches, step: IntArray) -> IntArray:
    """The first launch of each step, where there are CUDA graphs the first graph launch."""
    inside = step != NONE
    among = inside & launches.is_graph
    rows = np.flatnonzero(among if among.any() else inside)
    rows = rows[np.lexsort((launches.start[rows], step[rows]))]
    _, first = np.unique(step[rows], return_index=True)
    found: IntArray = rows[first]
    return found


def _backpressure(rank: int | None, launches: Launches) -> Iterator[Metric]:
    """Launch calls far longer than usual although work was queued ahead: the queue was full, not the host slow."""
    duration = launches.end - launches.start
    blocked = (duration > BACKPRESSURE_FACTOR * np.median(duration)) & (launches.lead > 0)
    yield metric("launch.backpressure", rank, np.array([int(blocked.sum())]), num_samples=len(launches))
