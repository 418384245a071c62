"""Is the gate awake? A copy of the baseline with a stated regression in it must fail; the baseline against itself must
pass.

The baseline's runs are split in two: of every run, every other stretch of steps goes to either side. Both halves are
the same code on the same machine, so the gate must let them pass. Then one half is made worse, metric by metric, by a
stated amount, and the gate must fail each time.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np

from dflash_bench.errors import UsageError
from dflash_bench.gate.decision import Answer, decide
from dflash_bench.gate.policy import Policy
from dflash_bench.model import Better, BoolArray, Figures, FloatArray, Metric, RunMetrics, Sides, Statistic
from dflash_bench.stats.judgement import Judgement

STRETCHES = 10
TIMES_TOLERANCE = 2.0
"""What is injected where no size is stated: twice the metric's tolerance."""


@dataclass(frozen=True, slots=True)
class Trial:
    """One thing that was tried: what the gate had to say, and what it said."""

    name: str
    wanted: Answer
    got: Answer
    text: str

    @property
    def is_passed(self) -> bool:
        return self.got is self.wanted


def self_test(
    runs: Sequence[RunMetrics], policy: Policy, history: Figures, injected: dict[str, float] | None = None
) -> tuple[Trial, ...]:
    """Try the gate on the runs of a baseline.

    ``injected``: metric → how much worse, as a share of its figure; None: every watched metric by twice its tolerance.
    Raises UsageError when a named metric is not watched or not there.
    """
    one, other = halves(runs)
    sides = Sides(one, other, history, is_baseline=True)
    same = decide(sides, policy, policy.false_discovery_rate)
    wrong = [c for c in same.checks if c.outcome is not Answer.PASS]
    told = "; ".join(f"{c.judgement.metric} rank {c.judgement.rank}: {c.reason}" for c in wrong[:3])
    trials = [Trial("baseline against itself", Answer.PASS, same.outcome, told or f"{len(same.checks)} checks pass")]
    sizes = _sizes([c.judgement for c in same.checks], injected)
    for name, size in sizes.items():
        worse = tuple(injure(run, name, size, policy.rules().better(name)) for run in other)
        got = decide(replace(sides, candidate=worse), policy, policy.false_discovery_rate)
        hit = [c for c in got.of(Answer.FAIL) if c.judgement.metric == name]
        outcome = got.outcome if hit or got.outcome is not Answer.FAIL else Answer.INCONCLUSIVE
        trials.append(Trial(f"{name} made worse", Answer.FAIL, outcome, f"by {size:.4g} in its base unit"))
    return tuple(trials)


def _sizes(judged: Sequence[Judgement], injected: dict[str, float] | None) -> dict[str, float]:
    """Metric → how much worse in its unit."""
    largest: dict[str, Judgement] = {}
    for j in judged:
        if j.metric not in largest or j.tolerance > largest[j.metric].tolerance:
            largest[j.metric] = j
    if injected is None:
        return {name: TIMES_TOLERANCE * max(j.tolerance, _least(j)) for name, j in largest.items() if _is_injectable(j)}
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
    return room > 2 * TIMES_TOLERANCE * judgement.tolerance


def _least(judgement: Judgement) -> float:
    # an exact metric tolerates nothing: a hundredth of it stands for any difference
    return abs(judgement.base or 0.0) / 100


def halves(runs: Sequence[RunMetrics]) -> tuple[tuple[RunMetrics, ...], tuple[RunMetrics, ...]]:
    """Each run in two, by stretches of consecutive steps. Single values go to both.

    The sides take turns in who gets the first stretch, so that a slow start falls to both. Neither half says its seed
    any more: half of the steps hold other counts than the other half.
    """
    one, other = (tuple(_half(run, (k + side) % 2) for k, run in enumerate(runs)) for side in (0, 1))
    return one, other


def _half(run: RunMetrics, parity: int) -> RunMetrics:
    settings = {k: v for k, v in run.info.settings.items() if k != "seed"}
    return replace(
        run, info=replace(run.info, settings=settings), metrics=tuple(_half_of(m, parity) for m in run.metrics)
    )


def _half_of(metric: Metric, parity: int) -> Metric:
    if metric.statistic is Statistic.VALUE:
        return metric
    key = np.arange(len(metric.values)) if metric.block is None else metric.block
    _, step = np.unique(key, return_inverse=True)
    length = max(1, (int(step.max(initial=0)) + 1) // STRETCHES)
    kept = (step // length) % 2 == parity
    return replace(
        metric,
        values=metric.values[kept],
        block=None if metric.block is None else metric.block[kept],
        group=None if metric.group is None else metric.group[kept],
    )


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
