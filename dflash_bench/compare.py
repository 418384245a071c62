"""Compare two runs, or the runs of two arms, metric by metric and rank by rank."""

from __future__ import annotations

from collections.abc import Container, Sequence
from dataclasses import replace

from dflash_bench.environment import Difference, differences, is_refused
from dflash_bench.metrics.registry import position, spec
from dflash_bench.metrics.summary import figure
from dflash_bench.model import Change, Comparison, Finding, Metric, MetricKey, RunMetrics, Sides
from dflash_bench.stats.bootstrap import difference_interval
from dflash_bench.stats.composition import unlike_steps
from dflash_bench.stats.judgement import Judgement, Judgements
from dflash_bench.stats.verdict import judge


def compare(base: RunMetrics, candidate: RunMetrics) -> Comparison:
    """Everything that at least one of the runs has, side by side; what differs in their circumstances, as findings."""
    sides = Sides((base,), (candidate,))
    differing = differences([base.info], [candidate.info])
    return Comparison(sides, _changes(base, candidate), _findings(differing, sides, None))


def _changes(
    base: RunMetrics, candidate: RunMetrics, without_interval: Container[MetricKey] = ()
) -> tuple[Change, ...]:
    """All metrics side by side. Drawing an interval is most of the work: it is left out where nobody would see it."""
    ours = {(m.name, m.rank): m for m in base.metrics}
    theirs = {(m.name, m.rank): m for m in candidate.metrics}
    keys = sorted({*ours, *theirs}, key=lambda k: (position(k[0]), k[0], -1 if k[1] is None else k[1]))
    return tuple(change(ours.get(key), theirs.get(key), has_interval=key not in without_interval) for key in keys)


def change(base: Metric | None, candidate: Metric | None, *, has_interval: bool = True) -> Change:
    """Base against candidate; one of the two may be missing. ``has_interval``: whether to draw one."""
    either = base or candidate
    assert either is not None
    old = figure(base) if base else None
    new = figure(candidate) if candidate else None
    both = base is not None and candidate is not None and old is not None and new is not None
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
        interval=difference_interval(base, candidate) if has_interval and both and base and candidate else None,
    )


def _ratio(old: float | None, new: float | None) -> float | None:
    # a ratio of a negative to a positive lead means nothing
    if old is None or new is None or old == 0 or (old < 0) != (new < 0):
        return None
    return new / old


def compare_sides(sides: Sides) -> tuple[Comparison, Judgements | None]:
    """The runs of both sides: their first runs side by side, figures of all of them, and verdicts.

    Where a metric was judged, its figures are medians over the runs, and difference and interval those of the verdict;
    with several runs, all else has no interval. No verdicts (None) where the runs differ in something that forbids
    them, and the findings say in what.
    """
    base, candidate = sides.base, sides.candidate
    differing = differences([r.info for r in base], [r.info for r in candidate])
    judgements = None if is_refused(differing) else judge(sides)
    judged = {(j.metric, j.rank): j for j in judgements.each} if judgements else {}
    # a verdict brings its own interval, that of two first runs would say nothing of the others, pooled over one rank is
    # that rank, and coverage has no spread that steps could tell
    keys = {(m.name, m.rank) for m in (*base[0].metrics, *candidate[0].metrics)}
    is_one_rank = len({rank for _, rank in keys if rank is not None}) == 1
    ranked = {name for name, rank in keys if rank is not None}
    unseen = {
        key
        for key in keys
        if sides.is_repeated
        or key in judged
        or (is_one_rank and key[1] is None and key[0] in ranked)
        or key[0].startswith("coverage.")
    }
    changes = tuple(
        _judged(c, judged[c.metric, c.rank]) if (c.metric, c.rank) in judged else c
        for c in _changes(base[0], candidate[0], unseen)
    )
    return Comparison(sides, changes, _findings(differing, sides, judgements)), judgements


def _findings(differing: Sequence[Difference], sides: Sides, judgements: Judgements | None) -> tuple[Finding, ...]:
    found = [*(d.finding for d in differing), *unlike_steps(sides)]
    if judgements is not None and (num := judgements.num_on_drift):
        text = (
            f"{num} verdict{'s rest' if num > 1 else ' rests'} on too few runs to tell how far runs stray, and on the"
            " stated drift of 3 %; on a busy machine they stray further: `dflash-bench run --repeats 5` tells"
        )
        found.append(Finding("stated_drift", None, num, text))
    return tuple(found)


def _judged(own: Change, found: Judgement) -> Change:
    return replace(
        own,
        base=found.base,
        candidate=found.candidate,
        difference=found.shift,
        ratio=_ratio(found.base, found.candidate),
        interval=found.interval,
    )
