"""Captures made row by row, for cases that are worked out by hand: as an nsys file and as events in memory.

A thread is (pid, tid); times are nanoseconds. ``Range("fill", 10, 20)`` is a push/pop range of the main thread.
"""

from __future__ import annotations

import sqlite3
from collections.abc import Sequence
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path
from types import SimpleNamespace

import numpy as np

from dflash_bench.metrics.events.arrays import NONE, OPEN, Names
from dflash_bench.metrics.events.gpu import GpuRows
from dflash_bench.metrics.events.host import ApiCalls, Ranges
from dflash_bench.metrics.events.process import ProcessEvents
from dflash_bench.metrics.reading import Reading
from dflash_bench.metrics.view import View
from dflash_bench.model import ProcessInfo, RankSource

PID = 4242


@dataclass(frozen=True)
class Range:
    name: str | None
    start: int
    end: int | None
    tid: int = PID
    domain: str = "dflash"
    pid: int = PID
    kind: int = 59
    is_registered: bool = False


@dataclass(frozen=True)
class Call:
    name: str
    start: int
    end: int
    id: int
    tid: int = PID
    pid: int = PID
    event_class: int = 0
    result: int = 0


@dataclass(frozen=True)
class Work:
    start: int
    end: int
    id: int
    stream: int = 7
    device: int = 0
    table: str = "KERNEL"
    pid: int = PID
    graph_exec: int | None = None
    node: int | None = None


def mark(rank: int, world: int, arm: str = "made", pid: int = PID) -> Range:
    """The rank mark that the built-in loop writes."""
    return Range(f"dflash_bench rank={rank} world={world} arm={arm}", 0, None, pid=pid, tid=pid, kind=34)


# ── as a file ────────────────────────────────────────────────────────────────────────────────────────────────────────

_TABLES = """
CREATE TABLE StringIds (id INTEGER PRIMARY KEY, value TEXT);
CREATE TABLE META_DATA_EXPORT (name TEXT, value TEXT);
CREATE TABLE META_DATA_CAPTURE (name TEXT, value TEXT);
CREATE TABLE NVTX_EVENTS (start INTEGER NOT NULL, end INTEGER, eventType INTEGER NOT NULL, text TEXT,
                          globalTid INTEGER, textId INTEGER, domainId INTEGER);
CREATE TABLE CUPTI_ACTIVITY_KIND_RUNTIME (start INTEGER, end INTEGER, eventClass INTEGER, globalTid INTEGER,
                                          correlationId INTEGER, nameId INTEGER, returnValue INTEGER);
"""
_WORK_COLUMNS = "start, end, deviceId, streamId, correlationId, globalPid"
_WORK_EXTRA = {"KERNEL": "shortName", "MEMCPY": "copyKind", "MEMSET": "bytes", "GRAPH_TRACE": "graphExecId"}


def write(path: Path, ranges: Sequence[Range] = (), calls: Sequence[Call] = (), work: Sequence[Work] = ()) -> Path:
    """An nsys export with these rows and nothing else."""
    strings: dict[str, int] = {}

    def key(text: str) -> int:
        return strings.setdefault(text, len(strings) + 1)

    domains: dict[tuple[int, str], int] = {}
    with closing(sqlite3.connect(path)) as db, db:
        db.execute("PRAGMA synchronous = OFF")  # a test waits for no disk
        db.executescript(_TABLES)
        db.execute("INSERT INTO META_DATA_EXPORT VALUES ('EXPORT_PRODUCT_VERSION', '2025.3.1.90')")
        db.execute("INSERT INTO META_DATA_EXPORT VALUES ('EXPORT_SCHEMA_VERSION', '3.20.3')")
        for r in ranges:
            if r.domain and (r.pid, r.domain) not in domains:
                domains[r.pid, r.domain] = len(domains) + 1
                row = (0, None, 75, r.domain, global_id(r.pid, r.pid), None, domains[r.pid, r.domain])
                db.execute("INSERT INTO NVTX_EVENTS VALUES (?, ?, ?, ?, ?, ?, ?)", row)
            text, text_id = (None, key(r.name)) if r.is_registered and r.name else (r.name, None)
            row = (r.start, r.end, r.kind, text, global_id(r.pid, r.tid), text_id, domains.get((r.pid, r.domain), 0))
            db.execute("INSERT INTO NVTX_EVENTS VALUES (?, ?, ?, ?, ?, ?, ?)", row)
        for c in calls:
            row = (c.start, c.end, c.event_class, global_id(c.pid, c.tid), c.id, key(f"{c.name}_v7000"), 0)
            db.execute("INSERT INTO CUPTI_ACTIVITY_KIND_RUNTIME VALUES (?, ?, ?, ?, ?, ?, ?)", row)
        for table in dict.fromkeys(w.table for w in work):
            extra = _WORK_EXTRA[table]
            db.execute(f"CREATE TABLE CUPTI_ACTIVITY_KIND_{table} ({_WORK_COLUMNS}, {extra})")
        for w in work:
            last = {"KERNEL": key("kernel"), "MEMCPY": 2, "MEMSET": 64, "GRAPH_TRACE": w.graph_exec}[w.table]
            row = (w.start, w.end, w.device, w.stream, w.id, global_id(w.pid, 0), last)
            db.execute(f"INSERT INTO CUPTI_ACTIVITY_KIND_{w.table} VALUES (?, ?, ?, ?, ?, ?, ?)", row)
        db.executemany("INSERT INTO StringIds VALUES (?, ?)", [(v, k) for k, v in strings.items()])
    return path


def global_id(pid: int, tid: int) -> int:
    """nsys' globalTid, and with tid 0 its globalPid."""
    return (1 << 48) | (pid << 24) | tid


# ── in memory ────────────────────────────────────────────────────────────────────────────────────────────────────────


def events(
    ranges: Sequence[Range] = (),
    calls: Sequence[Call] = (),
    work: Sequence[Work] = (),
    *,
    rank: int | None = 0,
    capture: int = 0,
) -> ProcessEvents:
    """The same rows as the metrics see them after ingest, of one process."""
    calls = sorted(calls, key=lambda c: (c.start, c.id))
    process = ProcessInfo(
        process=PID, pid=PID, capture=capture, rank=rank, rank_source=RankSource.MARK, world=None, arm=None,
        num_ranges=len(ranges), num_api_calls=len(calls), num_gpu_work=len(work),
    )  # fmt: skip
    return ProcessEvents(
        process=process,
        ranges=nvtx_ranges([r for r in ranges if r.end is not None]),
        unclosed=nvtx_ranges([r for r in ranges if r.end is None]),
        calls=api_calls(calls),
        gpu=gpu_rows(work),
        marks=names([]),
        marked_at=ints([]),
    )


def nvtx_ranges(ranges: Sequence[Range]) -> Ranges:
    ranges = sorted(ranges, key=lambda r: (r.start, -(r.end or 0)))
    return Ranges(
        ints(r.tid for r in ranges),
        names([r.domain for r in ranges]),
        names([str(r.name) for r in ranges]),
        ints(r.start for r in ranges),
        ints(OPEN if r.end is None else r.end for r in ranges),
        names([str(r.name) for r in ranges]),
        np.array([r.kind == 60 for r in ranges], bool),
    )


def api_calls(calls: Sequence[Call]) -> ApiCalls:
    return ApiCalls(
        ints(c.tid for c in calls),
        ints(c.id for c in calls),
        names([c.name for c in calls]),
        ints(c.start for c in calls),
        ints(c.end for c in calls),
        ints(c.result for c in calls),
    )


def gpu_rows(work: Sequence[Work]) -> GpuRows:
    return GpuRows(
        ints(w.device for w in work),
        ints(w.stream for w in work),
        ints(w.id for w in work),
        np.array([w.table == "GRAPH_TRACE" for w in work], bool),
        ints(w.start for w in work),
        ints(w.end for w in work),
        ints(NONE if w.node is None else w.node for w in work),
        ints(NONE if w.node is None else w.node >> 32 for w in work),
        np.zeros(len(work), bool),
    )


def view(made: ProcessEvents, reading: Reading | None = None) -> View:
    """Events as the meters see them. The profile behind them holds nothing more."""
    empty = SimpleNamespace(event_file=lambda table, process: None)
    return View(empty, made, reading or Reading(), is_own_loop=False)


def ints(values) -> np.ndarray:
    return np.array(list(values), np.int64)


def names(values: Sequence[str]) -> Names:
    known = list(dict.fromkeys(values))
    return Names(ints(known.index(v) for v in values), tuple(known))
