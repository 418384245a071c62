"""How one arm is launched on all its ranks: recorded or, to see what recording costs, without any tool.

``torchrun`` starts the ranks where there are several, each becomes ``python -m dflash_prep.loop``; nsys goes around
each rank (one report per rank) or around torchrun (one report), or every rank records itself with the built-in
recorder. torch is never imported here.
"""

from __future__ import annotations

import importlib.util
import os
import sys
from dataclasses import dataclass, field
from enum import StrEnum
from pathlib import Path

from dflash_bench.capture.choice import RecorderChoice
from dflash_bench.capture.nsys import NsysTool, has_nvidia_gpu
from dflash_bench.capture.nsys_command import ProfileOptions, Trace, profile_command
from dflash_bench.capture.recorder import FOLDER_VARIABLE
from dflash_bench.errors import UsageError

LOOP = (sys.executable, "-m", "dflash_prep.loop")
SINK_VARIABLE = "DFLASH_PREP_SINK"
SINK = "dflash_bench.capture.recorder:sink"
NO_SINK = "off"
ALL_RANKS = "all_ranks"
PROGRESS = "progress"


class Reports(StrEnum):
    """How nsys reports are split."""

    PER_RANK = "per-rank"
    ONE = "one"


class Device(StrEnum):
    """What the loop's ranks decode on."""

    AUTO = "auto"
    SIMULATED = "simulated"
    CUDA = "cuda"


class Backend(StrEnum):
    """What carries the agreement of the ranks."""

    GLOO = "gloo"
    NCCL = "nccl"


@dataclass(frozen=True, slots=True)
class LoopOptions:
    """What is passed on to the loop. ``is_verified``: all tokens are compared with the oracle's after the run;
    ``is_checked``: every allocation step is checked, which makes the host wait. ``delay``: a host delay that is planted
    in one rank's ``prepare_for_decode``, as ``RANK:MICROSECONDS``."""

    device: Device = Device.AUTO
    backend: Backend = Backend.GLOO
    is_verified: bool = False
    is_checked: bool = False
    delay: str | None = None

    @property
    def arguments(self) -> tuple[str, ...]:
        """As the loop spells them; its own defaults are left out."""
        found = [] if self.device is Device.AUTO else ["--device", str(self.device)]
        found += [] if self.backend is Backend.GLOO else ["--backend", str(self.backend)]
        found += [] if self.delay is None else ["--delay", self.delay]
        return (*found, *(["--verify"] if self.is_verified else []), *(["--check"] if self.is_checked else []))


@dataclass(frozen=True, slots=True)
class Launch:
    """What to run and where the capture goes. ``folder`` must be empty; ``workload`` is a name or a TOML file.

    ``is_unprofiled``: no tool and no ranges, only what the loop counts itself. ``stagger_s``: seconds by which each
    rank's nsys starts after its neighbour's.
    """

    arm: str
    workload: str
    ranks: int
    steps: int
    seed: int
    folder: Path
    choice: RecorderChoice
    reports: Reports = Reports.PER_RANK
    program: tuple[str, ...] = LOOP
    options: LoopOptions = LoopOptions()
    is_unprofiled: bool = False
    stagger_s: float = 0.0

    @property
    def tool(self) -> NsysTool | None:
        """The nsys that records it, if any."""
        return None if self.is_unprofiled else self.choice.tool


@dataclass(frozen=True, slots=True)
class Command:
    """A command line and the variables it gets; a variable that is None is taken away."""

    line: tuple[str, ...]
    environment: dict[str, str | None] = field(default_factory=dict)

    def full_environment(self) -> dict[str, str]:
        """This process's environment with the changes applied."""
        merged: dict[str, str | None] = {**os.environ, **self.environment}
        return {key: value for key, value in merged.items() if value is not None}


def require_torch() -> None:
    """Raises UsageError when the ranks could not import torch or the decode loop."""
    for module in ("torch", "dflash_prep"):
        if importlib.util.find_spec(module) is None:
            raise UsageError(
                f"the built-in decode loop needs {module}, which is not installed in {sys.prefix}",
                hint='pip install "dflash-bench[impl]"',
            )


def launch_command(launch: Launch) -> Command:
    """The whole command line of a run; a pure function of the launch and of this machine's GPU."""
    loop = [*launch.program, "--arm", launch.arm, "--workload", launch.workload]
    loop += ["--steps", str(launch.steps), "--seed", str(launch.seed), "--out", str(launch.folder)]
    loop += ["--progress", str(launch.folder / PROGRESS), *launch.options.arguments]
    rank = ["-m", "dflash_bench.capture.exec_rank", str(launch.folder), "--", *loop]
    if launch.ranks == 1:
        return _alone(launch, [sys.executable, *rank])
    torchrun = [sys.executable, "-m", "torch.distributed.run", "--standalone", f"--nproc-per-node={launch.ranks}"]
    if launch.tool is None:
        return Command((*torchrun, *rank), _environment(launch))
    options = ProfileOptions(traces=default_traces())
    folder = _in_nsys_words(launch.folder)
    if launch.reports is Reports.ONE:
        line = profile_command(launch.tool, f"{folder}/{ALL_RANKS}", [*torchrun, *rank], options)
        return Command(tuple(line), _environment(launch))
    each = profile_command(launch.tool, f"{folder}/rank%q{{RANK}}", [sys.executable, *rank], options)
    if launch.stagger_s:
        each = [sys.executable, "-m", "dflash_bench.capture.exec_later", f"{launch.stagger_s:g}", "--", *each]
    return Command((*torchrun, "--no-python", *each), _environment(launch))


def _alone(launch: Launch, rank: list[str]) -> Command:
    """A single rank needs no torchrun, which would import torch once more: half of the time that starting takes."""
    environment = _environment(launch) | {"RANK": "0", "LOCAL_RANK": "0", "WORLD_SIZE": "1"}
    if launch.tool is None:
        return Command(tuple(rank), environment)
    stem = ALL_RANKS if launch.reports is Reports.ONE else "rank0"
    output = f"{_in_nsys_words(launch.folder)}/{stem}"
    line = profile_command(launch.tool, output, rank, ProfileOptions(traces=default_traces()))
    return Command(tuple(line), environment)


def _environment(launch: Launch) -> dict[str, str | None]:
    # One thread per rank, as torchrun would choose with a warning: ranks on one host must not fight for cores.
    found: dict[str, str | None] = {"OMP_NUM_THREADS": os.environ.get("OMP_NUM_THREADS", "1")}
    if launch.is_unprofiled:
        return found | {SINK_VARIABLE: NO_SINK}
    if launch.tool is not None:
        return found | {SINK_VARIABLE: None}
    return found | {SINK_VARIABLE: SINK, FOLDER_VARIABLE: str(launch.folder)}


def _in_nsys_words(folder: Path) -> str:
    # nsys takes a % for the start of a pattern
    return str(folder).replace("%", "%%")


def default_traces() -> tuple[Trace, ...]:
    """CUDA is traced where there is a GPU; elsewhere nsys would only warn about it."""
    return (Trace.CUDA, Trace.NVTX) if has_nvidia_gpu() else (Trace.NVTX,)
