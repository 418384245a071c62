"""Verdicts: what two sides say about each metric and rank, and what they cannot say.

A metric has *improved* or *regressed* when its shift lies beyond the tolerance and is told from chance among all that
was asked (`families.py`). It is *unchanged* when the whole interval lies inside the tolerance: shown to be alike, not
merely not shown to differ. All else is *inconclusive*, and says how many further runs would decide where that can be
promised. Counts that a seed fixes are compared to the last digit. One run a side is *described*. How a shift is
measured depends on how the sides were made: see `shift.py`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from itertools import groupby
from statistics import median

import numpy as np

from dflash_bench.metrics.registry import Noise, position, spec
from dflash_bench.metrics.summary import figure
from dflash_bench.model import (
    Basis,
    Better,
    Design,
    Family,
    FloatArray,
    IntArray,
    Interval,
    Judgement,
    Judgements,
    Metric,
    MetricKey,
    RunMetrics,
    Sides,
    Statistic,
    Unit,
    Verdict,
)
from dflash_bench.stats.bootstrap import difference_interval, run_intervals
from dflash_bench.stats.duet import common_pairs, pair_differences
from dflash_bench.stats.families import PRIMARY_SHARE, benjamini_hochberg, hommel, simes
from dflash_bench.stats.levels import MIN_RANKS, host_speed, levelled
from dflash_bench.stats.noise import TIMER_FLOOR_NS, inexact, noise, scale
from dflash_bench.stats.power import detectable, further_runs
from dflash_bench.stats.rules import Rules
from dflash_bench.stats.shift import CONFIDENCE, MIN_SESSIONS, Shift, of_duets, of_pair, of_runs, of_sessions

_LEAST_COVERAGE = 0.95
_LEAST_SPREAD = 1e-4
"""No two runs are taken to be more alike than that share of a figure."""

_Runs = Sequence[Mapping[MetricKey, Metric]]
"""The runs of one side, each as its metrics by name and rank."""


def judge(
    sides: Sides, rules: Rules | None = None, chosen: Callable[[str, int | None], bool] | None = None
) -> Judgements:
    """Judge everything that is judged, has a direction, and is ``chosen`` (None: all)."""
    rules = rules or Rules()
    base, candidate = ([{(m.name, m.rank): m for m in run.metrics} for run in runs] for _, runs in sides.named)
    keys = [k for k in _keys(base, candidate) if _is_asked(k[0], rules) and (chosen is None or chosen(*k))]
    design = _design(sides)
    within = run_intervals(sides.base[0], sides.candidate[0], keys) if design is Design.SINGLE else {}
    asked = _Asked(sides, base, candidate, rules, design, _same_inputs([*sides.base, *sides.candidate]), within)
    found: list[_Question | Judgement] = []
    for name, own in groupby(keys, lambda key: key[0]):
        found += _family(asked, name, [rank for _, rank in own])
    return _decided(asked, found)


def _is_asked(name: str, rules: Rules) -> bool:
    """What the registry has judged, and what a policy names although it is a diagnostic."""
    return rules.better(name) is not Better.NONE and (spec(name).is_judged or rules.names(name))


def _keys(base: _Runs, candidate: _Runs) -> list[MetricKey]:
    """What either side has samples of. Pooled over one rank is that rank, and is left out."""
    keys = {key for run in (*base, *candidate) for key, m in run.items() if len(m.values)}
    if len({rank for _, rank in keys if rank is not None}) == 1:
        ranked = {name for name, rank in keys if rank is not None}
        keys = {(name, rank) for name, rank in keys if rank is not None or name not in ranked}
    return sorted(keys, key=lambda k: (position(k[0]), k[0], -1 if k[1] is None else k[1]))


def _design(sides: Sides) -> Design:
    """How the sides were made: in turns in the same runs, in several runs, in another session, or once each."""
    if [r.info.run for r in sides.base] == [r.info.run for r in sides.candidate] and any(
        m.pair is not None for m in sides.base[0].metrics
    ):
        return Design.DUET
    if sides.is_other_session:
        return Design.SESSIONS
    return Design.RUNS if len(sides.base) + len(sides.candidate) > 3 else Design.SINGLE


def _same_inputs(runs: Sequence[RunMetrics]) -> bool:
    """Whether all runs decoded the same requests for the same number of steps, as far as they say."""
    inputs = {(r.info.workload, r.info.settings.get("seed"), r.info.settings.get("steps")) for r in runs}
    return len(inputs) == 1 and None not in next(iter(inputs))


@dataclass(frozen=True)
class _Asked:
    """What is asked of two sides, and how they were made. ``within``: intervals inside the first runs of both."""

    sides: Sides
    base: _Runs
    candidate: _Runs
    rules: Rules
    design: Design
    is_same_input: bool
    within: Mapping[MetricKey, Interval | None] = field(default_factory=dict)
    known: dict[int, float | None] = field(default_factory=dict)

    def figure(self, metric: Metric) -> float | None:
        """The metric's figure, worked out once."""
        if id(metric) not in self.known:
            self.known[id(metric)] = figure(metric)
        return self.known[id(metric)]

    @cached_property
    def costs(self) -> dict[str, FloatArray]:
        """float64 [runs of the base, then of the candidate] of each cost that all runs have, over all ranks."""
        return _costs([*self.base, *self.candidate], self.figure)


@dataclass(slots=True)
class _Question:
    """One metric and rank that waits for the correction over all of them.

    ``shifts``: what it is asked by, the figure itself first. ``typical``: the medians over steps of runs on each side,
    where the figure is a mean of times: a host that is interrupted moves that, and not the median step.
    """

    metric: Metric
    better: Better
    tolerance: float
    base: tuple[float, ...]
    candidate: tuple[float, ...]
    shifts: dict[Basis, Shift]
    typical: tuple[tuple[float, ...], tuple[float, ...]] | None = None
    is_gross: bool = False
    source: str = ""

    def tolerance_of(self, basis: Basis) -> float:
        """What counts as no change, by that basis: of the median step its own share."""
        if self.typical is None or basis not in (Basis.STEP, Basis.STEP_RANKS):
            return self.tolerance
        of = (abs(median(self.base)) + abs(median(self.candidate))) / 2
        own = (abs(median(self.typical[0])) + abs(median(self.typical[1]))) / 2
        return max(self.tolerance * own / of if of else 0.0, TIMER_FLOOR_NS)


# ── what is asked of one metric ──────────────────────────────────────────────────────────────────────────────────────


def _family(asked: _Asked, name: str, ranks: Sequence[int | None]) -> Iterator[_Question | Judgement]:
    """Its pooled figure, its ranks, and each rank against the others."""
    questions = {}
    for rank in ranks:
        metrics = [
            [run[name, rank] for run in side if _has(run, (name, rank))] for side in (asked.base, asked.candidate)
        ]
        if not all(metrics):
            yield from _one_sided(asked, name, rank, metrics)
        elif (seen := _coverage(metrics)) < _LEAST_COVERAGE:
            text = f"only {seen:.0%} of what it is about was captured".replace("%", " %")
            yield _judgement(asked, metrics, Verdict.INCONCLUSIVE, text)
        elif (exact := _exact(asked, metrics)) is not None:
            yield exact
        elif (question := _question(asked, metrics)) is not None:
            questions[rank] = question
    if asked.design in (Design.RUNS, Design.DUET):
        _add_levelled(asked, name, questions)
    if asked.design is Design.RUNS and None in questions:
        _add_freed(asked, name, questions[None])
    yield from questions.values()


def _coverage(metrics: Sequence[Sequence[Metric]]) -> float:
    """Of the figures of both sides the least share that could be seen."""
    return min(1.0 if m.coverage is None else m.coverage for side in metrics for m in side)


def _has(run: Mapping[MetricKey, Metric], key: MetricKey) -> bool:
    return key in run and len(run[key].values) > 0


def _judgement(asked: _Asked, metrics: Sequence[Sequence[Metric]], verdict: Verdict, reason: str) -> Judgement:
    """Without any difference yet."""
    first = (metrics[0] or metrics[1])[0]
    figures = [[value for m in side if (value := asked.figure(m)) is not None] for side in metrics]
    old, new = (median(side) if side else None for side in figures)
    return Judgement(
        first.name,
        first.rank,
        first.unit,
        asked.rules.better(first.name),
        verdict,
        Family.PRIMARY if asked.rules.is_primary(first.name) else Family.SECONDARY,
        asked.design,
        reason,
        old,
        new,
        len(figures[0]),
        len(figures[1]),
    )


def _one_sided(asked: _Asked, name: str, rank: int | None, metrics: Sequence[Sequence[Metric]]) -> Iterator[Judgement]:
    """Of what one side lacks altogether, those that every run of the other has."""
    has_base = bool(metrics[0])
    runs = asked.base if has_base else asked.candidate
    if not all(_has(run, (name, rank)) for run in runs):
        return
    verdict = Verdict.REMOVED if has_base else Verdict.NEW
    text = "the candidate does not have it any more" if has_base else "the base does not have it"
    yield _judgement(asked, metrics, verdict, text)


def _exact(asked: _Asked, metrics: Sequence[Sequence[Metric]]) -> Judgement | None:
    """Compared to the last digit; None when it is no exact count, or runs of one side do not agree among themselves."""
    name = metrics[0][0].name
    if noise(name) is not Noise.EXACT or not asked.is_same_input:
        return None
    if asked.design is Design.DUET and metrics[0][0].statistic is not Statistic.VALUE:
        # blocks may begin a step earlier or later: pairs tell
        return None
    if _coverage(metrics) < 1:
        # a lost row would read as one call fewer
        return None
    figures = [{asked.figure(m) for m in side} for side in metrics]
    if any(len(side) != 1 or None in side for side in figures):
        return None
    (old,), (new,) = figures
    assert old is not None
    assert new is not None
    better = asked.rules.better(name)
    tolerance = asked.rules.tolerance(name, Noise.EXACT, Unit.COUNT).of((abs(old) + abs(new)) / 2)
    if abs(new - old) <= tolerance:
        verdict, reason = Verdict.UNCHANGED, "the same number" if new == old else "within the tolerance, exactly"
    elif (new < old) == (better is Better.LOWER):
        verdict, reason = Verdict.IMPROVED, "an exact count: the same seed and steps gave a better number"
    else:
        verdict, reason = Verdict.REGRESSED, "an exact count: the same seed and steps gave a worse number"
    found = _judgement(asked, metrics, verdict, reason)
    return replace(found, design=Design.EXACT, shift=new - old, tolerance=tolerance)


def _question(asked: _Asked, metrics: Sequence[Sequence[Metric]]) -> _Question | None:
    first = metrics[0][0]
    old, new = (tuple(value for m in side if (value := asked.figure(m)) is not None) for side in metrics)
    if not old or not new or (asked.design is Design.DUET and first.pair is None):
        # a rate over a whole process says nothing of who took turns in it
        return None
    kind = inexact(noise(first.name), first.unit)
    of = scale(kind, median(old), median(new), _step_period(asked, first.rank))
    tolerance = asked.rules.tolerance(first.name, kind, first.unit).of(of)
    found = _Question(first, asked.rules.better(first.name), tolerance, old, new, {})
    shift = _shift(asked, first, old, new, _LEAST_SPREAD * of)
    found.shifts[Basis.FIGURE] = _pair(asked, metrics, kind, of, found) if shift is None else shift
    is_mean_time = first.statistic is Statistic.MEAN and first.unit is Unit.NS
    if is_mean_time and asked.design in (Design.RUNS, Design.DUET) and min(len(m.values) for m in metrics[0]) > 1:
        steps = tuple(tuple(float(np.median(m.values)) for m in side) for side in metrics)
        found.typical = steps[0], steps[1]
        own = _shift(asked, first, steps[0], steps[1], _LEAST_SPREAD * of, Statistic.MEDIAN)
        if own is not None:
            found.shifts[Basis.STEP] = own
    return found


def _shift(
    asked: _Asked,
    first: Metric,
    old: Sequence[float],
    new: Sequence[float],
    least: float,
    by: Statistic | None = None,
) -> Shift | None:
    match asked.design:
        case Design.DUET:
            return of_duets([d for _, d in _differences(asked, first.name, first.rank, by)], least)
        case Design.SESSIONS:
            return of_sessions(asked.sides.history.get((first.name, first.rank), ()), new, least)
        case Design.RUNS:
            return of_runs(old, new, least)
        case _:
            return None


def _differences(
    asked: _Asked, name: str, rank: int | None, by: Statistic | None = None
) -> list[tuple[IntArray, FloatArray]]:
    """The pairs of each process, and candidate − base in them. ``by``: another statistic than the metric's."""
    both = [(a[name, rank], b[name, rank]) for a, b in zip(asked.base, asked.candidate, strict=True)
            if _has(a, (name, rank)) and _has(b, (name, rank))]  # fmt: skip
    return [pair_differences(a, b) if by is None else pair_differences(*(replace(m, statistic=by) for m in (a, b)))
            for a, b in both]  # fmt: skip


def _pair(asked: _Asked, metrics: Sequence[Sequence[Metric]], kind: Noise, of: float, found: _Question) -> Shift:
    """One run a side, or nothing that could say how far runs stray."""
    first, last = metrics[0][0], metrics[1][0]
    key = first.name, first.rank
    is_known = first is asked.base[0].get(key) and last is asked.candidate[0].get(key)
    within = asked.within[key] if is_known and key in asked.within else difference_interval(first, last)
    error = 0.0 if within is None else (within.high - within.low) / 3.92
    drift, found.source, found.is_gross = asked.rules.drift_of(first.name, first.rank, kind, of)
    shift = of_pair(median(found.base), median(found.candidate), drift, error)
    is_open = asked.design is not Design.SINGLE or (within is None and first.statistic != "value")
    return replace(shift, p=1.0) if is_open else shift


def _add_levelled(asked: _Asked, name: str, questions: dict[int | None, _Question]) -> None:
    """Each rank against the others of the same runs, or of the same pairs of blocks; by the median step too."""
    ranks = [rank for rank in questions if rank is not None]
    if len(ranks) < MIN_RANKS:
        return
    for basis, by in ((Basis.RANKS, None), (Basis.STEP_RANKS, Statistic.MEDIAN)):
        if by is not None and any(questions[rank].typical is None for rank in ranks):
            return
        if asked.design is Design.DUET:
            shifts = _levelled_pairs([_differences(asked, name, rank, by) for rank in ranks], ranks)
        else:
            own = [questions[rank] for rank in ranks]
            sides = [q.typical or ((), ()) for q in own] if by else [(q.base, q.candidate) for q in own]
            shifts = _levelled_runs(sides, ranks)
        for rank, shift in shifts.items():
            if shift is not None:
                questions[rank].shifts[basis] = shift


def _levelled_pairs(
    each: Sequence[Sequence[tuple[IntArray, FloatArray]]], ranks: Sequence[int]
) -> dict[int, Shift | None]:
    parts = []
    for process in range(min(len(own) for own in each)):
        common = common_pairs([own[process] for own in each])
        parts.append(levelled(dict(zip(ranks, common, strict=True))))
    return {rank: of_duets([part[rank] for part in parts]) for rank in ranks}


def _levelled_runs(
    sides: Sequence[tuple[tuple[float, ...], tuple[float, ...]]], ranks: Sequence[int]
) -> dict[int, Shift | None]:
    if any(len({len(own[side]) for own in sides}) > 1 for side in (0, 1)):
        return {}
    old, new = (levelled({r: np.array(own[side]) for r, own in zip(ranks, sides, strict=True)}) for side in (0, 1))
    return {rank: of_runs(old[rank], new[rank]) for rank in ranks}


def _add_freed(asked: _Asked, name: str, question: _Question) -> None:
    """A cost of the host with the host's speed in each run divided out, where the sides' hosts were alike."""
    if not name.startswith("cost.") or name.endswith(".p99"):
        return
    speeds = host_speed([c for other, c in asked.costs.items() if other != name])
    if speeds is None or len(speeds) != len(question.base) + len(question.candidate):
        return
    old, new = speeds[: len(question.base)], speeds[len(question.base) :]
    host = of_runs(np.log(old), np.log(new), _LEAST_SPREAD)
    if host is None or host.p < 0.05:
        # the hosts differ, or most of the code does: nobody can tell which
        return
    freed = of_runs(np.array(question.base) / old, np.array(question.candidate) / new)
    if freed is not None:
        question.shifts[Basis.HOST] = freed


def host_speeds(base: _Runs, candidate: _Runs) -> FloatArray | None:
    """float64 [runs of the base, then of the candidate]: how many times as long as usual the host took in each.

    From what `cost.*` all runs have; None where those are too few.
    """
    return host_speed([*_costs([*base, *candidate], figure).values()])


def _costs(runs: _Runs, known: Callable[[Metric], float | None]) -> dict[str, FloatArray]:
    is_pooled = any(key[1] is None and key[0].startswith("cost.") for key in runs[0])
    keys = [key for key in runs[0] if key[0].startswith("cost.") and not key[0].endswith(".p99")]
    chosen = [key for key in keys if key[1] == (None if is_pooled else 0) and all(_has(run, key) for run in runs)]
    return {key[0]: np.array([known(run[key]) or 0.0 for run in runs]) for key in chosen}


def _step_period(asked: _Asked, rank: int | None) -> float | None:
    """The base's step, which leads are measured against; the pooled one where the rank has none."""
    for wanted in (rank, None):
        found = [asked.figure(m) for run in asked.base if (m := run.get(("step.period", wanted))) is not None]
        known = [value for value in found if value is not None]
        if known:
            return median(known)
    return None


# ── what is decided ──────────────────────────────────────────────────────────────────────────────────────────────────


def _decided(asked: _Asked, found: Sequence[_Question | Judgement]) -> Judgements:
    families: dict[str, list[_Question]] = {}
    for each in found:
        if isinstance(each, _Question):
            families.setdefault(each.metric.name, []).append(each)
    primary = [name for name in families if asked.rules.is_primary(name)]
    rest = [name for name in families if name not in primary]
    rates = {True: asked.rules.rate * PRIMARY_SHARE, False: asked.rules.rate * (1 - PRIMARY_SHARE)}
    if not rest or not primary:
        rates = dict.fromkeys(rates, asked.rules.rate)
    p = {name: simes([s.p for q in own for s in q.shifts.values()]) for name, own in families.items()}
    among = dict(zip(primary, hommel([p[n] for n in primary]), strict=True))
    among |= zip(rest, benjamini_hochberg([p[n] for n in rest]), strict=True)
    judged: dict[int, Judgement] = {}
    for name, own in families.items():
        rate = rates[name in primary]
        inside = iter(hommel([s.p for q in own for s in q.shifts.values()]))
        level = rate / max(1, len(primary if name in primary else rest))
        for q in own:
            adjusted = {basis: _joint(next(inside), p[name], among[name]) for basis in q.shifts}
            judged[id(q)] = _answer(asked, q, adjusted, rate, level)
    every = tuple(judged[id(x)] if isinstance(x, _Question) else x for x in found)
    return Judgements(every, len(primary), len(rest), asked.rules.rate)


def _joint(inside: float, family: float, among: float) -> float:
    """A member's p-value, adjusted in its family, and the family's among all: the factor that the family took."""
    return min(1.0, max(among, inside * (among / family if family > 0 else 1.0)))


def _answer(asked: _Asked, question: _Question, adjusted: dict[Basis, float], rate: float, level: float) -> Judgement:
    shown = [b for b in question.shifts if adjusted[b] <= rate and _is_beyond(question, b)]
    basis = Basis.FIGURE if not shown or Basis.FIGURE in shown else min(shown, key=lambda b: adjusted[b])
    best, tolerance = question.shifts[basis], question.tolerance_of(basis)
    interval = best.interval() if basis is not Basis.FIGURE else _possible(best.interval(), question)
    verdict, reason = _conclusion(asked, question, basis, interval, is_shown=bool(shown), q=adjusted[basis], rate=rate)
    found = _judgement(asked, ((question.metric,), (question.metric,)), verdict, reason)
    found = replace(
        found,
        design=best.design,
        base=median(question.base),
        candidate=median(question.candidate),
        base_runs=len(question.base),
        candidate_runs=len(question.candidate),
        tolerance=tolerance,
        shift=best.estimate,
        interval=interval,
        p=best.p,
        q=adjusted[basis],
        pairs=best.pairs,
        basis=basis,
    )
    if verdict is Verdict.DESCRIBED:
        return replace(found, interval=_possible(_own_interval(best), question), p=None, q=None)
    found = replace(found, worst=_worst(question), detectable=detectable(best, tolerance, level))
    if verdict is Verdict.INCONCLUSIVE and found.family is Family.PRIMARY:
        have = min(len(question.base), len(question.candidate))
        found = replace(found, further=further_runs(best, have, tolerance, level))
    return found


def _worst(question: _Question) -> float | None:
    """The harm that is ruled out: of the figure, or of the median step where that is known better."""
    bounds = []
    for basis in (Basis.FIGURE, Basis.STEP):
        shift = question.shifts.get(basis)
        if shift is None or (shift.p == 1.0 and shift.design is Design.SINGLE):
            continue
        harm, sign = shift.interval(2 * CONFIDENCE - 1), -1.0 if question.better is Better.HIGHER else 1.0
        tolerance = question.tolerance_of(basis)
        bounds.append(max(sign * harm.low, sign * harm.high) * (question.tolerance / tolerance if tolerance else 1.0))
    return min(bounds, default=None)


def _is_beyond(question: _Question, basis: Basis) -> bool:
    """Whether a shift lies beyond the tolerance.

    Freed of the host's speed, the plain one must lie there too; of the median step, the mean must not lie on the other
    side, as where most steps lost a wait and few got a long one.
    """
    shift, plain = question.shifts[basis], question.shifts[Basis.FIGURE]
    is_same_way, is_plain_beyond = plain.estimate * shift.estimate > 0, abs(plain.estimate) > question.tolerance
    is_refuted = (basis is Basis.HOST and not (is_same_way and is_plain_beyond)) or (
        basis is Basis.STEP and is_plain_beyond and not is_same_way
    )
    return not is_refuted and abs(shift.estimate) > question.tolerance_of(basis)


def _own_interval(found: Shift) -> Interval:
    """Of these two runs alone, without the drift that they may have."""
    return replace(found, allowance=0.0).interval()


def _possible(interval: Interval, question: _Question) -> Interval:
    """The interval inside what the metric can be: no time below nothing, no share above all."""
    if spec(question.metric.name).is_signed:
        return interval
    old = median(question.base)
    top = 1.0 - old if question.metric.unit is Unit.FRACTION and old <= 1 else np.inf
    return Interval(min(max(interval.low, -old), top), max(min(interval.high, top), -old), interval.confidence)


def _conclusion(
    asked: _Asked, question: _Question, basis: Basis, interval: Interval, *, is_shown: bool, q: float, rate: float
) -> tuple[Verdict, str]:
    """The verdict, and why."""
    found = question.shifts[basis]
    if is_shown:
        is_better = (found.estimate < 0) == (question.better is Better.LOWER)
        return Verdict.IMPROVED if is_better else Verdict.REGRESSED, _basis(question, basis)
    if found.design is Design.SINGLE and (question.is_gross or asked.design is not Design.SINGLE):
        return _undecidable(asked)
    if -question.tolerance <= interval.low and interval.high <= question.tolerance:
        return Verdict.UNCHANGED, "the whole interval lies inside the tolerance"
    if found.design is Design.SINGLE and found.p == 1.0 and abs(found.estimate) <= found.allowance:
        return Verdict.INCONCLUSIVE, f"two runs of one arm may differ as much (drift, {question.source})"
    if abs(found.estimate) <= question.tolerance:
        return Verdict.INCONCLUSIVE, "the difference is inside the tolerance, its interval is not"
    alone = "; by itself it would pass, among all that was asked it does not" if found.p <= rate else ""
    return Verdict.INCONCLUSIVE, f"not told from chance (q {q:.2g}){alone}"


def _undecidable(asked: _Asked) -> tuple[Verdict, str]:
    if asked.design is Design.SESSIONS:
        few = f"made in another session than the base's runs, and fewer than {MIN_SESSIONS} sessions say what that does"
        return Verdict.INCONCLUSIVE, few
    if asked.design is Design.DUET:
        return Verdict.INCONCLUSIVE, "too few pairs of blocks, or too few events in them"
    if asked.design is Design.RUNS:
        return Verdict.INCONCLUSIVE, "too few of the runs have it"
    return Verdict.DESCRIBED, "one run a side tells the difference of these two runs, not of their code"


def _basis(question: _Question, basis: Basis) -> str:
    if basis is not Basis.FIGURE:
        return f"beyond the tolerance, {basis}"
    match question.shifts[basis].design:
        case Design.DUET:
            return "beyond the tolerance, in pairs of blocks that took turns"
        case Design.SESSIONS:
            return "beyond the tolerance and beyond the spread between sessions"
        case Design.RUNS:
            return "beyond the tolerance and beyond the spread between runs"
        case _ if question.is_gross:
            return "more than a host twice as fast or as slow would do"
        case _:
            return f"beyond the tolerance and beyond the drift of both sides ({question.source})"
