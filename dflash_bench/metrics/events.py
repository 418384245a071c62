"""The events of one process as NumPy arrays, and the choices by which they are read."""

from __future__ import annotations

import re
from dataclasses import dataclass, replace

import numpy as np
import pyarrow as pa

from dflash_bench.errors import UsageError
from dflash_bench.metrics.names import Rule, short_names
from dflash_bench.model import BoolArray, IntArray, ProcessInfo
from dflash_bench.profile import Events, Profile


@dataclass(frozen=True, slots=True)
class Reading:
    """Which ranges play which part. ``step`` is a regular expression that must match the whole name.

    ``rules`` shorten names that engines write counts into, before anything looks at them (`presets`).
    """

    step: str = "decode_step"
    agreement: str = "dp_agreement"
    prepare: str = "prepare_for_decode"
    alloc: str = "kv_alloc"
    rules: tuple[Rule, ...] = ()

    def step_pattern(self) -> re.Pattern[str]:
        """Raises UsageError when ``step`` does not compile."""
        try:
            return re.compile(self.step)
        except re.error as error:
            raise UsageError(f"--step-range {self.step!r} is no regular expression: {error}") from None


@dataclass(frozen=True, slots=True)
class Names:
    """A column of names: ``codes`` int64 [n] into ``values``."""

    codes: IntArray
    values: tuple[str, ...]

    def __getitem__(self, index: IntArray | BoolArray) -> Names:
        return Names(self.codes[index], self.values)

    def among(self, wanted: set[str]) -> BoolArray:
        """bool [n]: whether the name is one of these."""
        return np.isin(self.codes, [k for k, value in enumerate(self.values) if value in wanted])

    def matching(self, pattern: re.Pattern[str]) -> BoolArray:
        """bool [n]: whether the pattern matches the whole name."""
        return np.isin(self.codes, [k for k, value in enumerate(self.values) if pattern.fullmatch(value)])

    def containing(self, part: str) -> BoolArray:
        """bool [n]: whether the name contains this text."""
        return np.isin(self.codes, [k for k, value in enumerate(self.values) if part in value])

    def shortened(self, rules: tuple[Rule, ...]) -> Names:
        """The same names after `short_names`; those that become equal share a code."""
        found = short_names(self.values, rules)
        return Names(np.asarray(found.place, np.int64)[self.codes] if self.values else self.codes, found.values)

    def text(self) -> list[str]:
        """The names themselves."""
        return [self.values[code] for code in self.codes]


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

    def __getitem__(self, index: IntArray | BoolArray) -> Ranges:
        return Ranges(self.thread[index], self.domain[index], self.name[index], self.start[index], self.end[index])


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

    def __getitem__(self, index: IntArray | BoolArray) -> ApiCalls:
        return ApiCalls(
            self.thread[index], self.correlation[index], self.name[index], self.start[index], self.end[index]
        )


@dataclass(frozen=True, slots=True)
class GpuRows:
    """GPU rows of the capture, in any order. All arrays [n]. ``is_graph``: rows of graph replays."""

    device: IntArray
    stream: IntArray
    correlation: IntArray
    is_graph: BoolArray
    start: IntArray
    end: IntArray

    def __len__(self) -> int:
        return len(self.start)


@dataclass(frozen=True, slots=True)
class ProcessEvents:
    """All events of one process. ``num_open`` counts ranges without an end, which are in ``ranges`` no more."""

    process: ProcessInfo
    ranges: Ranges
    num_open: int
    calls: ApiCalls
    gpu: GpuRows
    overhead_start: IntArray
    overhead_end: IntArray


_GPU_COLUMNS = ("device", "stream", "correlation_id", "kind", "start_ns", "end_ns")


def load(profile: Profile, process: ProcessInfo, rules: tuple[Rule, ...] = ()) -> ProcessEvents:
    """Read one process of a profile, its range names shortened by these rules."""
    ranges, num_open = _ranges(profile.events(Events.RANGES, process))
    if rules:
        ranges = replace(ranges, name=ranges.name.shortened(rules))
    overhead = profile.events(Events.OVERHEAD, process)
    return ProcessEvents(
        process=process,
        ranges=ranges,
        num_open=num_open,
        calls=_calls(profile.events(Events.API_CALLS, process)),
        gpu=_gpu(profile.events(Events.GPU_WORK, process, _GPU_COLUMNS)),
        overhead_start=_ints(overhead, "start_ns"),
        overhead_end=_ints(overhead, "end_ns"),
    )


def _ints(table: pa.Table, column: str) -> IntArray:
    found: IntArray = table.column(column).to_numpy()
    return found


def _names(table: pa.Table, column: str) -> Names:
    chunks = table.column(column).unify_dictionaries().combine_chunks()
    array = chunks.chunk(0) if isinstance(chunks, pa.ChunkedArray) else chunks
    return Names(array.indices.to_numpy().astype(np.int64), tuple(array.dictionary.to_pylist()))


def _ranges(table: pa.Table) -> tuple[Ranges, int]:
    closed = table.filter(table.column("end_ns").is_valid()) if table.column("end_ns").null_count else table
    start, end = _ints(closed, "start_ns"), _ints(closed, "end_ns").astype(np.int64)
    found = Ranges(_ints(closed, "thread"), _names(closed, "domain"), _names(closed, "name"), start, end)
    num_open = table.num_rows - closed.num_rows
    return (found, num_open) if _ascends(start) else (found[np.lexsort((-end, start))], num_open)


def _ascends(start: IntArray) -> bool:
    """Whether instants are in order already, and none equal: then there is nothing to sort."""
    return bool((start[1:] > start[:-1]).all())


def _calls(table: pa.Table) -> ApiCalls:
    found = ApiCalls(
        thread=_ints(table, "thread"),
        correlation=_ints(table, "correlation_id"),
        name=_names(table, "name"),
        start=_ints(table, "start_ns"),
        end=_ints(table, "end_ns"),
    )
    return found if _ascends(found.start) else found[np.lexsort((found.correlation, found.start))]


def _gpu(table: pa.Table) -> GpuRows:
    return GpuRows(
        device=_ints(table, "device"),
        stream=_ints(table, "stream"),
        correlation=_ints(table, "correlation_id"),
        is_graph=_names(table, "kind").among({"graph"}),
        start=_ints(table, "start_ns"),
        end=_ints(table, "end_ns"),
    )
