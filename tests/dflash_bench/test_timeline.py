"""The bars of a step: which call queued which GPU work, which steps are chosen, and what is left out."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from dflash_bench.ingest.sources import IngestOptions, ingest
from dflash_bench.layout import SCHEMAS, Events
from dflash_bench.metrics.events.arrays import NONE, Names
from dflash_bench.metrics.events.gpu import GpuRows
from dflash_bench.metrics.events.host import ApiCalls, Ranges
from dflash_bench.metrics.events.process import ProcessEvents, load_events
from dflash_bench.metrics.events.steps import Steps
from dflash_bench.metrics.measure import measure
from dflash_bench.model import CaptureInfo, ProcessInfo, RankSource, Recorder
from dflash_bench.report.gpu_work import gpu_work
from dflash_bench.report.timeline import _MAX_BARS, BarKind, _depths, _median_and_longest, _step_windows

PROCESS = ProcessInfo(7, 7, 0, 0, RankSource.MARK, 1, "x", 0, 0, 0)


def array(*values):
    return np.array(values, np.int64)


@dataclass
class OneGroup:
    """A file with a single row group."""

    rows: pa.Table
    num_groups: int = 1

    def read(self, group, columns):
        return self.rows.select(list(columns))


@dataclass
class OneProcess:
    """A profile of a single process whose rows are given."""

    gpu: list[dict]
    calls: list[tuple[str, int, int, int]]
    ranges: list[tuple[str, int, int]]
    arm: str | None = None

    @property
    def info(self):
        return self

    @property
    def captures(self):
        return (CaptureInfo("made", 1, Recorder.NSYS, None, None, None, None, None),)

    def processes_of(self, rank):
        return (PROCESS,)

    def event_file(self, table, process):
        return OneGroup(self.events(table, process))

    def events(self, table, process):
        rows = {
            Events.GPU_WORK: [
                {
                    "device": 0,
                    "stream": 7,
                    "kind": "kernel",
                    "graph_exec_id": None,
                    "graph_node_id": None,
                    "bytes": None,
                }
                | row
                for row in self.gpu
            ],
            Events.API_CALLS: [
                {"thread": 1, "name": n, "start_ns": s, "end_ns": e, "correlation_id": c} for n, s, e, c in self.calls
            ],
            Events.RANGES: [
                {"thread": 1, "domain": "dflash", "name": n, "kind": "push_pop", "start_ns": s, "end_ns": e}
                for n, s, e in self.ranges
            ],
        }.get(table, [])
        return pa.Table.from_pylist(rows, schema=SCHEMAS[table])


@pytest.fixture(scope="module")
def sync(h200, tmp_path_factory):
    """The profile of the arm ``sync``, both ranks."""
    files = sorted(h200.glob("h200x2_sync_rank*.sqlite"))
    return ingest(files, IngestOptions(profiles=tmp_path_factory.mktemp("profiles")))[0]


def test_each_piece_of_gpu_work_has_the_call_with_its_correlation_id(sync):
    """Against a dictionary from correlation id to call, on a real capture."""
    process = sync.info.processes_of(0)[0]
    events = load_events(sync, process)
    found = gpu_work(sync, events)
    call_of = dict(zip(events.calls.correlation.tolist(), events.calls.start.tolist(), strict=True))
    pieces = {}
    for row in sync.events(Events.GPU_WORK, process).to_pylist():
        key = row["device"], row["stream"], row["correlation_id"]
        pieces[key] = min(row["start_ns"], pieces.get(key, row["start_ns"]))
    expected = sorted((start, call_of[key[2]]) for key, start in pieces.items() if key[2] in call_of)
    has_launch = found.launch != NONE
    assert sorted(zip(found.start[has_launch], found.launched_at[has_launch], strict=True)) == expected
    assert len(found) == len(pieces)


def test_a_graph_traced_node_by_node_is_one_piece_that_says_so():
    nodes = [
        {"correlation_id": 5, "name": n, "start_ns": s, "end_ns": s + 5} for n, s in (("b", 40), ("a", 30), ("c", 50))
    ]
    profile = OneProcess(nodes, [("cudaGraphLaunch", 0, 10, 5)], [])
    found = gpu_work(profile, load_events(profile, PROCESS))
    assert (len(found), int(found.start[0]), int(found.end[0])) == (1, 30, 55)
    assert found.label(0) == "a and 2 more"


def test_graph_replays_without_an_id_go_to_the_graph_launches_in_order():
    """The second launch queued the second replay, although the rows come in another order."""
    replays = [
        {"kind": "graph", "correlation_id": 0, "name": "graph", "start_ns": s, "end_ns": s + 5} for s in (60, 30)
    ]
    kernel = {"correlation_id": 3, "name": "k", "start_ns": 20, "end_ns": 25}
    calls = [("cudaGraphLaunch", 10, 12, 8), ("cudaLaunchKernel", 0, 2, 3), ("cudaGraphLaunch", 40, 42, 9)]
    profile = OneProcess([*replays, kernel], calls, [])
    found = gpu_work(profile, load_events(profile, PROCESS))
    assert dict(zip(found.start.tolist(), found.launched_at.tolist(), strict=True)) == {20: 0, 30: 10, 60: 40}


def test_a_replay_without_an_id_traced_node_by_node_is_one_piece_of_its_launch():
    """Two replays of a graph of two nodes; a kernel without an id before them belongs to neither."""
    graph = 7 << 32
    nodes = [
        {"correlation_id": 0, "name": n, "graph_node_id": graph + k, "start_ns": s, "end_ns": s + 5}
        for n, k, s in (("a", 1, 30), ("b", 2, 36), ("a", 1, 60), ("b", 2, 66))
    ]
    kernel = {"correlation_id": 0, "name": "k", "start_ns": 20, "end_ns": 25}
    calls = [("cudaGraphLaunch", 10, 12, 8), ("cudaGraphLaunch", 40, 42, 9)]
    profile = OneProcess([*nodes, kernel], calls, [])
    found = gpu_work(profile, load_events(profile, PROCESS))
    assert [found.label(k) for k in range(len(found))] == ["k", "a and 1 more", "a and 1 more"]
    assert (found.start.tolist(), found.end.tolist()) == ([20, 60, 30], [25, 71, 41])
    assert found.launched_at[1:].tolist() == [40, 10]
    assert found.launch[0] == NONE


def test_work_without_a_call_keeps_its_bar_and_has_no_launch():
    profile = OneProcess([{"correlation_id": 99, "name": "k", "start_ns": 1, "end_ns": 2}], [], [("decode_step", 0, 5)])
    (window, _) = _step_windows(profile, 0)
    (bar,) = (b for b in window.bars if b.kind is BarKind.GPU)
    assert bar.detail == "launch not in the capture"
    assert window.flows == ()


def test_the_median_step_is_the_one_nearest_to_the_median_and_the_longest_the_first_of_equals():
    start = array(0, 100, 200, 300, 400)
    end = start + array(10, 60, 30, 60, 20)
    steps = Steps(start, end, "dflash", np.append(start[1:], -1))
    is_warm_up = array(0, 1, 0, 0, 0).astype(bool)
    assert dict(_median_and_longest(steps, is_warm_up)) == {"median step": 2, "longest step": 3}
    assert dict(_median_and_longest(steps, ~is_warm_up | is_warm_up)) == {"median step": 2, "longest step": 1}


def test_a_step_shows_its_ranges_waits_launches_and_work_from_its_own_start():
    gpu = [{"correlation_id": c, "name": "k", "start_ns": s, "end_ns": s + 50} for c, s in ((1, 1020), (2, 1100))]
    calls = [("cudaLaunchKernel", 1010, 1012, 1), ("cudaLaunchKernel", 1030, 1032, 2)]
    calls += [("cudaStreamSynchronize", 1040, 1160, 3), ("cudaEventRecord", 1170, 1171, 4)]
    profile = OneProcess(gpu, calls, [("decode_step", 1000, 1200), ("draft", 1005, 1035)])
    window = _step_windows(profile, 0)[0]
    assert window.tracks == ("host ranges 1", "host ranges 2", "host CUDA calls", "GPU 0 stream 7")
    assert [(b.kind, b.name, b.start_ns, b.end_ns) for b in window.bars] == [
        (BarKind.RANGE, "decode_step", 0, 200),
        (BarKind.RANGE, "draft", 5, 35),
        (BarKind.WAIT, "cudaStreamSynchronize", 40, 160),
        (BarKind.LAUNCH, "cudaLaunchKernel", 10, 12),
        (BarKind.LAUNCH, "cudaLaunchKernel", 30, 32),
        (BarKind.CALL, "cudaEventRecord", 170, 171),
        (BarKind.GPU, "k", 20, 70),
        (BarKind.GPU, "k", 100, 150),
    ]
    assert window.bars[4].detail == "lead 0.0 µs", "the first piece ends at 1070, 40 ns after the second call"
    assert [(f.from_ns, f.to_ns) for f in window.flows] == [(10, 20), (30, 100)]
    assert window.waited_ns == 120


def test_work_that_a_step_queued_is_shown_even_when_it_runs_long_after():
    gpu = [{"correlation_id": 1, "name": "late", "start_ns": 900_000, "end_ns": 900_100}]
    profile = OneProcess(gpu, [("cudaLaunchKernel", 10, 12, 1)], [("decode_step", 0, 100), ("decode_step", 200, 300)])
    assert [b.name for b in _step_windows(profile, 0)[0].bars if b.kind is BarKind.GPU] == ["late"]


def test_of_too_many_bars_the_longest_are_kept_and_the_others_counted():
    calls = [("cudaEventRecord", 10 * k, 10 * k + (5 if k % 2 else 1), k + 1) for k in range(2 * _MAX_BARS)]
    profile = OneProcess([], calls, [("decode_step", 0, 20 * _MAX_BARS)])
    window = _step_windows(profile, 0)[0]
    kept = [b for b in window.bars if b.kind is BarKind.CALL]
    assert (len(kept), window.num_left_out) == (_MAX_BARS, _MAX_BARS)
    assert {b.end_ns - b.start_ns for b in kept} == {5}


def test_waits_and_gpu_work_that_are_not_drawn_are_counted_all_the_same():
    times = [(20 * k, 20 * k + 4) for k in range(_MAX_BARS + 9)]
    gpu = [{"correlation_id": k + 1, "name": "k", "start_ns": s, "end_ns": e} for k, (s, e) in enumerate(times)]
    calls = [("cudaStreamSynchronize", s, e, 10_000 + k) for k, (s, e) in enumerate(times)]
    window = _step_windows(OneProcess(gpu, calls, [("decode_step", 0, 20 * len(times))]), 0)[0]
    assert sum(b.kind is BarKind.WAIT for b in window.bars) == _MAX_BARS
    assert (len(window.waits), window.waited_ns, window.num_gpu_work) == (len(times), 4 * len(times), len(times))


def test_a_rank_without_steps_has_no_timeline():
    assert _step_windows(OneProcess([], [], [("prepare_for_decode", 0, 5)]), 0) == ()


def test_the_capture_shows_which_code_waited_in_the_median_step(sync):
    window = _step_windows(sync, 0)[0]
    (rebuild,) = (b for b in window.bars if b.name == "rebuild_compact")
    longest = max((b for b in window.bars if b.kind is BarKind.WAIT), key=lambda b: b.end_ns - b.start_ns)
    assert rebuild.start_ns <= longest.start_ns <= longest.end_ns <= rebuild.end_ns


@given(st.lists(st.tuples(st.integers(0, 60), st.integers(0, 30)), max_size=25))
def test_no_two_intervals_overlap_in_one_lane(spans):
    spans = sorted(((a, a + length) for a, length in spans), key=lambda s: (s[0], -s[1]))
    found = _depths(array(*(a for a, _ in spans)), array(*(b for _, b in spans)))
    for k, (begin, end) in enumerate(spans):
        for (other_begin, other_end), lane in zip(spans[:k], found[:k], strict=True):
            if lane == found[k]:
                assert other_end <= begin or end <= other_begin


def test_names_stay_with_their_events():
    """A frozen event set is sliced by rows; names are codes and go along."""
    names = Names(array(0, 1, 0), ("a", "b"))
    ranges = Ranges(array(1, 1, 1), names, names, array(0, 1, 2), array(9, 8, 7), names, array(0, 0, 0).astype(bool))
    calls = ApiCalls(array(), array(), Names(array(), ()), array(), array(), array())
    rows = GpuRows(array(), array(), array(), array().astype(bool), *(array() for _ in range(4)), array().astype(bool))
    events = ProcessEvents(PROCESS, ranges, 0, calls, rows, Names(array(), ()), array())
    found = gpu_work(OneProcess([], [], []), events)
    assert len(found) == 0
    assert len(found.launches) == 0


def test_the_dry_time_of_a_step_is_that_of_the_metric_and_its_causes_are_those_of_the_table(h200, tmp_path):
    """The median and the longest step of a rank of two H200s, piece by piece."""
    (profile,) = ingest(sorted(h200.glob("h200x2_sync_rank*.sqlite")), IngestOptions(profiles=tmp_path))
    run = measure(profile)
    dry = run.find("gpu.dry_per_step", 0)
    causes = {row[1] for table in run.tables if table.name == "dry.by_cause" for row in table.rows if row[0] == 0}
    for window in _step_windows(profile, 0):
        assert window.dry_ns == dry.values[dry.block.tolist().index(window.step)] > 0
        said = {
            b.name.replace("outside any range", "-").replace("CPU work", "-")
            for b in window.bars
            if b.kind == "GPU dry"
        }
        assert said <= causes
    for window in _step_windows(profile, 0, max_bars=3):
        assert sum(b.kind == "GPU dry" for b in window.bars) == 3 < len(window.dry)
        assert window.dry_ns == dry.values[dry.block.tolist().index(window.step)]
        most = max({b.name for b in window.dry}, key=lambda n: sum(b.length_ns for b in window.dry if b.name == n))
        assert f"µs of it in {most};" in window.words
