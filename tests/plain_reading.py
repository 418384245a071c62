"""A capture read plainly, row by row, to check what ingest and metrics make of it, with no code of theirs."""

from __future__ import annotations

import json
import re
import sqlite3
from collections import defaultdict
from collections.abc import Iterable
from contextlib import closing
from dataclasses import dataclass, field
from itertools import pairwise
from pathlib import Path
from statistics import median

import pytest

from dflash_bench.model import RunMetrics

NAMES = ("decode_step", "prepare_for_decode", "verify", "dp_agreement")
"""Ranges that are compared; ``verify`` is the one that generated exports name by text."""

FIGURES = (
    *(f"range.{name}" for name in NAMES), "step.period", "launch.calls_per_step", "sync.total_per_step", "launch.lead",
)  # fmt: skip
Figure = tuple[int, float]
"""How many, and their median or sum."""

_RANGES = (59, 60, 70, 71)
_WORK = ("KERNEL", "MEMCPY", "MEMSET", "GRAPH_TRACE")
_SYNC = re.compile(r"(cuda(Stream|Event|Device)|cu(Stream|Event|Ctx))Synchronize")


@dataclass
class _Process:
    """What one process did: (start, end) of its steps, (start, end, id, name) of its calls, its rows of GPU work."""

    ranges: dict[str, list[tuple[int, int]]] = field(default_factory=lambda: defaultdict(list))
    calls: list[tuple[int, int, int, str]] = field(default_factory=list)
    work: list[tuple[int, int, int, int, int]] = field(default_factory=list)

    def steps(self) -> list[tuple[int, int]]:
        """The outermost ranges of that name, by start."""
        found: list[tuple[int, int]] = []
        for start, end in sorted(self.ranges["decode_step"], key=lambda r: (r[0], -r[1])):
            if not found or start >= found[-1][1]:
                found.append((start, end))
        return found

    def lost_calls(self, first_call: dict[int, tuple[int, int]], with_work: set[int]) -> list[tuple[int, int]]:
        """(start, id) of calls whose work is not there, of names that mostly have some and lack over one in 200."""
        names, depth = defaultdict(list), 0
        for start, _, number, name in sorted(self.calls, key=lambda c: (c[0], c[2])):
            depth += ("StreamBeginCapture" in name) - ("StreamEndCapture" in name)
            if depth <= 0:
                names[name].append((start, number))
        lost = []
        for calls in names.values():
            have = sum(first_call[number] == (start, number) and number in with_work for start, number in calls)
            if 2 * have > len(calls) and len(calls) - have > 0.005 * len(calls):
                lost += [call for call in calls if first_call[call[1]] == call and call[1] not in with_work]
        return lost

    def leads(self) -> Iterable[tuple[int, int]]:
        """(start, lead) of every launch but the first of its lane: latest end of the work before − its start.

        Rows of one launch are one piece, on however many streams; its lane is the stream that holds most of its time.
        """
        first_call: dict[int, tuple[int, int]] = {}
        for start, _, number, _ in sorted(self.calls, key=lambda c: (c[0], c[2])):
            first_call.setdefault(number, (start, number))
        pieces: dict[tuple[int, int], list[tuple[int, int, int]]] = defaultdict(list)
        for device, stream, number, start, end in self.work:
            if number and number in first_call:
                pieces[device, number].append((stream, start, end))
        lost = self.lost_calls(first_call, {number for _, number in pieces})
        lanes = defaultdict(list)
        for (device, number), rows in pieces.items():
            time: dict[int, int] = defaultdict(int)
            for stream, start, end in rows:
                time[stream] += end - start
            lane = min(time, key=lambda stream: (-time[stream], stream))
            lanes[device, lane].append((first_call[number], max(end for *_, end in rows)))
        for launches in lanes.values():
            launches.sort()
            dry, call = None, None
            for (start, number), end in launches:
                # between two launches one that has lost its work: nobody knows when the stream ran dry
                if dry is not None and not any(call < each < (start, number) for each in lost):
                    yield start, dry - start
                call = start, number
                dry = end if dry is None else max(dry, end)


def differing(path: Path, measured: RunMetrics) -> dict[str, tuple[Figure | None, Figure | None]]:
    """The figures that are not those of a plain reading of the file: (shown, plain)."""
    shown, plain = shown_figures(measured, FIGURES), plain_figures(path)
    return {k: (shown.get(k), plain.get(k)) for k in FIGURES if not is_close(shown.get(k), plain.get(k))}


def is_close(shown: Figure | None, plain: Figure | None) -> bool:
    if shown is None or plain is None:
        return shown is plain
    # samples are kept as float64: beyond 2^53 ns digits go
    return shown[0] == plain[0] and shown[1] == pytest.approx(plain[1], rel=1e-12, abs=1e-6)


def shown_figures(measured: RunMetrics, names: Iterable[str]) -> dict[str, Figure]:
    """The pooled figures of these names as `plain_figures` gives them."""
    found: dict[str, Figure] = {}
    for name in names:
        values = [] if (metric := measured.find(name, None)) is None else metric.values.tolist()
        if name.endswith("_per_step"):
            if total := sum(values):
                found[name] = int(total), total
        elif values:
            found[name] = len(values), median(values)
    return found


def plain_figures(path: Path) -> dict[str, Figure]:
    """Figures over all processes of an SQLite export or a Chrome trace, by the names of the metrics they check."""
    processes = _read_trace(path) if path.suffix == ".json" else _read_export(path)
    samples: dict[str, list[int]] = defaultdict(list)
    sums: dict[str, list[int]] = defaultdict(list)
    for process in processes.values():
        for name in NAMES:
            samples[f"range.{name}"] += [end - start for start, end in process.ranges[name]]
        steps = process.steps()
        samples["step.period"] += [b[0] - a[0] for a, b in pairwise(steps)]
        inside = _inside(steps)
        for start, end, _, name in process.calls:
            if inside(start):
                sums["launch.calls_per_step"] += ["Launch" in name and "LaunchHostFunc" not in name]
                sums["sync.total_per_step"] += [end - start] if _SYNC.match(name) else []
        samples["launch.lead"] += [lead for start, lead in process.leads() if inside(start)]
    figures: dict[str, Figure] = {name: (len(v), median(v)) for name, v in samples.items() if v}
    return figures | {name: (sum(v), sum(v)) for name, v in sums.items() if sum(v)}


def _inside(steps: list[tuple[int, int]]):
    return lambda t: any(start <= t < end for start, end in steps)


def _read_trace(path: Path) -> dict[int, _Process]:
    processes: dict[int, _Process] = defaultdict(_Process)
    events = [e for e in json.loads(path.read_text())["traceEvents"] if isinstance(e, dict) and e.get("ph") == "X"]
    for event in events:
        about = event["args"] if isinstance(event.get("args"), dict) else {}
        ids = [n if isinstance(n := about.get(key), int) else 0 for key in ("device", "stream", "correlation")]
        kind, name, start, length = (event.get(key) for key in ("cat", "name", "ts", "dur"))
        if not all(isinstance(n, int | float) for n in (start, length)) or length < 0:
            continue
        start, end = round(start * 1000), round(start * 1000) + round(length * 1000)
        # without a process, it is of the one that the trace is of: that of the first event
        own = processes[event["pid"] if isinstance(event.get("pid"), int) else next(iter(processes), 0)]
        if kind == "user_annotation" and isinstance(name, str):
            own.ranges[name].append((start, end))
        elif kind == "cuda_runtime" and isinstance(name, str):
            own.calls.append((start, end, ids[2], name))
        elif kind in ("kernel", "gpu_memcpy", "gpu_memset"):
            processes[-1].work.append((*ids, start, end))
    # a trace is of one process: its GPU rows bear the device in place of it
    busiest = max((p for n, p in processes.items() if n != -1), key=lambda p: len(p.calls), default=None)
    if busiest is not None and (work := processes.pop(-1, None)) is not None:
        busiest.work = work.work
    return processes


def _read_export(path: Path) -> dict[int, _Process]:
    with closing(sqlite3.connect(f"file:{path}?mode=ro", uri=True)) as database:
        database.text_factory = lambda raw: raw.decode("utf-8", "replace")
        return _read(database)


def _read(database: sqlite3.Connection) -> dict[int, _Process]:
    processes: dict[int, _Process] = defaultdict(_Process)
    strings = {k: v for k, v in _rows(database, "StringIds", "id", "value") if isinstance(v, str)}
    wanted = ("globalTid", "start", "end", "eventType", "text", "textId")
    for tid, start, end, kind, text, key in _rows(database, "NVTX_EVENTS", *wanted):
        name = text if isinstance(text, str) else strings.get(key)
        if kind in _RANGES and name and _are_numbers(tid, start, end) and end >= start:
            processes[tid >> 24].ranges[name].append((start, end))
    wanted = ("globalTid", "start", "end", "correlationId", "nameId", "eventClass")
    for tid, start, end, number, key, kind in _rows(database, "CUPTI_ACTIVITY_KIND_RUNTIME", *wanted):
        if kind in (0, 1, None) and _are_numbers(tid, start, end, number) and end >= start:
            processes[tid >> 24].calls.append((start, end, number, strings.get(key, "")))
    wanted = ("globalPid", "deviceId", "streamId", "correlationId", "start", "end")
    for table in _WORK:
        for pid, device, stream, number, start, end in _rows(database, f"CUPTI_ACTIVITY_KIND_{table}", *wanted):
            if _are_numbers(pid, device, stream, number, start, end) and end >= start and (start or end):
                processes[pid >> 24].work.append((device, stream, number, start, end))
    return processes


def _are_numbers(*values: object) -> bool:
    return all(isinstance(v, int) for v in values)


def _rows(database: sqlite3.Connection, table: str, *columns: str) -> list[tuple]:
    """Rows of a table or view, None for columns that it lacks."""
    known = {name for (name,) in database.execute("SELECT name FROM pragma_table_info(?)", (table,))}
    if not known:
        return []
    return database.execute(
        f"SELECT {', '.join(f'{chr(34)}{c}{chr(34)}' if c in known else 'NULL' for c in columns)} FROM {table}"
    ).fetchall()
