"""The generator writes what each schema family holds, the same for the same seed, and each fault is really there."""

from __future__ import annotations

import sqlite3
from contextlib import closing
from itertools import pairwise
from pathlib import Path

import pytest

from generator import FAULT_MEANING, Fault, Mode, Schema, Spec, write_export, write_ranks
from generator.events import LAUNCHES
from generator.faults import CLOCK_ERROR_NS, CLOCK_SHIFT_NS

RUNTIME, KERNEL, GRAPH = (f"CUPTI_ACTIVITY_KIND_{name}" for name in ("RUNTIME", "KERNEL", "GRAPH_TRACE"))
EVENT_TABLES = ("NVTX_EVENTS", RUNTIME, KERNEL, GRAPH, "CUPTI_ACTIVITY_KIND_MEMCPY", "CUPTI_ACTIVITY_KIND_MEMSET")


def query(path: Path, sql: str) -> list[tuple[object, ...]]:
    with closing(sqlite3.connect(path)) as database:
        database.text_factory = bytes
        return database.execute(sql).fetchall()


def one(path: Path, sql: str) -> object:
    return query(path, sql)[0][0]


def tables(path: Path) -> set[str]:
    return {name.decode() for (name,) in query(path, "SELECT name FROM sqlite_master WHERE type = 'table'")}


def columns(path: Path, table: str) -> set[str]:
    return {name.decode() for (name,) in query(path, f"SELECT name FROM pragma_table_info('{table}')")}


def make(tmp_path: Path, *faults: Fault, **options: object) -> Path:
    return write_export(tmp_path / "made.sqlite", Spec(rows=3000, faults=frozenset(faults), **options))  # type: ignore[arg-type]


@pytest.mark.parametrize("schema", Schema)
@pytest.mark.parametrize("mode", Mode)
def test_every_family_has_its_own_tables_and_columns(tmp_path: Path, schema: Schema, mode: Mode) -> None:
    path = make(tmp_path, schema=schema, mode=mode)
    found = tables(path)
    assert ("EXPORT_META_DATA" in found) == (schema in (Schema.V2_9, Schema.V3_0))
    assert ("META_DATA_EXPORT" in found) == (schema >= Schema.V3_4)
    assert ("PROCESSES" in found) == (schema is not Schema.OLDEST)
    assert ("ENUM_NSYS_EVENT_TYPE" in found) == (schema >= Schema.V3_0)
    assert (GRAPH in found) == (schema >= Schema.V3_13 and mode is not Mode.NODE)
    assert ("CUDA_GRAPH_NODE_EVENTS" in found) == (schema >= Schema.V3_13 and mode is not Mode.GRAPH)
    assert ("greenContextId" in columns(path, KERNEL)) == (schema >= Schema.V3_7)
    assert ("binaryData" in columns(path, "NVTX_EVENTS")) == (schema >= Schema.V3_16)
    assert ("TARGET_INFO_CUDA_DEVICE" in found) == (schema >= Schema.V3_17)
    assert ("mangledName" in columns(path, KERNEL)) == (schema is not Schema.OLDEST)
    assert ("graphId" in columns(path, KERNEL)) == (schema >= Schema.V3_24)
    assert ("overheadType" in columns(path, "PROFILER_OVERHEAD")) == (schema >= Schema.V3_24)


@pytest.mark.parametrize(
    ("schema", "code"), [(Schema.V2_9, 3), (Schema.V3_7, 3), (Schema.V3_13, 2), (Schema.V3_24, 2), (Schema.V3_25, 3)]
)
def test_a_stream_synchronize_is_coded_as_that_family_codes_it(tmp_path: Path, schema: Schema, code: int) -> None:
    path = make(tmp_path, schema=schema, is_sync=True)
    join = f"JOIN {RUNTIME} USING (correlationId) JOIN StringIds ON nameId = id"
    sql = f"SELECT DISTINCT syncType FROM CUPTI_ACTIVITY_KIND_SYNCHRONIZATION {join} WHERE value LIKE 'cudaStreamSyn%'"
    assert query(path, sql) == [(code,)]


@pytest.mark.parametrize("mode", Mode)
def test_the_number_of_rows_is_about_what_was_asked_for(tmp_path: Path, mode: Mode) -> None:
    path = write_export(tmp_path / "made.sqlite", Spec(rows=60_000, ranks=3, mode=mode))
    total = sum(int(str(one(path, f"SELECT COUNT(*) FROM {t}"))) for t in EVENT_TABLES if t in tables(path))
    assert total == pytest.approx(60_000, rel=0.05)


def test_the_same_seed_gives_the_same_rows_and_another_seed_others(tmp_path: Path) -> None:
    dumps = []
    for k, seed in enumerate((5, 5, 6)):
        path = write_export(tmp_path / f"{k}.sqlite", Spec(rows=2000, seed=seed))
        dumps.append(query(path, "SELECT * FROM NVTX_EVENTS") + query(path, f"SELECT * FROM {KERNEL}"))
    assert dumps[0] == dumps[1] != dumps[2]


def test_one_file_per_rank_holds_what_the_file_of_all_ranks_holds(tmp_path: Path) -> None:
    spec = Spec(rows=3000, ranks=3)
    everything = query(
        write_export(tmp_path / "all.sqlite", spec), f"SELECT * FROM {RUNTIME} ORDER BY globalTid, start"
    )
    apart = [
        row for path in write_ranks(tmp_path, spec) for row in query(path, f"SELECT * FROM {RUNTIME} ORDER BY start")
    ]
    assert apart == everything


def test_the_gpu_runs_one_piece_of_work_at_a_time_and_never_before_its_launch(tmp_path: Path) -> None:
    path = make(tmp_path, ranks=1, is_sync=True)
    parts = " UNION ALL ".join(f'SELECT start, "end", correlationId FROM {t}' for t in EVENT_TABLES[2:])
    work = query(
        path, f'SELECT w.start, w."end", r.start FROM ({parts}) w JOIN {RUNTIME} r USING (correlationId) ORDER BY 1'
    )
    assert len(work) > 500
    assert all(launch < start < end for start, end, launch in work)  # type: ignore[operator]
    assert all(before[1] <= after[0] for before, after in pairwise(work))  # type: ignore[operator]


def test_every_fault_is_explained() -> None:
    assert set(FAULT_MEANING) == set(Fault)


def test_every_fault_is_shown_by_some_test() -> None:
    assert {*FAULT_SHOWS, *FAULT_LACKS, *OTHERWISE} == set(Fault)


def test_in_a_mixed_capture_the_draft_graph_is_kernels_and_the_verify_graph_one_row(tmp_path: Path) -> None:
    path = make(tmp_path, mode=Mode.MIXED)
    assert query(path, f"SELECT DISTINCT graphId FROM {GRAPH}") == [(2,)]
    sql = f"SELECT DISTINCT graphNodeId >> 32 FROM {KERNEL} WHERE graphNodeId IS NOT NULL"
    assert query(path, sql) == [(1,)]


def test_ranks_with_their_own_clocks_begin_at_different_times_and_say_so_with_an_error(tmp_path: Path) -> None:
    spec = Spec(rows=3000, faults=frozenset({Fault.OWN_CLOCKS}))
    first, second = write_ranks(tmp_path, spec)
    start = "SELECT MIN(start) FROM NVTX_EVENTS WHERE eventType = 59"
    utc = "SELECT utcEpochNs FROM TARGET_INFO_SESSION_START_TIME"
    moved = int(str(one(first, start))) - int(str(one(second, start)))
    said = int(str(one(second, utc))) - int(str(one(first, utc)))
    assert (moved, said) == (CLOCK_SHIFT_NS, CLOCK_SHIFT_NS + CLOCK_ERROR_NS)
    everything = write_export(tmp_path / "all.sqlite", spec)
    assert one(everything, start) == one(first, start), "one file has one clock"


CUT = f"correlationId NOT IN (SELECT correlationId FROM {RUNTIME})"
TIDS = "SELECT globalTid FROM NVTX_EVENTS"
NAMED = "SELECT COUNT(*) = 0 FROM NVTX_EVENTS JOIN StringIds ON textId = id WHERE value"
STEPS = "(SELECT COUNT(*) FROM NVTX_EVENTS JOIN StringIds ON textId = id WHERE value = 'decode_step')"
FAULT_SHOWS = {
    Fault.CORRELATION_ZERO: f"SELECT COUNT(*) > 0 AND SUM(correlationId) = 0 FROM {GRAPH}",
    Fault.CORRELATION_ZERO_DRAFT: f"SELECT 2 * SUM(correlationId = 0) = COUNT(*) FROM {GRAPH}",
    Fault.KERNELS_UNCORRELATED: f"SELECT SUM(correlationId = 0) * 10 BETWEEN COUNT(*) AND COUNT(*) + 20 FROM {KERNEL}",
    Fault.GRAPH_IDS_REUSED: f'SELECT COUNT(DISTINCT graphId) = 2 FROM {GRAPH} WHERE "end" - start < 2000000',
    Fault.HOST_FIRST_NODE: f"SELECT SUM(deviceId = 2147483647) > 0 FROM {GRAPH}",
    Fault.DUPLICATE_CALLS: f"SELECT COUNT(*) > COUNT(DISTINCT correlationId) FROM {RUNTIME} WHERE eventClass = 0",
    Fault.WORK_CUT: f"SELECT COUNT(*) < {LAUNCHES} * {STEPS} FROM {KERNEL}",
    Fault.STEPS_IDLE: f"SELECT COUNT(*) < 2 * {STEPS} FROM {GRAPH}",
    Fault.ONE_RANK_TRACED: f"SELECT COUNT(DISTINCT globalPid) = 1 FROM {KERNEL}",
    Fault.CUDA_ELSEWHERE: f"SELECT COUNT(*) > 0 FROM {RUNTIME} WHERE globalTid NOT IN ({TIDS})",
    Fault.NO_AGREEMENT: f"{NAMED} = 'dp_agreement'",
    Fault.STRINGS_CUT: "SELECT COUNT(*) > 0 FROM NVTX_EVENTS WHERE textId NOT IN (SELECT id FROM StringIds)",
    Fault.NO_GLOBAL_PID: f"SELECT COUNT(*) = 0 FROM pragma_table_info('{KERNEL}') WHERE name = 'globalPid'",
    Fault.RANGES_LOST: "SELECT COUNT(*) = SUM(eventType = 75) FROM NVTX_EVENTS",
    Fault.UNKNOWN_SCHEMA: "SELECT COUNT(*) FROM META_DATA_EXPORT WHERE value = '9.1.0'",
    Fault.DIAGNOSTICS: "SELECT COUNT(*) FROM DIAGNOSTIC_EVENT WHERE text LIKE 'Not all NVTX%'",
    Fault.SHARED_IDS: f"SELECT MAX(n) = 2 FROM (SELECT COUNT(*) AS n FROM {RUNTIME} GROUP BY correlationId)",
    Fault.BACKTRACES: f"SELECT SUM(eventClass = 67) = SUM(eventClass = 0) FROM {RUNTIME}",
    Fault.LAUNCHES_CUT: f"SELECT COUNT(*) > 0 FROM {KERNEL} WHERE {CUT}",
    Fault.OPEN_RANGES: 'SELECT COUNT(*) > 0 FROM NVTX_EVENTS WHERE "end" IS NULL AND eventType = 59',
    Fault.NEGATIVE_TIMES: "SELECT MIN(start) < 0 FROM NVTX_EVENTS",
    Fault.NO_TIMES: f'SELECT COUNT(*) > 0 FROM {KERNEL} WHERE start = 0 AND "end" = 0',
    Fault.BACKWARDS: f'SELECT COUNT(*) > 0 FROM {KERNEL} WHERE "end" < start',
    Fault.STEP_NAMES_COUNT: "SELECT COUNT(DISTINCT text) > 10 FROM NVTX_EVENTS WHERE text LIKE 'iteration %'",
    Fault.START_END: "SELECT COUNT(*) > 0 FROM NVTX_EVENTS WHERE eventType = 60",
    Fault.TOOL_RANGES: "SELECT SUM(domainId = 7) > SUM(domainId = 1) FROM NVTX_EVENTS",
    Fault.NOT_UTF8: "SELECT COUNT(*) FROM StringIds WHERE HEX(value) LIKE '%FFFE'",
    Fault.NO_MARKS: "SELECT COUNT(*) = 0 FROM NVTX_EVENTS WHERE eventType = 34",
    Fault.GPU_ORDER: "SELECT SUM(id != cuDevice) > 0 FROM TARGET_INFO_GPU",
    Fault.PARTIAL_EXPORT: "SELECT COUNT(*) FROM META_DATA_EXPORT WHERE name = 'EXPORT_PARAM_TABLES_TO_EXPORT'",
    Fault.CLIPPED: "SELECT COUNT(*) FROM META_DATA_EXPORT WHERE name = 'DERIVED_BY'",
    Fault.OLD_DRIVER: "SELECT COUNT(*) FROM DIAGNOSTIC_EVENT",
    Fault.EXTRA_COLUMNS: f"SELECT COUNT(*) FROM pragma_table_info('{RUNTIME}') WHERE name = 'name'",
}
FAULT_LACKS = {
    Fault.NO_NVTX: "NVTX_EVENTS",
    Fault.NO_RUNTIME: RUNTIME,
    Fault.NO_KERNEL: KERNEL,
    Fault.NO_GPU_WORK: KERNEL,
    Fault.NO_GRAPH_WORK: GRAPH,
    Fault.NO_PROCESSES: "PROCESSES",
    Fault.NO_STRINGS: "StringIds",
    Fault.DRIVER_CALLS_ONLY: KERNEL,
    Fault.NO_SESSION_START: "TARGET_INFO_SESSION_START_TIME",
}
OTHERWISE = {Fault.EMPTY_TABLES, Fault.WAL, Fault.STEPS_DOUBLED, Fault.OWN_CLOCKS}
"""Faults with a test of their own."""


@pytest.mark.parametrize("fault", FAULT_SHOWS)
def test_a_faulty_export_shows_its_fault_and_a_sound_one_does_not(tmp_path: Path, fault: Fault) -> None:
    assert one(make(tmp_path, fault), FAULT_SHOWS[fault]) == 1
    sound = write_export(tmp_path / "sound.sqlite", Spec(rows=3000))
    if fault in (Fault.OLD_DRIVER, Fault.DIAGNOSTICS):
        assert "DIAGNOSTIC_EVENT" not in tables(sound)
    else:
        assert one(sound, FAULT_SHOWS[fault]) == 0


@pytest.mark.parametrize("fault", FAULT_LACKS)
def test_a_table_that_a_fault_takes_away_is_gone_and_otherwise_there(tmp_path: Path, fault: Fault) -> None:
    assert FAULT_LACKS[fault] in tables(make(tmp_path))
    assert FAULT_LACKS[fault] not in tables(make(tmp_path, fault))


def test_a_non_lazy_export_has_tables_without_rows(tmp_path: Path) -> None:
    path = make(tmp_path, Fault.EMPTY_TABLES)
    assert one(path, "SELECT COUNT(*) FROM DIAGNOSTIC_EVENT") == 0


def test_an_export_can_be_in_write_ahead_log_mode(tmp_path: Path) -> None:
    assert make(tmp_path, Fault.WAL).read_bytes()[18:20] == b"\x02\x02"


def test_step_scopes_are_doubled(tmp_path: Path) -> None:
    sql = "SELECT COUNT(*) FROM NVTX_EVENTS JOIN StringIds ON textId = id WHERE value = 'decode_step'"
    assert one(make(tmp_path, Fault.STEPS_DOUBLED), sql) == 2 * int(str(one(make(tmp_path), sql)))
