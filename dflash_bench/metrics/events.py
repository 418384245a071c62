"""The events of one process as NumPy arrays, and the choices by which they are read."""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

import numpy as np
import pyarrow as pa

from dflash_bench.errors import UsageError
from dflash_bench.layout import Events
from dflash_bench.metrics.columns import OPEN, Names, ints, names, stacked
from dflash_bench.metrics.intervals import NONE, Index, taken
from dflash_bench.metrics.names import Rule
from dflash_bench.model import BoolArray, IntArray, ProcessInfo
from dflash_bench.profile import Profile


@dataclass(frozen=True, slots=True)
class Reading:
    """Which ranges play which part. ``step`` is a regular expression that must match the whole name.

    ``rules`` shorten names that engines write counts into, before anything looks at them (`presets`). ``prefill``, a
    regular expression too, matches the ranges that prefill where they do not lie inside ``prepare``; ``composition``
    reads a step's whole name before it is shortened: how many requests it prefills and how many it decodes.
    """

    step: str = "decode_step"
    agreement: str = "dp_agreement"
    prepare: str = "prepare_for_decode"
    alloc: str = "kv_alloc"
    rules: tuple[Rule, ...] = ()
    prefill: str = "prefill|alloc_extend"
    composition: re.Pattern[str] | None = None

    def prefill_pattern(self) -> re.Pattern[str]:
        return re.compile(self.prefill)

    def step_pattern(self) -> re.Pattern[str]:
        """Raises UsageError when ``step`` does not compile."""
        try:
            return re.compile(self.step)
        except re.error as error:
            raise UsageError(f"--step-range {self.step!r} is no regular expression: {error}") from None


@dataclass(frozen=True, slots=True)
class Ranges:
    """NVTX ranges that have an end, ascending by start. All arrays [n]."""

    thread: IntArray
    domain: Names
    name: Names
    start: IntArray
    end: IntArray

    def __len__(self) -> int:
        return len(self.start)

    def __getitem__(self, index: Index) -> Ranges:
        thread = taken(self.thread, index)
        return Ranges(thread, self.domain[index], self.name[index], self.start[index], self.end[index])

    @staticmethod
    def joined(parts: Sequence[Ranges]) -> Ranges:
        """Several as one, in order. Their names are those of one vocabulary, which may have grown meanwhile."""
        full = [part for part in parts if len(part)]
        if len(full) < 2:
            return full[0] if full else _NO_RANGES
        return ranges_in_order(stacked(full))


@dataclass(frozen=True, slots=True)
class ApiCalls:
    """CUDA API calls, ascending by start. All arrays [n]."""

    thread: IntArray
    correlation: IntArray
    name: Names
    start: IntArray
    end: IntArray

    def __len__(self) -> int:
        return len(self.start)

    def __getitem__(self, index: Index) -> ApiCalls:
        thread = taken(self.thread, index)
        return ApiCalls(thread, self.correlation[index], self.name[index], self.start[index], self.end[index])

    @staticmethod
    def joined(parts: Sequence[ApiCalls]) -> ApiCalls:
        """Several as one, in order, as `Ranges.joined`."""
        full = [part for part in parts if len(part)]
        if len(full) < 2:
            return full[0] if full else _NO_CALLS
        return calls_in_order(stacked(full))


_NOTHING = np.zeros(0, np.int64)
_NO_NAMES = Names(_NOTHING, ())
_NO_RANGES = Ranges(_NOTHING, _NO_NAMES, _NO_NAMES, _NOTHING, _NOTHING)
_NO_CALLS = ApiCalls(_NOTHING, _NOTHING, _NO_NAMES, _NOTHING, _NOTHING)


@dataclass(frozen=True, slots=True)
class GpuRows:
    """GPU rows of the capture, in any order. All arrays [n]. ``is_graph``: rows of graph replays.

    ``node``: the graph node that a row ran, NONE (−1) for work outside graphs; without it no row is known to be one.
    """

    device: IntArray
    stream: IntArray
    correlation: IntArray
    is_graph: BoolArray
    start: IntArray
    end: IntArray
    node: IntArray | None = None

    def __len__(self) -> int:
        return len(self.start)

    def __getitem__(self, index: Index) -> GpuRows:
        return GpuRows(
            self.device[index], self.stream[index], self.correlation[index], self.is_graph[index], self.start[index],
            self.end[index], None if self.node is None else self.node[index],
        )  # fmt: skip

    @staticmethod
    def joined(parts: Sequence[GpuRows]) -> GpuRows:
        """Several as one, one behind another."""
        return stacked([replace(part, node=part.nodes) for part in parts]) if parts else _NO_GPU_ROWS

    @property
    def nodes(self) -> IntArray:
        """``node``, NONE throughout where it is not known."""
        return np.full(len(self), NONE, np.int64) if self.node is None else self.node

    def by_start(self) -> GpuRows:
        """The same rows in order of start."""
        return self[np.argsort(self.start, kind="stable")]


_NO_GPU_ROWS = GpuRows(_NOTHING, _NOTHING, _NOTHING, np.zeros(0, bool), _NOTHING, _NOTHING, _NOTHING)


@dataclass(frozen=True, slots=True)
class ProcessEvents:
    """All events of one process. ``num_open`` counts ranges without an end, which are in ``ranges`` no more."""

    process: ProcessInfo
    ranges: Ranges
    num_open: int
    calls: ApiCalls
    gpu: GpuRows


RANGE_COLUMNS = ("thread", "domain", "name", "start_ns", "end_ns")
CALL_COLUMNS = ("thread", "correlation_id", "name", "start_ns", "end_ns")
GPU_COLUMNS = ("device", "stream", "correlation_id", "kind", "start_ns", "end_ns", "graph_node_id")


def load(profile: Profile, process: ProcessInfo, rules: tuple[Rule, ...] = ()) -> ProcessEvents:
    """Read one process of a profile as a whole, its range names shortened by these rules."""
    ranges, num_open = _ranges(profile.events(Events.RANGES, process, RANGE_COLUMNS))
    if rules:
        ranges = replace(ranges, name=ranges.name.shortened(rules))
    return ProcessEvents(
        process=process,
        ranges=ranges,
        num_open=num_open,
        calls=_calls(profile.events(Events.API_CALLS, process, CALL_COLUMNS)),
        gpu=gpu_rows(profile.events(Events.GPU_WORK, process, GPU_COLUMNS)),
    )


def _ranges(table: pa.Table) -> tuple[Ranges, int]:
    start, end = ints(table.column("start_ns")), ints(table.column("end_ns"))
    thread, domain, name = ints(table.column("thread")), names(table.column("domain")), names(table.column("name"))
    found, closed = Ranges(thread, domain, name, start, end), end != OPEN
    return ranges_in_order(found if closed.all() else found[closed]), int((~closed).sum())


def ranges_in_order(found: Ranges) -> Ranges:
    """By start, of equal starts the longest first."""
    order = order_of(found.start, lambda: -found.end)
    return found if order is None else found[order]


def calls_in_order(found: ApiCalls) -> ApiCalls:
    """By start, of equal starts by correlation id."""
    order = order_of(found.start, lambda: found.correlation)
    return found if order is None else found[order]


def order_of(start: IntArray, key: Callable[[], IntArray]) -> IntArray | None:
    """Rows by start, of equal starts by a key, which is worked out only if there are any; None: they are in order."""
    later = start[1:] > start[:-1]
    if later.all():
        return None
    if (start[1:] >= start[:-1]).all():
        then = key()
        if (later | (then[1:] >= then[:-1])).all():
            return None
    else:
        # rows lie mostly in order: sorting by one key that is is several times as fast as `lexsort`
        order = np.argsort(start, kind="stable")
        ordered = start[order]
        if (ordered[1:] > ordered[:-1]).all():
            return order
    return np.lexsort((key(), start))


def _calls(table: pa.Table) -> ApiCalls:
    found = ApiCalls(
        thread=ints(table.column("thread")),
        correlation=ints(table.column("correlation_id")),
        name=names(table.column("name")),
        start=ints(table.column("start_ns")),
        end=ints(table.column("end_ns")),
    )
    return calls_in_order(found)


def gpu_rows(table: pa.Table) -> GpuRows:
    """Rows of `GPU_COLUMNS`, in their order."""
    return GpuRows(
        device=ints(table.column("device")),
        stream=ints(table.column("stream")),
        correlation=ints(table.column("correlation_id")),
        is_graph=names(table.column("kind")).among({"graph"}),
        start=ints(table.column("start_ns")),
        end=ints(table.column("end_ns")),
        node=ints(table.column("graph_node_id"), NONE),
    )
