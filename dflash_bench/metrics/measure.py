"""All metrics of a run: per rank, pooled over ranks, and between ranks."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import replace
from statistics import fmean

import numpy as np

from dflash_bench.errors import DataError
from dflash_bench.findings import finding
from dflash_bench.metrics.agreement import Agreements, agreement_metrics, find_meetings, on_clocks
from dflash_bench.metrics.cache import cached
from dflash_bench.metrics.clocks import first_on_clock
from dflash_bench.metrics.cores import measure_cores, of_the_group
from dflash_bench.metrics.lateness import lateness_rows, wait_rows
from dflash_bench.metrics.measurements import (
    Causes,
    Measurements,
    Samples,
    blame_rows,
    in_a_row,
    merged,
    metric,
    metric_of,
    with_value,
)
from dflash_bench.metrics.process import ProcessMeasurements
from dflash_bench.metrics.processes import Workers, each_rank
from dflash_bench.metrics.reading import Reading
from dflash_bench.metrics.registry import Pool, is_known, position, spec
from dflash_bench.metrics.tracing import TRACING_COLUMNS, TRACING_COST, step_metrics, tracing_cost
from dflash_bench.model import Finding, Metric, ProcessInfo, RunInfo, RunMetrics, Statistic, Table, Value
from dflash_bench.profile import Profile

COLUMNS = {
    "stall.by_cause": ("rank", "cause", "launches", "lost_total_ns", "lost_p50_ns"),
    "dry.by_cause": ("rank", "cause", "steps", "total_ns", "share"),
    "launch.by_lane": (
        "rank",
        "device",
        "stream",
        "launches",
        "lead_p50_ns",
        "run_ahead_fraction",
        "gpu_time_share",
        "lane",
    ),
    "sync.by_range": ("rank", "path", "api", "count", "total_ns", "p50_ns", "exposed_ns"),
    "sync.by_thread": ("rank", "thread", "api", "count", "total_ns", "share_of_step_time"),
    "lines.by_cause": ("rank", "table", "cause", "api", "line", "total_ns"),
    "warm_up.by_cause": ("rank", "table", "cause", "api", "total_ns"),
    "dp.wait_by_cause": ("rank", "cause", "agreements", "total_ns", "share"),
    "dp.lateness_by_cause": ("rank", "cause", "mean_ns", "p50_ns"),
    TRACING_COST: TRACING_COLUMNS,
}


_ByRank = dict[int, ProcessMeasurements]

_RULES: dict[Pool, Callable[[list[float]], float]] = {
    Pool.SUM: sum,
    Pool.MAX: max,
    Pool.MIN: min,
    Pool.MEAN: fmean,
}


def measure(profile: Profile, reading: Reading | None = None, workers: Workers | None = None) -> RunMetrics:
    """Measure a run, or the blocks of one arm in it. Raises UsageError when the reading's step pattern is no regular
    expression, or the run has no such arm.

    One process of the run is held in memory as a whole, some 60 bytes a row. Large runs of several ranks are measured
    by several spawned processes: a script that calls this needs ``if __name__ == "__main__"``, or `Workers(1)`. What
    was measured of a large run stays beside its profile, and is read from there the next time (`cache`).
    """
    reading = reading or Reading(is_open=True)
    if profile.arm is not None or reading.arm is not None:
        arm = reading.arm or profile.arm
        assert arm is not None
        profile, reading = profile.of_arm(arm), replace(reading, arm=arm)
    reading.check()
    return cached(profile, reading, lambda: _measure(profile, reading, workers or Workers()))


def _measure(profile: Profile, reading: Reading, workers: Workers) -> RunMetrics:
    info = profile.info
    by_rank = {rank: _joined(info.processes_of(rank), found) for rank, found in each_rank(profile, reading, workers)}
    _drop_whole_captures(by_rank)
    cores = measure_cores(profile, reading)
    of_the_group(cores, info.processes, {rank: each.found for rank, each in by_rank.items()})
    everywhere = [*(each.found for each in by_rank.values()), *(found for _, found in cores)]
    findings = [f for found in everywhere for f in found.findings]
    alone = [*_counters(info, findings), *(m for rank in info.ranks for m in step_metrics(profile, rank))]
    tables = [
        make(by_rank)
        for make in (_dry_table, _stall_table, _lane_table, _range_table, _thread_table, _warm_up_table, _line_table)
    ]
    clock = first_on_clock(info.captures)
    agreements = on_clocks(
        [each.agreements for each in by_rank.values() if each.agreements is not None],
        clock,
        [capture.session_start_utc_ns for capture in info.captures],
    )
    if (met := find_meetings(agreements)) is not None:
        meetings, about_meeting = met
        alone += agreement_metrics(meetings)
        for name, rows_of in (("dp.wait_by_cause", wait_rows), ("dp.lateness_by_cause", lateness_rows)):
            tables.append(Table(name, COLUMNS[name], tuple(rows_of(agreements, meetings))))
        findings += [*about_meeting, *_absent(agreements, info.ranks)]
    elif len(agreements) > 1:
        findings.append(finding("agreements_apart", None, sum(len(each.start) for each in agreements)))
    elif len(own := {clock[p.capture] for p in info.processes if p.rank is not None}) > 1:
        findings.append(finding("clocks_not_aligned", None, len(own)))
    findings += _untraced(info)
    tables.append(tracing_cost(profile))
    metrics = _with_pooled(by_rank, alone)
    metrics += _of_cores([found for _, found in cores], {m.name for m in metrics})
    findings += _partly_pooled(metrics, info.ranks)
    return RunMetrics(
        info=info,
        metrics=tuple(sorted(metrics, key=_order)),
        tables=tuple(t for t in tables if t.rows),
        findings=tuple(sorted({*info.findings, *findings}, key=_finding_order)),
        step=_step(by_rank.values()),
    )


def _step(each: Iterable[ProcessMeasurements]) -> str:
    return next((part.step for part in each if part.num_steps), "")


def _drop_whole_captures(by_rank: _ByRank) -> None:
    """Ranks without steps beside ranks with: what was counted over their whole capture is no figure of the run."""
    if any(each.num_steps for each in by_rank.values()):
        for each in by_rank.values():
            if not each.num_steps:
                _keep_only_ranges(each.found)


def _keep_only_ranges(found: Measurements) -> None:
    for name in [name for name in found.metrics if not name.startswith(("range.", "coverage.", "gpu_work_"))]:
        del found.metrics[name]
    found.causes.clear()
    found.rows.clear()


def _of_cores(found: Sequence[Measurements], taken: set[str]) -> Iterator[Metric]:
    """What the cores of a run give, all of them together."""
    for name in dict.fromkeys(name for each in found for name in each.metrics):
        same = [each.metrics[name] for each in found if name in each.metrics]
        own = f"{name}@core" if name in taken else name
        yield metric_of(own, None, _as_one(name, same))


def _finding_order(found: Finding) -> tuple[bool, str, int, int, str]:
    # what lies in a process that is no rank explains what is missing elsewhere
    return (
        found.code != "process_unassigned",
        found.code,
        -1 if found.rank is None else found.rank,
        found.count,
        found.text,
    )


def _order(found: Metric) -> tuple[int, str, int]:
    return position(found.name), found.name, -1 if found.rank is None else found.rank


def _joined(processes: Sequence[ProcessInfo], each: Sequence[ProcessMeasurements]) -> ProcessMeasurements:
    """The processes of one rank as one: the same metric of two processes becomes one.

    Raises DataError when two of them have steps: then one is the core of an engine, or another rank.
    """
    if len(each) == 1:
        return each[0]
    stepping = [p for p, part in zip(processes, each, strict=True) if part.num_steps]
    if len({p.arm for p in stepping}) < len(stepping):
        rank, pids = processes[0].rank, " and ".join(str(p.pid) for p in stepping)
        raise DataError(
            f"processes {pids} are both rank {rank}, and both have steps",
            hint=f"say which is which: dflash-bench ingest … --replace --ranks {stepping[0].pid}=core,"
            f"{stepping[1].pid}={rank}",
        )
    for part in each if stepping else ():
        if not part.num_steps:
            _keep_only_ranges(part.found)
    names = dict.fromkeys(name for part in each for name in part.found.metrics)
    tables = dict.fromkeys(name for part in each for name in part.found.causes)
    found = Measurements(
        rank=processes[0].rank,
        metrics={
            name: _as_one(name, [part.found.metrics[name] for part in each if name in part.found.metrics])
            for name in names
        },
        causes={name: merged([p.found.causes[name] for p in each if name in p.found.causes]) for name in tables},
        rows={
            name: [row for p in each for row in p.found.rows.get(name, ())] for part in each for name in part.found.rows
        },
        findings=list(_rank_findings(processes, each)),
    )
    agreements = next((part.agreements for part in each if part.agreements is not None), None)
    num_steps, time = sum(part.num_steps for part in each), sum(part.time for part in each)
    return ProcessMeasurements(found, _step(each), num_steps, time, agreements)


def _rank_findings(processes: Sequence[ProcessInfo], each: Sequence[ProcessMeasurements]) -> Iterator[Finding]:
    """What the processes of a rank give to know. What one of them lacks is no gap where another one has it."""
    has_steps = [part.num_steps > 0 for part in each]
    has_gpu = any(process.num_gpu_work for process in processes)
    no_steps = [f for part in each for f in part.found.findings if f.code == "no_steps"]
    for part, own in zip(each, has_steps, strict=True):
        for found in part.found.findings:
            elsewhere = found.code == "no_gpu_rows" and has_gpu and not own
            if found.code != "no_steps" and not elsewhere:
                yield found
    if not any(has_steps):
        yield max(no_steps, key=lambda f: f.count)
    elif no_steps:
        rest = [process for process, own in zip(processes, has_steps, strict=True) if not own]
        calls, work = sum(p.num_api_calls for p in rest), sum(p.num_gpu_work for p in rest)
        rank, num = processes[0].rank, len(processes)
        yield finding("process_without_steps", rank, len(rest), num=num, calls=calls, work=work)


def _absent(found: Sequence[Agreements], ranks: Sequence[int]) -> Iterator[Finding]:
    if absent := sorted(set(ranks) - {a.rank for a in found}):
        yield finding("rank_without_agreement", None, len(absent), ranks=_some(absent))


def _untraced(info: RunInfo) -> Iterator[Finding]:
    """Ranks without any CUDA rows beside ranks that have them: of forked workers nsys traces the first alone."""
    has_work = any(p.num_gpu_work for p in info.processes if p.rank is not None)
    for rank in info.ranks:
        own = info.processes_of(rank)
        if has_work and not any(p.num_api_calls or p.num_gpu_work for p in own):
            where = " on this rank, while others have them"
            yield finding("no_gpu_rows", rank, sum(p.num_ranges for p in own), where=where)


def _partly_pooled(metrics: Sequence[Metric], ranks: Sequence[int]) -> Iterator[Finding]:
    """Pooled figures that some rank could not give: they are not about the whole run."""
    have: dict[str, set[int]] = {}
    for found in metrics:
        # not every rank need have every range or call, but each should have a lead and a step time
        is_due = found.name.startswith(("step.", "launch.", "graph.", "stall.", "sync.", "alloc."))
        known = spec(found.name)
        if found.rank is not None and is_due and not known.is_family and known.pool is not Pool.NONE:
            have.setdefault(found.name, set()).add(found.rank)
    lacking: dict[tuple[int, ...], list[str]] = {}
    for name, own in have.items():
        if rest := tuple(sorted(set(ranks) - own)):
            lacking.setdefault(rest, []).append(name)
    for rest, names in lacking.items():
        yield finding("partly_pooled", None, len(names), ranks=_some(rest), names=", ".join(sorted(names)))


def _some(ranks: Sequence[int]) -> str:
    return ", ".join(map(str, ranks[:8])) + (", …" if len(ranks) > 8 else "")


def _with_pooled(by_rank: _ByRank, alone: Sequence[Metric]) -> list[Metric]:
    """All metrics, and those that can be pooled over all ranks."""
    metrics = [m for m in alone if m.rank is None or spec(m.name).pool is Pool.NONE]
    by_name: dict[str, list[tuple[int, Samples]]] = {}
    for rank, each in by_rank.items():
        while each.found.metrics:
            name = next(iter(each.found.metrics))
            by_name.setdefault(name, []).append((rank, each.found.metrics.pop(name)))
    for found in alone:
        if found.rank is not None and spec(found.name).pool is not Pool.NONE:
            by_name.setdefault(found.name, []).append((found.rank, _samples(found)))
    while by_name:
        name, same = by_name.popitem()
        own = list(_pooled_and_own(name, sorted(same, key=lambda each: each[0])))
        metrics += own
        if name.startswith("cost."):
            # the same samples by another statistic
            metrics += (replace(each, name=f"{name}.p99", statistic=Statistic.P99) for each in own)
    return metrics


def _pooled_and_own(name: str, same: Sequence[tuple[int, Samples]]) -> Iterator[Metric]:
    """The metric of all ranks, and that of each, whose samples are views of those: there can be millions."""
    pooled = metric_of(name, None, _as_one(name, [found for _, found in same]))
    yield pooled
    at = 0
    for rank, found in same:
        n = len(found.values)
        if spec(name).statistic is Statistic.VALUE:
            yield metric_of(name, rank, found)
            continue
        group = None if pooled.group is None else pooled.group[at : at + n]
        yield replace(
            pooled,
            rank=rank,
            values=pooled.values[at : at + n],
            group=group,
            block=found.step,
            coverage=found.coverage,
            pair=found.pair,
        )
        at += n


def _as_one(name: str, same: Sequence[Samples]) -> Samples:
    """One metric of several processes or ranks as one; counters by the rule of their registry entry."""
    found, known = in_a_row(same), spec(name)
    if known.statistic is not Statistic.VALUE:
        return found
    return with_value(found, _RULES[known.pool]([float(each.values[0]) for each in same]))


def _samples(found: Metric) -> Samples:
    return Samples(found.values, found.block, found.group, found.num_samples, found.coverage, found.pair)


def pool(same: Sequence[Metric], rank: int | None) -> Metric:
    """One metric of several ranks as one, from the same samples; counters by the rule of their registry entry."""
    return metric_of(same[0].name, rank, _as_one(same[0].name, [_samples(each) for each in same]))


def _counters(info: RunInfo, findings: list[Finding]) -> Iterator[Metric]:
    """What the loop counted itself. A counter that this version has no entry for is named, not guessed at."""
    for key, values in info.counters.items():
        rank, _, arm = key.partition(":")
        if info.arms and arm != info.arm:
            continue
        if unknown := [name for name in values if not is_known(name)]:
            findings.append(finding("unknown_counter", int(rank), len(unknown), names=", ".join(unknown)))
        for name, value in values.items():
            if name not in unknown:
                yield metric(name, int(rank), np.array([value]))


def _causes(name: str, by_rank: _ByRank) -> list[tuple[int | None, Causes]]:
    """The samples behind a table, of each rank, then of all together (rank None)."""
    own = [(rank, each.found.causes[name]) for rank, each in by_rank.items() if name in each.found.causes]
    return [*own, (None, merged([part for _, part in own]))]


def _stall_table(by_rank: _ByRank) -> Table:
    rows = [row for rank, causes in _causes("stall.by_cause", by_rank) for row in blame_rows(causes, rank)]
    return Table("stall.by_cause", COLUMNS["stall.by_cause"], tuple(rows))


def _dry_table(by_rank: _ByRank) -> Table:
    """How many steps each cause occurs in, and its part of all dry time."""
    rows: list[tuple[Value, ...]] = []
    for rank, causes in _causes("dry.by_cause", by_rank):
        every = sum(int(part.sum(dtype=np.int64)) for parts in causes.values() for part in parts)
        for _, cause, steps, total, _ in blame_rows(causes, rank):
            assert isinstance(total, int)
            rows.append((rank, cause, steps, total, total / max(every, 1)))
    return Table("dry.by_cause", COLUMNS["dry.by_cause"], tuple(rows))


def _warm_up_table(by_rank: _ByRank) -> Table:
    """What of the other tables lies in steps that warm up, by the same labels."""
    rows = [
        (rank, table, label[0], label[1] if len(label) > 1 else None, total)
        for table in ("dry.by_cause", "stall.by_cause", "sync.by_range")
        for rank, causes in _causes(f"{table}.warm_up", by_rank)
        for _, *label, _, total, _ in blame_rows(causes, rank)
    ]
    return Table("warm_up.by_cause", COLUMNS["warm_up.by_cause"], tuple(rows))


def _line_table(by_rank: _ByRank) -> Table:
    """The causes of the other tables by line of code, where the capture tells; the longest first."""
    rows: list[tuple[int, tuple[Value, ...]]] = []
    for table in ("dry.by_cause", "sync.by_range"):
        for rank, causes in _causes(f"{table}.lines", by_rank):
            for (where, call, line), parts in causes.items():
                total = sum(int(part.sum(dtype=np.int64)) for part in parts)
                cause = (f"{where} · {call}", None) if table == "dry.by_cause" else (where, call)
                rows.append((total, (rank, table, *cause, line, total)))
    ordered = sorted(rows, key=lambda each: (-each[0], str(each[1])))
    return Table("lines.by_cause", COLUMNS["lines.by_cause"], tuple(row for _, row in ordered))


def _range_table(by_rank: _ByRank) -> Table:
    exposed: dict[tuple[Value, ...], int] = {
        (rank, *label): sum(int(part.sum(dtype=np.int64)) for part in parts)
        for rank, causes in _causes("sync.by_range.exposed", by_rank)
        for label, parts in causes.items()
    }
    rows = [row for rank, causes in _causes("sync.by_range", by_rank) for row in blame_rows(causes, rank)]
    return Table("sync.by_range", COLUMNS["sync.by_range"], tuple((*row, exposed.get(row[:3])) for row in rows))


def _thread_table(by_rank: _ByRank) -> Table:
    """A thread belongs to one rank, and its time is set against that rank's step time."""
    rows: list[tuple[Value, ...]] = []
    for rank, causes in _causes("sync.by_thread", by_rank):
        if rank is not None:
            for *label, count, total, _ in blame_rows(causes, rank):
                assert isinstance(total, int)
                rows.append((*label, count, total, total / by_rank[rank].time))
    return Table("sync.by_thread", COLUMNS["sync.by_thread"], tuple(rows))


def _lane_table(by_rank: _ByRank) -> Table:
    rows = [(rank, *row) for rank, each in by_rank.items() for row in each.found.rows.get("launch.by_lane", ())]
    return Table("launch.by_lane", COLUMNS["launch.by_lane"], tuple(rows))
