"""The built-in recorder: ranges of one process, written as an nsys SQLite export when the process ends.

Name it to the decode loop with ``DFLASH_PREP_SINK=dflash_bench.capture.recorder:sink`` and
``DFLASH_BENCH_RECORD=FOLDER``; each rank then writes ``FOLDER/rank<R>.sqlite``. It sees what goes through the loop's
ranges module and nothing else: no CUDA, no library ranges. Where nsys can be used, nsys sees more.

In the hot path an event is two appends to the calling thread's own buffers: no lock, no container object that would
wake the garbage collector, one clock reading. Pairing and writing happen once, at the end.
"""

from __future__ import annotations

import atexit
import os
import signal
import threading
from array import array
from collections.abc import Callable
from dataclasses import dataclass
from multiprocessing import util
from pathlib import Path
from time import monotonic_ns, time_ns
from types import FrameType

from dflash_bench.capture.recording import (
    RecordedCall,
    RecordedMark,
    RecordedRange,
    RecordedThread,
    RecordedWork,
    Recording,
    WorkKind,
)
from dflash_bench.capture.recording_file import write_recording
from dflash_bench.errors import CaptureError

FOLDER_VARIABLE = "DFLASH_BENCH_RECORD"
"""The folder that the capture is written to; it must exist."""
ORIGIN_VARIABLE = "DFLASH_BENCH_RECORD_ORIGIN"
"""``<CLOCK_MONOTONIC ns>,<UTC epoch ns>`` of capture time 0, common to all ranks of a host. Without it: now."""

_Clock = Callable[[], int]


@dataclass(frozen=True, slots=True)
class Origin:
    """Capture time 0 on this host's monotonic clock, and the same instant in UTC."""

    clock_ns: int
    utc_ns: int

    @classmethod
    def now(cls) -> Origin:
        return cls(monotonic_ns(), time_ns())

    @classmethod
    def parse(cls, text: str) -> Origin:
        """The value of ORIGIN_VARIABLE. Raises CaptureError when it is not two integers."""
        try:
            clock_ns, utc_ns = map(int, text.split(","))
        except ValueError:
            raise CaptureError(f"{ORIGIN_VARIABLE}={text!r} is not two integers with a comma between") from None
        return cls(clock_ns, utc_ns)

    @classmethod
    def of_environment(cls) -> Origin | None:
        """What the environment says, if it does."""
        text = os.environ.get(ORIGIN_VARIABLE)
        return cls.parse(text) if text else None

    def __str__(self) -> str:
        return f"{self.clock_ns},{self.utc_ns}"


class _ThreadBuffer:
    """The events of one thread: a name and an instant each; a pop has no name, a mark is wrapped in a tuple."""

    __slots__ = ("instants", "names", "tid", "title")

    def __init__(self) -> None:
        self.tid = threading.get_native_id()
        self.title = threading.current_thread().name
        self.names: list[str | tuple[str] | None] = []
        self.instants = array("q")


class _Local(threading.local):
    buffer: _ThreadBuffer | None = None


class EventRecorder:
    """Buffers what one rank emits and writes it once.

    A sink in the sense of the decode loop: ``push``, ``pop``, ``mark``, ``close``. ``api_call`` and ``gpu_work`` are
    for a simulated device. `clock` counts nanoseconds and is by default the one all processes of a host share.
    `on_close` is called once the file is written; of a recorder that has it nothing is written where it got nothing.
    """

    def __init__(
        self,
        path: Path,
        domain: str = "dflash",
        origin: Origin | None = None,
        clock: _Clock = monotonic_ns,
        on_close: Callable[[], None] | None = None,
    ):
        self.path = path
        self._on_close = on_close
        self._domain = domain
        self._origin = origin or Origin.now()
        self._clock = clock
        self._local = _Local()
        self._buffers: list[_ThreadBuffer] = []
        self._api_calls: list[RecordedCall] = []
        self._gpu_work: list[RecordedWork] = []
        self._pid = os.getpid()
        self._is_closed = False

    def push(self, name: str) -> None:
        """Open a range on the calling thread."""
        buffer = self._local.buffer or self._new_buffer()
        buffer.names.append(name)
        buffer.instants.append(self._clock())

    def pop(self) -> None:
        """Close the innermost open range of the calling thread; without one, nothing, as in NVTX."""
        instant = self._clock()
        buffer = self._local.buffer or self._new_buffer()
        buffer.names.append(None)
        buffer.instants.append(instant)

    def mark(self, text: str) -> None:
        """An instant with a text."""
        buffer = self._local.buffer or self._new_buffer()
        buffer.names.append((text,))
        buffer.instants.append(self._clock())

    def api_call(self, name: str, start_ns: int, end_ns: int, correlation_id: int) -> None:
        """A call that the calling thread made into a simulated device; instants are of this recorder's clock."""
        tid = (self._local.buffer or self._new_buffer()).tid
        self._api_calls.append(RecordedCall(name, tid, start_ns, end_ns, correlation_id))

    def gpu_work(
        self,
        kind: WorkKind | str,
        name: str,
        start_ns: int,
        end_ns: int,
        correlation_id: int,
        *,
        device: int = 0,
        stream: int = 7,
        num_bytes: int = 0,
        graph_exec_id: int = 0,
    ) -> None:
        """Work that a simulated device did: ``kernel``, ``memcpy``, ``memset`` or ``graph`` (one replay).

        The (process, correlation_id) of the call that launched it joins the two.
        """
        self._gpu_work.append(
            RecordedWork(
                WorkKind(kind), name, start_ns, end_ns, correlation_id, device, stream, num_bytes, graph_exec_id
            )
        )

    def close(self) -> None:
        """Write the capture, once; later calls and calls in a forked child do nothing."""
        if self._is_closed or os.getpid() != self._pid:
            return
        self._is_closed = True
        if self._buffers or self._on_close is None:
            write_recording(self.recording(), self.path)
        if self._on_close is not None:
            self._on_close()

    def recording(self) -> Recording:
        """What would be written: instants relative to the origin, ranges paired, open ones without an end."""
        zero = self._origin.clock_ns
        ranges: list[RecordedRange] = []
        marks: list[RecordedMark] = []
        for buffer in self._buffers:
            _replay(buffer, zero, ranges, marks)
        return Recording(
            pid=self._pid,
            domain=self._domain,
            utc_origin_ns=self._origin.utc_ns,
            duration_ns=self._clock() - zero,
            threads=tuple(RecordedThread(b.tid, b.title) for b in self._buffers),
            ranges=tuple(ranges),
            marks=tuple(marks),
            api_calls=tuple(c.shifted(-zero) for c in self._api_calls),
            gpu_work=tuple(w.shifted(-zero) for w in self._gpu_work),
        )

    def begin_anew(self, path: Path) -> None:
        """In a forked child: what was emitted so far is the parent's, and what comes goes to a file of its own."""
        self.path, self._pid, self._is_closed = path, os.getpid(), False
        self._local = _Local()
        self._buffers.clear()
        self._api_calls.clear()
        self._gpu_work.clear()

    def _new_buffer(self) -> _ThreadBuffer:
        buffer = _ThreadBuffer()
        self._local.buffer = buffer
        self._buffers.append(buffer)
        return buffer


def sink(rank: int, world: int) -> EventRecorder:
    """The recorder of one rank, set up from the environment; it writes at ``close``, at exit, and on SIGTERM.

    Raises CaptureError when DFLASH_BENCH_RECORD does not name a folder.
    """
    folder = os.environ.get(FOLDER_VARIABLE, "")
    if not folder or not Path(folder).is_dir():
        raise CaptureError(f"{FOLDER_VARIABLE}={folder!r} is not a folder to record rank {rank} of {world} into")
    recorder = EventRecorder(Path(folder) / f"rank{rank}.sqlite", origin=Origin.of_environment())
    close_at_end(recorder)
    return recorder


def close_at_end(recorder: EventRecorder) -> None:
    """Have it written at exit, on SIGTERM, and at the end of a child that multiprocessing forks later."""
    atexit.register(recorder.close)
    _close_on_sigterm(recorder)
    # multiprocessing ends its forked children without atexit; what is registered before the fork is forgotten in them
    util.register_after_fork(recorder, lambda child: util.Finalize(child, child.close, exitpriority=0))


def _close_on_sigterm(recorder: EventRecorder) -> None:
    # SIGINT raises KeyboardInterrupt and so reaches atexit; SIGTERM's default ends the process before it. A program
    # that handles SIGTERM itself is expected to close its sink.
    if threading.current_thread() is not threading.main_thread() or signal.getsignal(signal.SIGTERM) != signal.SIG_DFL:
        return

    def write_and_die(number: int, _frame: FrameType | None) -> None:
        recorder.close()
        signal.signal(number, signal.SIG_DFL)
        os.kill(os.getpid(), number)

    signal.signal(signal.SIGTERM, write_and_die)


def _replay(buffer: _ThreadBuffer, zero: int, ranges: list[RecordedRange], marks: list[RecordedMark]) -> None:
    open_: list[tuple[str, int]] = []
    for name, instant in zip(list(buffer.names), list(buffer.instants), strict=False):
        at = instant - zero
        if isinstance(name, tuple):
            marks.append(RecordedMark(name[0], buffer.tid, at))
        elif name is not None:
            open_.append((name, at))
        elif open_:
            opened, start = open_.pop()
            ranges.append(RecordedRange(opened, buffer.tid, start, at))
    ranges.extend(RecordedRange(name, buffer.tid, start, None) for name, start in open_)
