"""Ending a run: asked politely, then firmly, then for good; with a fake clock, then with real processes."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from dflash_bench.capture.supervise import (
    ChildEnd,
    Group,
    Limits,
    Rung,
    Watch,
    _descendants,
    counted_interrupts,
    is_alive,
    start,
)

LIMITS = Limits(silence_s=60, interrupt_s=20, terminate_s=10)


class FakeTime:
    """A clock that moves only by sleeping, and calls what is due."""

    def __init__(self) -> None:
        self.now = 0.0
        self.due: list[tuple[float, Callable[[], None]]] = []

    def clock(self) -> float:
        return self.now

    def sleep(self, seconds: float) -> None:
        self.now += seconds
        for at, act in [d for d in self.due if d[0] <= self.now]:
            act()
            self.due.remove((at, act))


class FakeChild:
    """Ends when asked at least as hard as `obeys`, or at a given time."""

    def __init__(self, time_: FakeTime, obeys: Rung = Rung.KILLED, ends_at: float | None = None) -> None:
        self.time, self.obeys, self.ends_at = time_, obeys, ends_at
        self.asked: list[tuple[float, Rung]] = []

    def poll(self) -> int | None:
        if self.ends_at is not None and self.time.now >= self.ends_at:
            return 0
        return -9 if self.asked and self.asked[-1][1] >= self.obeys else None

    def end(self, rung: Rung) -> None:
        self.asked.append((round(self.time.now), rung))


def test_a_child_that_ends_by_itself_is_never_asked_to() -> None:
    time_ = FakeTime()
    child = FakeChild(time_, ends_at=5)
    assert Watch(child, LIMITS, clock=time_.clock, sleep=time_.sleep).wait() == ChildEnd(0)
    assert child.asked == []


def test_silence_ends_the_child_rung_by_rung_and_is_told_apart_from_an_interrupt() -> None:
    time_ = FakeTime()
    child = FakeChild(time_)
    outcome = Watch(child, LIMITS, clock=time_.clock, sleep=time_.sleep).wait()
    assert child.asked == [(60, Rung.INTERRUPTED), (80, Rung.TERMINATED), (90, Rung.KILLED)]
    assert outcome.is_silent
    assert not outcome.is_interrupted


def test_signs_of_life_put_the_limit_off() -> None:
    time_ = FakeTime()
    child = FakeChild(time_, ends_at=300)
    watch = Watch(child, LIMITS, lambda: int(time_.now) // 50, clock=time_.clock, sleep=time_.sleep)
    assert watch.wait() == ChildEnd(0)
    assert child.asked == []


def test_without_a_limit_a_silent_child_may_run_for_ever() -> None:
    time_ = FakeTime()
    child = FakeChild(time_, ends_at=100_000)
    limits = Limits(silence_s=None)
    assert Watch(child, limits, clock=time_.clock, sleep=lambda _: time_.sleep(100)).wait() == ChildEnd(0)


def test_an_interrupt_asks_once_and_waits_while_there_are_signs_of_life() -> None:
    time_ = FakeTime()
    child = FakeChild(time_, ends_at=200)
    interrupts = [0]
    time_.due.append((5, lambda: interrupts.__setitem__(0, 1)))
    watch = Watch(child, LIMITS, lambda: int(time_.now), lambda: interrupts[0], clock=time_.clock, sleep=time_.sleep)
    outcome = watch.wait()
    assert child.asked == [(5, Rung.INTERRUPTED)]
    assert outcome.is_interrupted
    assert outcome.code == 0


def test_a_second_interrupt_does_not_wait_for_the_first() -> None:
    time_ = FakeTime()
    child = FakeChild(time_, obeys=Rung.TERMINATED)
    interrupts = [0]
    for at in (5, 6):
        time_.due.append((at, lambda: interrupts.__setitem__(0, interrupts[0] + 1)))
    outcome = Watch(child, LIMITS, lambda: None, lambda: interrupts[0], clock=time_.clock, sleep=time_.sleep).wait()
    assert child.asked == [(5, Rung.INTERRUPTED), (6, Rung.TERMINATED)]
    assert outcome == ChildEnd(-9, Rung.TERMINATED)


def test_a_child_that_will_not_die_gets_no_more_time_for_looking_busy() -> None:
    time_ = FakeTime()
    child = FakeChild(time_)
    interrupts = [0]
    for at in (5, 6):
        time_.due.append((at, lambda: interrupts.__setitem__(0, interrupts[0] + 1)))
    signs = lambda: time_.now  # noqa: E731
    Watch(child, LIMITS, signs, lambda: interrupts[0], clock=time_.clock, sleep=time_.sleep).wait()
    assert child.asked[-1] == (16, Rung.KILLED)


def test_signals_to_the_harness_are_counted_and_the_handlers_given_back() -> None:
    before = signal.getsignal(signal.SIGINT), signal.getsignal(signal.SIGTERM)
    with counted_interrupts() as interrupts:
        os.kill(os.getpid(), signal.SIGINT)
        os.kill(os.getpid(), signal.SIGTERM)
        assert interrupts() == 2
    assert (signal.getsignal(signal.SIGINT), signal.getsignal(signal.SIGTERM)) == before


RANK = """
import os, signal, sys, time
from pathlib import Path
signal.signal(signal.SIGINT, lambda *_: sys.exit(0) if OBEYS else None)
signal.signal(signal.SIGTERM, lambda *_: None)
Path(sys.argv[1]).write_text(str(os.getpid()))
while True: time.sleep(0.02)
"""
LAUNCHER = """
import subprocess, sys, signal
signal.signal(signal.SIGTERM, lambda *_: None)
rank = subprocess.Popen([sys.executable, "-c", sys.argv[2], sys.argv[1]], start_new_session=True)
sys.exit(rank.wait())
"""


def launch(tmp_path: Path, *, obeys: bool) -> tuple[Group, Callable[[], list[int]]]:
    """A launcher whose rank sits in a session of its own, as torchrun's and nsys' do."""
    note = tmp_path / "pid"
    rank = RANK.replace("OBEYS", str(obeys))
    popen = start([sys.executable, "-c", LAUNCHER, str(note), rank], dict(os.environ), subprocess.DEVNULL)

    def ranks() -> list[int]:
        return [int(note.read_text())] if note.exists() and note.read_text() else []

    while not ranks():
        time.sleep(0.01)
    return Group(popen, ranks), ranks


def test_the_interrupt_goes_to_the_rank_and_the_launcher_ends_by_itself(tmp_path: Path) -> None:
    group, ranks = launch(tmp_path, obeys=True)
    (rank,) = ranks()
    assert is_alive(rank)
    assert rank in _descendants(group.popen.pid)
    outcome = Watch(group, LIMITS, interrupts=lambda: 1).wait()
    assert outcome == ChildEnd(0, Rung.INTERRUPTED)
    assert not is_alive(rank)


def test_what_obeys_nothing_is_killed_with_everything_below_it(tmp_path: Path) -> None:
    group, ranks = launch(tmp_path, obeys=False)
    (rank,) = ranks()
    outcome = Watch(group, Limits(interrupt_s=0.2, terminate_s=0.2), interrupts=lambda: 1).wait()
    assert outcome == ChildEnd(-signal.SIGKILL, Rung.KILLED)
    while is_alive(rank):
        time.sleep(0.01)


def test_a_process_that_is_not_there_is_not_alive() -> None:
    done = subprocess.Popen([sys.executable, "-c", ""])
    done.wait()
    assert not is_alive(done.pid)
    assert _descendants(done.pid) == []


@pytest.mark.parametrize(("rung", "seconds"), [(Rung.RUNNING, 60), (Rung.INTERRUPTED, 20), (Rung.TERMINATED, 10)])
def test_every_rung_has_its_time(rung: Rung, seconds: float) -> None:
    assert LIMITS.of(rung) == seconds
