"""Watching a child until it ends: progress, a limit on silence, and an orderly end on Ctrl-C.

Ending is a ladder: SIGINT to the ranks, which then finish their step and write what they have, so that nsys sees a
program that ended by itself; then SIGTERM; then SIGKILL to everything below the child. Each rung is given time, and
another Ctrl-C goes to the next at once. nsys itself is never interrupted first: it would stop recording and convert
while the ranks still work.
"""

from __future__ import annotations

import logging
import os
import signal
import subprocess
import threading
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from enum import IntEnum
from pathlib import Path
from types import FrameType
from typing import IO, Protocol

log = logging.getLogger(__name__)

_POLL_S = 0.1


class Rung(IntEnum):
    """How hard the child has been asked to end."""

    RUNNING = 0
    INTERRUPTED = 1
    TERMINATED = 2
    KILLED = 3


@dataclass(frozen=True, slots=True)
class Limits:
    """Seconds. ``silence_s``: without any sign of life before the child is ended; None waits for ever.

    The others say how long each rung of the ladder is given before the next.
    """

    silence_s: float | None = 300.0
    interrupt_s: float = 30.0
    terminate_s: float = 15.0

    def of(self, rung: Rung) -> float | None:
        """How long to wait on a rung."""
        return {Rung.INTERRUPTED: self.interrupt_s, Rung.TERMINATED: self.terminate_s}.get(rung, self.silence_s)


@dataclass(frozen=True, slots=True)
class ChildEnd:
    """How a child ended. ``code`` is its exit code, negative for a signal; ``rung`` how hard it was asked to."""

    code: int
    rung: Rung = Rung.RUNNING
    is_silent: bool = False

    @property
    def is_interrupted(self) -> bool:
        """Whether a person ended it."""
        return self.rung > Rung.RUNNING and not self.is_silent


class _Child(Protocol):
    """A running command that can be asked to end."""

    def poll(self) -> int | None:
        """Its exit code, or None while it runs."""

    def end(self, rung: Rung) -> None:
        """Ask it to end, as hard as the rung says."""


class Watch:
    """Waits for one child. `signs` returns anything that differs when there was a sign of life; `interrupts` how often
    a person has asked for the end so far.
    """

    def __init__(
        self,
        child: _Child,
        limits: Limits,
        signs: Callable[[], object] = lambda: None,
        interrupts: Callable[[], int] = lambda: 0,
        *,
        clock: Callable[[], float] = time.monotonic,
        sleep: Callable[[float], None] = time.sleep,
    ) -> None:
        self._child = child
        self._limits = limits
        self._signs = signs
        self._interrupts = interrupts
        self._clock = clock
        self._sleep = sleep
        self._rung = Rung.RUNNING
        self._is_silent = False
        self._num_heeded = 0
        self._since = clock()
        self._last: object = None

    def wait(self) -> ChildEnd:
        """Returns when the child has ended, whatever it took."""
        while (code := self._child.poll()) is None:
            self._sleep(_POLL_S)
            self._look()
        return ChildEnd(code, self._rung, self._is_silent)

    def _look(self) -> None:
        if self._interrupts() > self._num_heeded:
            self._num_heeded = self._interrupts()
            self._escalate()
            return
        signs = self._signs()
        # Signs of life extend the wait for a run and for its conversion after Ctrl-C, not for one that will not die.
        if signs != self._last and self._rung < Rung.TERMINATED:
            self._last, self._since = signs, self._clock()
        limit = self._limits.of(self._rung)
        if limit is not None and self._clock() - self._since >= limit:
            self._is_silent = self._is_silent or self._rung is Rung.RUNNING
            self._escalate()

    def _escalate(self) -> None:
        self._rung = Rung(min(self._rung + 1, Rung.KILLED))
        self._since = self._clock()
        log.info("ending the run: %s", self._rung.name.lower())
        self._child.end(self._rung)


class Group:
    """A command in a session of its own, so that the terminal's Ctrl-C does not reach it past this process.

    `ranks` returns the processes that are the ranks; SIGINT goes to them alone, or to the command itself while there
    are none.
    """

    def __init__(self, popen: subprocess.Popen[bytes], ranks: Callable[[], Sequence[int]] = tuple) -> None:
        self.popen = popen
        self._ranks = ranks

    def poll(self) -> int | None:
        return self.popen.poll()

    def end(self, rung: Rung) -> None:
        below = _descendants(self.popen.pid)
        if rung is Rung.KILLED:
            # A rank's parent may be gone already; its pid is then known only from what it noted itself.
            _signal_all({*self._ranks(), *below, self.popen.pid}, signal.SIGKILL)
        elif rung is Rung.INTERRUPTED:
            _signal_all(self._ranks() or [self.popen.pid], signal.SIGINT)
        else:
            _signal_all({*self._ranks(), self.popen.pid}, signal.SIGTERM)


class Groups:
    """Several commands that need each other: when one fails, the others are asked to end."""

    def __init__(self, groups: Sequence[Group]) -> None:
        self._groups = groups
        self.failed: int | None = None
        """Which of them failed first."""

    def poll(self) -> int | None:
        codes = [group.poll() for group in self._groups]
        if self.failed is None and (failed := [k for k, code in enumerate(codes) if code]):
            self.failed = failed[0]
            self.end(Rung.INTERRUPTED)
        return None if None in codes else codes[self.failed or 0]

    def end(self, rung: Rung) -> None:
        for group in self._groups:
            if group.poll() is None:
                group.end(rung)


def start(command: Sequence[str], environment: Mapping[str, str], output: IO[bytes] | int) -> subprocess.Popen[bytes]:
    """Start a command in a new session; `output` takes both its streams, and it has no input."""
    return subprocess.Popen(
        command,
        env=environment,
        stdin=subprocess.DEVNULL,
        stdout=output,
        stderr=subprocess.STDOUT,
        start_new_session=True,
    )


@contextmanager
def counted_interrupts() -> Iterator[Callable[[], int]]:
    """Count SIGINT and SIGTERM to this process instead of acting on them; gives the counter.

    SIGTERM too, so that a cancelled job still keeps what is whole. Counting rather than raising: an exception could
    come between any two statements and leave the ranks without anyone who ends them.
    """
    count = 0

    def note(_number: int, _frame: FrameType | None) -> None:
        nonlocal count
        count += 1

    if threading.current_thread() is not threading.main_thread():
        yield lambda: 0
        return
    previous = {number: signal.signal(number, note) for number in (signal.SIGINT, signal.SIGTERM)}
    try:
        yield lambda: count
    finally:
        for number, handler in previous.items():
            signal.signal(number, handler)


def bytes_in(folder: Path) -> int:
    """Bytes in a folder's files; grows while something is being written. Files may come and go meanwhile."""
    total = 0
    for path in folder.iterdir():
        with suppress(FileNotFoundError):
            total += path.stat().st_size
    return total


def living_ranks(folder: Path) -> list[int]:
    """Process ids that the ranks of a run noted in its folder, of those that run now."""
    noted = (path.read_text(encoding="ascii").strip() for path in sorted(folder.glob("rank*.pid")))
    return [int(text) for text in noted if text.isdecimal() and is_alive(int(text))]


def is_alive(pid: int) -> bool:
    """Whether a process exists and is not a zombie."""
    state = _stat(pid)
    return state is not None and state[0] not in "ZX"


def _descendants(pid: int) -> list[int]:
    """All processes below one, nearest first."""
    children: dict[int, list[int]] = {}
    for entry in Path("/proc").iterdir():
        if entry.name.isdecimal() and (state := _stat(int(entry.name))) is not None:
            children.setdefault(state[1], []).append(int(entry.name))
    found, todo = [], [pid]
    while todo:
        below = children.get(todo.pop(0), [])
        found += below
        todo += below
    return found


def _stat(pid: int) -> tuple[str, int] | None:
    """(state, parent) from /proc, None when there is no such process."""
    try:
        # The name in parentheses may hold blanks and parentheses itself: what follows the last one counts.
        state, parent = Path(f"/proc/{pid}/stat").read_text(errors="replace").rpartition(")")[2].split()[:2]
    except (OSError, ValueError):
        return None
    return state, int(parent)


def _signal_all(pids: Iterable[int], number: signal.Signals) -> None:
    for pid in pids:
        with suppress(ProcessLookupError):
            os.kill(pid, number)
