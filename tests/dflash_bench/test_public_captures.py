"""Captures that other people published, read where they lie: each oddity against plain SQL. Skipped when not there.

They stand in a folder ``shared`` beside the repository, and are no part of it.
"""

from __future__ import annotations

import json
import os
import re
import sqlite3
import statistics
from collections import Counter, defaultdict
from contextlib import closing
from pathlib import Path

import pytest

CAPTURES = Path(os.environ.get("DFLASH_CAPTURES", Path(__file__).parents[3] / "shared" / "captures"))
PUBLIC = CAPTURES / "public"
MORDRED = "pre-meta_mordred-2021"
PIPIT = "2022.2.1_pipit-saxpy-mpi"
TENSORRT = "2022.4.2_tensorrt-startend-nvtx"
TORCH_COMPILE = "2024.6.2_torch-compile-cudagraph-loop"
NVFUSER = "2025.1.1_nvfuser-2proc-8threads"
FAILED = "2025.6.1_no-cuda-no-nvtx"
SLICE = "2026.2.1_2rank-h100-1s-slice"
READABLE = (MORDRED, PIPIT, TENSORRT, TORCH_COMPILE, NVFUSER, SLICE)
WORK = ("KERNEL", "MEMCPY", "MEMSET", "GRAPH_TRACE")

pytestmark = pytest.mark.skipif(not PUBLIC.is_dir(), reason="the public captures are not here")


def query(name, sql):
    with closing(sqlite3.connect(f"file:{PUBLIC / name}.sqlite?mode=ro&immutable=1", uri=True)) as db:
        db.text_factory = lambda raw: raw.decode("utf-8", "replace")
        return db.execute(sql).fetchall()


def tables(name):
    return {table for (table,) in query(name, "SELECT name FROM sqlite_master WHERE type = 'table'")}


def work_sql(name):
    parts = [f"CUPTI_ACTIVITY_KIND_{t}" for t in WORK if f"CUPTI_ACTIVITY_KIND_{t}" in tables(name)]
    columns = "start, end, deviceId, streamId, correlationId, globalPid"
    return " UNION ALL ".join(f"SELECT {columns} FROM {table}" for table in parts)


@pytest.fixture(scope="module")
def documents(tmp_path_factory):
    """The JSON of ``dflash-bench metrics`` by (capture, further words), each made once."""
    from typer.testing import CliRunner

    from dflash_bench.cli import app

    profiles, made = tmp_path_factory.mktemp("profiles"), {}

    def get(name, *words):
        if (name, words) not in made:
            command = ["metrics", str(PUBLIC / f"{name}.sqlite"), "--json", "--profiles", str(profiles), *words]
            found = CliRunner().invoke(app, command)
            assert found.exit_code == 0, found.output
            made[name, words] = json.loads(found.stdout)
        return made[name, words]

    return get


def figures(document, rank=0):
    return {m["metric"]: m for m in document["metrics"] if m["rank"] == rank}


def warnings(document, rank=0):
    return {w["code"]: w for w in document["warnings"] if w["rank"] in (rank, None)}


@pytest.mark.parametrize("name", READABLE)
def test_the_file_is_read_and_left_as_it_is(documents, name):
    path = PUBLIC / f"{name}.sqlite"
    before = (path.stat().st_size, path.stat().st_mtime_ns)
    assert documents(name)["runs"][0]["run"] == name
    assert (path.stat().st_size, path.stat().st_mtime_ns) == before
    assert not list(PUBLIC.glob(f"{name}.sqlite-*"))


def shown_name(name, shown):
    """The one of the names in a report that stands for a range: its own, or that with ``*`` for its numbers."""
    if name in shown:
        return name
    (found,) = [s for s in shown if "*" in s and re.fullmatch(re.escape(s).replace(r"\*", r"\d+(\.\d+)*"), name)]
    return found


@pytest.mark.parametrize("name", READABLE)
def test_every_range_is_named_and_timed_as_sql_says(documents, name):
    if "NVTX_EVENTS" not in tables(name):
        assert not [m for m in figures(documents(name)) if m.startswith("range.")]
        return
    rows = query(
        name,
        "SELECT COALESCE(text, value), end - start, globalTid >> 24 FROM NVTX_EVENTS LEFT JOIN StringIds ON id = textId"
        " WHERE eventType IN (59, 60, 70, 71) AND end IS NOT NULL AND end >= start",
    )
    processes = sorted({process for _, _, process in rows})
    for rank, process in enumerate(processes):
        shown = {k: m for k, m in figures(documents(name), rank).items() if k.startswith("range.")}
        expected = defaultdict(list)
        for text, duration, own in rows:
            if own == process:
                expected[shown_name(f"range.{text or '(unnamed)'}", shown)].append(duration)
        assert set(shown) == set(expected)
        for metric, row in shown.items():
            durations = expected[metric]
            assert (row["n"], row["total"]) == (len(durations), sum(durations)), metric
            assert row["p50"] == pytest.approx(statistics.median(durations), abs=1e-9)


@pytest.mark.parametrize("name", [n for n in READABLE if n != TENSORRT])
def test_gpu_work_is_joined_by_process_and_id_and_never_doubled(documents, name):
    """Pieces of work, and those with an API call (class 0 or 1) of the same process and id, for each process."""
    joined = query(
        name,
        "SELECT process, COUNT(*), SUM(EXISTS (SELECT 1 FROM CUPTI_ACTIVITY_KIND_RUNTIME r"
        " WHERE r.globalTid >> 24 = process AND r.correlationId = w.correlationId AND r.eventClass IN (0, 1)))"
        " FROM (SELECT globalPid >> 24 AS process, correlationId FROM"
        f" ({work_sql(name)}) GROUP BY globalPid, deviceId, streamId, correlationId) w GROUP BY 1 ORDER BY 1",
    )
    for rank, (_, pieces, with_call) in enumerate(joined):
        own = figures(documents(name), rank)
        assert own["gpu_work_without_launch"]["n"] == pieces
        assert own["gpu_work_without_launch"]["value"] == pieces - with_call
        assert own["coverage.gpu_work_matched"]["value"] == pytest.approx(with_call / pieces)


def test_backtrace_rows_repeat_ids_and_are_no_calls(documents):
    (backtraces,) = query(PIPIT, "SELECT COUNT(*) FROM CUPTI_ACTIVITY_KIND_RUNTIME WHERE eventClass = 67")[0]
    found = warnings(documents(PIPIT))
    assert found["api_row_is_backtrace"]["count"] == backtraces == 38
    assert "duplicate_api_calls" not in found


def test_any_range_can_be_the_step(documents):
    """Five calls of saxpy as steps: period, launches and copies of each, against SQL."""
    document = documents(PIPIT, "--step-range", "saxpy")
    own = figures(document)
    starts = [s for (s,) in query(PIPIT, "SELECT start FROM NVTX_EVENTS WHERE text = 'saxpy' ORDER BY start")] or [
        s
        for (s,) in query(
            PIPIT, "SELECT start FROM NVTX_EVENTS JOIN StringIds ON id = textId WHERE value = 'saxpy' ORDER BY start"
        )
    ]
    assert own["step.period"]["n"] == len(starts) - 1 == 4
    assert own["step.period"]["total"] == starts[-1] - starts[0]
    assert "no_steps" not in warnings(document)


def test_start_end_ranges_are_steps_as_well_and_negative_times_are_times(documents):
    """1,350 start/end ranges, one range that begins 10.9 s before the session."""
    ((kinds, first),) = query(TENSORRT, "SELECT SUM(eventType = 60), MIN(start) FROM NVTX_EVENTS")
    assert (kinds, first < -10_800_000_000) == (1350, True)
    (name, count), *_ = query(
        TENSORRT,
        "SELECT COALESCE(text, value) AS name, COUNT(*) AS n FROM NVTX_EVENTS LEFT JOIN StringIds ON id = textId"
        " WHERE eventType = 60 GROUP BY name ORDER BY n DESC, name",
    )
    own = figures(documents(TENSORRT, "--step-range", "find_centers"))
    assert own["step.period"]["n"] == 134
    assert own[f"range.{name}"]["n"] == count
    earliest = query(
        TENSORRT, "SELECT COALESCE(text, value), end - start FROM NVTX_EVENTS LEFT JOIN StringIds ON id = textId"
        " WHERE start = (SELECT MIN(start) FROM NVTX_EVENTS WHERE eventType IN (59, 60))"
    )[0]  # fmt: skip
    assert own[f"range.{earliest[0]}"]["total"] >= earliest[1] > 0


def test_a_capture_of_ranges_alone_claims_nothing_of_the_device(documents):
    document = documents(TENSORRT, "--step-range", "find_centers")
    assert document["runs"][0]["device"] == "no GPU traced"
    assert "no_api_calls" in warnings(document)
    assert not [m for m in figures(document) if m.startswith(("launch.", "graph.", "stall.", "sync."))]


def test_graph_launches_seconds_before_their_work_are_joined_by_id(documents):
    """Ten launches within 6 ms, 7.8 s of GPU work after them: every replay has its launch, and no idle figure."""
    launches = query(
        TORCH_COMPILE,
        "SELECT r.start, w.start, w.end FROM CUPTI_ACTIVITY_KIND_RUNTIME r JOIN CUPTI_ACTIVITY_KIND_GRAPH_TRACE w"
        " ON w.correlationId = r.correlationId AND w.globalPid = r.globalTid & 0xFFFFFFFFFF000000",
    )
    assert len(launches) == 10
    assert max(s for s, _, _ in launches) - min(s for s, _, _ in launches) < 7_000_000
    assert max(e for _, _, e in launches) - min(s for _, s, _ in launches) > 7_800_000_000
    document = documents(TORCH_COMPILE)
    own = figures(document)
    assert own["coverage.gpu_work_matched"]["value"] == 1
    assert own["coverage.launches_matched"]["value"] == 1
    assert own["coverage.impossible_pairs"]["value"] == 0
    assert "no NVTX ranges in the capture" in warnings(document)["no_steps"]["text"]
    assert "no_gpu_rows" not in warnings(document)


def test_of_two_processes_the_one_that_did_something_is_the_rank(documents):
    """Both have calls with equal correlation ids; one has all ranges and all GPU work."""
    calls = query(NVFUSER, "SELECT globalTid >> 24, correlationId FROM CUPTI_ACTIVITY_KIND_RUNTIME")
    per_process = Counter(process for process, _ in calls)
    shared = Counter(i for _, i in {(p, i) for p, i in calls})
    assert sorted(per_process.values()) == [2, 988]
    assert [i for i, n in shared.items() if n > 1], "the two processes share ids"
    document = documents(NVFUSER)
    assert document["runs"][0]["ranks"] == [0]
    assert warnings(document)["process_without_rank"]["count"] == 1
    assert "duplicate_api_calls" not in warnings(document)


def test_steps_on_a_thread_of_a_process_with_eight(documents):
    document = documents(NVFUSER, "--step-range", "FusionExecutorCache::runFusionWithInputs")
    own = figures(document)
    steps = query(
        NVFUSER,
        "SELECT start, end FROM NVTX_EVENTS LEFT JOIN StringIds ON id = textId"
        " WHERE COALESCE(text, value) = 'FusionExecutorCache::runFusionWithInputs' ORDER BY start",
    )
    assert (own["step.period"]["n"], own["step.period"]["total"]) == (1, steps[1][0] - steps[0][0])
    launches = query(
        NVFUSER,
        "SELECT r.start, w.streamId, w.deviceId FROM CUPTI_ACTIVITY_KIND_RUNTIME r JOIN"
        f" ({work_sql(NVFUSER)}) w ON w.correlationId = r.correlationId AND w.globalPid >> 24 = r.globalTid >> 24"
        " ORDER BY r.start",
    )
    first = {(stream, device): start for start, stream, device in reversed(launches)}
    inside = [t for t, s, d in launches if t != first[s, d] and any(a <= t < b for a, b in steps)]
    assert own["launch.lead"]["n"] == len(inside) > 0
    syncs = query(
        NVFUSER,
        "SELECT r.start FROM CUPTI_ACTIVITY_KIND_RUNTIME r JOIN StringIds ON id = nameId"
        " WHERE value LIKE '%Synchronize%' OR (value LIKE 'cu%Memcpy%' AND value NOT LIKE '%Async%')",
    )
    inside = [t for (t,) in syncs if any(a <= t < b for a, b in steps)]
    assert sum(r["count"] for r in document["tables"]["sync.by_range"] if r["rank"] == 0) == len(inside)


def test_two_ranks_in_one_file_with_most_launches_cut_off(documents):
    """1,810 of 3,442 kernels have no launch row: said for each rank, and no lead is made of the rest."""
    (without,) = query(
        SLICE,
        "SELECT COUNT(*) FROM CUPTI_ACTIVITY_KIND_KERNEL k WHERE NOT EXISTS"
        " (SELECT 1 FROM CUPTI_ACTIVITY_KIND_RUNTIME r"
        " WHERE r.correlationId = k.correlationId AND r.globalTid >> 24 = k.globalPid >> 24)",
    )[0]
    assert without == 1810
    document = documents(SLICE)
    assert document["runs"][0]["ranks"] == [0, 1]
    for rank in (0, 1):
        found = warnings(document, rank)
        assert found["gpu_work_without_launch"]["count"] >= without // 2
        assert "clipped_window" in found
    assert document["runs"][0]["device"] == "unknown GPU"


def test_leads_are_withheld_where_less_than_half_could_be_joined(documents):
    name, _ = query(
        SLICE,
        "SELECT COALESCE(text, value) AS name, COUNT(*) AS n FROM NVTX_EVENTS LEFT JOIN StringIds ON id = textId"
        " WHERE eventType = 59 GROUP BY name ORDER BY n DESC, name LIMIT 1",
    )[0]
    document = documents(SLICE, "--step-range", ".*aten::.*")
    assert name
    assert {w["rank"] for w in document["warnings"] if w["code"] == "coverage_withheld"} == {0, 1}
    withheld = ("launch.lead", "launch.run", "launch.back", "graph.", "step.lead", "stall.")
    assert not [m for m in document["metrics"] if m["metric"].startswith(withheld)]


def test_the_oldest_family_has_no_version_and_is_read_all_the_same(documents):
    document = documents(MORDRED)
    assert document["runs"][0]["exporter_version"] == []
    assert figures(document)["gpu_work_without_launch"]["n"] == 72


def test_a_capture_of_nothing_is_refused_with_its_name(cli, tmp_path):
    path = PUBLIC / f"{FAILED}.sqlite"
    found = cli("ingest", path, "--profiles", tmp_path / "profiles")
    assert found.exit_code == 5
    first, second = found.stderr.splitlines()
    assert (
        first == f"error: {path}: nothing to measure: the capture holds neither NVTX ranges nor CUDA calls nor GPU work"
    )
    assert second.startswith("try:   ")
    assert list((tmp_path / "profiles").iterdir()) == []


def test_a_server_that_ran_beside_the_capture_is_not_its_engine(tmp_path):
    """Names are stored of all threads of a machine: one was a serving engine's, whose process has no events."""
    from dflash_bench.ingest.sources import IngestOptions, ingest

    (named,) = query(TORCH_COMPILE, "SELECT COUNT(*) FROM StringIds WHERE value LIKE 'sglang::%'")[0]
    (profile,) = ingest([PUBLIC / f"{TORCH_COMPILE}.sqlite"], IngestOptions(profiles=tmp_path))
    assert (named > 0, profile.info.settings.get("engine")) == (True, None)


def test_a_call_that_recurs_can_be_the_step_of_a_capture_without_ranges(documents):
    """As the answer to the same capture proposes."""
    ((count,),) = query(
        TORCH_COMPILE,
        "SELECT COUNT(*) FROM CUPTI_ACTIVITY_KIND_RUNTIME JOIN StringIds ON id = nameId"
        " WHERE value LIKE 'cudaGraphLaunch%'",
    )
    own = figures(documents(TORCH_COMPILE, "--step-range", "call:cudaGraphLaunch"))
    assert own["step.period"]["n"] == count - 1 == 9
