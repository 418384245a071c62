"""A torch-profiler trace gives the same events as an nsys export of the same run, and a bad one a sentence."""

from __future__ import annotations

import gzip
import json
from pathlib import Path

import pyarrow as pa
import pytest
from generator import Spec, write_export, write_ranks
from generator.chrome import BASE_NS, write_trace

from dflash_bench.errors import DataError
from dflash_bench.ingest.nsys import events
from dflash_bench.ingest.nsys.source import open_export
from dflash_bench.ingest.rows import Batch, Skipped
from dflash_bench.ingest.sources import IngestOptions, ingest
from dflash_bench.ingest.torch.trace import TorchTrace, looks_like_trace, open_trace, trace_stem
from dflash_bench.layout import SCHEMAS, Events
from dflash_bench.metrics.measure import measure
from dflash_bench.model import RankSource, Recorder


def tables(batches: list[Batch]) -> dict[Events, pa.Table]:
    """All rows of each table, in the profile's schema with the process in front."""
    found: dict[Events, list[pa.Table]] = {}
    for batch in batches:
        schema = SCHEMAS[batch.table]
        rows = pa.Table.from_arrays([batch.columns[f.name].cast(f.type) for f in schema], schema=schema)
        found.setdefault(batch.table, []).append(rows.add_column(0, "process", pa.array(batch.process)))
    return {table: pa.concat_tables(parts) for table, parts in found.items()}


def rows_of(table: pa.Table, *columns: str) -> list[tuple[object, ...]]:
    return sorted(zip(*(table.column(c).to_pylist() for c in columns), strict=True))


def streamed(trace: TorchTrace) -> dict[Events, pa.Table]:
    return tables(list(trace.stream(Skipped())))


def trace_of(path: Path, *events_: dict[str, object], **about: object) -> Path:
    path.write_text(json.dumps({**about, "traceEvents": [*events_]}))
    return path


def host(**fields: object) -> dict[str, object]:
    return {"ph": "X", "cat": "user_annotation", "name": "decode_step", "pid": 9, "tid": 9, "ts": 1, "dur": 2, **fields}


def kernel(**fields: object) -> dict[str, object]:
    arguments = {"device": 0, "stream": 7, "correlation": 5}
    return {"ph": "X", "cat": "kernel", "name": "k", "pid": 0, "tid": 7, "ts": 1, "dur": 2, "args": arguments, **fields}


@pytest.mark.parametrize("suffix", [".json", ".json.gz"])
def test_a_trace_gives_the_events_that_an_nsys_export_of_the_same_run_gives(tmp_path: Path, suffix: str) -> None:
    spec = Spec(rows=6000, ranks=2, is_sync=True)
    export = open_export(write_export(tmp_path / "run.sqlite", spec, (1,)))
    wanted = tables(list(events.stream(export, Skipped())))
    found = streamed(open_trace(write_trace(tmp_path / f"trace{suffix}", spec, 1)))
    ranges = ("process", "thread", "name", "kind", "start_ns", "end_ns")
    assert rows_of(found[Events.RANGES], *ranges) == rows_of(wanted[Events.RANGES], *ranges)
    calls = ("process", "thread", "correlation_id", "name", "start_ns", "end_ns")
    assert rows_of(found[Events.API_CALLS], *calls) == rows_of(wanted[Events.API_CALLS], *calls)
    work = ("process", "device", "stream", "correlation_id", "start_ns", "end_ns")
    assert rows_of(found[Events.GPU_WORK], *work) == rows_of(wanted[Events.GPU_WORK], *work)
    copies = found[Events.GPU_WORK].filter(pa.compute.equal(found[Events.GPU_WORK].column("kind"), "memcpy"))
    assert set(copies.column("bytes").to_pylist()) == {4096}


def test_a_trace_says_its_rank_its_gpus_and_when_it_began(tmp_path: Path) -> None:
    trace = open_trace(write_trace(tmp_path / "t.json", Spec(rows=1000, ranks=4), 3))
    assert (trace.rank, trace.world) == (3, 4)
    assert trace.gpu_names == ("Generated GPU 0",)
    assert trace.info.session_start_utc_ns == BASE_NS


@pytest.mark.parametrize("fields", [{"name": "#12"}, {"name": ""}, {"name": None}, {"name": 5}])
def test_an_annotation_without_a_name_is_an_unnamed_range_as_in_nsys(tmp_path: Path, fields: dict[str, object]) -> None:
    path = trace_of(tmp_path / "t.json", host(), host(**fields))
    (profile,) = ingest([path], IngestOptions(profiles=tmp_path / "profiles"))
    found = measure(profile).find("range.(unnamed)", 0)
    assert found is not None
    assert found.n == 1
    said = {f.code: f.count for f in profile.info.findings}
    assert said.get("name_missing") == (None if isinstance(fields["name"], str) else 1)


def test_rows_come_in_batches_of_bounded_size(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("dflash_bench.ingest.torch.events.BATCH_ROWS", 100)
    path = write_trace(tmp_path / "t.json", Spec(rows=5000, ranks=1), 0)
    batches = list(open_trace(path).stream(Skipped()))
    assert max(len(b.process) for b in batches) == 100
    assert sum(len(b.process) for b in batches) > 4000


def test_every_value_is_read_whole_wherever_the_window_ends(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = write_trace(tmp_path / "t.json", Spec(rows=300, ranks=1), 0)
    whole = streamed(open_trace(path))
    for size in (1, 7, 64, 1000):
        monkeypatch.setattr("dflash_bench.ingest.torch.json_stream._READ_CHARS", size)
        assert streamed(open_trace(path)) == whole


def test_no_digit_of_a_large_timestamp_is_lost(tmp_path: Path) -> None:
    path = tmp_path / "t.json"
    text = json.dumps({"traceEvents": [host(ts=0)]}).replace('"ts": 0', '"ts": 1007199254740993.127')
    path.write_text(text.replace('"dur": 2', '"dur": 0.001'))
    found = streamed(open_trace(path))[Events.RANGES]
    assert rows_of(found, "start_ns", "end_ns") == [(1_007_199_254_740_993_127, 1_007_199_254_740_993_128)]


def test_names_of_libraries_get_a_domain_and_counters_are_taken_off(tmp_path: Path) -> None:
    path = trace_of(tmp_path / "t.json", host(name="nccl:all_gather"), host(name="ProfilerStep#12"), host())
    found = streamed(open_trace(path))[Events.RANGES]
    assert rows_of(found, "domain", "name") == [("", "ProfilerStep"), ("", "decode_step"), ("nccl", "nccl:all_gather")]


def test_categories_of_old_traces_are_known(tmp_path: Path) -> None:
    path = trace_of(tmp_path / "t.json", host(cat="Runtime", name="cudaLaunchKernel_v7000"), kernel(cat="Kernel"))
    found = streamed(open_trace(path))
    assert found[Events.API_CALLS].column("name").to_pylist() == ["cudaLaunchKernel"]
    assert found[Events.GPU_WORK].num_rows == 1


def test_events_that_mean_nothing_are_counted_not_guessed(tmp_path: Path) -> None:
    path = trace_of(tmp_path / "t.json", host(), host(dur=-1), host(ts="soon"), kernel(dur=None), kernel(ts=1e300))
    skipped = Skipped()
    found = tables(list(open_trace(path).stream(skipped)))
    assert found[Events.RANGES].num_rows == 1
    assert Events.GPU_WORK not in found
    assert skipped.counts == {"range_ends_before_start": 1, "range_without_time": 1, "gpu_work_without_time": 2}


def test_work_without_correlation_or_with_odd_arguments_stays(tmp_path: Path) -> None:
    odd = {"correlation": "x", "stream": 1 << 70, "device": None}
    path = trace_of(tmp_path / "t.json", host(), kernel(args=odd), kernel(args=[]), kernel(args=None))
    found = streamed(open_trace(path))[Events.GPU_WORK]
    assert rows_of(found, "device", "stream", "correlation_id") == [(0, 0, 0)] * 3


@pytest.mark.parametrize(
    ("content", "says"),
    [
        (b"", "the text ends too early"),
        (b"[1, 2]", "where '{' belongs"),
        (b'{"a": 1}', "no events in a list traceEvents"),
        (b'{"traceEvents": []}', "no events in a list traceEvents"),
        (b'{"traceEvents": 5}', "where '[' belongs"),
        (b'{"traceEvents": [{"ph": "X"}]}', "no event of a host process"),
        (b'{"traceEvents": [{"ph": "X", "cat": "cpu_', "Unterminated string"),
        (b'{"a": ' + b"[" * 200_000, "RecursionError"),
        (b'{"a": ' + b"9" * 10_000 + b"}", "ValueError"),
        (b'{"a": nothing, "traceEvents": []' + b" " * 50 + b"}", "Expecting value"),
    ],
)
def test_what_is_no_trace_is_named_in_one_sentence(tmp_path: Path, content: bytes, says: str) -> None:
    path = tmp_path / "t.json"
    path.write_bytes(content)
    with pytest.raises(DataError) as found:
        open_trace(path)
    assert says in found.value.text
    assert str(path) in found.value.text


@pytest.mark.parametrize("cut", [2, 20, 3000])
def test_a_trace_that_was_cut_is_damaged_never_short(tmp_path: Path, cut: int) -> None:
    packed = write_trace(tmp_path / "t.json.gz", Spec(rows=2000, ranks=1), 0)
    plain = tmp_path / "t.json"
    plain.write_bytes(gzip.decompress(packed.read_bytes())[:-cut])
    packed.write_bytes(packed.read_bytes()[:-cut])
    for path in (packed, plain):
        with pytest.raises(DataError, match="damaged"):
            list(open_trace(path).stream(Skipped()))


def test_something_else_under_the_name_of_a_packed_trace_is_damaged(tmp_path: Path) -> None:
    path = tmp_path / "t.json.gz"
    path.write_bytes(b"no gzip")
    with pytest.raises(DataError, match="damaged gzip"):
        open_trace(path)


def test_traces_are_known_by_their_names() -> None:
    names = ("1699-TP-0.trace.json.gz", "worker.pt.trace.json", "run.sqlite", "run.json.txt")
    assert [looks_like_trace(Path(name)) for name in names] == [True, True, False, False]


def test_nothing_of_the_machine_leaves_the_trace(tmp_path: Path) -> None:
    path = write_trace(tmp_path / "t.json", Spec(rows=1000, ranks=1), 0)
    for table in streamed(open_trace(path)).values():
        assert "secret-host" not in str(table.to_pydict())


def test_a_folder_of_traces_is_one_run_with_the_figures_of_the_nsys_captures(tmp_path: Path) -> None:
    spec = Spec(rows=6000, ranks=2, is_sync=True)
    traces, captures = tmp_path / "traces", tmp_path / "captures"
    traces.mkdir()
    captures.mkdir()
    for rank in range(2):
        write_trace(traces / f"1699.5-TP-{rank}.trace.json.gz", spec, rank)
    (traces / "rank0.json").write_text("{}")  # no trace: engines name theirs *.trace.json
    write_ranks(captures, spec)
    (own,) = ingest([traces], IngestOptions(profiles=tmp_path / "p"))
    (other,) = ingest([captures], IngestOptions(profiles=tmp_path / "p"))
    assert own.info.run == "1699.5"
    assert own.info.ranks == (0, 1)
    assert own.info.rank_source is RankSource.TRACE
    assert {c.recorder for c in own.info.captures} == {Recorder.TORCH}
    assert own.info.arm is None
    found, wanted = measure(own), measure(other)
    for name in ("launch.lead", "graph.lead", "step.period", "sync.cudaStreamSynchronize", "dp.agreement_tax"):
        a, b = found.find(name, None), wanted.find(name, None)
        assert a is not None or name == "graph.lead"
        if a is not None and b is not None:
            assert sorted(a.values.tolist()) == sorted(b.values.tolist()), name


@pytest.mark.parametrize(
    ("name", "stem"),
    [
        ("1699.5-TP-0.trace.json.gz", "1699.5"),
        ("1699.5-TP-12-DP-1.trace.json.gz", "1699.5"),
        ("dp0_pp0_tp1_dcp0_ep1_rank5.1699.pt.trace.json.gz", "1699"),
        ("decode_rank0.json", "decode"),
        ("model2.json", "model2"),
    ],
)
def test_traces_of_one_run_share_a_stem(name: str, stem: str) -> None:
    assert trace_stem(Path(name)) == stem


def test_operators_and_python_frames_are_kept_without_folders(tmp_path):
    """Which line of code: where ranges are silent, these name the cause. A path names its file, not its owner."""
    events = [
        {"ph": "X", "cat": "cpu_op", "name": "aten::copy_", "pid": 7, "tid": 7, "ts": 10, "dur": 5},
        {"ph": "X", "cat": "python_function", "name": "/home/ada/srv/scheduler.py(12): run_batch", "pid": 7, "tid": 7,
         "ts": 8, "dur": 20},
        {"ph": "X", "cat": "python_function", "name": "/usr/lib/site-packages/torch/nn/module.py(5): _call", "pid": 7,
         "tid": 7, "ts": 9, "dur": 9},
        {"ph": "X", "cat": "cpu_op", "name": "aten::lost", "pid": 7, "tid": 7, "ts": 10},
        {"ph": "X", "cat": "user_annotation", "name": "decode_step", "pid": 7, "tid": 7, "ts": 0, "dur": 90},
    ]  # fmt: skip
    path = tmp_path / "a.json"
    path.write_text(json.dumps({"traceEvents": events}))
    (profile,) = ingest([path], IngestOptions(profiles=tmp_path / "profiles"))
    found = profile.frame("operators")
    assert found[["kind", "name", "start_ns", "end_ns"]].to_numpy().tolist() == [
        ["operator", "aten::copy_", 10_000, 15_000],
        ["python", "scheduler.py(12): run_batch", 8_000, 28_000],
        ["python", "torch/nn/module.py(5): _call", 9_000, 18_000],
    ]
    assert [f.code for f in profile.info.findings] == ["operator_without_time"]


def test_what_a_trace_says_of_itself_is_read_behind_its_events_too(tmp_path):
    """Some writers put the list of events first: rank, device and clock stand at the end of the file then."""
    for rank in (0, 1):
        path = write_trace(tmp_path / "made.json", Spec(rows=2000, ranks=2), rank)
        whole = json.loads(path.read_text())
        first = {"traceEvents": whole.pop("traceEvents"), **whole}
        for name, opener in ((f"{rank}.trace.json", open), (f"{rank}.trace.json.gz", gzip.open)):
            with opener(tmp_path / name, "wt") as file:
                json.dump(first, file)
            assert open_trace(tmp_path / name).stated == open_trace(path).stated
            assert open_trace(tmp_path / name).gpu_names == open_trace(path).gpu_names
            assert open_trace(tmp_path / name).info.session_start_utc_ns == BASE_NS


def two_in_one(path, pid):
    """The traces of two ranks merged into one, the second rank's processes called by ``pid``."""
    events = []
    for k, own in enumerate((576, pid)):
        for step in range(3):
            t = 1000 * step + 300 * k
            events += [
                {"ph": "X", "cat": "user_annotation", "name": "decode_step", "pid": own, "tid": 1, "ts": t, "dur": 900},
                {"ph": "X", "cat": "cuda_runtime", "name": "cudaLaunchKernel", "pid": own, "tid": 1, "ts": t + 10,
                 "dur": 5, "args": {"correlation": step + 1}},
                {"ph": "X", "cat": "kernel", "name": "k", "pid": k, "tid": 7, "ts": t + 20, "dur": 50,
                 "args": {"device": 0, "stream": 7, "correlation": step + 1}},
            ]  # fmt: skip
    path.write_text(json.dumps({"deviceProperties": [], "traceEvents": events}))
    return path


@pytest.mark.parametrize("pid", [577, "rank 1"])
def test_merged_traces_of_several_ranks_are_refused_with_advice(tmp_path, pid):
    path = two_in_one(tmp_path / "merged.json", pid)
    with pytest.raises(DataError, match=rf"several processes merged into one \(576, {pid}\)") as refused:
        ingest([path], IngestOptions(profiles=tmp_path / "profiles"))
    assert refused.value.hint == "pass the traces of single ranks, one file each, in one folder"
    assert not list((tmp_path / "profiles").glob("*/run.json"))


def test_traces_of_any_name_are_found_in_a_folder_and_other_json_is_not(tmp_path):
    (tmp_path / "in").mkdir()
    for rank in (0, 1):
        write_trace(tmp_path / "in" / f"trace-rank-{rank}.json", Spec(rows=1000, ranks=2), rank)
    (tmp_path / "in" / "run.json").write_text('{"format_version": 1}')
    (tmp_path / "in" / "perfetto.json").write_text('{"traceEvents": [{"ph": "X", "name": "step", "ts": 0, "dur": 1}]}')
    (profile,) = ingest([tmp_path / "in"], IngestOptions(profiles=tmp_path / "profiles"))
    assert [c.file for c in profile.info.captures] == ["trace-rank-0.json", "trace-rank-1.json"]
    assert profile.info.ranks == (0, 1)
