"""Joins, leads, stalls and causes against a second reading of the raw tables, in SQL (``tests/oracle.sql``)."""

from __future__ import annotations

import os
import sqlite3
from contextlib import closing
from pathlib import Path

import pytest
from duckdb import DuckDBPyConnection
from generator import Fault, Mode, Schema, Spec, write_export
from sql_oracle import read

from dflash_bench.ingest.sources import IngestOptions, ingest
from dflash_bench.metrics.measure import measure
from dflash_bench.metrics.reading import Reading
from dflash_bench.model import RunMetrics

H200 = sorted((Path(__file__).parents[1] / "data" / "h200").glob("*.sqlite"))
MORE = Path(os.environ.get("DFLASH_CAPTURES", Path(__file__).parents[3] / "shared" / "captures"))
"""Captures that are not part of the repository, where there are any."""

REAL = [
    *((path, "decode_step") for path in H200 + sorted(MORE.glob("sglang/dflash_*.sqlite"))),
    *((path, "saxpy") for path in MORE.glob("public/*pipit*.sqlite")),
    *((path, "FusionExecutorCache::runFusionWithInputs") for path in MORE.glob("public/*nvfuser*.sqlite")),
]
"""A capture and the name of its steps."""

GENERATED = [
    # before 3.13 only graphs traced node by node left rows
    *(
        Spec(rows=3_000, schema=s, mode=Mode.GRAPH if s >= Schema.V3_13 else Mode.NODE, seed=k, is_sync=k % 2 == 0)
        for k, s in enumerate(Schema)
    ),
    *(Spec(rows=3_000, mode=m, seed=40 + k, is_sync=True) for k, m in enumerate(Mode)),
    *(
        Spec(rows=3_000, seed=50 + k, is_sync=True, faults=frozenset({f}))
        for k, f in enumerate(
            (Fault.SHARED_IDS, Fault.BACKTRACES, Fault.NEGATIVE_TIMES, Fault.TOOL_RANGES, Fault.START_END)
        )
    ),
]


def assert_reads_the_same(capture: Path, folder: Path, step: str = "decode_step") -> None:
    """Every rank's leads and stalls are those of the second reading, and there are some."""
    (profile,) = ingest([capture], IngestOptions(profiles=folder / "profiles", run="r"))
    run, second = measure(profile, Reading(step=step)), read(capture, step)
    ranks = [(p.rank, p.process) for p in run.info.processes if p.rank is not None]
    assert sum(differing(run, second, *each) for each in ranks) > 0


def differing(run: RunMetrics, second: DuckDBPyConnection, rank: int, process: int) -> int:
    """Fail where a figure of a rank is not that of its process in the second reading. Returns how many leads it has."""

    def samples(condition: str = "true", table: str = "launches") -> list[float]:
        sql = f"SELECT lead FROM {table} WHERE process = ? AND lead IS NOT NULL AND {condition} ORDER BY lead"
        return [float(lead) for (lead,) in second.execute(sql, [process]).fetchall()]

    def own(name: str) -> list[float]:
        metric = run.find(name, rank)
        return [] if metric is None else sorted(metric.values.tolist())

    def rows(sql: str) -> dict[str, list[float]]:
        """The rows of a table of causes, or of the same in SQL."""
        return {cause: rest for cause, *rest in second.execute(sql, [process]).fetchall()}

    def table(name: str) -> dict[str, list[float]]:
        return {cause: rest for t in run.tables if t.name == name for r, cause, *rest in t.rows if r == rank}

    def per_step(sql: str, name: str) -> None:
        """Values of single steps: those of zero need not be there in SQL."""
        found = second.execute(f"SELECT value FROM ({sql}) WHERE process = ?", [process]).fetchall()
        assert [value for value in own(name) if value] == sorted(float(value) for (value,) in found if value), name

    leads = samples()
    assert own("launch.lead") == leads
    assert sum(own("launch.run_ahead_fraction")) == sum(lead > 0 for lead in leads)
    assert own("graph.lead") == samples("name LIKE '%Graph%'")
    if own("graph.lead"):
        assert own("step.lead") == samples(table="step_leads")
    # where launches have lost their work, nothing says how long the GPU was dry
    has_lost = any(found.code == "launches_without_work" and found.rank == rank for found in run.findings)
    if has_lost:
        assert own("stall.total_per_step") == own("gpu.dry_per_step") == own("sync.exposed_per_step") == []
    else:
        assert sum(own("stall.total_per_step")) == -sum(lead for lead in leads if lead < 0)
    assert table("stall.by_cause") == rows("SELECT cause, launches, total_ns, p50_ns FROM causes WHERE process = ?")

    per_step("SELECT process, busy AS value FROM busy", "host.busy_per_step")
    for name in ("prepare_for_decode", "draft", "verify"):
        per_step(f"SELECT process, cost AS value FROM costs WHERE name = '{name}'", f"cost.{name}")
    if has_lost:
        return len(leads)
    per_step("SELECT process, sum(ended - begun) AS value FROM dry GROUP BY process, step", "gpu.dry_per_step")
    per_step("SELECT process, sum(ns) AS value FROM exposed GROUP BY process, step", "sync.exposed_per_step")
    dry = rows("SELECT cause, total_ns FROM dry_causes WHERE process = ?")
    assert {cause: [total] for cause, (_, total, *_) in table("dry.by_cause").items()} == dry
    return len(leads)


@pytest.mark.parametrize(("capture", "step"), REAL, ids=[path.stem for path, _ in REAL])
def test_a_real_capture_reads_the_same_in_sql(capture, step, tmp_path):
    assert_reads_the_same(capture, tmp_path, step)


PUBLISHED = {
    "h200x2_sync_rank0": {
        "busy": 2300.5, "dry": 1414.0, "exposed": 136.8, "slack": 5012.2,
        "rebuild_compact": 1102.8, "prepare_for_decode": 800.8, "process_result": 4.5,
        "dp_agreement · -": 104596.3 / 200, "rebuild_compact · cuLibraryLoadData": 78551.9 / 200,
        "rebuild_compact · -": 57242.8 / 200, "get_last_loc · -": 8931.1 / 200,
        "rebuild_compact · cudaStreamSynchronize": 4243.5 / 200,
    },
    "h200x2_nosync_rank0": {
        "busy": 1037.0, "dry": 486.4, "exposed": 30.6, "slack": 5973.8,
        "prepare_for_decode": 717.9, "process_result": 7.5,
        "dp_agreement · -": 41206.1 / 200, "- · -": 38093.9 / 200, "get_last_loc · cuLibraryLoadData": 15180.1 / 200,
    },
}  # fmt: skip
"""Means per step in µs, as the definitions of the metrics state them for these files."""


@pytest.mark.parametrize("capture", [path for path in H200 if path.stem in PUBLISHED], ids=lambda p: p.stem)
def test_the_second_reading_gives_the_costs_that_the_definitions_state(capture):
    second = read(capture)

    def per_step(sql: str) -> dict[str, float]:
        return {name: float(total) / 200_000 for name, total in second.execute(sql).fetchall()}

    found = per_step("SELECT cause, total_ns FROM dry_causes") | per_step(
        "SELECT name, sum(cost) FROM costs GROUP BY 1"
    )
    found |= per_step("SELECT 'dry', sum(ended - begun) FROM dry UNION ALL SELECT 'exposed', sum(ns) FROM exposed")
    found |= per_step("SELECT 'busy', avg(busy) * 200 FROM busy")
    inside = "FROM waits AS w JOIN spans AS s USING (process) WHERE w.begun >= s.begun AND w.begun < s.ended"
    found |= per_step(f"SELECT 'slack', sum(w.ended - w.begun) - (SELECT sum(ns) FROM exposed) {inside}")
    for name, stated in PUBLISHED[capture.stem].items():
        assert found[name] == pytest.approx(stated, abs=0.06), name


@pytest.mark.parametrize("spec", GENERATED, ids=lambda s: "-".join([s.schema, s.mode, *s.faults]))
def test_a_generated_capture_reads_the_same_in_sql(spec, tmp_path):
    assert_reads_the_same(write_export(tmp_path / "made.sqlite", spec), tmp_path)


@pytest.mark.parametrize(
    "change",
    [
        # branches of a graph on streams of their own, some of them busier than the main one
        "UPDATE CUPTI_ACTIVITY_KIND_KERNEL SET streamId = 50 + streamId WHERE graphNodeId NOT NULL AND rowid % 3 = 0",
        "UPDATE CUPTI_ACTIVITY_KIND_KERNEL SET streamId = 50 + streamId WHERE graphNodeId NOT NULL AND rowid % 3 < 2",
        # work whose call is not in the capture
        "DELETE FROM CUPTI_ACTIVITY_KIND_RUNTIME WHERE rowid % 11 = 0",
        # work that is not in the capture
        "DELETE FROM CUPTI_ACTIVITY_KIND_KERNEL WHERE rowid % 11 = 0",
    ],
    ids=["side branches", "busy side branches", "calls lost", "work lost"],
)
@pytest.mark.parametrize("is_sync", [False, True])
def test_a_changed_capture_reads_the_same_in_sql(change, is_sync, tmp_path):
    capture = write_export(tmp_path / "made.sqlite", Spec(rows=3_000, mode=Mode.NODE, seed=7, is_sync=is_sync))
    with closing(sqlite3.connect(capture)) as database, database:
        database.execute("PRAGMA synchronous=OFF")
        assert database.execute(change).rowcount > 50
    assert_reads_the_same(capture, tmp_path)
