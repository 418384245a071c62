"""Recording any command of a person's own, by nsys or by what its processes write themselves (the built-in recorder,
torch traces): the same driving, without a ledger to check against."""

from __future__ import annotations

import os
import re
import subprocess
import sys
import threading
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import IO

from dflash_bench.capture import supervise
from dflash_bench.capture.convert import sqlite_of
from dflash_bench.capture.exec_rank import RANK_VARIABLES
from dflash_bench.capture.nsys import NsysTool
from dflash_bench.capture.nsys_command import ProfileOptions, in_nsys_words, profile_command
from dflash_bench.capture.supervise import ChildEnd, Group, Limits, Watch
from dflash_bench.errors import CaptureError, UsageError

_WORLD_VARIABLES = ("WORLD_SIZE", "OMPI_COMM_WORLD_SIZE", "PMI_SIZE", "SLURM_NTASKS", "LOCAL_WORLD_SIZE")
_ALL_PROCESSES = "all_processes"
_PUMP_S = 10
_BAR = re.compile(rb"\r?\[\d+/\d+\] \[[^\]\r\n]*\] [^\r\n\[]*")
"""nsys draws its conversion as dozens of these on one line."""
_STREAM = re.compile(rb"Generating '.*\.qdstrm'\s*$")


@dataclass(frozen=True, slots=True)
class RankPlace:
    """Which of the parallel processes this is: the variable that says so, its value, and how many there are."""

    variable: str
    rank: int
    world: int | None


@dataclass(frozen=True, slots=True)
class CommandCapture:
    """A command to record into ``folder/stem.*``. ``place`` is set when it is started once per rank.

    Without a ``tool`` its processes write files of their own into the folder: those that match ``written``. The names
    of ``variables`` are set for the command, of ``folder_variables`` to the folder.
    """

    command: tuple[str, ...]
    folder: Path
    tool: NsysTool | None
    options: ProfileOptions
    place: RankPlace | None = None
    variables: Mapping[str, str] = field(default_factory=dict)
    folder_variables: tuple[str, ...] = ()
    written: str = "*.sqlite"

    @property
    def stem(self) -> str:
        return _ALL_PROCESSES if self.place is None else f"rank{self.place.rank}"


def place_of(environment: Mapping[str, str]) -> RankPlace:
    """Where among its siblings this process is, from torchrun's, MPI's or Slurm's variables.

    Raises UsageError when none of them is set to a number.
    """
    variable = next((v for v in RANK_VARIABLES if environment.get(v, "").isdecimal()), None)
    if variable is None:
        raise UsageError(
            f"--per-rank needs one of {', '.join(RANK_VARIABLES)} in the environment, and none is set",
            hint="start it once per rank: torchrun --no-python --nproc-per-node 2 dflash-bench capture --per-rank …",
        )
    worlds = (environment[v] for v in _WORLD_VARIABLES if environment.get(v, "").isdecimal())
    world = next(worlds, None)
    return RankPlace(variable, int(environment[variable]), None if world is None else int(world))


def whole_line(capture: CommandCapture) -> list[str]:
    """What is started: the nsys line, or the command itself. Per rank, nsys itself fills the rank into the name."""
    folder = in_nsys_words(capture.folder)
    name = _ALL_PROCESSES if capture.place is None else f"rank%q{{{capture.place.variable}}}"
    inner = [sys.executable, "-m", "dflash_bench.capture.exec_rank", str(capture.folder), "--keep-output", "--"]
    inner += capture.command
    if capture.tool is None:
        return inner
    return profile_command(capture.tool, f"{folder}/{name}", inner, capture.options)


def environment_of(capture: CommandCapture) -> dict[str, str]:
    """Variables that the line needs beside this process's own."""
    found = {**capture.variables, **dict.fromkeys(capture.folder_variables, str(capture.folder))}
    if capture.tool is not None and capture.options.capture_range is not None:
        # Otherwise nsys' range trigger sees registered strings only, and torch.cuda.nvtx registers none.
        found["NSYS_NVTX_PROFILER_REGISTER_ONLY"] = "0"
    return found


def record_command(capture: CommandCapture, output: IO[bytes]) -> tuple[list[Path], ChildEnd]:
    """Run the command; its standard output goes to `output`, its errors where this process's go.

    Returns the SQLite export, or the files that its processes wrote, and how the command ended (its own exit code; nsys
    passes it on). Raises CaptureError or DataError, naming what was left, when there is no readable capture.
    """
    environment = {**os.environ, **environment_of(capture)}
    with supervise.counted_interrupts() as interrupts:
        popen = subprocess.Popen(whole_line(capture), env=environment, stdout=subprocess.PIPE, start_new_session=True)
        assert popen.stdout is not None
        pump = threading.Thread(target=_pump, args=(popen.stdout, output, capture.folder), daemon=True)
        pump.start()
        child = Group(popen, lambda: _group_of(capture.folder, popen.pid))
        # A person's command may be silent for hours: only a person ends it.
        outcome = Watch(child, Limits(silence_s=None), lambda: supervise.bytes_in(capture.folder), interrupts).wait()
        # Not for ever: what the command left running may hold the pipe open.
        pump.join(timeout=_PUMP_S)
    rank = 0 if capture.place is None else capture.place.rank
    (capture.folder / f"rank{rank}.pid").unlink(missing_ok=True)
    if capture.tool is None:
        return _written(capture), outcome
    if not any(capture.folder.glob(f"{capture.stem}.*")) and (window := _window(capture.options)):
        raise CaptureError(f"nothing was recorded: {window}", hint="run it without the window to see its ranges")
    return [sqlite_of(capture.folder, capture.stem, capture.tool)], outcome


def _written(capture: CommandCapture) -> list[Path]:
    found = sorted(capture.folder.glob(capture.written))
    if not found and capture.place is None:
        raise CaptureError(
            f"no process of the command wrote a {capture.written.lstrip('*.')}: it called none of the functions of the "
            "table, or was killed before it could write",
            hint="python -m dflash_bench.annotate TABLE --check FOLDER says which targets the engine has",
        )
    return found


def _window(options: ProfileOptions) -> str | None:
    """Why a capture window may have stayed empty."""
    if options.capture_range is not None:
        return f"{options.capture_range} never began while the command ran"
    if options.delay_s:
        return f"the command ended within the delay of {options.delay_s} s"
    return None


def _without_noise(line: bytes, folder: Path) -> bytes:
    """A line of nsys' output without its progress bars and without the paths it writes to, which do not last.

    Empty when nothing else was in it; lines of the command itself pass unchanged.
    """
    rest = _BAR.sub(b"", line)
    is_bar = rest != line and not rest.strip()
    is_path = rest.strip() == b"Generated:" or os.fsencode(folder) in rest or _STREAM.match(rest)
    return b"" if is_bar or is_path else rest


def _pump(source: IO[bytes], sink: IO[bytes], folder: Path) -> None:
    with source:
        for line in source:
            sink.write(_without_noise(line, folder))
            sink.flush()


def _group_of(folder: Path, launcher: int) -> list[int]:
    """What Ctrl-C in a terminal would reach: the command's process group, as a negative id, where it leads one."""
    found = []
    for pid in supervise.living_ranks(folder):
        with suppress(ProcessLookupError):
            found.append(-pid if pid != launcher and os.getpgid(pid) == pid else pid)
    return found
