"""Verdicts: what the runs of two arms say about each metric and rank, and what they cannot say.

A metric has *improved* or *regressed* when its shift lies beyond the tolerance, is told from chance at a controlled
false-discovery rate over all metrics and ranks (Benjamini-Hochberg), and the exact permutation test of the runs'
figures agrees wherever there are enough runs for it. It is *unchanged* when the whole interval lies inside the
tolerance: shown to be equivalent, not merely not shown to differ. All else is *inconclusive*, and says how many further
repeats would decide. Exact metrics (the same seed and steps give the same number) are compared to the last digit and
take no part in the correction.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from statistics import median

from dflash_bench.metrics.registry import Noise, position
from dflash_bench.metrics.summary import figure
from dflash_bench.model import Better, Metric, MetricKey, RunMetrics, Sides, Unit
from dflash_bench.stats.bootstrap import seed
from dflash_bench.stats.fdr import adjusted, level
from dflash_bench.stats.judgement import Judgement, Judgements, Verdict
from dflash_bench.stats.noise import inexact, noise, scale
from dflash_bench.stats.power import detectable, further_repeats
from dflash_bench.stats.repeats import repeats
from dflash_bench.stats.rules import Rules
from dflash_bench.stats.shift import Shift, shift

PERMUTATION_LEVEL = 0.05

_Runs = Sequence[Mapping[MetricKey, Metric]]
"""The runs of one side, each as its metrics by name and rank."""


def judge(
    sides: Sides,
    rules: Rules | None = None,
    chosen: Callable[[str, int | None], bool] | None = None,
) -> Judgements:
    """Judge every metric and rank that both sides have, has a direction, and is ``chosen`` (None: all)."""
    rules = rules or Rules()
    is_same_input = _same_inputs([*sides.base, *sides.candidate])
    old, new = ([{(m.name, m.rank): m for m in run.metrics} for run in side] for _, side in sides.named)
    opened = [
        _opened(name, rank, old, new, rules, is_same_input)
        for name, rank in _names(old, new)
        if noise(name) is not Noise.UNJUDGED
        and rules.better(name) is not Better.NONE
        and (chosen is None or chosen(name, rank))
    ]
    tests = [each for each in opened if isinstance(each, _Open)]
    p = [each.shift.p for each in tests]
    needed = level(p, rules.rate)
    decided = iter([_decided(each, q, needed, rules.rate) for each, q in zip(tests, adjusted(p), strict=True)])
    done = tuple(next(decided) if isinstance(each, _Open) else each for each in opened if each is not None)
    return Judgements(done, len(tests), rules.rate)


def _names(base: _Runs, candidate: _Runs) -> list[MetricKey]:
    """What both sides have. Pooled over one rank is that rank, and is left out."""
    sides = [{key for run in side for key in run} for side in (base, candidate)]
    both = sides[0] & sides[1]
    if len({rank for _, rank in both if rank is not None}) == 1:
        ranked = {name for name, rank in both if rank is not None}
        both = {(name, rank) for name, rank in both if rank is not None or name not in ranked}
    return sorted(both, key=lambda k: (position(k[0]), k[0], -1 if k[1] is None else k[1]))


@dataclass(frozen=True, slots=True)
class _Open:
    """A comparison that waits for the correction over all of them."""

    metric: Metric
    better: Better
    figures: tuple[float, float]
    runs: tuple[int, int]
    shift: Shift
    tolerance: float
    drift_source: str


def _opened(
    name: str, rank: int | None, base: _Runs, candidate: _Runs, rules: Rules, is_same_input: bool
) -> _Open | Judgement | None:
    sides = [[run[name, rank] for run in side if (name, rank) in run] for side in (base, candidate)]
    kind = noise(name)
    if kind is Noise.EXACT and is_same_input:
        found = _exact(sides, rules)
        if found is not None:
            return found
    old, new = repeats(sides[0]), repeats(sides[1])
    if not old or not new:
        return None
    first, kind = sides[0][0], inexact(kind, sides[0][0].unit)
    figures = (median(r.figure for r in old), median(r.figure for r in new))
    unit_scale = scale(kind, *figures, _step_period(base, rank))
    drift, source = rules.drift_of(name, rank, kind, unit_scale)
    tolerance = rules.tolerance(name, kind, first.unit).of(unit_scale)
    found_shift = shift(old, new, drift, seed(first))
    return _Open(first, rules.better(name), figures, (len(old), len(new)), found_shift, tolerance, source)


def _same_inputs(runs: Sequence[RunMetrics]) -> bool:
    """Whether all runs decoded the same requests for the same number of steps, as far as they say."""
    inputs = {(r.info.workload, r.info.settings.get("seed"), r.info.settings.get("steps")) for r in runs}
    return len(inputs) == 1 and None not in next(iter(inputs))


def _exact(sides: Sequence[Sequence[Metric]], rules: Rules) -> Judgement | None:
    """Compared to the last digit; None when runs of one side do not agree among themselves: then it is not exact."""
    figures = [{figure(m) for m in side} for side in sides]
    if any(len(side) != 1 or None in side for side in figures):
        return None
    (old,), (new,) = figures
    assert old is not None
    assert new is not None
    first = sides[0][0]
    better = rules.better(first.name)
    tolerance = rules.tolerance(first.name, Noise.EXACT, Unit.COUNT).of((abs(old) + abs(new)) / 2)
    if abs(new - old) <= tolerance:
        verdict, reason = Verdict.UNCHANGED, "the same number" if new == old else "within the tolerance, exactly"
    elif (new < old) == (better is Better.LOWER):
        verdict, reason = Verdict.IMPROVED, "an exact count: the same seed and steps gave a better number"
    else:
        verdict, reason = Verdict.REGRESSED, "an exact count: the same seed and steps gave a worse number"
    return Judgement(
        metric=first.name,
        rank=first.rank,
        unit=first.unit,
        better=better,
        verdict=verdict,
        reason=reason,
        base=old,
        candidate=new,
        base_runs=len(sides[0]),
        candidate_runs=len(sides[1]),
        shift=new - old,
        interval=None,
        tolerance=tolerance,
        is_exact=True,
    )


def _step_period(base: _Runs, rank: int | None) -> float | None:
    """The base's step, which leads are measured against; the pooled one where the rank has none."""
    for wanted in (rank, None):
        found = [figure(m) for run in base if (m := run.get(("step.period", wanted))) is not None]
        known = [value for value in found if value is not None]
        if known:
            return median(known)
    return None


def _decided(opened: _Open, q: float, needed: float, rate: float) -> Judgement:
    found = opened.shift
    verdict, reason = conclude(found, opened.tolerance, opened.better, q, rate, opened.drift_source)
    further = (
        further_repeats(found, *opened.runs, opened.tolerance, needed) if verdict is Verdict.INCONCLUSIVE else None
    )
    return Judgement(
        metric=opened.metric.name,
        rank=opened.metric.rank,
        unit=opened.metric.unit,
        better=opened.better,
        verdict=verdict,
        reason=reason,
        base=opened.figures[0],
        candidate=opened.figures[1],
        base_runs=opened.runs[0],
        candidate_runs=opened.runs[1],
        shift=found.estimate,
        interval=found.interval,
        tolerance=opened.tolerance,
        is_exact=False,
        is_on_drift=found.is_widened,
        p=found.p,
        p_exact=found.p_exact,
        q=q,
        detectable=detectable(found, opened.tolerance, needed),
        further=further,
    )


def conclude(
    found: Shift, tolerance: float, better: Better, q: float, rate: float, drift_source: str = "stated"
) -> tuple[Verdict, str]:
    """The verdict on a shift, and why. ``tolerance`` is in the metric's unit; ``q`` is held against ``rate``."""
    interval = found.interval
    if found.is_known and -tolerance <= interval.low and interval.high <= tolerance:
        return Verdict.UNCHANGED, "the whole interval lies inside the tolerance"
    obstacle = _obstacle(found, tolerance, q, rate, drift_source)
    if obstacle is not None:
        return Verdict.INCONCLUSIVE, obstacle
    is_better = (found.estimate < 0) == (better is Better.LOWER)
    basis = f"the drift of both sides ({drift_source})" if found.is_widened else "the spread between runs"
    return Verdict.IMPROVED if is_better else Verdict.REGRESSED, f"beyond the tolerance and beyond {basis}"


def _obstacle(found: Shift, tolerance: float, q: float, rate: float, drift_source: str) -> str | None:
    """What stands between a shift and a verdict."""
    if not found.is_known:
        return "too few events in a run to say how far they scatter"
    if abs(found.estimate) <= tolerance:
        return "the difference is inside the tolerance, its interval is not"
    if found.is_widened and abs(found.estimate) <= found.allowance:
        return f"two runs of one arm may differ as much (drift, {drift_source})"
    if q > rate:
        alone = "; by itself it would pass, among this many comparisons it does not" if found.p <= rate else ""
        return f"not told from chance (q {q:.2g}){alone}"
    if found.p_exact is not None and found.p_exact > PERMUTATION_LEVEL:
        return f"the exact permutation test of the runs disagrees (p {found.p_exact:.2g})"
    return None
