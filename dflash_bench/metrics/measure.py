"""All metrics of a run: per rank, pooled over ranks, and between ranks."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import nullcontext
from dataclasses import replace
from pathlib import Path
from statistics import fmean

import numpy as np

from dflash_bench.metrics.agreement import Meeting, lateness_rows, meet
from dflash_bench.metrics.arrivals import Arrivals
from dflash_bench.metrics.blame import merged
from dflash_bench.metrics.collect import Sampled, assembled, in_a_row
from dflash_bench.metrics.counters import TRACING_COLUMNS, TRACING_COST, step_metrics, tracing_cost
from dflash_bench.metrics.effort import Effort, each_rank
from dflash_bench.metrics.events import Reading
from dflash_bench.metrics.rank import Measured, metric
from dflash_bench.metrics.registry import Pool, is_family, is_known, position, spec
from dflash_bench.metrics.scratch import sample_folder
from dflash_bench.metrics.shelf import Part, Shelf, together
from dflash_bench.model import (
    CaptureInfo,
    Finding,
    Metric,
    ProcessInfo,
    RunInfo,
    RunMetrics,
    Statistic,
    Table,
    Value,
)
from dflash_bench.profile import Profile

COLUMNS = {
    "stall.by_cause": ("rank", "cause", "launches", "lost_total_ns", "lost_p50_ns"),
    "sync.by_range": ("rank", "path", "api", "count", "total_ns", "p50_ns"),
    "sync.by_thread": ("rank", "thread", "api", "count", "total_ns", "share_of_step_time"),
    "dp.lateness_by_cause": ("rank", "cause", "mean_ns", "p50_ns"),
    TRACING_COST: TRACING_COLUMNS,
}


_RULES: dict[Pool, Callable[[list[float]], float]] = {
    Pool.SUM: sum,
    Pool.MAX: max,
    Pool.MIN: min,
    Pool.MEAN: fmean,
}


def measure(profile: Profile, reading: Reading | None = None, effort: Effort | None = None) -> RunMetrics:
    """Measure a run. Raises UsageError when the reading's step pattern is no regular expression.

    Memory hardly grows with the number of rows: the samples and steps of large profiles lie in temporary files while
    they are not looked at, 8 bytes a sample, and 16 where the step is kept with it. Large runs of several ranks are
    measured by several spawned processes: a script that calls this needs ``if __name__ == "__main__"``, or `Effort(1)`.
    """
    reading, effort = reading or Reading(), effort or Effort()
    reading.step_pattern()
    with sample_folder() if effort.is_large(profile) else nullcontext() as folder:
        return _measured_run(profile, reading, effort, folder)


def _measured_run(profile: Profile, reading: Reading, effort: Effort, folder: Path | None) -> RunMetrics:
    info, shelf = profile.info, None if folder is None else Shelf(folder / "run")
    by_rank = {
        rank: _joined(info.processes_of(rank), found) for rank, found in each_rank(profile, reading, effort, folder)
    }
    sampled = [(rank, found) for rank, of_rank in by_rank.items() for found in of_rank.metrics]
    findings = [f for found in by_rank.values() for f in found.findings]
    alone = [*_counters(info.counters, findings), *(m for rank in info.ranks for m in step_metrics(profile, rank))]
    tables = [_table(name, by_rank) for name in ("stall.by_cause", "sync.by_range", "sync.by_thread")]
    clock = _clocks(info.captures)
    arrivals = [
        replace(found.arrivals, capture=clock[found.arrivals.capture]).read(shelf)
        for found in by_rank.values()
        if found.arrivals is not None
    ]
    if (met := meet(arrivals)) is not None:
        meeting, about_meeting = met
        alone += _cross_rank(meeting)
        tables.append(_lateness_table(arrivals, meeting))
        findings += [*about_meeting, *_absent(arrivals, info.ranks)]
    elif len(own := {clock[p.capture] for p in info.processes if p.rank is not None}) > 1:
        text = f"{len(own)} clocks and no agreement of two ranks to line them up by: no cross-rank figures"
        findings.append(Finding("clocks_not_aligned", None, len(own), text))
    findings += _untraced(info)
    tables.append(tracing_cost(profile))
    metrics = _with_pooled(sampled, alone, shelf)
    findings += _partly_pooled(metrics, info.ranks)
    return RunMetrics(
        info=info,
        metrics=tuple(sorted(metrics, key=_order)),
        tables=tuple(t for t in tables if t.rows),
        findings=tuple(sorted({*info.findings, *findings}, key=_finding_order)),
    )


def _finding_order(found: Finding) -> tuple[str, int, int, str]:
    return found.code, -1 if found.rank is None else found.rank, found.count, found.text


def _order(found: Metric) -> tuple[int, str, int]:
    return position(found.name), found.name, -1 if found.rank is None else found.rank


def _joined(processes: Sequence[ProcessInfo], found: Sequence[Measured]) -> Measured:
    """The processes of one rank as one: the same metric of two processes becomes one."""
    if len(found) == 1:
        return found[0]
    metrics: dict[str, list[Sampled]] = {}
    for each in (m for part in found for m in part.metrics):
        metrics.setdefault(each.name, []).append(each)
    blames = {
        name: merged([part.blames[name] for part in found if name in part.blames])
        for part in found
        for name in part.blames
    }
    return Measured(
        metrics=tuple(_as_one(same) for same in metrics.values()),
        blames=blames,
        step_time=sum(part.step_time for part in found),
        arrivals=next((part.arrivals for part in found if part.arrivals is not None), None),
        findings=tuple(_rank_findings(processes, found)),
    )


def _rank_findings(processes: Sequence[ProcessInfo], found: Sequence[Measured]) -> Iterator[Finding]:
    """What the processes of a rank give to know. What one of them lacks is no gap where another one has it."""
    has_steps = [part.step_time > 0 for part in found]
    has_gpu = any(process.num_gpu_work for process in processes)
    no_steps = [f for part in found for f in part.findings if f.code == "no_steps"]
    for part, own in zip(found, has_steps, strict=True):
        for finding in part.findings:
            elsewhere = finding.code == "no_gpu_rows" and has_gpu and not own
            if finding.code != "no_steps" and not elsewhere:
                yield finding
    if not any(has_steps):
        yield max(no_steps, key=lambda f: f.count)
    elif no_steps:
        rest = [process for process, own in zip(processes, has_steps, strict=True) if not own]
        calls, work = sum(p.num_api_calls for p in rest), sum(p.num_gpu_work for p in rest)
        text = (
            f"{len(rest)} of {len(processes)} processes of this rank hold no steps: their {calls:,} API calls and"
            f" {work:,} GPU rows are in no step, lead or wait figure"
        )
        yield Finding("process_without_steps", processes[0].rank, len(rest), text)


def _clocks(captures: Sequence[CaptureInfo]) -> list[int]:
    """For each capture, the first one on the same clock.

    Captures whose time 0 is the same nanosecond share theirs: the built-in recorder gives all ranks of a run one
    origin, while every session of nsys has its own.
    """
    origin = [c.session_start_utc_ns for c in captures]
    return [k if start is None else origin.index(start) for k, start in enumerate(origin)]


def _absent(found: Sequence[Arrivals], ranks: Sequence[int]) -> Iterator[Finding]:
    absent = sorted(set(ranks) - {a.rank for a in found})
    if absent:
        text = f"no agreement inside a step on rank {_some(absent)}: the cross-rank figures leave these ranks out"
        yield Finding("rank_without_agreement", None, len(absent), text)


def _untraced(info: RunInfo) -> Iterator[Finding]:
    """Ranks without any CUDA rows beside ranks that have them: of forked workers nsys traces the first alone."""
    has_work = any(p.num_gpu_work for p in info.processes)
    for rank in info.ranks:
        own = info.processes_of(rank)
        if has_work and not any(p.num_api_calls or p.num_gpu_work for p in own):
            text = "no device rows captured on this rank, while others have them: it is unknown, not idle"
            yield Finding("no_gpu_rows", rank, sum(p.num_ranges for p in own), text)


def _partly_pooled(metrics: Sequence[Metric], ranks: Sequence[int]) -> Iterator[Finding]:
    """Pooled figures that some rank could not give: they are not about the whole run."""
    have: dict[str, set[int]] = {}
    for found in metrics:
        # not every rank need have every range or call, but each should have a lead and a step time
        is_due = found.name.startswith(("step.", "launch.", "graph.", "stall.", "sync.", "alloc."))
        if found.rank is not None and is_due and not is_family(found.name) and spec(found.name).pool is not Pool.NONE:
            have.setdefault(found.name, set()).add(found.rank)
    lacking: dict[tuple[int, ...], list[str]] = {}
    for name, own in have.items():
        if rest := tuple(sorted(set(ranks) - own)):
            lacking.setdefault(rest, []).append(name)
    for rest, names in lacking.items():
        text = f"rank {_some(rest)} could not give {', '.join(sorted(names))}: pooled, they speak of the other ranks"
        yield Finding("partly_pooled", None, len(names), text)


def _some(ranks: Sequence[int]) -> str:
    return ", ".join(map(str, ranks[:8])) + (", …" if len(ranks) > 8 else "")


def _with_pooled(sampled: Sequence[tuple[int, Sampled]], alone: Sequence[Metric], shelf: Shelf | None) -> list[Metric]:
    """All metrics, and those that can be pooled over all ranks."""
    metrics = [m for m in alone if m.rank is None or spec(m.name).pool is Pool.NONE]
    by_name: dict[str, list[tuple[int, Sampled]]] = {}
    for rank, found in [*sampled, *((m.rank, Sampled.of(m)) for m in alone if m.rank is not None)]:
        if spec(found.name).pool is not Pool.NONE:
            by_name.setdefault(found.name, []).append((rank, found))
    for same in by_name.values():
        same.sort(key=lambda each: each[0])
        if spec(same[0][1].name).statistic is Statistic.VALUE:
            metrics += [found.metric(rank) for rank, found in same]
            metrics.append(_as_one([found for _, found in same]).metric(None))
        else:
            metrics += assembled(same, shelf)
    return metrics


def _as_one(same: Sequence[Sampled]) -> Sampled:
    """One metric of several processes or ranks as one; counters by the rule of their registry entry."""
    found, known = in_a_row(same), spec(same[0].name)
    if known.statistic is not Statistic.VALUE:
        return found
    values = [float(together(each.values)[0]) for each in same]
    return replace(found, values=(Part.of(np.array([_RULES[known.pool](values)])),))


def pool(same: Sequence[Metric], rank: int | None) -> Metric:
    """One metric of several ranks as one, from the same samples; counters by the rule of their registry entry."""
    return _as_one([Sampled.of(each) for each in same]).metric(rank)


def _counters(counters: dict[str, dict[str, float]], findings: list[Finding]) -> Iterator[Metric]:
    """What the loop counted itself. A counter that this version has no entry for is named, not guessed at."""
    for rank, values in counters.items():
        unknown = [name for name in values if not is_known(name)]
        if unknown:
            text = f"engine counters without a definition here were left out: {', '.join(unknown)}"
            findings.append(Finding("unknown_counter", int(rank), len(unknown), text))
        for name, value in values.items():
            if name not in unknown:
                yield metric(name, int(rank), np.array([value]))


def _table(name: str, by_rank: dict[int, Measured]) -> Table:
    """Rows of each rank, then of all ranks together (rank null)."""
    own = {rank: found.blames[name] for rank, found in by_rank.items() if name in found.blames}
    rows = [row for rank, part in own.items() for row in part.rows(rank)]
    rows += merged(list(own.values())).rows(None) if own and name != "sync.by_thread" else []
    if name == "sync.by_thread":
        # a thread belongs to one rank, and its time is set against that rank's step time
        rows = [_with_share(row, by_rank) for row in rows]
    return Table(name, COLUMNS[name], tuple(rows))


def _with_share(row: tuple[Value, ...], by_rank: dict[int, Measured]) -> tuple[Value, ...]:
    rank, thread, api, count, total, _ = row
    assert isinstance(rank, int)
    assert isinstance(total, int)
    return rank, thread, api, count, total, total / by_rank[rank].step_time


def _lateness_table(found: Sequence[Arrivals], meeting: Meeting) -> Table:
    return Table("dp.lateness_by_cause", COLUMNS["dp.lateness_by_cause"], tuple(lateness_rows(found, meeting)))


def _cross_rank(meeting: Meeting) -> Iterator[Metric]:
    last, wait, every = meeting.last, meeting.wait, np.arange(meeting.arrival.shape[1])
    for k, rank in enumerate(meeting.ranks):
        yield metric("dp.wait", rank, wait[k], block=every)
        yield metric("dp.lateness", rank, meeting.lateness[k], block=every)
        yield metric("dp.straggler_share", rank, last == k, block=every)
        yield metric("clock.offset", rank, np.median(meeting.offset[k : k + 1], axis=1), num_samples=len(every))
        yield metric("clock.offset_spread", rank, meeting.offset_spread[k : k + 1], num_samples=len(every))
    yield metric("dp.alloc_on_critical_path", None, meeting.is_alloc[last, every], block=every)
    yield metric("dp.agreement_tax", None, meeting.tax, block=every)
