"""The noise floor of a machine, from runs of one arm, and the tolerances that follow from it."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

from dflash_bench.errors import UsageError
from dflash_bench.gate.policy import MetricPolicy, Policy, RankScope
from dflash_bench.metrics.registry import Noise, position, spec
from dflash_bench.metrics.summary import figure
from dflash_bench.model import RunMetrics, Unit
from dflash_bench.stats.noise import TIMER_FLOOR_NS, inexact, noise, scale
from dflash_bench.stats.power import planned_detectable
from dflash_bench.stats.shift import t_quantile

MIN_RUNS = 4
SMALLEST, SMALLEST_SHARE = 0.005, 0.01
"""No tolerance below half a percent, for shares of events one point: smaller differences are nobody's claim."""


@dataclass(frozen=True, slots=True)
class Floor:
    """How much one metric varies between runs of one arm: the worst of its ranks.

    ``spread`` (standard deviation between runs) and ``drift`` are shares of the metric's scale. ``tolerance`` is what
    the wished number of repeats tell from chance 9 times in 10, among all watched comparisons. Exact metrics have none.
    """

    metric: str
    kind: Noise
    runs: int
    spread: float
    drift: float
    tolerance: float
    floor_ns: float | None


def noise_floor(runs: Sequence[RunMetrics], policy: Policy, repeats: int) -> tuple[Floor, ...]:
    """The noise floor of everything that the policy watches. Raises UsageError for fewer than `MIN_RUNS` runs."""
    if len(runs) < MIN_RUNS:
        raise UsageError(
            f"too few runs to tell the noise: {len(runs)}; {MIN_RUNS} at least, 10 are good",
            hint="dflash-bench calibrate --arm ARM --repeats 10",
        )
    keys = {(m.name, m.rank) for m in runs[0].metrics if policy.is_watching(m.name, m.rank)}
    judged = [key for key in keys if noise(key[0]) is not Noise.UNJUDGED]
    # exact comparisons take no part in the correction for many
    num_tests = sum(not _is_exact(name, _figures(runs, name, rank)) for name, rank in judged)
    level = policy.false_discovery_rate / max(1, num_tests)
    found = [floor for name, rank in judged if (floor := _floor(runs, name, rank, repeats, level)) is not None]
    names = sorted({f.metric for f in found}, key=lambda name: (position(name), name))
    return tuple(max((f for f in found if f.metric == name), key=lambda f: f.tolerance) for name in names)


def _floor(runs: Sequence[RunMetrics], name: str, rank: int | None, repeats: int, level: float) -> Floor | None:
    figures = _figures(runs, name, rank)
    if len(figures) < MIN_RUNS:
        return None
    kind, unit = noise(name), spec(name).unit
    if _is_exact(name, figures):
        return Floor(name, kind, len(figures), 0.0, 0.0, 0.0, None)
    kind = inexact(kind, unit)
    mean = sum(figures) / len(figures)
    step = runs[0].find("step.period", rank)
    of = scale(kind, mean, mean, None if step is None else figure(step))
    if of == 0:
        return None
    spread = math.sqrt(sum((f - mean) ** 2 for f in figures) / (len(figures) - 1)) / of
    drift = t_quantile(0.975, len(figures) - 1) * spread * math.sqrt(2) / 2
    seen = planned_detectable(_upper(spread, len(figures) - 1), repeats, level)
    tolerance = max(seen, SMALLEST_SHARE if kind is Noise.SHARE else SMALLEST)
    return Floor(name, kind, len(figures), spread, drift, tolerance, TIMER_FLOOR_NS if unit is Unit.NS else None)


def _figures(runs: Sequence[RunMetrics], name: str, rank: int | None) -> list[float]:
    found = (run.find(name, rank) for run in runs)
    return [value for m in found if m is not None and (value := figure(m)) is not None]


def _is_exact(name: str, figures: Sequence[float]) -> bool:
    return noise(name) is Noise.EXACT and len(set(figures)) == 1


def _upper(spread: float, degrees: int) -> float:
    """What the spread is below, 4 times in 5: a floor taken too low cries wolf."""
    from scipy.special import chdtri  # type: ignore[import-untyped]

    return spread * math.sqrt(degrees / float(chdtri(degrees, 0.8)))


def policy_toml(floors: Sequence[Floor], policy: Policy, repeats: int, about: str) -> str:
    """The policy as a file, with these tolerances and drifts. ``about`` says what they were measured on."""
    lines = [
        *(f"# {line}" for line in about.splitlines()),
        f"repeats = {repeats}",
        f"budget = {policy.budget}",
        f'inconclusive = "{policy.inconclusive}"',
        f"false_discovery_rate = {policy.false_discovery_rate}",
        f'baselines = "{policy.baselines.as_posix()}"',
        "",
        "[metrics]",
    ]
    return "\n".join([*lines, *(_line(f, policy.of(f.metric)) for f in floors)]) + "\n"


def _line(floor: Floor, own: MetricPolicy | None) -> str:
    kept = _kept(own or MetricPolicy())
    if floor.kind is Noise.EXACT:
        return f'"{floor.metric}" = {{{_listed(kept)}}}  # the same in all {floor.runs} runs'
    keys = [f"relative = {_rounded_up(floor.tolerance)}", f"drift = {_rounded_up(floor.drift)}"]
    keys += [f"absolute = {floor.floor_ns:.0f}"] if floor.floor_ns is not None else []
    return f'"{floor.metric}" = {{{_listed(keys + kept)}}}  # spread {floor.spread:.2%} over {floor.runs} runs'


def _kept(own: MetricPolicy) -> list[str]:
    """What a policy says of a metric beside its tolerance and drift, as keys of TOML."""
    keys = [] if own.direction is None else [f'direction = "{own.direction}"']
    if own.ranks is not RankScope.ALL:
        keys.append(f"ranks = {list(own.ranks)}" if isinstance(own.ranks, tuple) else f'ranks = "{own.ranks}"')
    keys += [] if own.repeats is None else [f"repeats = {own.repeats}"]
    return keys + ([] if own.inconclusive is None else [f'inconclusive = "{own.inconclusive}"'])


def _listed(keys: Sequence[str]) -> str:
    return f" {', '.join(keys)} " if keys else ""


def _rounded_up(share: float) -> float:
    return min(1.0, math.ceil(share * 1000) / 1000)
