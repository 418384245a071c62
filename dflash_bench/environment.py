"""What must be alike for two runs to be compared: a list of conditions, and what a difference in each means."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from enum import StrEnum

from dflash_bench.model import Finding, RunInfo


class Effect(StrEnum):
    """What follows when two runs differ in a condition."""

    REFUSED = "refused"
    """Their figures do not answer the same question: no verdict."""
    MARKED = "marked"
    """They can be compared; the reader is told."""


@dataclass(frozen=True, slots=True)
class Condition:
    """One thing that a run was made with. ``read`` gives it as text; None: the run does not say.

    ``unstated`` is what follows where one run says and another does not; None: the same as from a difference.
    """

    name: str
    effect: Effect
    read: Callable[[RunInfo], str | None]
    unstated: Effect | None = None


def _setting(name: str) -> Callable[[RunInfo], str | None]:
    def read(info: RunInfo) -> str | None:
        value = info.settings.get(name)
        return None if value is None else str(value)

    return read


def _world(info: RunInfo) -> str | None:
    return str(info.world or len(info.ranks))


def _workload_file(info: RunInfo) -> str | None:
    """A fingerprint of the file's text: two files of one name may ask for different things."""
    text = info.settings.get("workload_toml")
    return None if text is None else hashlib.sha256(str(text).encode()).hexdigest()[:8]


def _recorder(info: RunInfo) -> str | None:
    return " and ".join(sorted({c.recorder for c in info.captures})) or None


def _exporter(info: RunInfo) -> str | None:
    return " and ".join(sorted({str(c.exporter_version) for c in info.captures if c.exporter_version})) or None


CONDITIONS: tuple[Condition, ...] = (
    Condition("device", Effect.REFUSED, lambda info: info.device),
    Condition("workload", Effect.REFUSED, lambda info: info.workload),
    Condition("workload file", Effect.REFUSED, _workload_file, unstated=Effect.MARKED),
    Condition("world", Effect.REFUSED, _world),
    # captures from elsewhere do not say their driver
    Condition("driver", Effect.REFUSED, _setting("driver"), unstated=Effect.MARKED),
    Condition("clocks", Effect.MARKED, _setting("clocks")),
    Condition("power limit", Effect.MARKED, _setting("power_limit_w")),
    Condition("persistence", Effect.MARKED, _setting("persistence")),
    Condition("cpu", Effect.MARKED, _setting("cpu")),
    Condition("cores", Effect.MARKED, _setting("cores")),
    Condition("recorder", Effect.MARKED, _recorder),
    Condition("nsys version", Effect.MARKED, _exporter),
    Condition("reports", Effect.MARKED, _setting("reports")),
    Condition("seed", Effect.MARKED, _setting("seed")),
    Condition("steps", Effect.MARKED, _setting("steps")),
    Condition("delay", Effect.MARKED, lambda info: str(info.settings.get("delay") or "none")),
    Condition("model", Effect.MARKED, _setting("model")),
    Condition("check", Effect.MARKED, _setting("check")),
    Condition("backend", Effect.MARKED, _setting("backend")),
    Condition("interrupted", Effect.MARKED, _setting("interrupted")),
    Condition("python", Effect.MARKED, _setting("version.python")),
    Condition("torch", Effect.MARKED, _setting("version.torch")),
    Condition("triton", Effect.MARKED, _setting("version.triton")),
    Condition("nvtx", Effect.MARKED, _setting("version.nvtx")),
)

STACK = ("recorder", "nsys version", "driver", "python", "torch", "triton")
"""The conditions that name a software stack: another stack has other baselines."""


@dataclass(frozen=True, slots=True)
class Difference:
    """A condition in which the runs of a comparison differ, with all its values on each side, and what follows."""

    condition: Condition
    base: str
    candidate: str
    effect: Effect

    @property
    def finding(self) -> Finding:
        """The same as a warning."""
        text = f"the runs differ in {self.condition.name}: {self.base} against {self.candidate}"
        if self.effect is Effect.REFUSED:
            text += "; no verdicts are drawn from them"
        return Finding(f"different_{self.condition.name.replace(' ', '_')}", None, 1, text)


def differences(base: Sequence[RunInfo], candidate: Sequence[RunInfo]) -> tuple[Difference, ...]:
    """Where the sides differ from one another, or the runs of one side among themselves."""
    return tuple(_differences(base, candidate))


def _differences(base: Sequence[RunInfo], candidate: Sequence[RunInfo]) -> Iterator[Difference]:
    for each in CONDITIONS:
        old, new = ({each.read(info) for info in side} for side in (base, candidate))
        if len(old | new) > 1:
            is_stated = None not in old | new
            effect = each.effect if is_stated else each.unstated or each.effect
            yield Difference(each, _text(old), _text(new), effect)


def _text(values: set[str | None]) -> str:
    return " and ".join(sorted("not stated" if v is None else v for v in values))


def is_refused(found: Sequence[Difference]) -> bool:
    """Whether any of the differences forbids a verdict."""
    return any(d.effect is Effect.REFUSED for d in found)


def stack(info: RunInfo) -> dict[str, str]:
    """The software that a run was made with, part by part; what it does not say is left out."""
    found = {each.name: each.read(info) for each in CONDITIONS if each.name in STACK}
    return {name: value for name, value in found.items() if value is not None}
