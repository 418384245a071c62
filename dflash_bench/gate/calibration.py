"""The noise floor of a machine, from runs of one arm: what the gate can see there, and how many runs it takes.

It never says what is acceptable: tolerances are the policy's, and stay what they are.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

from dflash_bench.errors import UsageError
from dflash_bench.gate.policy import MetricPolicy, Policy, RankScope
from dflash_bench.metrics.registry import Noise, position, spec
from dflash_bench.metrics.summary import figure
from dflash_bench.model import RunMetrics
from dflash_bench.stats.families import PRIMARY_SHARE
from dflash_bench.stats.noise import inexact, noise, scale
from dflash_bench.stats.power import planned_detectable

_MIN_RUNS = 4
_MAX_RUNS = 20


@dataclass(frozen=True, slots=True)
class Floor:
    """How much one metric varies between runs of one arm: its pooled figure, or the worst of its ranks.

    ``spread`` (standard deviation between runs), ``tolerance`` (the policy's) and ``detectable`` (what the asked number
    of runs a side finds 9 times in 10, among all that is watched) are shares of the metric's scale. ``needed``: runs a
    side that find twice the tolerance 9 times in 10; None where more than 20. Exact counts see every difference.
    """

    metric: str
    kind: Noise
    runs: int
    spread: float
    tolerance: float
    detectable: float
    needed: int | None


def noise_floor(runs: Sequence[RunMetrics], policy: Policy, repeats: int) -> tuple[Floor, ...]:
    """The noise floor of everything that the policy watches. Raises UsageError for fewer than `_MIN_RUNS` runs."""
    if len(runs) < _MIN_RUNS:
        raise UsageError(
            f"too few runs to tell the noise: {len(runs)}; {_MIN_RUNS} at least, 10 are good",
            hint="dflash-bench calibrate --arm ARM --repeats 10",
        )
    keys = [(m.name, m.rank) for m in runs[0].metrics if policy.is_watching(m.name, m.rank) and spec(m.name).is_judged]
    tested = {name for name, rank in keys if not _is_exact(name, _figures(runs, name, rank))}
    level = policy.error_rate * PRIMARY_SHARE / max(1, len(tested))
    found = [floor for key in keys if (floor := _floor(runs, *key, policy, repeats, level)) is not None]
    names = sorted({f.metric for f in found}, key=lambda name: (position(name), name))
    return tuple(max((f for f in found if f.metric == name), key=lambda f: f.detectable) for name in names)


def _floor(
    runs: Sequence[RunMetrics], name: str, rank: int | None, policy: Policy, repeats: int, level: float
) -> Floor | None:
    figures = _figures(runs, name, rank)
    if len(figures) < _MIN_RUNS:
        return None
    kind, unit = noise(name), spec(name).unit
    if _is_exact(name, figures):
        return Floor(name, kind, len(figures), 0.0, 0.0, 0.0, 1)
    kind = inexact(kind, unit)
    mean = sum(figures) / len(figures)
    step = runs[0].find("step.period", rank)
    of = scale(kind, mean, mean, None if step is None else figure(step))
    if of == 0:
        return None
    spread = math.sqrt(sum((f - mean) ** 2 for f in figures) / (len(figures) - 1)) / of
    tolerance = policy.rules().tolerance(name, kind, unit).of(of) / of
    sees = {n: max(tolerance, planned_detectable(spread, n, level)) for n in range(2, _MAX_RUNS + 1)}
    needed = next((n for n, size in sees.items() if n >= 3 and size <= 2 * tolerance), None)
    return Floor(name, kind, len(figures), spread, tolerance, sees[repeats], needed)


def _figures(runs: Sequence[RunMetrics], name: str, rank: int | None) -> list[float]:
    found = (run.find(name, rank) for run in runs)
    return [value for m in found if m is not None and (value := figure(m)) is not None]


def _is_exact(name: str, figures: Sequence[float]) -> bool:
    return noise(name) is Noise.EXACT and len(set(figures)) == 1


def policy_toml(floors: Sequence[Floor], policy: Policy, repeats: int, about: str) -> str:
    """The policy as a file, its tolerances as they are, with what was measured beside them as comments."""
    lines = [
        *(f"# {line}" for line in about.splitlines()),
        f"repeats = {repeats}",
        f"budget = {policy.budget}",
        f'inconclusive = "{policy.inconclusive}"',
        f"error_rate = {policy.error_rate}",
        f'baselines = "{policy.baselines.as_posix()}"',
        "",
        "[metrics]",
    ]
    return "\n".join([*lines, *(_line(f, policy.of(f.metric)) for f in floors)]) + "\n"


def _line(floor: Floor, own: MetricPolicy | None) -> str:
    listed = ", ".join(_keys(own or MetricPolicy()))
    text = f"the same in all {floor.runs} runs"
    if floor.kind is not Noise.EXACT or floor.spread:
        text = f"spread {floor.spread:.2%} over {floor.runs} runs, sees {floor.detectable:.2%}"
    return f'"{floor.metric}" = {{{f" {listed} " if listed else ""}}}  # {text}'


def _keys(own: MetricPolicy) -> list[str]:
    """What a policy says of a metric, as keys of TOML."""
    numbers = {"relative": own.relative, "absolute": own.absolute, "drift": own.drift, "repeats": own.repeats}
    keys = [f"{name} = {value:g}" for name, value in numbers.items() if value is not None]
    keys += [] if own.direction is None else [f'direction = "{own.direction}"']
    if own.ranks is not RankScope.ALL:
        keys.append(f"ranks = {list(own.ranks)}" if isinstance(own.ranks, tuple) else f'ranks = "{own.ranks}"')
    return keys + ([] if own.inconclusive is None else [f'inconclusive = "{own.inconclusive}"'])
