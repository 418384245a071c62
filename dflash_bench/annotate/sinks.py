"""Where the ranges of an annotated process go: NVTX, the built-in recorder, or the torch profiler.

A sink gives two functions without arguments for a range, so that a call inside the engine binds nothing.
"""

from __future__ import annotations

import functools
import importlib
import os
import sys
import threading
from collections.abc import Callable
from enum import StrEnum
from pathlib import Path
from typing import Any, Protocol

DOMAIN = "dflash"
NVTX_VARIABLE = "DFLASH_BENCH_ANNOTATE_NVTX"
"""``<cache tag>:<folder of the package nvtx>``: what a process of the same Python takes when it has none of its own."""
RUNNING = "running"
"""Suffix of the note of a process that records."""
TRACE_VARIABLE = "DFLASH_BENCH_TORCH_TRACE"
"""The folder that torch traces are written to."""
STACKS_VARIABLE = "DFLASH_BENCH_TORCH_STACKS"
"""Not empty: with the frames of Python."""
TRACE_SKIP, TRACE_STEPS = 30, 50
"""Steps before a torch trace begins and steps in it; a trace of whole minutes is hundreds of megabytes."""

Emit = Callable[[], object]


class SinkKind(StrEnum):
    """The values of DFLASH_BENCH_ANNOTATE_SINK."""

    NVTX = "nvtx"
    RECORDER = "recorder"
    TORCH = "torch"


class AnnotationSink(Protocol):
    """Where ranges and marks go."""

    def range(self, name: str, *, is_step: bool) -> tuple[Emit, Emit]:
        """What opens and what closes a range of that name on the calling thread."""

    def mark(self, text: str) -> None:
        """An instant with a text."""

    def forked(self) -> None:
        """Called in a forked child: what was emitted so far is the parent's."""


def make_sink(kind: SinkKind) -> AnnotationSink:
    """Raises ImportError when the sink's package is not there, and CaptureError when its folder is not."""
    kinds: dict[SinkKind, type[_Nvtx | _Recorder | _Torch]] = {
        SinkKind.NVTX: _Nvtx,
        SinkKind.RECORDER: _Recorder,
        SinkKind.TORCH: _Torch,
    }
    return kinds[kind]()


class _Nvtx:
    """Attributes are registered once a name. Up to 0.2.11 the package has no public way to push them without a Python
    object in between, so its compiled functions are called; from 0.2.12 on there is ``Domain.push_range``."""

    def __init__(self) -> None:
        nvtx = _nvtx()
        self._domain: Any = nvtx.get_domain(DOMAIN)
        self._mark = functools.partial(nvtx.mark, domain=DOMAIN)
        if hasattr(self._domain, "push_range"):
            self._push, self._pop = self._domain.push_range, self._domain.pop_range
            self._rest: tuple[Any, ...] = ()
        else:
            from nvtx._lib import pop_range, push_range

            self._rest = (self._domain.handle,)
            self._push, self._pop = push_range, functools.partial(pop_range, *self._rest)

    def range(self, name: str, *, is_step: bool) -> tuple[Emit, Emit]:
        attributes = self._domain.get_event_attributes(message=name, color="blue")
        return functools.partial(self._push, attributes, *self._rest), self._pop

    def mark(self, text: str) -> None:
        self._mark(text)

    def forked(self) -> None:
        pass


def _nvtx() -> Any:
    """The package of this environment, else that of the tool's where it was built for the same Python."""
    try:
        import nvtx
    except ImportError:
        tag, _, folder = os.environ.get(NVTX_VARIABLE, "").partition(":")
        if tag != sys.implementation.cache_tag:
            raise
        from dflash_bench.annotate.elsewhere import load_package

        return load_package("nvtx", Path(folder))
    return nvtx


class _Recorder:
    """The built-in recorder: a file for each process that emits anything, written when it ends in an orderly way.

    While a process that has said something is alive, ``pid<PID>.running`` lies in the folder: what is left of these
    afterwards was killed, and its ranges are lost.
    """

    def __init__(self) -> None:
        from dflash_bench.capture.recorder import FOLDER_VARIABLE, EventRecorder, Origin, close_at_end

        self._folder = Path(os.environ[FOLDER_VARIABLE])
        self._note: Path | None = None
        self._recorder = EventRecorder(self._path("sqlite"), DOMAIN, Origin.of_environment(), on_close=self._closed)
        close_at_end(self._recorder)

    def _path(self, suffix: str) -> Path:
        return self._folder / f"pid{os.getpid()}.{suffix}"

    def range(self, name: str, *, is_step: bool) -> tuple[Emit, Emit]:
        return functools.partial(self._recorder.push, name), self._recorder.pop

    def mark(self, text: str) -> None:
        if self._note is None:
            self._note = self._path(RUNNING)
            self._note.touch()
        self._recorder.mark(text)

    def forked(self) -> None:
        self._note = None
        self._recorder.begin_anew(self._path("sqlite"))

    def _closed(self) -> None:
        if self._note is not None:
            self._note.unlink(missing_ok=True)


class _Torch:
    """``record_function`` ranges; a process that has steps is profiled for some of them, after a warm-up.

    The torch profiler has no marks: a mark is an empty range.
    """

    def __init__(self) -> None:
        self._torch: Any = importlib.import_module("torch")  # the engine's, not a dependency of ours
        self._enter: Any = self._torch.ops.profiler._record_function_enter_new
        self._exit: Any = self._torch.ops.profiler._record_function_exit._RecordFunction
        self._local = threading.local()
        self._steps = 0
        self._profiler: Any = None

    def range(self, name: str, *, is_step: bool) -> tuple[Emit, Emit]:
        return functools.partial(self._step if is_step else self._push, name), self._pop

    def mark(self, text: str) -> None:
        self._push(text)
        self._pop()

    def forked(self) -> None:
        pass

    def _stacks(self) -> dict[str, object]:
        """Python's frames in the trace, where they are asked for: they make every step several times as long."""
        if not os.environ.get(STACKS_VARIABLE):
            return {}
        verbose = self._torch._C._profiler._ExperimentalConfig(verbose=True)
        return {"with_stack": True, "experimental_config": verbose}

    def _push(self, name: str) -> None:
        handles = self._local.__dict__.setdefault("handles", [])
        handles.append(self._enter(name, None))

    def _pop(self) -> None:
        self._exit(self._local.handles.pop())

    def _step(self, name: str) -> None:
        self._steps += 1
        folder = os.environ.get(TRACE_VARIABLE)
        if folder and self._steps == TRACE_SKIP + 1:
            self._profiler = self._torch.profiler.profile(**self._stacks())
            self._profiler.start()
        elif self._profiler is not None and self._steps == TRACE_SKIP + TRACE_STEPS + 1:
            profiler, self._profiler = self._profiler, None
            profiler.stop()
            profiler.export_chrome_trace(str(Path(folder or ".") / f"pid{os.getpid()}.pt.trace.json.gz"))
        self._push(name)
