"""What must be alike for two runs to be compared: an explicit list of keys, and what a difference in each means."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from enum import StrEnum

from dflash_bench.model import Finding, RunInfo


class Effect(StrEnum):
    """What follows when two runs differ in a key."""

    REFUSED = "refused"
    """Their figures do not answer the same question: no verdict."""
    MARKED = "marked"
    """They can be compared; the reader is told."""


@dataclass(frozen=True, slots=True)
class Key:
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


KEYS: tuple[Key, ...] = (
    Key("device", Effect.REFUSED, lambda info: info.device),
    Key("workload", Effect.REFUSED, lambda info: info.workload),
    Key("workload file", Effect.REFUSED, _workload_file, unstated=Effect.MARKED),
    Key("world", Effect.REFUSED, _world),
    # captures from elsewhere do not say their driver
    Key("driver", Effect.REFUSED, _setting("driver"), unstated=Effect.MARKED),
    Key("clocks", Effect.MARKED, _setting("clocks")),
    Key("power limit", Effect.MARKED, _setting("power_limit_w")),
    Key("persistence", Effect.MARKED, _setting("persistence")),
    Key("cpu", Effect.MARKED, _setting("cpu")),
    Key("cores", Effect.MARKED, _setting("cores")),
    Key("recorder", Effect.MARKED, _recorder),
    Key("nsys version", Effect.MARKED, _exporter),
    Key("reports", Effect.MARKED, _setting("reports")),
    Key("seed", Effect.MARKED, _setting("seed")),
    Key("steps", Effect.MARKED, _setting("steps")),
    Key("delay", Effect.MARKED, lambda info: str(info.settings.get("delay") or "none")),
    Key("model", Effect.MARKED, _setting("model")),
    Key("check", Effect.MARKED, _setting("check")),
    Key("backend", Effect.MARKED, _setting("backend")),
    Key("interrupted", Effect.MARKED, _setting("interrupted")),
    Key("python", Effect.MARKED, _setting("version.python")),
    Key("torch", Effect.MARKED, _setting("version.torch")),
    Key("triton", Effect.MARKED, _setting("version.triton")),
    Key("nvtx", Effect.MARKED, _setting("version.nvtx")),
)

STACK = ("recorder", "nsys version", "driver", "python", "torch", "triton")
"""The keys that name a software stack: another stack has other baselines."""


@dataclass(frozen=True, slots=True)
class Difference:
    """A key in which the runs of a comparison differ, with all its values on each side, and what follows."""

    key: Key
    base: str
    candidate: str
    effect: Effect

    @property
    def finding(self) -> Finding:
        """The same as a warning."""
        text = f"the runs differ in {self.key.name}: {self.base} against {self.candidate}"
        if self.effect is Effect.REFUSED:
            text += "; no verdicts are drawn from them"
        return Finding(f"different_{self.key.name.replace(' ', '_')}", None, 1, text)


def differences(base: Sequence[RunInfo], candidate: Sequence[RunInfo]) -> tuple[Difference, ...]:
    """Where the sides differ from one another, or the runs of one side among themselves."""
    return tuple(_differences(base, candidate))


def _differences(base: Sequence[RunInfo], candidate: Sequence[RunInfo]) -> Iterator[Difference]:
    for key in KEYS:
        old, new = ({key.read(info) for info in side} for side in (base, candidate))
        if len(old | new) > 1:
            is_stated = None not in old | new
            yield Difference(key, _text(old), _text(new), key.effect if is_stated else key.unstated or key.effect)


def _text(values: set[str | None]) -> str:
    return " and ".join(sorted("not stated" if v is None else v for v in values))


def is_refused(found: Sequence[Difference]) -> bool:
    """Whether any of the differences forbids a verdict."""
    return any(d.effect is Effect.REFUSED for d in found)


def stack(info: RunInfo) -> dict[str, str]:
    """The software that a run was made with, key by key; what it does not say is left out."""
    found = {key.name: key.read(info) for key in KEYS if key.name in STACK}
    return {name: value for name, value in found.items() if value is not None}
