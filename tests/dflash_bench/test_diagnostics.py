"""What nsys says of its own gaps: passed on where it means something, in our words."""

from __future__ import annotations

import shutil
import sqlite3
from contextlib import closing
from pathlib import Path

import pytest

from dflash_bench.ingest.nsys.diagnostics import findings_of
from dflash_bench.ingest.nsys.source import open_export
from dflash_bench.ingest.rows import Skipped

H200 = Path(__file__).parents[1] / "data" / "h200" / "h200x2_nosync_rank0.sqlite"


@pytest.fixture
def capture(tmp_path: Path) -> Path:
    """A capture in which nsys doubts that CUDA profiling began and that NVTX is whole."""
    path = tmp_path / "doubtful.sqlite"
    shutil.copy(H200, path)
    with closing(sqlite3.connect(path)) as database, database:
        rows = [
            (1, "CUDA profiling might have not been started correctly."),
            (2, "Not all NVTX events might have been collected."),
        ]
        columns = "timestamp, timestampType, source, severity, text"
        database.executemany(f"INSERT INTO DIAGNOSTIC_EVENT ({columns}) VALUES (?, 1, 1, 2, ?)", rows)
    return path


def codes(path: Path) -> set[str]:
    return {finding.code for finding in findings_of(open_export(path), Skipped(), 0)}


def test_doubt_about_the_start_of_cuda_means_nothing_where_cuda_calls_are(capture: Path) -> None:
    assert codes(capture) == {"nvtx_incomplete"}


def test_without_cuda_calls_the_doubt_is_passed_on(capture: Path) -> None:
    with closing(sqlite3.connect(capture)) as database, database:
        database.execute("DROP TABLE CUPTI_ACTIVITY_KIND_RUNTIME")
    assert codes(capture) == {"nvtx_incomplete", "cuda_not_started", "waits_without_calls"}
