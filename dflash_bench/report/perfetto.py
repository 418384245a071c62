"""Two runs as one trace that Perfetto (ui.perfetto.dev) and chrome://tracing open: the Trace Event Format, JSON.

Each rank is a process, each thread two tracks (its ranges and its CUDA calls), each GPU stream a track; an arrow leads
from a launch to the GPU work that it queued, and the launch carries its lead as ``args.lead_ns``. Ranks of one run are
shifted onto one clock, and the first steps of both runs onto one instant.

Slices are begin and end events (``B``/``E``), never ``X``: the format counts in microseconds with a fraction, readers
may cut it by a nanosecond, and a duration cut on its own could let an inner slice end after its outer one.
"""

from __future__ import annotations

import gzip
import json
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TextIO

import numpy as np

from dflash_bench.metrics.events.arrays import NONE
from dflash_bench.metrics.events.host import ApiCalls, Ranges
from dflash_bench.metrics.events.process import ProcessEvents, load_events
from dflash_bench.metrics.events.steps import Steps, find_steps
from dflash_bench.metrics.reading import Reading
from dflash_bench.model import IntArray, RunMetrics
from dflash_bench.profile import Profile
from dflash_bench.report.gpu_work import GpuWork, gpu_work
from dflash_bench.whole import whole_file

Event = dict[str, Any]
_TRACKS_PER_PROCESS = 1000
"""Track ids are process id × this + number: unique over the whole trace, as some readers know threads by id alone."""


@dataclass(frozen=True, slots=True)
class TracedRun:
    """A run in the trace: what it is called, and by how many ns each rank's clock is ahead of the lowest rank's."""

    label: str
    profile: Profile
    offsets: dict[int, float]

    def offset(self, rank: int) -> int:
        """What to take off an instant of this rank."""
        return round(self.offsets.get(rank, 0.0))


def traced_run(label: str, profile: Profile, run: RunMetrics) -> TracedRun:
    """A run with the clock offsets that were measured of it; none where its ranks share a clock."""
    offsets = {m.rank: float(m.values[0]) for m in run.metrics if m.name == "clock.offset" and m.rank is not None}
    return TracedRun(label, profile, offsets)


def write_trace(
    path: Path, sides: Sequence[TracedRun], reading: Reading | None = None, steps: tuple[int, int] | None = None
) -> int:
    """Write the trace, gzipped when the name ends in ``.gz``; it is whole or not there. Returns the number of events.

    ``steps``: only steps FIRST ≤ k < LAST of each rank, with the GPU work they queued; None: everything captured.
    Raises DataError when the file cannot be written.
    """
    with whole_file(path) as partial, _open(partial, is_gzip=path.suffix == ".gz") as file:
        return _dump(file, _trace_events(sides, reading or Reading(), steps))


def _open(path: Path, *, is_gzip: bool) -> TextIO:
    return gzip.open(path, "wt", encoding="utf-8") if is_gzip else path.open("w", encoding="utf-8")


def _dump(file: TextIO, events: Iterable[Event]) -> int:
    count, encode = 0, json.JSONEncoder(ensure_ascii=False, separators=(",", ":")).encode
    file.write('{"displayTimeUnit":"ns","traceEvents":[\n')
    for count, event in enumerate(events, 1):
        file.write(",\n" if count > 1 else "")
        file.write(encode(event))
    file.write("\n]}\n")
    return count


def _trace_events(
    sides: Sequence[TracedRun], reading: Reading, steps: tuple[int, int] | None = None
) -> Iterator[Event]:
    """All events, process by process; those of one track ascend in time. First steps of all runs are one instant."""
    starts = [_first_and_step(each, reading, steps) for each in sides]
    lead_in = max((step - first for first, step in starts), default=0)
    pid = 0
    for each, (_, step) in zip(sides, starts, strict=True):
        for process in each.profile.info.processes:
            if process.rank is not None:
                pid += 1
                name = f"{each.label} rank {process.rank}"
                yield _meta("process_name", pid, 0, name=name)
                yield _meta("process_sort_index", pid, 0, sort_index=pid)
                events = load_events(each.profile, process)
                work = gpu_work(each.profile, events)
                found, _ = find_steps(events.ranges, process.rank, reading)
                zero = step - lead_in + each.offset(process.rank)
                yield from _ProcessTrace(pid, zero, events, work, _leads(work), found, _span(found, steps)).events()


def _first_and_step(each: TracedRun, reading: Reading, wanted: tuple[int, int] | None) -> tuple[int, int]:
    """The first instant and the first step's start over the ranks of a run, on the lowest rank's clock."""
    firsts, begins = [], []
    for process in each.profile.info.processes:
        if process.rank is not None:
            events = load_events(each.profile, process)
            found, _ = find_steps(events.ranges, process.rank, reading)
            shift, span = each.offset(process.rank), _span(found, wanted)
            begins += [(span[0] if span else int(t)) - shift for t in found.start[:1]]
            starts = (events.ranges.start, events.calls.start, events.gpu.start)
            firsts += [int(start.min()) - shift for start in starts if len(start)]
    first = min(firsts, default=0)
    step = min(begins, default=first)
    return (first if wanted is None else step), step


def _leads(work: GpuWork) -> list[int | None]:
    found = work.launches
    return [lead if has else None for lead, has in zip(found.lead.tolist(), found.has_lead.tolist(), strict=True)]


def _span(steps: Steps, wanted: tuple[int, int] | None) -> tuple[int, int] | None:
    if wanted is None:
        return None
    first, last = wanted
    chosen = slice(first, last)
    if not len(steps.start[chosen]):
        return 0, 0
    return int(steps.start[chosen][0]), int(steps.end[chosen][-1])


def _meta(what: str, pid: int, tid: int, **args: str | int) -> Event:
    return {"ph": "M", "name": what, "pid": pid, "tid": tid, "args": args}


@dataclass(frozen=True, slots=True)
class _ProcessTrace:
    """One process of a capture as trace events. ``span``: only what starts in these ns; ``zero`` is their origin."""

    pid: int
    zero: int
    source: ProcessEvents
    work: GpuWork
    leads: list[int | None]
    steps: Steps
    span: tuple[int, int] | None

    def events(self) -> Iterator[Event]:
        ranges, calls = self.source.ranges, self.source.calls
        threads = sorted({*ranges.thread.tolist(), *calls.thread.tolist()})
        tid = self.pid * _TRACKS_PER_PROCESS
        for number, thread in enumerate(threads, 1):
            title = f"thread {number}"
            for row, rows in enumerate(self._rows(ranges, thread)):
                tid += 1
                yield from self._named(tid, title if row == 0 else f"{title} overlapping {row}")
                yield from self._ranges(tid, ranges[rows])
            for row, rows in enumerate(self._rows(calls, thread)):
                tid += 1
                yield from self._named(tid, f"{title} CUDA calls" + (f" {row + 1}" if row else ""))
                yield from self._calls(tid, calls[rows])
        work = self.work
        shown = self._kept(np.where(work.launch != NONE, work.launched_at, work.start))
        for device, stream in sorted({*zip(work.device.tolist(), work.stream.tolist(), strict=True)}):
            own = np.flatnonzero(shown & (work.device == device) & (work.stream == stream))
            own = own[np.lexsort((-work.end[own], work.start[own]))]
            for row, rows in enumerate(_nesting_rows(work.start[own], work.end[own])):
                tid += 1
                yield from self._named(tid, f"GPU {device} stream {stream}" + (f" overlapping {row}" if row else ""))
                yield from self._gpu(tid, own[rows])

    def _kept(self, start: IntArray) -> np.typing.NDArray[np.bool_]:
        if self.span is None:
            return np.ones(len(start), bool)
        return (start >= self.span[0]) & (start < self.span[1])

    def _rows(self, events: Ranges | ApiCalls, thread: int) -> list[IntArray]:
        own = np.flatnonzero((events.thread == thread) & self._kept(events.start))
        own = own[np.lexsort((-events.end[own], events.start[own]))]
        return [own[rows] for rows in _nesting_rows(events.start[own], events.end[own])]

    def _named(self, tid: int, name: str) -> Iterator[Event]:
        yield _meta("thread_name", self.pid, tid, name=name)
        yield _meta("thread_sort_index", self.pid, tid, sort_index=tid)

    def _at(self, phase: str, t: int, tid: int) -> Event:
        return {"ph": phase, "ts": (t - self.zero) / 1000, "pid": self.pid, "tid": tid}

    def _ranges(self, tid: int, found: Ranges) -> Iterator[Event]:
        names, domains = found.name.text(), found.domain.text()
        step_at = {t: k for k, t in enumerate(zip(self.steps.start.tolist(), self.steps.end.tolist(), strict=True))}
        for phase, row, t in _begins_and_ends(found.start, found.end):
            event = self._at(phase, t, tid)
            if phase == "B":
                event |= {"name": names[row], "cat": "range", "args": {"domain": domains[row]}}
                if domains[row] == self.steps.domain and (step := step_at.get((t, int(found.end[row])))) is not None:
                    event["args"]["step"] = step
            yield event

    def _calls(self, tid: int, found: ApiCalls) -> Iterator[Event]:
        names = found.name.text()
        launches = self.work.launches
        of_thread = np.flatnonzero(np.isin(launches.start, found.start) & np.isin(launches.thread, found.thread[:1]))
        launched: dict[int, list[int]] = {}
        for k in of_thread.tolist():
            launched.setdefault(int(launches.start[k]), []).append(k)
        for phase, row, t in _begins_and_ends(found.start, found.end):
            event = self._at(phase, t, tid)
            if phase == "E":
                yield event
                continue
            own = launched.get(t, [])
            yield event | {"name": names[row], "cat": "launch" if own else "call", "args": self._lead(own)}
            for k in own:
                yield self._at("s", t, tid) | {"name": "launch", "cat": "launch", "id": self._flow(k)}

    def _lead(self, launches: list[int]) -> dict[str, int]:
        leads = [lead for k in launches if (lead := self.leads[k]) is not None]
        return {"lead_ns": min(leads)} if leads else {}

    def _flow(self, launch: int) -> int:
        return (self.pid << 32) + launch

    def _gpu(self, tid: int, rows: IntArray) -> Iterator[Event]:
        work = self.work
        for phase, place, t in _begins_and_ends(work.start[rows], work.end[rows]):
            event = self._at(phase, t, tid)
            if phase == "E":
                yield event
                continue
            row = int(rows[place])
            launch = int(work.launch[row])
            yield event | {
                "name": work.label(row),
                "cat": "gpu",
                "args": self._lead([launch] if launch != NONE else []),
            }
            if launch != NONE:
                yield self._at("f", t, tid) | {"name": "launch", "cat": "launch", "id": self._flow(launch), "bp": "e"}


def _nesting_rows(start: IntArray, end: IntArray) -> list[IntArray]:
    """Spread intervals over as few rows as a first fit needs, so that in each any two are apart or one in the other.

    ``start``, ``end``: int64 [n], ascending by start, of equal starts the longest first. Mostly there is one row.
    """
    rows: list[list[int]] = []
    open_ends: list[list[int]] = []
    for k, (begin, stop) in enumerate(zip(start.tolist(), end.tolist(), strict=True)):
        for ends in open_ends:
            while ends and ends[-1] <= begin:
                ends.pop()
        place = next((row for row, ends in enumerate(open_ends) if not ends or stop <= ends[-1]), len(rows))
        if place == len(rows):
            rows.append([])
            open_ends.append([])
        rows[place].append(k)
        open_ends[place].append(stop)
    return [np.asarray(row, np.int64) for row in rows]


def _begins_and_ends(start: IntArray, end: IntArray) -> Iterator[tuple[str, int, int]]:
    """(``B`` or ``E``, index, instant) of intervals that nest, ascending in time; who ends comes before who begins."""
    stack: list[tuple[int, int]] = []
    for k, (begin, stop) in enumerate(zip(start.tolist(), end.tolist(), strict=True)):
        while stack and stack[-1][0] <= begin:
            stop_of, index = stack.pop()
            yield "E", index, stop_of
        yield "B", k, begin
        stack.append((stop, k))
    while stack:
        stop_of, index = stack.pop()
        yield "E", index, stop_of
