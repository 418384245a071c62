"""One step as bars on tracks: ranges and API calls of the host, GPU work, and which call queued which work."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from enum import StrEnum

import numpy as np

from dflash_bench.metrics.events.arrays import NONE
from dflash_bench.metrics.events.host import ApiCalls, Ranges
from dflash_bench.metrics.events.launches import Launches
from dflash_bench.metrics.events.process import ProcessEvents, load
from dflash_bench.metrics.events.steps import Steps, find_steps
from dflash_bench.metrics.reading import Reading
from dflash_bench.metrics.waits import BLOCKING_COPY, SYNC
from dflash_bench.model import IntArray, Unit
from dflash_bench.profile import Profile
from dflash_bench.report.gpu_work import GpuWork, gpu_work
from dflash_bench.report.units import symbol, text

MAX_BARS = 400
"""Bars of one kind that one timeline draws; of more, the longest are drawn and the rest is counted."""


class BarKind(StrEnum):
    """What a bar stands for. The order is the order of the legend."""

    RANGE = "range"
    WAIT = "host wait"
    LAUNCH = "launch"
    CALL = "other API call"
    GPU = "GPU work"


@dataclass(frozen=True, slots=True)
class Bar:
    """Something that took time. Times are ns after the step's start; ``track`` indexes ``StepWindow.tracks``."""

    kind: BarKind
    track: int
    name: str
    start_ns: int
    end_ns: int
    detail: str = ""

    @property
    def length_ns(self) -> int:
        return self.end_ns - self.start_ns


@dataclass(frozen=True, slots=True)
class Flow:
    """A launch and the GPU work that it queued, each a (track, instant), ns after the step's start."""

    from_track: int
    from_ns: int
    to_track: int
    to_ns: int


@dataclass(frozen=True, slots=True)
class StepWindow:
    """One step of a rank: what its host did, and the GPU work that ran or was queued meanwhile.

    ``bars`` are those that are drawn, ``num_left_out`` is how many are not; ``waits``, the longest first, and
    ``num_gpu_work`` count all of them.
    """

    title: str
    rank: int | None
    step: int
    num_steps: int
    length_ns: int
    tracks: tuple[str, ...]
    bars: tuple[Bar, ...]
    flows: tuple[Flow, ...]
    num_left_out: int
    waits: tuple[Bar, ...] = ()
    num_gpu_work: int = 0

    @property
    def waited_ns(self) -> int:
        """Time of the host waits."""
        return sum(bar.length_ns for bar in self.waits)


def step_windows(profile: Profile, rank: int, reading: Reading | None = None) -> tuple[StepWindow, ...]:
    """The median and the longest step of a rank; nothing where the rank has no steps."""
    reading = reading or Reading()
    for process in profile.info.processes_of(rank):
        events = load(profile, process)
        steps, _ = find_steps(events.ranges, rank, reading)
        if len(steps):
            work = gpu_work(profile, events)
            return tuple(_window(title, index, steps, events, work) for title, index in chosen(steps))
    return ()


def chosen(steps: Steps) -> tuple[tuple[str, int], ...]:
    """The step whose length is nearest to the median, and the longest; of equals the earliest."""
    length = steps.end - steps.start
    return (
        ("median step", int(np.abs(length - np.median(length)).argmin())),
        ("longest step", int(length.argmax())),
    )


def lanes(start: IntArray, end: IntArray) -> list[int]:
    """A lane for each interval, ascending by start, so that no two overlap in one: inner ones lie below their outer."""
    found: list[int] = []
    busy: list[int] = []  # end of the last interval on each lane that is still open
    for begin, stop in zip(start.tolist(), end.tolist(), strict=True):
        while busy and busy[-1] <= begin:
            busy.pop()
        found.append(len(busy))
        busy.append(stop)
    return found


def _window(title: str, index: int, steps: Steps, events: ProcessEvents, work: GpuWork) -> StepWindow:
    begin, stop = int(steps.start[index]), int(steps.end[index])
    tracks: dict[str, int] = {}
    ranges = events.ranges[(events.ranges.start < stop) & (events.ranges.end > begin)]
    calls = events.calls[(events.calls.start < stop) & (events.calls.end > begin)]
    queued = (work.launch != NONE) & (work.launched_at >= begin) & (work.launched_at < stop)
    shown = work[queued | ((work.start < stop) & (work.end > begin))]
    host = [*_range_bars(ranges, begin, tracks), *_call_bars(calls, work.launches, begin, tracks)]
    gpu = list(_gpu_bars(shown, begin, tracks))
    kept, left_out = _longest([*host, *gpu])
    return StepWindow(
        title=title,
        rank=events.process.rank,
        step=index,
        num_steps=len(steps),
        length_ns=stop - begin,
        tracks=tuple(tracks),
        bars=tuple(kept),
        flows=tuple(_flows(shown, begin, stop, tracks)),
        num_left_out=left_out,
        waits=tuple(_longest_first(bar for bar in host if bar.kind is BarKind.WAIT)),
        num_gpu_work=len(gpu),
    )


def _longest_first(bars: Iterable[Bar]) -> list[Bar]:
    return sorted(bars, key=lambda bar: -bar.length_ns)


def _longest(bars: Sequence[Bar]) -> tuple[list[Bar], int]:
    kept: list[Bar] = []
    for kind in BarKind:
        same = _longest_first(b for b in bars if b.kind is kind)
        kept += sorted(same[:MAX_BARS], key=lambda b: b.start_ns)
    return kept, len(bars) - len(kept)


def _thread_names(threads: IntArray) -> dict[int, str]:
    """``host`` for the only thread, else ``host``, ``host 2`` … by id."""
    return {int(t): "host" if k == 0 else f"host {k + 1}" for k, t in enumerate(np.unique(threads))}


def _track(tracks: dict[str, int], name: str) -> int:
    return tracks.setdefault(name, len(tracks))


def _range_bars(ranges: Ranges, begin: int, tracks: dict[str, int]) -> Iterator[Bar]:
    for thread, name in _thread_names(ranges.thread).items():
        own = ranges[ranges.thread == thread]
        depth = lanes(own.start, own.end)
        place = [_track(tracks, f"{name} ranges {level + 1}") for level in range(max(depth, default=0) + 1)]
        for k, title in enumerate(own.name.text()):
            yield Bar(BarKind.RANGE, place[depth[k]], title, int(own.start[k]) - begin, int(own.end[k]) - begin)


def _call_bars(calls: ApiCalls, launches: Launches, begin: int, tracks: dict[str, int]) -> Iterator[Bar]:
    launches = launches[np.isin(launches.start, calls.start)]
    with_lead = launches[launches.has_lead]
    leads = dict(
        zip(zip(with_lead.thread.tolist(), with_lead.start.tolist(), strict=True), with_lead.lead.tolist(), strict=True)
    )
    is_wait = calls.name.matching(SYNC) | calls.name.matching(BLOCKING_COPY)
    is_launch = np.isin(calls.start, launches.start)
    for thread, name in _thread_names(calls.thread).items():
        place = _track(tracks, f"{name} CUDA calls")
        for k in np.flatnonzero(calls.thread == thread).tolist():
            kind = BarKind.WAIT if is_wait[k] else BarKind.LAUNCH if is_launch[k] else BarKind.CALL
            start, end = int(calls.start[k]), int(calls.end[k])
            lead = leads.get((thread, start))
            detail = "" if lead is None else f"lead {_us(lead)}"
            yield Bar(kind, place, calls.name.values[calls.name.codes[k]], start - begin, end - begin, detail)


def _gpu_bars(work: GpuWork, begin: int, tracks: dict[str, int]) -> Iterator[Bar]:
    for row in np.lexsort((work.start, work.stream, work.device)).tolist():
        place = _track(tracks, _stream_name(work, row))
        launched = int(work.launched_at[row]) - begin if work.launch[row] != NONE else None
        detail = "launch not in the capture" if launched is None else f"launched at {_us(launched)}"
        yield Bar(BarKind.GPU, place, work.label(row), int(work.start[row]) - begin, int(work.end[row]) - begin, detail)


def _stream_name(work: GpuWork, row: int) -> str:
    return f"GPU {work.device[row]} stream {work.stream[row]}"


def _flows(work: GpuWork, begin: int, stop: int, tracks: dict[str, int]) -> Iterator[Flow]:
    threads = _thread_names(work.launches.thread)
    for row in np.flatnonzero(work.launch != NONE).tolist():
        at = int(work.launched_at[row])
        source = tracks.get(f"{threads[int(work.launches.thread[work.launch[row]])]} CUDA calls")
        if begin <= at < stop and source is not None:
            yield Flow(source, at - begin, tracks[_stream_name(work, row)], int(work.start[row]) - begin)


def _us(value_ns: int) -> str:
    return f"{text(value_ns, Unit.NS)} {symbol(Unit.NS)}"
