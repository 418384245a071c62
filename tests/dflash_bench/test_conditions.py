"""Every odd condition that exports are met in, planted: it has its warning with the right count, or loses nothing.

The counts are those that plain SQL finds in the planted file.
"""

from __future__ import annotations

import json
import sqlite3
from contextlib import closing
from dataclasses import dataclass, field
from pathlib import Path

import pytest
from generator import Fault, Mode, Schema, Spec, write_export, write_ranks
from plain_reading import differing

from dflash_bench.ingest.sources import IngestOptions, ingest
from dflash_bench.metrics.measure import measure

RUNTIME, KERNEL, MEMCPY, MEMSET, GRAPH = (
    f"CUPTI_ACTIVITY_KIND_{kind}" for kind in ("RUNTIME", "KERNEL", "MEMCPY", "MEMSET", "GRAPH_TRACE")
)
NAMED = "JOIN StringIds ON id = {} WHERE value"
RANGES = "SELECT COUNT(*) FROM NVTX_EVENTS {}"
STEPS = f"SELECT COUNT(*) FROM NVTX_EVENTS {NAMED.format('textId')} = 'decode_step'"
CALLS = f"SELECT COUNT(*) FROM {RUNTIME}"
LAUNCHES = f"{CALLS} {NAMED.format('nameId')} LIKE '%Launch%'"
ROWS = 800


@dataclass(frozen=True)
class Planted:
    """A condition: how it is planted, the code that names it, and how many rows it concerns (SQL)."""

    what: str
    code: str
    count: str
    faults: tuple[Fault, ...] = ()
    options: dict[str, object] = field(default_factory=dict)

    def spec(self) -> Spec:
        # one rank: what is counted in the file is then what is counted of the rank
        return Spec(**{"rows": ROWS, "ranks": 1, "faults": frozenset(self.faults), **self.options})


WORK_IDS = " UNION ".join(f"SELECT correlationId FROM {table}" for table in (KERNEL, MEMCPY, MEMSET, GRAPH))
WORK = " UNION ALL ".join(f'SELECT start, "end", correlationId FROM {t}' for t in (KERNEL, MEMCPY, MEMSET, GRAPH))
CALL_IDS = f"SELECT correlationId FROM {RUNTIME}"
LAUNCHED = f"SELECT 1 FROM {RUNTIME} r JOIN StringIds l ON l.id = nameId WHERE l.value LIKE '%Launch%'"

PLANTED = (
    # what the file says of itself
    Planted("1: no version anywhere", "schema_unstated", "SELECT 1", (), {"schema": Schema.OLDEST}),
    Planted("a schema of the future", "schema_unknown", "SELECT 1", (Fault.UNKNOWN_SCHEMA,)),
    Planted("a partial export", "partial_export", "SELECT 1", (Fault.PARTIAL_EXPORT,)),
    Planted("a slice of a longer capture", "clipped_window", "SELECT 1", (Fault.CLIPPED,)),
    Planted("a driver newer than nsys", "driver_not_supported", "SELECT COUNT(*) FROM DIAGNOSTIC_EVENT",
            (Fault.OLD_DRIVER,)),
    Planted("nsys missed ranges", "nvtx_incomplete", "SELECT COUNT(*) FROM DIAGNOSTIC_EVENT", (Fault.DIAGNOSTICS,)),
    Planted("20: made by hand, without a column", "table_without_columns", f"SELECT COUNT(*) FROM {KERNEL}",
            (Fault.NO_GLOBAL_PID,)),
    # ranges and steps
    Planted("27: two scopes a step", "step_inside_step", f"{STEPS} AND start % 10000000 > 4000000",
            (Fault.STEPS_DOUBLED,)),
    Planted("28: step names that change", "no_steps", RANGES.format("WHERE eventType = 59"),
            (Fault.STEP_NAMES_COUNT,)),
    Planted("13: ranges open at the end", "range_open_at_end",
            RANGES.format('WHERE eventType = 59 AND "end" IS NULL'), (Fault.OPEN_RANGES,)),
    Planted("ranges that nsys lost", "ranges_lost", RANGES.format(""), (Fault.RANGES_LOST,)),
    Planted("a name that StringIds lacks", "name_missing",
            RANGES.format("WHERE textId NOT IN (SELECT id FROM StringIds)"), (Fault.STRINGS_CUT,)),
    Planted("no StringIds at all", "name_missing",
            f"SELECT (SELECT COUNT(*) FROM {RUNTIME}) + (SELECT COUNT(*) FROM {KERNEL}) + (SELECT COUNT(*) FROM"
            " PROFILER_OVERHEAD) + (SELECT COUNT(*) FROM NVTX_EVENTS WHERE textId IS NOT NULL)", (Fault.NO_STRINGS,)),
    # calls and launches
    Planted("2: ranges and nothing of CUDA", "no_api_calls", STEPS, (Fault.NO_RUNTIME, Fault.NO_GPU_WORK)),
    Planted("waits whose calls are missing", "waits_without_calls",
            "SELECT COUNT(*) FROM CUPTI_ACTIVITY_KIND_SYNCHRONIZATION", (Fault.NO_RUNTIME,)),
    Planted("3: API calls without GPU work", "no_gpu_rows", LAUNCHES, (Fault.NO_GPU_WORK,)),
    Planted("driver calls only", "no_launch_calls", CALLS, (Fault.DRIVER_CALLS_ONLY,)),
    Planted("launches whose work is missing", "launches_without_work",
            f"{LAUNCHES} AND correlationId NOT IN ({WORK_IDS})", (Fault.WORK_CUT,)),
    Planted("6: graph launches without work", "graph_launches_without_work",
            f"{CALLS} {NAMED.format('nameId')} LIKE '%GraphLaunch%'", (Fault.NO_GRAPH_WORK,)),
    Planted("steps that launched nothing", "idle_steps",
            f"{STEPS} AND NOT EXISTS ({LAUNCHED} AND r.start BETWEEN NVTX_EVENTS.start AND NVTX_EVENTS.\"end\")",
            (Fault.STEPS_IDLE,)),
    Planted("9: backtrace rows", "api_row_is_backtrace", f"{CALLS} WHERE eventClass = 67", (Fault.BACKTRACES,)),
    Planted("API rows that are there twice", "duplicate_api_calls",
            f"SELECT COUNT(*) - COUNT(DISTINCT correlationId) FROM {RUNTIME}", (Fault.DUPLICATE_CALLS,)),
    # GPU work
    Planted("18: work whose launch was cut off", "gpu_work_without_launch",
            f"SELECT COUNT(*) FROM ({WORK}) WHERE correlationId NOT IN ({CALL_IDS})", (Fault.LAUNCHES_CUT,)),
    Planted("kernels with correlation id 0", "gpu_work_uncorrelated",
            f"SELECT COUNT(*) FROM {KERNEL} WHERE correlationId = 0", (Fault.KERNELS_UNCORRELATED,)),
    Planted("graphs made before the capture", "joined_by_order",
            f"SELECT COUNT(*) FROM {GRAPH} WHERE correlationId = 0", (Fault.CORRELATION_ZERO,)),
    Planted("graphs that begin on the host", "gpu_work_without_device",
            f"SELECT COUNT(*) FROM {GRAPH} WHERE deviceId = 2147483647", (Fault.HOST_FIRST_NODE,)),
    Planted("25: GPU rows without times", "gpu_work_without_time",
            f'SELECT COUNT(*) FROM ({WORK}) WHERE start = 0 AND "end" = 0', (Fault.NO_TIMES,)),
    Planted("25: GPU rows that end before they start", "gpu_work_ends_before_start",
            f'SELECT COUNT(*) FROM ({WORK}) WHERE "end" < start', (Fault.BACKWARDS,)),
)  # fmt: skip

HARMLESS: dict[str, dict[str, object]] = {
    "5: eager kernels around graph replays": {"mode": Mode.GRAPH},
    "7: graphs traced node by node": {"mode": Mode.NODE},
    "one graph by node and one as a whole": {"mode": Mode.MIXED},
    "graph ids given out twice": {"mode": Mode.MIXED, "faults": frozenset({Fault.GRAPH_IDS_REUSED})},
    "8: two processes with equal correlation ids": {"faults": frozenset({Fault.SHARED_IDS}), "ranks": 2},
    **{
        f"10: sync codes of schema {schema}": {"schema": schema, "is_sync": True, "mode": Mode.NODE}
        for schema in Schema
        if schema is not Schema.OLDEST
    },
    "12: times before 0": {"faults": frozenset({Fault.NEGATIVE_TIMES})},
    "14: steps as start/end ranges": {"faults": frozenset({Fault.START_END})},
    "15: bytes that are no UTF-8": {"faults": frozenset({Fault.NOT_UTF8})},
    "16: no table of processes": {"faults": frozenset({Fault.NO_PROCESSES})},
    "17: GPUs in another order": {"faults": frozenset({Fault.GPU_ORDER})},
    "19: columns and indexes of somebody": {"faults": frozenset({Fault.EXTRA_COLUMNS})},
    "21: tables without rows": {"faults": frozenset({Fault.EMPTY_TABLES})},
    "24: write-ahead-log mode": {"faults": frozenset({Fault.WAL})},
    "26: a tool's ranges outnumber the program's": {"faults": frozenset({Fault.TOOL_RANGES})},
}
"""What is read exactly: nothing is lost, so nothing is said. (11 is in every generated export.)"""


def one(path: Path, sql: str) -> int:
    with closing(sqlite3.connect(path)) as database:
        return int(database.execute(sql).fetchone()[0])


@pytest.fixture
def warnings(cli, tmp_path):
    """Ingest and measure: warnings of the JSON by (rank, code)."""

    def run(*paths: Path) -> dict[tuple[int | None, str], dict[str, object]]:
        found = cli("metrics", *paths, "--json", "--profiles", tmp_path / "profiles")
        assert found.exit_code == 0, found.output
        return {(w["rank"], w["code"]): w for w in json.loads(found.stdout)["warnings"]}

    return run


@pytest.mark.parametrize("planted", PLANTED, ids=lambda planted: planted.what)
def test_a_planted_condition_is_named_with_its_count(warnings, tmp_path, planted):
    path = write_export(tmp_path / "made.sqlite", planted.spec())
    found = warnings(path)
    own = found.get((0, planted.code)) or found[None, planted.code]
    assert own["count"] == one(path, planted.count) > 0


def test_the_terminal_names_every_warning_that_the_json_does(warnings, cli, tmp_path):
    faults = frozenset({Fault.OLD_DRIVER, Fault.CLIPPED, Fault.WORK_CUT, Fault.STEPS_IDLE, Fault.DUPLICATE_CALLS})
    path = write_export(tmp_path / "made.sqlite", Spec(rows=ROWS, ranks=1, faults=faults))
    codes = {code for _, code in warnings(path)}
    said = cli("metrics", path, "--full", "--profiles", tmp_path / "profiles").output
    assert len(codes) > 5
    assert {code for code in codes if code not in said} == set()


@pytest.mark.parametrize("options", HARMLESS.values(), ids=HARMLESS.keys())
def test_what_is_read_exactly_gives_the_figures_of_a_plain_reading_and_no_warning(tmp_path, options):
    path = write_export(tmp_path / "made.sqlite", Spec(**{"rows": ROWS, "ranks": 1, **options}))
    (profile,) = ingest([path], IngestOptions(profiles=tmp_path / "profiles"))
    measured = measure(profile)
    assert measured.findings == ()
    assert measured.find("launch.lead", 0).n > 100
    assert differing(path, measured) == {}


@pytest.mark.parametrize("name", ["sync_rank0", "sync_rank1", "nosync_rank0", "nosync_rank1"])
def test_the_captures_of_a_real_run_give_the_figures_of_a_plain_reading(h200, tmp_path, name):
    path = h200 / f"h200x2_{name}.sqlite"
    (profile,) = ingest([path], IngestOptions(profiles=tmp_path / "profiles"))
    assert differing(path, measure(profile)) == {}


def test_a_view_in_place_of_a_table_is_left_out_and_said(warnings, tmp_path):
    """A view is a program: one that never ends must not hang the reader."""
    path = write_export(tmp_path / "made.sqlite", Spec(rows=ROWS, ranks=1))
    with closing(sqlite3.connect(path)) as database:
        database.execute(f"DROP TABLE {MEMSET}")
        endless = "WITH RECURSIVE t(n) AS (SELECT 0 UNION ALL SELECT n + 1 FROM t) SELECT n AS start FROM t"
        database.execute(f"CREATE VIEW {MEMSET} AS {endless}")
    assert warnings(path)[0, "view_left_out"]["count"] == 1


def test_a_table_without_ids_is_read_as_if_all_were_one_and_it_is_said(warnings, tmp_path):
    path = write_export(tmp_path / "made.sqlite", Spec(rows=ROWS, ranks=1))
    with closing(sqlite3.connect(path)) as database:
        database.execute(f"ALTER TABLE {MEMCPY} DROP COLUMN streamId")
    assert warnings(path)[0, "table_without_ids"]["count"] == one(path, f"SELECT COUNT(*) FROM {MEMCPY}")


def test_ranges_without_a_start_are_left_out_and_counted(warnings, tmp_path):
    path = write_export(tmp_path / "made.sqlite", Spec(rows=ROWS, ranks=1))
    with closing(sqlite3.connect(path)) as database, database:
        # no table of nsys allows it: a hand has been here
        database.execute("CREATE TABLE loose AS SELECT * FROM NVTX_EVENTS")
        database.execute("DROP TABLE NVTX_EVENTS")
        database.execute("ALTER TABLE loose RENAME TO NVTX_EVENTS")
        database.execute("UPDATE NVTX_EVENTS SET start = NULL WHERE rowid % 7 = 0 AND eventType = 59")
    assert warnings(path)[0, "range_without_time"]["count"] == one(path, RANGES.format("WHERE start IS NULL"))


def test_a_registered_string_that_is_empty_names_nothing(tmp_path):
    path = write_export(tmp_path / "made.sqlite", Spec(rows=ROWS, ranks=1))
    with closing(sqlite3.connect(path)) as database, database:
        database.execute("UPDATE StringIds SET value = '' WHERE value = 'sample'")
    (profile,) = ingest([path], IngestOptions(profiles=tmp_path / "profiles"))
    unnamed = measure(profile).find("range.(unnamed)", 0)
    assert unnamed.n == one(path, f"SELECT COUNT(*) FROM NVTX_EVENTS {NAMED.format('textId')} = ''") > 0


# ── several ranks ────────────────────────────────────────────────────────────────────────────────────────────────────


def test_a_rank_that_was_not_traced_is_unknown_and_not_idle(warnings, tmp_path):
    """Forked workers: nsys has the CUDA rows of the first one only."""
    path = write_export(tmp_path / "made.sqlite", Spec(rows=ROWS, faults=frozenset({Fault.ONE_RANK_TRACED})))
    found = warnings(path)
    assert (0, "no_gpu_rows") not in found
    tid = "SELECT MAX(globalTid) FROM NVTX_EVENTS"
    assert found[1, "no_gpu_rows"]["count"] == one(path, RANGES.format(f"WHERE globalTid = ({tid}) AND eventType = 59"))
    assert "idle or busy" in found[1, "no_gpu_rows"]["text"]


def test_ranges_in_one_process_and_cuda_in_another_is_said_of_both(warnings, tmp_path):
    path = write_export(tmp_path / "made.sqlite", Spec(rows=ROWS, ranks=1, faults=frozenset({Fault.CUDA_ELSEWHERE})))
    found = warnings(path)
    assert found[None, "cuda_in_another_process"]["count"] == one(path, CALLS)
    assert "the ranges lie in process" in found[None, "cuda_in_another_process"]["text"]
    assert (0, "no_api_calls") in found


def test_clocks_that_nothing_lines_up_are_said_and_no_cross_rank_figure_is_made(warnings, cli, tmp_path):
    faults = frozenset({Fault.OWN_CLOCKS, Fault.NO_AGREEMENT})
    paths = write_ranks(tmp_path, Spec(rows=ROWS, ranks=3, faults=faults))
    found = warnings(*paths)
    assert found[None, "clocks_not_aligned"]["count"] == 3
    document = json.loads(cli("metrics", *paths, "--json", "--profiles", tmp_path / "profiles").stdout)
    assert not [m for m in document["metrics"] if m["metric"].startswith(("dp.", "clock."))]


def test_ranks_of_one_file_share_a_clock_and_need_nothing_to_line_them_up(warnings, tmp_path):
    path = write_export(tmp_path / "made.sqlite", Spec(rows=ROWS, faults=frozenset({Fault.NO_AGREEMENT})))
    assert (None, "clocks_not_aligned") not in warnings(path)
