"""All events of one process."""

from __future__ import annotations

from dataclasses import dataclass

from dflash_bench.layout import Events
from dflash_bench.metrics.events.arrays import Names, read_columns
from dflash_bench.metrics.events.gpu import GpuRows, read_gpu_rows
from dflash_bench.metrics.events.host import ApiCalls, Ranges, read_calls, read_ranges, shortened
from dflash_bench.metrics.events.names import Rule
from dflash_bench.model import IntArray, ProcessInfo
from dflash_bench.profile import Profile


@dataclass(frozen=True, slots=True)
class ProcessEvents:
    """All events of one process. ``unclosed`` are ranges without an end, which are not in ``ranges``.

    ``marks`` are the texts of NVTX marks, ``marked_at`` int64 when they were set.
    """

    process: ProcessInfo
    ranges: Ranges
    unclosed: Ranges
    calls: ApiCalls
    gpu: GpuRows
    marks: Names
    marked_at: IntArray


def load_events(profile: Profile, process: ProcessInfo, rules: tuple[Rule, ...] = ()) -> ProcessEvents:
    """Read one process of a profile, its range names shortened by these rules."""
    ranges, unclosed = read_ranges(profile, process)
    calls, gpu = read_calls(profile, process), read_gpu_rows(profile, process)
    marks = read_columns(profile, Events.MARKS, process, ("text", "start_ns"))
    return ProcessEvents(process, shortened(ranges, rules), shortened(unclosed, rules), calls, gpu, *marks.values())
