"""A command run and measured from outside: wall time, CPU time, and the peak memory of all its processes together."""

from __future__ import annotations

import os
import signal
import statistics
import subprocess
import threading
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

SAMPLE_S = 0.02
PAGE = os.sysconf("SC_PAGE_SIZE")


@dataclass(frozen=True, slots=True)
class Measured:
    """One run. ``peak_bytes``: the largest sum of resident memory over the command's processes that was seen."""

    wall_s: float
    cpu_s: float
    peak_bytes: int
    problem: str | None = None


@dataclass(frozen=True, slots=True)
class Case:
    """Several runs of one command."""

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
    def peak_bytes(self) -> float:
        return statistics.median(r.peak_bytes for r in self.runs)


def run(command: Sequence[str], *, timeout_s: float, cwd: Path) -> Measured:
    """Run a command in a session of its own, so that its children are counted and ended with it."""
    began = time.monotonic()
    process = subprocess.Popen(
        command, cwd=cwd, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True, start_new_session=True
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
        problem = f"exit {process.returncode}: {(said[0].strip().splitlines() or [''])[-1][:80]}"
    return Measured(wall, usage.ru_utime + usage.ru_stime, max(peak[0], usage.ru_maxrss * 1024), problem)


def _sample(session: int, peak: list[int], done: threading.Event) -> None:
    while not done.wait(SAMPLE_S):
        peak[0] = max(peak[0], sum(_resident(p) for p in _members(session)))


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


def _resident(pid: str) -> int:
    try:
        fields = Path("/proc", pid, "statm").read_text().split()
    except OSError:
        return 0
    # without what is shared: libraries and file pages of several processes would count several times
    return (int(fields[1]) - int(fields[2])) * PAGE
