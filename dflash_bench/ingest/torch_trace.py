"""Chrome traces of the torch profiler (``.json``, ``.json.gz``, one per rank), as SGLang and vLLM write them.

User annotations become ranges, ``cuda_runtime``/``cuda_driver`` events API calls, kernels, copies and memsets GPU work.
Everything else (operators, Python frames, flow arrows) is passed over. The file is streamed; only names are kept whole.

A trace says its rank in ``distributedInfo``. It has no range domains: annotations with a library's prefix (``nccl:``)
get that prefix as their domain, so that they never take the blame for the program's own time. Counters that the
profiler puts into names (``ProfilerStep#12``) are taken off.
"""

from __future__ import annotations

import gzip
import re
import zlib
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from decimal import Decimal
from pathlib import Path
from typing import IO, Any, ClassVar

import numpy as np
import pyarrow as pa

from dflash_bench.errors import DataError
from dflash_bench.ingest.diagnostics import skipped_rows
from dflash_bench.ingest.events import API_VERSION_SUFFIX
from dflash_bench.ingest.export import fingerprint
from dflash_bench.ingest.json_stream import JsonStream, JsonStreamError
from dflash_bench.ingest.ranks import RankMark
from dflash_bench.ingest.rows import UNNAMED, Batch, Skipped
from dflash_bench.ingest.source import Section
from dflash_bench.ingest.tables import BATCH_ROWS
from dflash_bench.model import Finding, RankSource, Recorder
from dflash_bench.profile import NAME, SCHEMAS, Events

TRACE_SUFFIXES = (".json", ".json.gz")
ENGINE_SUFFIXES = (".trace.json", ".trace.json.gz")
"""How engines name their traces: in a folder only these are taken for traces, since other JSON lies beside captures."""
HEAD_EVENTS = 100_000
"""Events read when a trace is opened, at most: its first host event comes long before."""
BYTES_PER_EVENT = 250
"""About how long an event is as text, to estimate progress by; packed traces are about a tenth of that."""

_VM = 1 << 24
"""The machine's part of a process id, as in nsys files."""
_RANGE, _CALL, _OVERHEAD = {"user_annotation"}, {"cuda_runtime", "cuda_driver", "runtime", "driver"}, {"overhead"}
_WORK = {
    "kernel": "kernel", "gpu_memcpy": "memcpy", "memcpy": "memcpy", "gpu_memset": "memset", "memset": "memset",
}  # fmt: skip
_HOST = _RANGE | _CALL | {"cpu_op", "operator", "python_function"}
_LIBRARY_PREFIX = re.compile(r"(nccl|c10d|gloo|mscclpp):")
_COUNTER_SUFFIX = re.compile(r"#\d+$")
_INT64 = 1 << 63


class _NoEventError(Exception):
    """An event lacks what an event of its kind must have. Its text is the code it is counted under."""


@dataclass(frozen=True, slots=True)
class TorchTrace:
    """An opened trace. ``process``: the profiled process, as nsys would number it. ``rank``, ``world``: if stated."""

    path: Path
    fingerprint: str
    size_bytes: int
    process: int
    rank: int | None
    world: int | None
    gpu_names: tuple[str, ...]
    session_start_utc_ns: int | None

    recorder: ClassVar[Recorder] = Recorder.TORCH
    is_simulated: ClassVar[bool] = False
    exporter_version: ClassVar[str | None] = None
    schema_version: ClassVar[str | None] = None
    time_range: ClassVar[tuple[int | None, int | None]] = (None, None)

    @property
    def num_rows(self) -> int:
        """About how many events the file holds."""
        packed = 10 if self.path.suffix == ".gz" else 1
        return max(1, self.size_bytes * packed // BYTES_PER_EVENT)

    @property
    def stated(self) -> dict[int, RankMark]:
        """The rank that ``distributedInfo`` states. The profiler knows no arm."""
        if self.rank is None or self.world is None:
            return {}
        return {self.process: RankMark(self.rank, self.world, None, RankSource.TRACE)}

    def rank_marks(self) -> tuple[RankMark, ...]:
        """The rank that the trace states."""
        return tuple(self.stated.values())

    def findings(self, skipped: Skipped, rank: int | None) -> tuple[Finding, ...]:
        """What was skipped."""
        return skipped_rows(skipped, rank)

    def sections(self) -> tuple[Section, ...]:
        """One: the file can only be read front to back."""
        return (Section("trace", self.num_rows),)

    def stream(self, skipped: Skipped, section: Section | None = None) -> Iterator[Batch]:
        """All events, batch by batch. Raises DataError when the file is damaged."""
        waiting = _Waiting()
        with _reading(self.path) as file:
            for name, event in JsonStream(file).members("traceEvents"):
                if name != "traceEvents" or not isinstance(event, dict):
                    continue
                try:
                    full = waiting.add(event, self.process)
                except _NoEventError as reason:
                    skipped.add(str(reason), 1)
                    continue
                if full is not None:
                    yield waiting.take(full)
            for table in list(waiting.rows):
                yield waiting.take(table)
            skipped.add("name_missing", waiting.num_unnamed)


def open_trace(path: Path) -> TorchTrace:
    """Open a trace: read its head until the first event of the host says which process it is.

    Raises DataError, in one sentence, when the file is no torch-profiler trace or holds no event of a host.
    """
    about: dict[str, Any] = {}
    process, num_events = None, 0
    with _reading(path) as file:
        for name, value in JsonStream(file).members("traceEvents"):
            if name != "traceEvents":
                about[name] = value
                continue
            num_events += 1
            if isinstance(value, dict) and _category(value) in _HOST and isinstance(value.get("pid"), int):
                process = _VM | value["pid"] & 0xFFFFFF
            if process is not None or num_events >= HEAD_EVENTS:
                break
    if process is None:
        what = "no event of a host process" if num_events else "JSON, but no list traceEvents"
        raise DataError(f"{path}: no torch-profiler trace: {what}", hint="pass a trace that export_chrome_trace wrote")
    ranks = about.get("distributedInfo")
    base = about.get("baseTimeNanoseconds")
    return TorchTrace(
        path=path,
        fingerprint=fingerprint(path),
        size_bytes=path.stat().st_size,
        process=process,
        rank=_count(ranks, "rank"),
        world=_count(ranks, "world_size"),
        gpu_names=_gpu_names(about.get("deviceProperties")),
        session_start_utc_ns=base if isinstance(base, int) and 0 <= base < _INT64 else None,
    )


def looks_like_trace(path: Path) -> bool:
    """Whether the file's name says that it is a trace."""
    return path.name.lower().endswith(TRACE_SUFFIXES)


def trace_stem(path: Path) -> str:
    """What the traces of one run share of their names: without suffixes and ranks, as engines write these."""
    stem = re.sub(r"(\.pt)?(\.trace)?\.json(\.gz)?$", "", path.name, flags=re.IGNORECASE)
    return re.sub(r"[-_.]?(rank|TP|DP|PP|EP|DCP)[-_.]?\d+(?![^-_.])", "", stem, flags=re.IGNORECASE).strip("-_. ")


@contextmanager
def _reading(path: Path) -> Iterator[IO[str]]:
    opener = gzip.open if path.suffix == ".gz" else open
    try:
        # a byte that is no UTF-8 spoils one name, not the file
        with opener(path, "rt", encoding="utf-8", errors="replace") as file:
            yield file
    except JsonStreamError as error:
        raise DataError(f"{path}: damaged: {error}", hint="copy or export the trace again") from None
    except (gzip.BadGzipFile, zlib.error, EOFError) as error:
        raise DataError(f"{path}: damaged gzip data: {error}", hint="copy or export the trace again") from None
    except OSError as error:
        raise DataError(f"{path}: cannot be read: {error.strerror or error}") from None


def _count(found: object, key: str) -> int | None:
    value = found.get(key) if isinstance(found, dict) else None
    return value if isinstance(value, int) and 0 <= value < 1 << 20 else None


def _gpu_names(found: object) -> tuple[str, ...]:
    devices = found if isinstance(found, list) else []
    return tuple(d["name"] for d in devices if isinstance(d, dict) and isinstance(d.get("name"), str))


def _category(event: dict[str, Any]) -> str:
    # traces before 2022 wrote "Kernel", "Runtime", "Memcpy"
    found = event.get("cat")
    return found.lower() if isinstance(found, str) else ""


@dataclass(slots=True)
class _Waiting:
    """Rows of events that wait for their batch: for each table, one tuple per row, the process first."""

    rows: dict[Events, list[tuple[Any, ...]]] = field(default_factory=dict)
    num_unnamed: int = 0

    def add(self, event: dict[str, Any], process: int) -> Events | None:
        """Keep an event's row. Returns its table when a batch of that is full."""
        if event.get("ph") != "X":
            return None
        category = _category(event)
        if category in _WORK:
            table, row = Events.GPU_WORK, _work_row(event, process, _WORK[category])
        elif category in _CALL:
            table, row = Events.API_CALLS, _call_row(event, process)
        elif category in _RANGE:
            table, row = Events.RANGES, _range_row(event, process)
        elif category in _OVERHEAD:
            table, row = Events.OVERHEAD, (process, 0, _name(event), *_times(event, "overhead"))
        else:
            return None
        mine = self.rows.setdefault(table, [])
        mine.append(row)
        self.num_unnamed += not isinstance(event.get("name"), str)
        return table if len(mine) >= BATCH_ROWS else None

    def take(self, table: Events) -> Batch:
        """The rows of a table as a batch."""
        process, *columns = zip(*self.rows.pop(table), strict=True)
        fields = list(SCHEMAS[table])
        arrays = {f.name: _array(values, f.type) for f, values in zip(fields, columns, strict=True)}
        return Batch(table, np.asarray(process, np.int64), arrays)


def _array(values: tuple[Any, ...], kind: pa.DataType) -> pa.Array:
    return pa.array(values, pa.string()).dictionary_encode() if kind == NAME else pa.array(values, kind)


def _range_row(event: dict[str, Any], process: int) -> tuple[Any, ...]:
    start, end = _times(event, "range")
    name = _COUNTER_SUFFIX.sub("", _name(event)) or UNNAMED
    library = _LIBRARY_PREFIX.match(name)
    return _own(event, process), _thread(event), library[1] if library else "", name, "push_pop", start, end


def _call_row(event: dict[str, Any], process: int) -> tuple[Any, ...]:
    start, end = _times(event, "api_call")
    name = API_VERSION_SUFFIX.sub("", _name(event))
    return _own(event, process), _thread(event), _argument(event, "correlation", 0), name, start, end


def _work_row(event: dict[str, Any], process: int, kind: str) -> tuple[Any, ...]:
    start, end = _times(event, "gpu_work")
    # the event's pid is the device and its tid the stream: the process is the one that the trace is of
    return (
        process, _argument(event, "device", 0), _argument(event, "stream", 0), _argument(event, "correlation", 0),
        kind, _name(event), start, end, None, _argument(event, "graph node id", None), _argument(event, "bytes", None),
    )  # fmt: skip


def _own(event: dict[str, Any], process: int) -> int:
    pid = event.get("pid")
    return _VM | pid & 0xFFFFFF if isinstance(pid, int) else process


def _thread(event: dict[str, Any]) -> int:
    tid = event.get("tid")
    return tid & 0xFFFFFF if isinstance(tid, int) else 0


def _name(event: dict[str, Any]) -> str:
    name = event.get("name")
    return name if isinstance(name, str) else ""


def _argument(event: dict[str, Any], key: str, default: int | None) -> int | None:
    arguments = event.get("args")
    value = arguments.get(key, default) if isinstance(arguments, dict) else default
    return value if isinstance(value, int) and -_INT64 <= value < _INT64 else default


def _times(event: dict[str, Any], what: str) -> tuple[int, int]:
    start, length = _ns(event.get("ts")), _ns(event.get("dur"))
    if start is None or length is None:
        raise _NoEventError(f"{what}_without_time")
    if length < 0:
        raise _NoEventError(f"{what}_ends_before_start")
    return start, start + length


def _ns(micros: int | str | None) -> int | None:
    """Microseconds as the JSON reader leaves them (whole numbers, or fractions as text) → whole nanoseconds."""
    if isinstance(micros, int):
        found = micros * 1000
    elif isinstance(micros, str):
        whole, point, rest = micros.partition(".")
        try:
            if point and len(rest) <= 3 and rest.isdecimal() and whole.isdecimal():
                found = int(whole) * 1000 + int(rest.ljust(3, "0"))
            else:
                found = int((Decimal(micros) * 1000).to_integral_value())
        except (ArithmeticError, ValueError):
            return None
    else:
        return None
    return found if -_INT64 // 4 < found < _INT64 // 4 else None
