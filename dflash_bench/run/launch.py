"""How one arm is launched on all its ranks: recorded or, to see what recording costs, without any tool.

``torchrun`` starts the ranks where there are several, each becomes ``python -m dflash_prep.loop``; nsys goes around
each rank (one report per rank) or around torchrun (one report), or every rank records itself with the built-in
recorder. torch is never imported here.
"""

from __future__ import annotations

import os
import sys
from dataclasses import dataclass, field
from pathlib import Path

from dflash_bench.capture.choice import RecorderChoice
from dflash_bench.capture.nsys import NsysTool
from dflash_bench.capture.nsys_command import ProfileOptions, default_traces, in_nsys_words, profile_command
from dflash_bench.capture.recorder import FOLDER_VARIABLE
from dflash_bench.run.request import Reports, RunRequest
from dflash_bench.run.versions import CodeVersion

SINK_VARIABLE = "DFLASH_PREP_SINK"
SINK = "dflash_bench.capture.recorder:sink"
ALL_RANKS = "all_ranks"
PROGRESS = "progress"


@dataclass(frozen=True, slots=True)
class Launch:
    """One start of an arm, or of a duet of several, on all ranks. ``folder`` takes the capture and must be empty.

    ``is_unprofiled``: no tool and no ranges, only what the loop counts itself. ``stagger_s``: seconds by which each
    rank's nsys starts after its neighbour's. ``order_seed`` decides the order of the blocks of a duet. ``version``: the
    code that runs, where that is not the installed one; it then takes turns with another, told in the folder ``turns``.
    """

    request: RunRequest
    arms: tuple[str, ...]
    folder: Path
    choice: RecorderChoice
    program: tuple[str, ...] = ("-m", "dflash_prep.loop")
    is_unprofiled: bool = False
    stagger_s: float = 0.0
    order_seed: int = 0
    version: CodeVersion | None = None
    turns: Path | None = None

    @property
    def title(self) -> str:
        """How messages name it."""
        what = f"arm{'s' * (len(self.arms) > 1)} {' and '.join(self.arms)}"
        return f"{self.version.label} ({self.version.text}), {what}" if self.version else what

    @property
    def python(self) -> str:
        """The interpreter of the ranks."""
        return self.version.python if self.version else sys.executable

    @property
    def ranks(self) -> int:
        return self.request.ranks

    @property
    def tool(self) -> NsysTool | None:
        """The nsys that records it, if any."""
        return None if self.is_unprofiled else self.choice.tool

    @property
    def is_one_report(self) -> bool:
        """Whether one nsys records all ranks together."""
        return self.tool is not None and self.request.reports is Reports.ONE


@dataclass(frozen=True, slots=True)
class CommandLine:
    """A command line and the variables it gets; a variable that is None is taken away."""

    line: tuple[str, ...]
    environment: dict[str, str | None] = field(default_factory=dict)

    def full_environment(self) -> dict[str, str]:
        """This process's environment with the changes applied."""
        merged: dict[str, str | None] = {**os.environ, **self.environment}
        return {key: value for key, value in merged.items() if value is not None}


def launch_command(launch: Launch) -> CommandLine:
    """The whole command line of a run; a pure function of the launch and of this machine's GPU."""
    rank = ["-m", "dflash_bench.capture.exec_rank", str(launch.folder), "--", launch.python, *launch.program]
    rank += [word for arm in launch.arms for word in ("--arm", arm)]
    rank += ["--order-seed", str(launch.order_seed)] if len(launch.arms) > 1 else []
    rank += ["--turns", str(launch.turns)] if launch.turns else []
    rank += [*launch.request.loop_arguments, "--out", str(launch.folder), "--progress", str(launch.folder / PROGRESS)]
    environment = _environment(launch)
    if launch.ranks == 1:
        # A single rank needs no torchrun, which would import torch once more: half of the time that starting takes.
        environment |= {"RANK": "0", "LOCAL_RANK": "0", "WORLD_SIZE": "1"}
        line = _recorded(launch, [sys.executable, *rank], ALL_RANKS if launch.is_one_report else "rank0")
        return CommandLine(tuple(line), environment)
    torchrun = [launch.python, "-m", "torch.distributed.run", "--standalone", f"--nproc-per-node={launch.ranks}"]
    if launch.tool is None or launch.is_one_report:
        return CommandLine(tuple(_recorded(launch, [*torchrun, *rank], ALL_RANKS)), environment)
    each = _recorded(launch, [sys.executable, *rank], "rank%q{RANK}")
    if launch.stagger_s:
        later = f"--after={launch.stagger_s:g}"
        each = [sys.executable, "-m", "dflash_bench.capture.exec_rank", later, "--", *each]
    return CommandLine((*torchrun, "--no-python", *each), environment)


def _recorded(launch: Launch, command: list[str], stem: str) -> list[str]:
    """The command under nsys, where that records it."""
    if launch.tool is None:
        return command
    return profile_command(
        launch.tool, f"{in_nsys_words(launch.folder)}/{stem}", command, ProfileOptions(default_traces())
    )


def _environment(launch: Launch) -> dict[str, str | None]:
    # One thread per rank, as torchrun would choose with a warning: ranks on one host must not fight for cores.
    found: dict[str, str | None] = {"OMP_NUM_THREADS": os.environ.get("OMP_NUM_THREADS", "1")}
    if launch.version is not None and launch.version.folder is not None:
        found["PYTHONPATH"] = os.pathsep.join(filter(None, (str(launch.version.folder), os.environ.get("PYTHONPATH"))))
    if launch.is_unprofiled:
        return found | {SINK_VARIABLE: "off"}
    if launch.tool is not None:
        return found | {SINK_VARIABLE: None}
    return found | {SINK_VARIABLE: SINK, FOLDER_VARIABLE: str(launch.folder)}
