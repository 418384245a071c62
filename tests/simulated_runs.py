"""Runs with known truth: correlated steps, heavy tails, and a drift between runs, for every kind of metric."""

from __future__ import annotations

import functools
from collections.abc import Iterable
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from scipy.signal import lfilter

from dflash_bench.compare import compare
from dflash_bench.metrics.registry import spec
from dflash_bench.model import Comparison, Judgements, Metric, RunInfo, RunMetrics, Sides
from dflash_bench.stats.verdict import judge

STEP_NS = 10_000_000.0


@dataclass(frozen=True)
class Truth:
    """How a metric is made up. ``level`` is its true figure, ``drift`` the standard deviation between runs and
    ``jitter`` that between steps, all in its unit. ``tails`` is the degrees of freedom of Student's t."""

    name: str
    level: float
    drift: float
    jitter: float
    steps: int = 60
    correlation: float = 0.5
    tails: int = 4
    per_step: int = 1


KINDS = {
    "time": Truth("step.period", STEP_NS, drift=0.008 * STEP_NS, jitter=0.05 * STEP_NS),
    "time, steps only": Truth("cost.fill", 500_000.0, drift=0.0, jitter=30_000.0),
    "time, heavy tails between runs": Truth("cost.verify", 500_000.0, drift=3_000.0, jitter=20_000.0, tails=3),
    "lead": Truth("step.lead", 40_000.0, drift=30_000.0, jitter=200_000.0),
    "leads of many launches": Truth("launch.lead", -50_000.0, drift=20_000.0, jitter=150_000.0, steps=30, per_step=3),
    "difference of two groups": Truth("alloc.step_cost", 780_000.0, drift=30_000.0, jitter=150_000.0, steps=120),
    "share": Truth("launch.run_ahead_fraction", 0.8, drift=0.008, jitter=0.0),
    "rate": Truth("tokens.per_s", 1_450.0, drift=10.0, jitter=0.0, tails=6),
}


def steps(rng: np.random.Generator, truth: Truth) -> np.ndarray:
    """float64 [steps], mean and median 0, standard deviation about 1: a slow step is followed by slow ones."""
    shocks = rng.standard_t(truth.tails, truth.steps + 20) / np.sqrt(truth.tails / (truth.tails - 2))
    return lfilter([1.0], [1.0, -truth.correlation], shocks)[20:] * np.sqrt(1 - truth.correlation**2)


@functools.cache
def many_steps(truth: Truth) -> np.ndarray:
    """float64 [20,000], sorted: the distribution of such steps."""
    return np.sort(steps(np.random.default_rng(0), replace(truth, steps=20_000)))


def metric(rng: np.random.Generator, truth: Truth, *, shift: float = 0.0, rank: int | None = None) -> Metric:
    """One run's samples of a metric whose true figure is ``truth.level + shift``."""
    stray = rng.standard_t(truth.tails) / np.sqrt(truth.tails / (truth.tails - 2)) * truth.drift
    level, known = truth.level + shift + stray, spec(truth.name)
    if known.statistic == "value":
        return Metric(truth.name, rank, known.unit, known.statistic, np.array([level]))
    if known.unit == "fraction":
        # events come in clusters: neighbours look at the same slow noise
        cut = many_steps(truth)[int(np.clip(level, 0, 1) * 19_999)]
        values = (steps(rng, truth) < cut).astype(float)
        return Metric(truth.name, rank, known.unit, known.statistic, values, block=np.arange(truth.steps))
    if known.statistic == "median difference":
        # every third step or so allocates, and costs that much more
        group = rng.random(truth.steps) < 0.35
        values = STEP_NS / 10 + truth.jitter * steps(rng, truth) + level * group
        return Metric(truth.name, rank, known.unit, known.statistic, values, group, block=np.arange(truth.steps))
    values = level + truth.jitter * np.repeat(steps(rng, truth), truth.per_step)
    values = values + truth.jitter * 0.3 * rng.standard_normal(len(values))
    block = np.repeat(np.arange(truth.steps), truth.per_step)
    return Metric(truth.name, rank, known.unit, known.statistic, values, block=block)


def run(metrics: list[Metric], name: str = "run", **settings: object) -> RunMetrics:
    """A run that holds these metrics."""
    info = RunInfo(
        run=name,
        arm="control",
        workload="made-up",
        device="simulated",
        devices=(),
        world=1 + max((m.rank for m in metrics if m.rank is not None), default=0),
        created_utc=f"2026-11-29T00:00:00+00:00 {name}",
        tool_version="0",
        captures=(),
        processes=(),
        findings=(),
        settings=dict(settings),
    )
    return RunMetrics(info, tuple(metrics), (), ())


def side(rng: np.random.Generator, truth: Truth, num: int, shift: float = 0.0, name: str = "run") -> list[RunMetrics]:
    """That many runs of one arm, with one metric each."""
    return [run([metric(rng, truth, shift=shift)], f"{name}-{k}") for k in range(num)]


def both(base: Iterable[RunMetrics], candidate: Iterable[RunMetrics]) -> Sides:
    """The two sides of a comparison."""
    return Sides(tuple(base), tuple(candidate))


def judge_both(base: Iterable[RunMetrics], candidate: Iterable[RunMetrics], *how: Any, **more: Any) -> Judgements:
    """The verdicts on two sides."""
    return judge(both(base, candidate), *how, **more)


def compare_both(base: Iterable[RunMetrics], candidate: Iterable[RunMetrics]) -> tuple[Comparison, Judgements | None]:
    """Two sides metric by metric, and the verdicts."""
    found = compare(both(base, candidate))
    return found, found.judgements


def compare_pair(base: RunMetrics, candidate: RunMetrics) -> Comparison:
    """One run a side."""
    return compare(both([base], [candidate]))
