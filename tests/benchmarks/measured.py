"""A command run and measured from outside: wall time, CPU time, and the peak memory of all its processes together."""

from __future__ import annotations

import itertools
import os
import signal
import statistics
import subprocess
import threading
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

KEEPS_BYTECODE = {"PYTHONDONTWRITEBYTECODE": ""}
"""As Python does where nobody forbids it: else every process compiles its modules anew."""
SAMPLE_S = 0.05
SAMPLES_PER_SEARCH = 4
"""New processes are looked for less often: that reads the state of every process, on the cores that are measured."""


@dataclass(frozen=True, slots=True)
class Measured:
    """One run. ``peak_bytes``: the largest sum of memory over the command's processes that was seen.

    ``problem`` says why the run is no result; one that was stopped still took at least ``wall_s``.
    """

    wall_s: float
    cpu_s: float
    peak_bytes: int
    problem: str | None = None


@dataclass(frozen=True, slots=True)
class Case:
    """Several runs of one command, and their medians."""

    name: str
    runs: tuple[Measured, ...]

    @property
    def problem(self) -> str | None:
        return next((r.problem for r in self.runs if r.problem), None)

    @property
    def wall_s(self) -> float:
        return statistics.median(r.wall_s for r in self.runs)

    @property
    def cpu_s(self) -> float:
        return statistics.median(r.cpu_s for r in self.runs)

    @property
    def peak_mb(self) -> float:
        return statistics.median(r.peak_bytes for r in self.runs) / 1e6


def run_in_turns(
    commands: Mapping[str, Sequence[str]],
    repeats: int,
    *,
    timeout_s: float,
    cwd: Path,
    environment: Mapping[str, str] | None = None,
) -> list[Case]:
    """Run the commands one after the other, again and again, so that a busy machine slows all of them alike."""
    found: dict[str, list[Measured]] = {name: [] for name in commands}
    for _ in range(repeats):
        for name, command in commands.items():
            found[name].append(run(command, timeout_s=timeout_s, cwd=cwd, environment=environment))
    return [Case(name, tuple(runs)) for name, runs in found.items()]


def run(
    command: Sequence[str], *, timeout_s: float, cwd: Path, environment: Mapping[str, str] | None = None
) -> Measured:
    """Run a command in a session of its own, so that its children are counted and ended with it."""
    began = time.monotonic()
    process = subprocess.Popen(
        command,
        cwd=cwd,
        env={**os.environ, **KEEPS_BYTECODE, **(environment or {})},
        stdout=subprocess.DEVNULL,
        stderr=subprocess.PIPE,
        text=True,
        start_new_session=True,
    )
    peak, done = [0], threading.Event()
    sampler = threading.Thread(target=_sample, args=(process.pid, peak, done))
    sampler.start()
    said: list[str] = []
    reader = threading.Thread(target=lambda: said.append(process.stderr.read() if process.stderr else ""))
    reader.start()
    timer = threading.Timer(timeout_s, os.killpg, (process.pid, signal.SIGKILL))
    timer.start()
    # wait4 gives the CPU time of the process and of all children that it waited for
    _, status, usage = os.wait4(process.pid, 0)
    wall = time.monotonic() - began
    timer.cancel()
    done.set()
    sampler.join()
    reader.join()
    process.returncode = os.waitstatus_to_exitcode(status)
    problem = None
    if process.returncode == -signal.SIGKILL and wall >= timeout_s:
        problem = f"stopped after {timeout_s:.0f} s"
    elif process.returncode:
        words = [line.strip() for line in said[0].splitlines() if any(char.isalpha() for char in line)]
        problem = f"exit {process.returncode}: {(words or ['without a word'])[-1][:100]}"
    # not ru_maxrss, which counts what this process held when it started the command
    return Measured(wall, usage.ru_utime + usage.ru_stime, peak[0], problem)


def _sample(session: int, peak: list[int], done: threading.Event) -> None:
    members: list[str] = []
    for k in itertools.count():
        if done.wait(SAMPLE_S):
            return
        if k % SAMPLES_PER_SEARCH == 0:
            members = _members(session)
        peak[0] = max(peak[0], sum(_memory(pid) for pid in members))


def _members(session: int) -> list[str]:
    """Process ids of a session."""
    found = []
    for folder in Path("/proc").iterdir():
        if folder.name.isdigit():
            try:
                stat = (folder / "stat").read_text()
            except OSError:
                continue  # it ended meanwhile
            if int(stat.rpartition(")")[2].split()[3]) == session:
                found.append(folder.name)
    return found


def _memory(pid: str) -> int:
    """Memory of a process, of what it shares with others (libraries, above all) its share: so that sums are right."""
    try:
        lines = Path("/proc", pid, "smaps_rollup").read_text().splitlines()
    except OSError:
        return 0
    return next((int(line.split()[1]) * 1024 for line in lines if line.startswith("Pss:")), 0)
