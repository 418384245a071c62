"""What the recorder holds of one process: ranges, marks, calls and the work of a (simulated) device."""

from __future__ import annotations

from dataclasses import dataclass, replace
from enum import StrEnum


class WorkKind(StrEnum):
    """What a simulated device can do."""

    KERNEL = "kernel"
    MEMCPY = "memcpy"
    MEMSET = "memset"
    GRAPH = "graph"


@dataclass(frozen=True, slots=True)
class RecordedThread:
    """A thread that emitted something."""

    tid: int
    name: str


@dataclass(frozen=True, slots=True)
class RecordedRange:
    """A push/pop range; ``end_ns`` is None when it was open at the end."""

    name: str
    tid: int
    start_ns: int
    end_ns: int | None


@dataclass(frozen=True, slots=True)
class RecordedMark:
    """An instant with a text."""

    text: str
    tid: int
    at_ns: int


@dataclass(frozen=True, slots=True)
class RecordedCall:
    """A call into a (simulated) CUDA runtime or driver."""

    name: str
    tid: int
    start_ns: int
    end_ns: int
    correlation_id: int

    def shifted(self, by_ns: int) -> RecordedCall:
        return replace(self, start_ns=self.start_ns + by_ns, end_ns=self.end_ns + by_ns)


@dataclass(frozen=True, slots=True)
class RecordedWork:
    """A piece of work of a (simulated) device. A memcpy's kind is read from its name: HtoD, DtoH, DtoD, PtoP."""

    kind: WorkKind
    name: str
    start_ns: int
    end_ns: int
    correlation_id: int
    device: int
    stream: int
    num_bytes: int
    graph_exec_id: int

    def shifted(self, by_ns: int) -> RecordedWork:
        return replace(self, start_ns=self.start_ns + by_ns, end_ns=self.end_ns + by_ns)


@dataclass(frozen=True, slots=True)
class Recording:
    """Everything of one process; instants in ns from the session start."""

    pid: int
    domain: str
    utc_origin_ns: int
    duration_ns: int
    threads: tuple[RecordedThread, ...] = ()
    ranges: tuple[RecordedRange, ...] = ()
    marks: tuple[RecordedMark, ...] = ()
    api_calls: tuple[RecordedCall, ...] = ()
    gpu_work: tuple[RecordedWork, ...] = ()

    @property
    def is_simulated(self) -> bool:
        """Whether a simulated device took part."""
        return bool(self.api_calls or self.gpu_work)
