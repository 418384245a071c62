"""Compare two sides, metric by metric and rank by rank."""

from __future__ import annotations

from collections.abc import Container, Iterator
from dataclasses import replace

from dflash_bench.environment import differences, is_refused
from dflash_bench.findings import finding
from dflash_bench.metrics.registry import position, spec
from dflash_bench.metrics.summary import figure
from dflash_bench.model import (
    Change,
    Comparison,
    Finding,
    Interval,
    Judgement,
    Metric,
    MetricKey,
    RunMetrics,
    Sides,
)
from dflash_bench.stats.bootstrap import run_intervals
from dflash_bench.stats.composition import unlike_steps
from dflash_bench.stats.rules import Rules
from dflash_bench.stats.verdict import host_speeds, judge

_SLOW_HOST = 1.25
"""A host that takes so many times as long as usual is told. On one H200 runs of an hour lay 0.9 to 1.1 apart in the
median, and single ones beyond 1.4."""


def _changes(base: RunMetrics, candidate: RunMetrics, without_interval: Container[MetricKey]) -> tuple[Change, ...]:
    """All metrics side by side. Drawing an interval is most of the work: it is left out where nobody would see it."""
    ours = {(m.name, m.rank): m for m in base.metrics}
    theirs = {(m.name, m.rank): m for m in candidate.metrics}
    keys = sorted({*ours, *theirs}, key=lambda k: (position(k[0]), k[0], -1 if k[1] is None else k[1]))
    drawn = run_intervals(base, candidate, [key for key in keys if key not in without_interval])
    return tuple(change(ours.get(key), theirs.get(key), drawn.get(key)) for key in keys)


def change(base: Metric | None, candidate: Metric | None, interval: Interval | None = None) -> Change:
    """Base against candidate; one of the two may be missing. ``interval``: of their difference."""
    either = base or candidate
    assert either is not None
    old = figure(base) if base else None
    new = figure(candidate) if candidate else None
    return Change(
        metric=either.name,
        rank=either.rank,
        unit=either.unit,
        better=spec(either.name).better,
        statistic=either.statistic,
        base=old,
        candidate=new,
        base_n=base.n if base else 0,
        candidate_n=candidate.n if candidate else 0,
        difference=new - old if old is not None and new is not None else None,
        ratio=_ratio(old, new),
        interval=interval,
    )


def _ratio(old: float | None, new: float | None) -> float | None:
    # a ratio of a negative to a positive lead means nothing
    if old is None or new is None or old == 0 or (old < 0) != (new < 0):
        return None
    return new / old


def compare(sides: Sides, rules: Rules | None = None) -> Comparison:
    """Everything that either side has, metric by metric; verdicts; and what differs in circumstances, as findings.

    Where a metric was judged, its figures are medians over the runs, and difference and interval those of the verdict;
    with several runs, all else has no interval.
    """
    differing = differences([r.info for r in sides.base], [r.info for r in sides.candidate])
    judgements = None if is_refused(differing) else judge(sides, rules)
    judged = {(j.metric, j.rank): j for j in judgements.each} if judgements else {}
    changes = tuple(
        _judged(c, judged[c.metric, c.rank]) if (c.metric, c.rank) in judged else c
        for c in _changes(sides.base[0], sides.candidate[0], _without_interval(sides, judged))
    )
    findings = (*(d.finding for d in differing), *unlike_steps(sides), *slow_hosts(sides))
    return Comparison(sides, changes, findings, judgements)


def _without_interval(sides: Sides, judged: Container[MetricKey]) -> set[MetricKey]:
    """A verdict brings its own interval, that of two first runs would say nothing of the others, pooled over one rank
    is that rank, and coverage has no spread that steps could tell."""
    keys = {(m.name, m.rank) for m in (*sides.base[0].metrics, *sides.candidate[0].metrics)}
    ranked = {name for name, rank in keys if rank is not None}
    is_one_rank = len({rank for _, rank in keys if rank is not None}) == 1
    return {
        key
        for key in keys
        if sides.is_repeated
        or key in judged
        or (is_one_rank and key[1] is None and key[0] in ranked)
        or key[0].startswith("coverage.")
    }


def slow_hosts(sides: Sides) -> Iterator[Finding]:
    """A finding for each run in which the host was faster or slower than usual: all costs of it alike."""
    runs = (*sides.base, *sides.candidate)
    base, candidate = ([{(m.name, m.rank): m for m in r.metrics} for r in own] for _, own in sides.named)
    speeds = host_speeds(base, candidate)
    for run, speed in zip(runs, () if speeds is None or len(runs) < 3 else speeds, strict=False):
        if not 1 / _SLOW_HOST < speed < _SLOW_HOST:
            word, times = ("slower", speed) if speed > 1 else ("faster", 1 / speed)
            yield finding("host_speed", None, 1, run=run.info.run, times=f"{times:.2f}", word=word)


def _judged(own: Change, found: Judgement) -> Change:
    return replace(
        own,
        base=found.base,
        candidate=found.candidate,
        difference=found.shift,
        ratio=_ratio(found.base, found.candidate),
        interval=found.interval,
    )
