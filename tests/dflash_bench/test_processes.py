"""However rows lie in a profile's files, and however many processes measure, every figure is the same."""

from __future__ import annotations

from pathlib import Path
from tempfile import TemporaryDirectory

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from generator import Fault, Mode, Spec, write_export
from hypothesis import example, given, settings
from hypothesis import strategies as st

from dflash_bench.errors import DataError
from dflash_bench.ingest.sources import IngestOptions, resolve_all
from dflash_bench.layout import SCHEMAS, Events, part_path
from dflash_bench.metrics.measure import measure
from dflash_bench.metrics.processes import Workers
from dflash_bench.model import CaptureInfo, ProcessInfo, RankSource, Recorder, RunInfo
from dflash_bench.profile import Profile, open_profile, write_run

RANGE_NAMES = ("decode_step", "prepare_for_decode", "dp_agreement", "kv_alloc", "fill", "draft")
API_NAMES = ("cudaLaunchKernel", "cudaGraphLaunch", "cudaStreamSynchronize", "cudaMemcpy", "cudaMalloc")


def rows_of_rank(rng: np.random.Generator, n: int) -> dict[Events, list[dict[str, object]]]:
    """Events without any sense: ranges that overlap, ids used twice, work on two streams, with ids and without."""
    at = np.sort(rng.integers(0, 40 * n, n))
    steps = [(int(t), int(t + rng.integers(1, 80))) for t in range(0, 40 * n, 90)]
    ranges = [("decode_step", a, b, 1, "dflash") for a, b in steps]
    for t in at:
        name, domain = rng.choice(RANGE_NAMES[1:]), rng.choice(["dflash", "dflash", "dflash", "tool"])
        end = None if rng.random() < 0.05 else int(t + rng.integers(0, 200))
        ranges.append((str(name), int(t), end, int(rng.integers(1, 3)), str(domain)))
    calls = [
        (
            int(rng.integers(1, 3)),
            int(rng.integers(1, n)),
            str(rng.choice(API_NAMES)),
            int(t),
            int(t + rng.integers(1, 60)),
        )
        for t in np.sort(rng.integers(0, 40 * n, n))
    ]
    work = []
    for t in rng.integers(0, 40 * n, n):
        kind = str(rng.choice(["kernel", "graph", "memcpy"]))
        node = int((rng.integers(1, 3) << 32) + rng.integers(1, 3)) if rng.random() < 0.3 and kind == "kernel" else None
        number = 0 if rng.random() < 0.3 else int(rng.integers(1, n))
        work.append((0, int(rng.integers(1, 3)), number, kind, int(t), int(t + rng.integers(1, 90)), node))
    return {
        Events.RANGES: [
            {"thread": th, "domain": d, "name": x, "kind": "push_pop", "start_ns": a, "end_ns": b}
            for x, a, b, th, d in ranges
        ],
        Events.API_CALLS: [
            {"thread": th, "correlation_id": i, "name": x, "start_ns": a, "end_ns": b} for th, i, x, a, b in calls
        ],
        Events.GPU_WORK: [
            {"device": d, "stream": s, "correlation_id": i, "kind": k, "name": k, "start_ns": a, "end_ns": b,
             "graph_node_id": node}
            for d, s, i, k, a, b, node in work
        ],
    }  # fmt: skip


def profile_of(folder: Path, ranks: list[dict[Events, list[dict[str, object]]]], group_rows: int | None) -> Profile:
    """A profile of these rows, ``group_rows`` a row group, in any order if they are several."""
    processes = tuple(
        ProcessInfo(7 + r, 7 + r, 0, r, RankSource.MARK, len(ranks), "made", *(len(rows[t]) for t in list(Events)[:3]))
        for r, rows in enumerate(ranks)
    )
    capture = CaptureInfo("made", 1, Recorder.NSYS, None, None, None, None, None)
    info = RunInfo("made", "made", None, None, (), len(ranks), "", "", (capture,), processes, ())
    for process, rows in zip(processes, ranks, strict=True):
        for table, own in rows.items():
            path = folder / part_path(table, process.rank, process)
            path.parent.mkdir(parents=True, exist_ok=True)
            pq.write_table(pa.Table.from_pylist(own, SCHEMAS[table]), path, row_group_size=group_rows)
    write_run(folder, info)
    return open_profile(folder)


def figures(profile: Profile, workers: Workers | None = None):
    """Everything that was measured, to be compared exactly, samples in their order."""
    run = measure(profile, None, workers)
    metrics = [
        (m.name, m.rank, m.n, m.coverage, *(None if a is None else a.tolist() for a in (m.values, m.block, m.group)))
        for m in run.metrics
    ]
    return metrics, run.tables, run.findings


def test_ranges_need_not_lie_in_order_in_the_file(tmp_path):
    """Steps, agreements and allocations are the same whether or not a file's only row group is sorted by start."""
    rng = np.random.default_rng(7)
    ranks = [rows_of_rank(rng, 40) for _ in range(2)]
    for rows in ranks:
        # of ranges that begin and end at once the order tells, so such ones are not shuffled but left out
        known = {(r["start_ns"], r["end_ns"]): r for r in rows[Events.RANGES]}
        rows[Events.RANGES] = sorted(known.values(), key=lambda r: (r["start_ns"], -(r["end_ns"] or 0)))
    in_order = figures(profile_of(tmp_path / "in order", ranks, None))
    for rows in ranks:
        rng.shuffle(rows[Events.RANGES])
    assert figures(profile_of(tmp_path / "shuffled", ranks, None)) == in_order


@settings(max_examples=25, deadline=None)
@example(seed=1, n=29, group_rows=1, is_shuffled=False)  # a step that agreed twice
@example(seed=1, n=31, group_rows=1, is_shuffled=False)  # two agreements that began at once
@given(st.integers(0, 2**32), st.integers(2, 40), st.integers(1, 40), st.booleans())
def test_row_groups_of_any_size_give_the_same_figures(seed, n, group_rows, is_shuffled):
    rng = np.random.default_rng(seed)
    ranks = [rows_of_rank(rng, n) for _ in range(2)]
    with TemporaryDirectory() as folder:
        if is_shuffled:
            # rows of equal times would change places: those that stay apart may come in any order
            for rows in ranks:
                rng.shuffle(rows[Events.GPU_WORK])
        whole = figures(profile_of(Path(folder, "whole"), ranks, None))
        assert figures(profile_of(Path(folder, "parts"), ranks, group_rows)) == whole


def test_ranks_measured_side_by_side_give_the_same_figures(tmp_path):
    ranks = [rows_of_rank(np.random.default_rng(seed), 400) for seed in range(3)]
    profile = profile_of(tmp_path, ranks, 100)
    assert figures(profile, Workers(2, least_rows=0)) == figures(profile)


def test_a_damaged_file_is_refused_in_one_sentence_wherever_it_is_read(tmp_path):
    ranks = [rows_of_rank(np.random.default_rng(seed), 50) for seed in range(2)]
    profile = profile_of(tmp_path, ranks, 20)
    path = tmp_path / part_path(Events.API_CALLS, 1, profile.info.processes[1])
    content = bytearray(path.read_bytes())
    content[100:400] = bytes(300)
    path.write_bytes(content)
    for workers in (Workers(1), Workers(2, least_rows=0)):
        with pytest.raises(DataError, match=r"cannot be read as Parquet"):
            measure(profile, None, workers)


# ── work of graphs that were instantiated before the capture opened ─────────────────────────────────────────────────

LEADS = ("step.lead", "launch.lead", "graph.lead", "graph.lead@verify", "stall.total_per_step")


def leads_of(folder, mode, faults=frozenset()):
    """Samples of every lead figure, how they were joined, and what is said of it."""
    path = write_export(folder / f"{mode}-{len(faults)}.sqlite", Spec(rows=4000, mode=mode, faults=faults))
    (profile,) = resolve_all([str(path)], IngestOptions(profiles=folder / "profiles"))
    run = measure(profile)
    found = {(m.name, m.rank): m.values.tolist() for m in run.metrics if m.name in LEADS}
    return found, {finding.code: finding for finding in run.findings}


@pytest.mark.parametrize("mode", Mode)
def test_leads_are_the_same_whether_graph_work_has_an_id_or_is_put_together_by_its_nodes(tmp_path, mode):
    expected, _ = leads_of(tmp_path, mode)
    found, codes = leads_of(tmp_path, mode, frozenset([Fault.CORRELATION_ZERO]))
    assert {name for name, _ in found} == set(LEADS)
    assert found == expected
    assert codes["joined_by_order"].count > 0
    assert "coverage_low" not in codes


def test_launches_without_work_are_counted_where_leads_are_withheld(tmp_path):
    """No kernel table: it is the launches that lack work, not work that lacks launches."""
    found, codes = leads_of(tmp_path, Mode.GRAPH, frozenset([Fault.NO_KERNEL]))
    assert found == {}
    withheld = codes["coverage_withheld"]
    assert withheld.count > 0
    assert f"({withheld.count:,} launches without work, 0 pieces of work without launch)" in withheld.text
