"""Is the gate awake, and does it keep quiet? Runs of the baseline against others of its runs must not fail; with a
stated regression planted in one side, they must.

The baseline's runs are dealt to two sides, each as large as the policy asks for, in up to `_DEALS` ways: they are the
same code on the same machine. Every deal is judged at the gate's own settings, as it is and made worse, metric by
metric.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np

from dflash_bench.errors import UsageError
from dflash_bench.gate.decision import Answer, decide
from dflash_bench.gate.policy import Policy
from dflash_bench.model import Better, BoolArray, Figures, FloatArray, Judgement, Metric, RunMetrics, Sides, Statistic

_DEALS = 20
_MAY_FAIL, _MUST_FAIL = 0.10, 0.90
"""Of the deals, at most so many may fail as they are (5 % are to be expected), and so many must when made worse."""
_TIMES_TOLERANCE = 2.0
"""What is injected where no size is stated: twice the metric's tolerance."""


@dataclass(frozen=True, slots=True)
class Trial:
    """One thing that was tried, in several deals: in how many the gate failed, and in how many it had to or might."""

    name: str
    failed: int
    deals: int
    must_fail: bool
    text: str

    @property
    def is_passed(self) -> bool:
        share = self.failed / self.deals
        return share >= _MUST_FAIL if self.must_fail else share <= _MAY_FAIL


def self_test(
    runs: Sequence[RunMetrics], policy: Policy, history: Figures, injected: dict[str, float] | None = None
) -> tuple[Trial, ...]:
    """Try the gate on the runs of a baseline.

    ``injected``: metric → how much worse, as a share of its figure; None: every watched metric by twice its tolerance.
    Raises UsageError when a named metric is not watched or not there, or the runs are too few to be dealt.
    """
    deals = [Sides(base, candidate, history, is_baseline=True) for base, candidate in _deals(runs, policy.repeats)]
    same = [decide(sides, policy, policy.error_rate) for sides in deals]
    failed = [d for d in same if d.outcome is Answer.FAIL]
    told = "; ".join(f"{c.judgement.metric}: {c.reason}" for d in failed[:1] for c in d.of(Answer.FAIL)[:3])
    passed = sum(d.outcome is Answer.PASS for d in same)
    text = told or f"{passed} pass, {len(same) - passed} cannot tell"
    trials = [Trial("the same code", len(failed), len(same), must_fail=False, text=text)]
    for name, size in _sizes([c.judgement for c in same[0].checks], injected).items():
        better, found = policy.rules().better(name), 0
        for sides in deals:
            worse = tuple(injure(run, name, size, better) for run in sides.candidate)
            got = decide(replace(sides, candidate=worse), policy, policy.error_rate)
            found += any(c.judgement.metric == name for c in got.of(Answer.FAIL))
        trials.append(Trial(f"{name} made worse", found, len(deals), True, f"by {size:.4g} in its base unit"))
    return tuple(trials)


def _deals(runs: Sequence[RunMetrics], each: int) -> list[tuple[tuple[RunMetrics, ...], tuple[RunMetrics, ...]]]:
    """Ways to deal the runs to two sides of ``each``, drawn with a fixed seed; runs that are left over stay out."""
    if len(runs) < 2 * each:
        raise UsageError(
            f"the self-test deals the baseline's runs to two sides of {each}, and there are {len(runs)}",
            hint="dflash-bench baseline save RUNS; a baseline keeps ten",
        )
    rng = np.random.default_rng(0)
    orders = [rng.permutation(len(runs)) for _ in range(_DEALS)]
    sides = [(sorted(order[:each]), sorted(order[each : 2 * each])) for order in orders]
    return [(tuple(runs[k] for k in old), tuple(runs[k] for k in new)) for old, new in sides]


def _sizes(judged: Sequence[Judgement], injected: dict[str, float] | None) -> dict[str, float]:
    """Metric → how much worse in its unit."""
    largest: dict[str, Judgement] = {}
    for j in judged:
        if j.metric not in largest or j.tolerance > largest[j.metric].tolerance:
            largest[j.metric] = j
    if injected is None:
        return {
            name: _TIMES_TOLERANCE * max(j.tolerance, _least(j)) for name, j in largest.items() if _is_injectable(j)
        }
    if unknown := sorted(set(injected) - set(largest)):
        raise UsageError(
            f"{', '.join(unknown)} is not among what the gate watches", hint=f"it watches {', '.join(largest)}"
        )
    return {name: share * abs(largest[name].base or 0.0) for name, share in injected.items()}


def _is_injectable(judgement: Judgement) -> bool:
    """Whether it could be worse: a count that must be zero and a share at its worst end are left alone."""
    base = judgement.base or 0.0
    if judgement.unit.value != "fraction":
        return base != 0
    room = base if judgement.better is Better.HIGHER else 1 - base
    return room > 2 * _TIMES_TOLERANCE * judgement.tolerance


def _least(judgement: Judgement) -> float:
    # an exact metric tolerates nothing: a hundredth of it stands for any difference
    return abs(judgement.base or 0.0) / 100


def injure(run: RunMetrics, name: str, size: float, better: Better) -> RunMetrics:
    """A copy of the run whose metric of that name is worse by ``size``, in its unit, on every rank and pooled."""
    sign = -1.0 if better is Better.HIGHER else 1.0
    return replace(run, metrics=tuple(_worse(m, sign * size) if m.name == name else m for m in run.metrics))


def _worse(metric: Metric, by: float) -> Metric:
    if metric.statistic is Statistic.MEAN and np.isin(metric.values, (0.0, 1.0)).all():
        return replace(metric, values=_flipped(metric.values, by))
    hit: BoolArray = np.ones(len(metric.values), bool) if metric.group is None else metric.group
    return replace(metric, values=metric.values + by * hit)


def _flipped(values: FloatArray, by: float) -> FloatArray:
    """A share moved by ``by``: evenly spread events turn from 0 to 1, or from 1 to 0."""
    found = values.copy()
    can_turn = np.flatnonzero(values == (0.0 if by > 0 else 1.0))
    num = min(len(can_turn), round(abs(by) * len(values)))
    turned = can_turn[np.linspace(0, len(can_turn) - 1, num).astype(int)] if num else can_turn[:0]
    found[turned] = 1.0 - found[turned]
    return found
