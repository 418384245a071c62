"""What is asked of a run, in one value, spelled as the options of ``dflash-bench run``; ``run.json`` keeps it.

A profile so tells how its run was asked for, and another one can be made like it.
"""

from __future__ import annotations

from dataclasses import MISSING, dataclass, fields, replace
from enum import StrEnum
from pathlib import Path
from typing import Any

from dflash_bench.errors import UsageError
from dflash_bench.model import Recorder, RunInfo, Value


class Reports(StrEnum):
    """How nsys reports are split."""

    PER_RANK = "per-rank"
    ONE = "one"


class LoopDevice(StrEnum):
    """What the loop's ranks decode on."""

    AUTO = "auto"
    SIMULATED = "simulated"
    CUDA = "cuda"


class Backend(StrEnum):
    """What carries the agreement of the ranks."""

    GLOO = "gloo"
    NCCL = "nccl"


_DEFAULT_STEPS = 400


@dataclass(frozen=True, slots=True)
class RunRequest:
    """Which runs of the built-in loop to make, how to record them and where to keep them.

    ``workload`` is a name or a TOML file. ``delay`` is planted in one rank's ``prepare_for_decode``, as
    ``RANK:MICROSECONDS``. ``verify`` compares all tokens with the oracle's after a run; ``check`` looks at every
    allocation step, which makes the host wait. ``timeout``: seconds of silence before a run is ended.

    Several arms are a duet: each process decodes ``pairs`` pairs of blocks of ``block`` steps, one block an arm, in an
    order drawn anew for every pair. ``apart`` makes runs of ``steps`` steps instead, each of one arm. ``against``, a
    git ref, or ``against_python``, another environment, holds two versions of the code against each other on one arm.
    """

    arms: tuple[str, ...]
    workload: str = "smoke"
    ranks: int = 2
    steps: int | None = None
    seed: int = 0
    repeats: int | None = None
    apart: bool = False
    block: int = 20
    pairs: int = 30
    against: str | None = None
    against_python: Path | None = None
    unprofiled: bool = False
    verify: bool = False
    check: bool = False
    delay: str | None = None
    device: LoopDevice = LoopDevice.AUTO
    backend: Backend = Backend.GLOO
    recorder: bool = False
    reports: Reports = Reports.PER_RANK
    timeout: float = 300.0
    allow_missing: bool = False
    discard_captures: bool = False
    nsys: Path | None = None
    name: str | None = None
    profiles: Path = Path("profiles")

    @property
    def is_against(self) -> bool:
        """Whether two versions of the code take turns."""
        return self.against is not None or self.against_python is not None

    @property
    def is_duet(self) -> bool:
        """Whether a profile holds blocks of several arms, or of two versions."""
        return (len(self.arms) > 1 and not self.apart) or self.is_against

    @property
    def labels(self) -> tuple[str, ...]:
        """What the blocks of a duet are called."""
        return ("base", "candidate") if self.is_against else self.arms

    @property
    def num_repeats(self) -> int:
        """Runs of each arm, or processes of a duet: of these two, because a process has its own luck."""
        return self.repeats or (2 if self.is_duet else 1)

    @property
    def num_steps(self) -> int:
        """Steps that one process decodes and counts."""
        return len(self.labels) * self.pairs * self.block if self.is_duet else self.steps or _DEFAULT_STEPS

    @property
    def loop_arguments(self) -> tuple[str, ...]:
        """As the loop spells what is passed on to it; its own defaults are left out."""
        found = ["--workload", self.workload, "--seed", str(self.seed)]
        if not self.is_duet:
            found += ["--steps", str(self.num_steps)]
        elif not self.is_against:
            found += ["--block", str(self.block), "--pairs", str(self.pairs)]
        found += [] if self.device is LoopDevice.AUTO else ["--device", str(self.device)]
        found += [] if self.backend is Backend.GLOO else ["--backend", str(self.backend)]
        found += [] if self.delay is None else ["--delay", self.delay]
        return (*found, *(["--verify"] if self.verify else []), *(["--check"] if self.check else []))

    @property
    def settings(self) -> dict[str, Value]:
        """Name → value of what ``run.json`` keeps of it, beside arm, workload and recorder."""
        values = {key: getattr(self, name) for name, key in _KEPT.items() if self.is_duet or name not in _OF_A_DUET}
        values["steps_asked"] = self.num_steps
        return {key: str(value) if isinstance(value, StrEnum) else value for key, value in values.items()}

    @property
    def words(self) -> list[str]:
        """The command to type, without what is the default anyway and without where things lie on this machine."""
        found = ["dflash-bench", "run", *(word for arm in self.arms for word in ("--arm", arm))]
        for name, default in _DEFAULTS.items():
            value = getattr(self, name)
            if value is None or (value == default and name not in _ALWAYS_SAID):
                continue
            option = f"--{name.replace('_', '-')}"
            found += [option] if value is True else [option, f"{value:g}" if isinstance(value, float) else str(value)]
        return found


_KEPT = {
    "ranks": "ranks",
    "steps": "steps_asked",
    "seed": "seed",
    "block": "block",
    "pairs": "pairs",
    "unprofiled": "unprofiled",
    "verify": "verify",
    "check": "check",
    "delay": "delay",
    "device": "device_asked",
    "backend": "backend",
    "reports": "reports",
    "timeout": "timeout_s",
    "allow_missing": "allow_missing",
    "discard_captures": "discard_captures",
}
"""Option → its name in ``run.json``."""
_OF_A_DUET = ("block", "pairs")
_ALWAYS_SAID = ("workload", "ranks", "steps", "seed")
_OF_THIS_MACHINE = ("arms", "repeats", "apart", "against", "against_python", "nsys", "name", "profiles")
"""What is no property of a run: how many are made, where they go, and where a tool lies."""
_DEFAULTS: dict[str, Any] = {
    f.name: f.default for f in fields(RunRequest) if f.default is not MISSING and f.name not in _OF_THIS_MACHINE
}


def is_repeatable(info: RunInfo) -> bool:
    """Whether the run is one of the built-in loop's, so that another can be made like it."""
    if info.settings.get("base") is not None:
        return False  # the other version may be gone
    numbers = (info.settings.get(name) for name in ("ranks", "steps_asked", "seed"))
    return bool(_arms_of(info)) and info.workload is not None and all(isinstance(n, int) for n in numbers)


def _arms_of(info: RunInfo) -> tuple[str, ...]:
    """In the order in which they were asked for."""
    return tuple(str(info.settings.get("arms") or info.arm or "").split())


def request_of(info: RunInfo) -> RunRequest:
    """How a run which `is_repeatable` was asked for. What profiles of earlier versions do not say has its default.

    A workload that came from a file is that file's name; where it lies is not kept, what it says is
    (``workload_toml``). Raises UsageError for any other run.
    """
    if not is_repeatable(info):
        raise UsageError(f"{info.run} was not made by `dflash-bench run`, so no other one can be made like it")
    said = {name: info.settings.get(key) for name, key in _KEPT.items()}
    own: dict[str, Any] = {
        name: type(_DEFAULTS[name])(value) if isinstance(_DEFAULTS[name], StrEnum) else value
        for name, value in said.items()
        if value is not None
    }
    workload = f"{info.workload}.toml" if info.settings.get("workload_toml") else str(info.workload)
    is_builtin = info.settings.get("recorder") == Recorder.BUILTIN
    arms = _arms_of(info)
    if len(arms) > 1:
        own |= {"steps": None}
    return replace(RunRequest(arms, workload, recorder=is_builtin), **own)
