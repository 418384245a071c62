"""The gate's policy: which metrics it watches, what it tolerates, and what it does when the data cannot tell.

::

    [tool.dflash-bench.gate]            # in pyproject.toml; in a file of its own the same keys without a table
    repeats = 3                         # runs that a pass takes, on each side
    budget = 4                          # further runs that the gate may make by itself
    inconclusive = "inconclusive"       # what it means: "inconclusive" (exit 4), "pass" or "fail"
    drift = 0.03                        # stated run-to-run drift, where no history and no repeats measure it
    error_rate = 0.05
    baselines = "baselines"

    [tool.dflash-bench.gate.metrics]
    "step.period" = { relative = 0.02, ranks = "pooled" }
    "range.prepare_for_decode" = { relative = 0.03, absolute = 20_000 }
    "step.lead" = {}

``relative`` is a share of the metric's scale (itself; the step's period for leads; 1 for shares), ``absolute`` a floor
in its base unit; ``drift`` likewise is a share. ``ranks`` is "all" (each and pooled), "each", "pooled" or a list.
``direction`` ("lower", "higher") is for metrics without one in the registry. Unknown keys are refused.
"""

from __future__ import annotations

import tomllib
from collections.abc import Mapping
from dataclasses import dataclass, field
from difflib import get_close_matches
from enum import StrEnum
from fnmatch import fnmatchcase
from pathlib import Path
from typing import Any

from dflash_bench.errors import UsageError
from dflash_bench.metrics.registry import SPECS, is_known, spec
from dflash_bench.model import Better, Figures
from dflash_bench.stats.families import ERROR_RATE
from dflash_bench.stats.noise import Allowance
from dflash_bench.stats.rules import MetricRule, Rules

_TABLE = ("tool", "dflash-bench", "gate")


class OnInconclusive(StrEnum):
    """What the gate does with a metric that the data cannot decide."""

    INCONCLUSIVE = "inconclusive"
    PASS = "pass"
    FAIL = "fail"


class RankScope(StrEnum):
    """Which figures of a metric are watched."""

    ALL = "all"
    EACH = "each"
    POOLED = "pooled"


@dataclass(frozen=True, slots=True)
class MetricPolicy:
    """What the policy says of one metric, or of all that match a pattern. None leaves the default."""

    relative: float | None = None
    absolute: float | None = None
    drift: float | None = None
    direction: Better | None = None
    ranks: RankScope | tuple[int, ...] = RankScope.ALL
    repeats: int | None = None
    inconclusive: OnInconclusive | None = None

    def is_watching(self, rank: int | None) -> bool:
        """Whether the figure of that rank (None: pooled or of all ranks) counts."""
        match self.ranks:
            case RankScope.ALL:
                return True
            case RankScope.EACH:
                return rank is not None
            case RankScope.POOLED:
                return rank is None
            case ranks:
                return rank in ranks


DEFAULT_METRICS: Mapping[str, MetricPolicy] = {
    "step.period": MetricPolicy(),
    "step.lead": MetricPolicy(relative=0.02),
    "cost.prepare_for_decode": MetricPolicy(relative=0.08),
    "host.busy_per_step": MetricPolicy(relative=0.08),
    "alloc.step_share": MetricPolicy(),
    "dp.agreement_tax": MetricPolicy(),
    "tokens.per_s": MetricPolicy(),
    "retracted": MetricPolicy(),
    "consistency.bad": MetricPolicy(),
}
"""What is watched where the policy names no metrics: the step, what the host costs in it and how far it runs ahead,
what the slowest rank costs all, and the counts that must not change. 8 % of a host's cost is what a duet of two
processes rules out on an H200 (docs/verdicts.md): with less, the gate could never say that nothing changed."""


@dataclass(frozen=True, slots=True)
class Policy:
    """The whole policy; see the module's text for the keys."""

    metrics: Mapping[str, MetricPolicy] = field(default_factory=lambda: dict(DEFAULT_METRICS))
    repeats: int = 3
    budget: int = 4
    inconclusive: OnInconclusive = OnInconclusive.INCONCLUSIVE
    drift: float | None = None
    error_rate: float = ERROR_RATE
    baselines: Path = Path("baselines")

    @property
    def named(self) -> tuple[str, ...]:
        """The metrics that it names itself, by name and not by a pattern; none where it leaves the choice to us."""
        own = () if self.metrics == DEFAULT_METRICS else self.metrics
        return tuple(name for name in own if "*" not in name)

    def of(self, name: str) -> MetricPolicy | None:
        """What is said of a metric; None when it is not watched. An exact name wins over a pattern."""
        if name in self.metrics:
            return self.metrics[name]
        return next((own for pattern, own in self.metrics.items() if fnmatchcase(name, pattern)), None)

    def is_watching(self, name: str, rank: int | None) -> bool:
        """Whether the gate looks at that figure."""
        own = self.of(name)
        return own is not None and own.is_watching(rank)

    def rules(self, history: Figures | None = None, rate: float | None = None) -> Rules:
        """The same as rules of judgement."""
        own = {name: _rule(each) for name, each in self.metrics.items()}
        return Rules(own, self.drift, history or {}, self.error_rate if rate is None else rate, tuple(own))


def _rule(own: MetricPolicy) -> MetricRule:
    tolerance = None
    if own.relative is not None or own.absolute is not None:
        tolerance = Allowance(own.relative or 0.0, own.absolute or 0.0)
    return MetricRule(tolerance, None if own.drift is None else Allowance(own.drift), own.direction)


# ── reading ──────────────────────────────────────────────────────────────────────────────────────────────────────────


def load_policy(path: Path | None = None) -> Policy:
    """The policy of a file; without one, that of ``pyproject.toml`` here, or the defaults.

    Raises UsageError for a file that is not there or no TOML, for unknown keys, and for values that make no sense.
    """
    own = Path("pyproject.toml")
    if path is None:
        return _parsed(_table(_toml(own)), str(own)) if own.exists() else Policy()
    raw = _toml(path)
    return _parsed(_table(raw) if path.name == own.name or "tool" in raw else raw, str(path))


def _toml(path: Path) -> dict[str, Any]:
    try:
        return tomllib.loads(path.read_text(encoding="utf-8"))
    except OSError as error:
        raise UsageError(
            f"{path} cannot be read: {error.strerror}", hint="dflash-bench calibrate -o gate.toml"
        ) from None
    except ValueError as error:
        raise UsageError(f"{path} is not TOML: {error}") from None


def _table(raw: dict[str, Any]) -> dict[str, Any]:
    for key in _TABLE:
        raw = raw.get(key, {})
    return raw


def _parsed(raw: dict[str, Any], where: str) -> Policy:
    readers = {
        "metrics": _metrics,
        "repeats": _whole,
        "budget": _whole,
        "inconclusive": _on_inconclusive,
        "drift": _share,
        "error_rate": _share,
        "baselines": _path,
    }
    # the name of the key before version 0.2
    if "false_discovery_rate" in raw:
        raw = {"error_rate" if k == "false_discovery_rate" else k: v for k, v in raw.items()}
    return Policy(**_read(raw, readers, where))


def _metrics(value: Any, where: str) -> dict[str, MetricPolicy]:
    if not isinstance(value, dict) or not value:
        raise UsageError(f"{where}: metrics is a table of metric names")
    return {name: _metric(name, own, f"{where}: metrics.{name}") for name, own in value.items()}


def _metric(name: str, raw: Any, where: str) -> MetricPolicy:
    if not isinstance(raw, dict):
        raise UsageError(f"{where} is a table, such as {{ relative = 0.02 }}")
    is_pattern = "*" in name and not is_known(name)
    if not is_pattern and not is_known(name):
        near = get_close_matches(name, [each.name for each in SPECS], 1)
        hint = f"{near[0]} is one" if near else "dflash-bench metrics RUN --json lists the names"
        raise UsageError(f"{where}: no such metric", hint=hint)
    readers = {
        "relative": _share,
        "absolute": _positive,
        "drift": _share,
        "direction": _direction,
        "ranks": _ranks,
        "repeats": _whole,
        "inconclusive": _on_inconclusive,
    }
    own = MetricPolicy(**_read(raw, readers, where))
    if own.direction is not None and not is_pattern and spec(name).better not in (Better.NONE, own.direction):
        raise UsageError(f"{where}: {name} is better when {spec(name).better}; a policy cannot turn that round")
    return own


def _read(raw: dict[str, Any], readers: Mapping[str, Any], where: str) -> dict[str, Any]:
    if unknown := sorted(set(raw) - set(readers)):
        raise UsageError(f"{where}: unknown key {', '.join(unknown)}", hint=f"the keys are {', '.join(readers)}")
    return {key: readers[key](value, f"{where}: {key}" if key != "metrics" else where) for key, value in raw.items()}


def _whole(value: Any, where: str) -> int:
    if not isinstance(value, int) or isinstance(value, bool) or value < 0:
        raise UsageError(f"{where} is a whole number from 0, not {value!r}")
    return value


def _positive(value: Any, where: str) -> float:
    if not isinstance(value, int | float) or isinstance(value, bool) or not value >= 0:
        raise UsageError(f"{where} is a number from 0, not {value!r}")
    return float(value)


def _share(value: Any, where: str) -> float:
    found = _positive(value, where)
    if found > 1:
        raise UsageError(f"{where} is a share from 0 to 1 (0.02 is 2 %), not {value!r}")
    return found


def _path(value: Any, where: str) -> Path:
    if not isinstance(value, str):
        raise UsageError(f"{where} is a folder, not {value!r}")
    return Path(value)


def _on_inconclusive(value: Any, where: str) -> OnInconclusive:
    if value not in list(OnInconclusive):
        raise UsageError(f"{where} is {', '.join(OnInconclusive)}; not {value!r}")
    return OnInconclusive(value)


def _direction(value: Any, where: str) -> Better:
    if value not in (Better.LOWER, Better.HIGHER):
        raise UsageError(f"{where} is lower or higher, not {value!r}")
    return Better(value)


def _ranks(value: Any, where: str) -> RankScope | tuple[int, ...]:
    if isinstance(value, list) and value and all(isinstance(v, int) and not isinstance(v, bool) for v in value):
        return tuple(value)
    if isinstance(value, list) or value not in list(RankScope):
        raise UsageError(f"{where} is {', '.join(RankScope)} or a list of ranks, not {value!r}")
    return RankScope(value)
