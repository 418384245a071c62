"""Events of a torch-profiler trace as rows of a profile's tables."""

from __future__ import annotations

import re
from dataclasses import dataclass, field
from decimal import Decimal
from typing import Any

import numpy as np
import pyarrow as pa

from dflash_bench.ingest.rows import BATCH_ROWS, UNNAMED, Batch, without_folders, without_version
from dflash_bench.layout import NAME, SCHEMAS, Events

_VM = 1 << 24
"""The machine's part of a process id, as in nsys files."""
_RANGE, _CALL, _OVERHEAD = {"user_annotation"}, {"cuda_runtime", "cuda_driver", "runtime", "driver"}, {"overhead"}
_WORK = {
    "kernel": "kernel", "gpu_memcpy": "memcpy", "memcpy": "memcpy", "gpu_memset": "memset", "memset": "memset",
}  # fmt: skip
_OPERATOR = {"cpu_op": "operator", "operator": "operator", "python_function": "python"}
_HOST = _RANGE | _CALL | _OPERATOR.keys()
_LIBRARY_PREFIX = re.compile(r"(nccl|c10d|gloo|mscclpp):")
_COUNTER_SUFFIX = re.compile(r"#\d+$")
_INT64 = 1 << 63


class NoEventError(Exception):
    """An event lacks what an event of its kind must have. Its text is the code it is counted under."""


def host_process(event: dict[str, Any]) -> int | None:
    """The process that a host's event is of, as nsys would number it; None for any other event."""
    pid = event.get("pid")
    return _VM | pid & 0xFFFFFF if _category(event) in _HOST and isinstance(pid, int) else None


def _category(event: dict[str, Any]) -> str:
    # traces before 2022 wrote "Kernel", "Runtime", "Memcpy"
    found = event.get("cat")
    return found.lower() if isinstance(found, str) else ""


@dataclass(slots=True)
class EventRows:
    """Rows of events that wait for their batch: for each table, one tuple per row, the process first."""

    rows: dict[Events, list[tuple[Any, ...]]] = field(default_factory=dict)
    num_unnamed: int = 0
    callers: set[object] = field(default_factory=set)
    """The processes that make CUDA calls, as the events call them: the profiler traces one."""

    def add(self, event: dict[str, Any], process: int) -> Events | None:
        """Keep an event's row. Returns its table when a batch of that is full."""
        if event.get("ph") != "X":
            return None
        category = _category(event)
        if category in _WORK:
            table, row = Events.GPU_WORK, _work_row(event, process, _WORK[category])
        elif category in _CALL:
            table, row = Events.API_CALLS, _call_row(event, process)
            self.callers.add(pid if isinstance(pid := event.get("pid"), int | str) else None)
        elif category in _RANGE:
            table, row = Events.RANGES, _range_row(event, process)
        elif category in _OPERATOR:
            own, name = (_own(event, process), _thread(event), _OPERATOR[category]), without_folders(_name(event))
            table, row = Events.OPERATORS, (*own, name or UNNAMED, *_times(event, "operator"))
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
    name = without_version(_name(event))
    return _own(event, process), _thread(event), _argument(event, "correlation", 0), name, start, end, None


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
        raise NoEventError(f"{what}_without_time")
    if length < 0:
        raise NoEventError(f"{what}_ends_before_start")
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
