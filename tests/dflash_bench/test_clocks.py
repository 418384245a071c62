"""Captures that begin at the same nanosecond share a clock; others are lined up by the ends of their agreements."""

from __future__ import annotations

import sqlite3
from contextlib import closing
from pathlib import Path

import pytest
from handmade import Range, mark, write

from dflash_bench.ingest.sources import IngestOptions, ingest
from dflash_bench.metrics.measure import measure
from dflash_bench.metrics.summary import figure

STEP, LATE = 1_000_000, 40_000
"""Rank 1 arrives and leaves 40 µs after rank 0: late on one clock, indistinguishable from an offset on two."""


def capture(folder: Path, rank: int, origin: int) -> Path:
    ranges = [mark(rank, 2)]
    for k in range(1, 7):
        start = k * STEP
        ranges.append(Range("decode_step", start, start + 900_000))
        ranges.append(Range("dp_agreement", start + 1_000 + rank * LATE, start + 300_000 + rank * LATE))
    path = write(folder / f"rank{rank}.sqlite", ranges)
    with closing(sqlite3.connect(path)) as db, db:
        db.execute("CREATE TABLE TARGET_INFO_SESSION_START_TIME (utcEpochNs INTEGER)")
        db.execute("INSERT INTO TARGET_INFO_SESSION_START_TIME VALUES (?)", (origin,))
    return path


@pytest.mark.parametrize(
    ("origins", "offset", "wait"), [((7, 7), 0, LATE), ((7, 8), LATE, 0)], ids=["one clock", "two clocks"]
)
def test_what_is_an_offset_and_what_is_lateness_depends_on_the_clock(tmp_path: Path, origins, offset, wait) -> None:
    files = [capture(tmp_path, rank, origin) for rank, origin in enumerate(origins)]
    (profile,) = ingest(files, IngestOptions(profiles=tmp_path / "profiles"))
    found = measure(profile)
    assert figure(found.find("clock.offset", 1)) == offset
    assert figure(found.find("dp.wait", 0)) == wait
