"""No data is not zero: what a capture cannot tell is named, and no figure is made of it."""

from __future__ import annotations

import json

import pytest
from handmade import Call, Range, Work, mark, write

STEPS = [Range("decode_step", 1000 * k, 1000 * k + 900) for k in range(4)]
PREPARES = [Range("prepare_for_decode", 1000 * k + 10, 1000 * k + 60) for k in range(4)]
LEADS = ("launch.", "graph.", "step.lead", "stall.")


def launch(k, name="cudaLaunchKernel", at=100, id=None):
    return Call(name, 1000 * k + at, 1000 * k + at + 20, id=id or 10 * k + 1)


def work(k, id=None, table="KERNEL"):
    return Work(1000 * k + 130, 1000 * k + 800, id=id or 10 * k + 1, table=table)


@pytest.fixture
def measured(cli, tmp_path):
    """Write a capture, run ``metrics --json`` on it: figures by (rank, name), warnings by (rank, code), tables."""

    def run(ranges, calls=(), gpu=(), *words, name="a"):
        path = write(tmp_path / f"{name}.sqlite", ranges, calls, gpu)
        found = cli("metrics", path, "--json", "--profiles", tmp_path / "profiles", *words)
        assert found.exit_code == 0, found.output
        document = json.loads(found.stdout)
        return (
            {(m["rank"], m["metric"]): m for m in document["metrics"]},
            {(w["rank"], w["code"]): w for w in document["warnings"]},
            document["tables"],
        )

    return run


def leads(figures):
    """Everything that rests on GPU work; how many launch calls a step made is the host's own count."""
    return [name for _, name in figures if name.startswith(LEADS) and name != "launch.calls_per_step"]


def test_a_whole_capture_has_nothing_to_confess(measured):
    figures, warnings, tables = measured(
        [*STEPS, Range("kv_alloc", 10, 20), *PREPARES], [launch(k) for k in range(4)], [work(k) for k in range(4)]
    )
    assert warnings == {}
    assert figures[0, "launch.lead"]["p50"] == -300
    assert figures[0, "launch.lead"]["coverage"] == 1
    assert tables["stall.by_cause"][0] == {
        "run": "a", "arm": None, "rank": 0, "cause": "decode_step · -", "launches": 3,
        "lost_total_ns": 900, "lost_p50_ns": 300.0,
    }  # fmt: skip


def test_a_rank_without_device_rows_is_not_idle(measured):
    figures, warnings, tables = measured(STEPS, [launch(k) for k in range(4)])
    assert "nothing is known of what the GPU did" in warnings[0, "no_gpu_rows"]["text"]
    assert leads(figures) == []
    assert tables["stall.by_cause"] == []
    assert (0, "sync.total_per_step") in figures, "host waits need no device rows"


def test_a_capture_of_ranges_alone_has_no_waits_not_waits_of_zero(measured):
    figures, warnings, _ = measured(STEPS)
    assert (0, "no_api_calls") in warnings
    assert not [name for _, name in figures if name.startswith("sync.")]
    assert figures[0, "step.period"]["p50"] == 1000


def test_steps_that_launched_nothing_are_counted_and_in_no_stall_figure(measured):
    figures, warnings, _ = measured(STEPS, [launch(k) for k in (0, 2)], [work(k) for k in (0, 2)])
    assert warnings[0, "idle_steps"]["count"] == 2
    assert figures[0, "stall.total_per_step"]["n"] == 2
    assert figures[0, "launch.calls_per_step"]["value"] == 1, "an iteration without work is none of zero launches"
    assert figures[0, "launch.lead"]["n"] == 1


def test_graph_launches_that_join_nothing_leave_no_lead_of_the_rest(measured):
    """nsys before 2024 writes no row for a replay: the eager kernels between would make the GPU look 99 % idle."""
    calls = [launch(k, "cudaGraphLaunch") for k in range(4)] + [launch(k, at=300, id=10 * k + 2) for k in range(4)]
    figures, warnings, tables = measured(STEPS, calls, [work(k, id=10 * k + 2) for k in range(4)])
    assert warnings[0, "graph_launches_without_work"]["count"] == 4
    assert leads(figures) == []
    assert tables["stall.by_cause"] == []


@pytest.mark.parametrize(
    ("joined", "code", "is_shown"),
    [
        (20, None, True),
        (19, None, True),
        (18, "coverage_low", True),
        (10, "coverage_low", True),
        (9, "coverage_withheld", False),
    ],
)
def test_under_95_percent_a_figure_is_warned_of_and_under_50_withheld(measured, joined, code, is_shown):
    steps = [Range("decode_step", 1000 * k, 1000 * k + 900) for k in range(20)]
    figures, warnings, _ = measured(steps, [launch(k) for k in range(20)], [work(k) for k in range(joined)])
    codes = {c for _, c in warnings if c.startswith("coverage_")}
    assert codes == ({code} if code else set())
    assert bool(leads(figures)) == is_shown
    assert figures[0, "coverage.launches_matched"]["value"] == joined / 20
    if is_shown:
        assert figures[0, "launch.lead"]["coverage"] == joined / 20


def test_gpu_work_without_a_launch_lowers_the_coverage_too(measured):
    gpu = [work(k) for k in range(4)] + [Work(5000 + k, 5001 + k, id=900 + k) for k in range(12)]
    figures, warnings, _ = measured(STEPS, [launch(k) for k in range(4)], gpu)
    assert warnings[0, "gpu_work_without_launch"]["count"] == 12
    assert (0, "coverage_withheld") in warnings
    assert figures[0, "gpu_work_without_launch"]["value"] == 12
    assert leads(figures) == []


def test_a_host_function_is_no_launch_that_lacks_its_work(measured):
    calls = [launch(k) for k in range(4)] + [launch(k, "cudaLaunchHostFunc", at=200, id=10 * k + 2) for k in range(4)]
    figures, _, _ = measured(STEPS, calls, [work(k) for k in range(4)])
    assert figures[0, "coverage.launches_matched"]["value"] == 1


def test_figures_that_rest_on_the_order_of_launches_say_so(measured):
    calls = [launch(k, "cudaGraphLaunch") for k in range(4)]
    gpu = [Work(1000 * k + 130, 1000 * k + 800, id=0, table="GRAPH_TRACE") for k in range(4)]
    figures, warnings, _ = measured(STEPS, calls, gpu)
    assert warnings[0, "joined_by_order"]["count"] == 4
    assert figures[0, "graph.lead"]["p50"] == -300
    assert figures[0, "coverage.gpu_work_uncorrelated"]["value"] == 4


def test_the_first_graph_launch_of_a_stream_has_no_lead_and_its_step_none(measured):
    """Two graphs a step: the second one's lead does not stand in for the first one's."""
    calls = [launch(k, "cudaGraphLaunch") for k in range(4)]
    calls += [launch(k, "cudaGraphLaunch", at=700, id=10 * k + 2) for k in range(4)]
    gpu = [work(k, table="GRAPH_TRACE") for k in range(4)]
    gpu += [Work(1000 * k + 800, 1000 * k + 850, id=10 * k + 2, table="GRAPH_TRACE") for k in range(4)]
    figures, _, _ = measured(STEPS, calls, gpu)
    assert (figures[0, "step.lead"]["n"], figures[0, "step.lead"]["p50"]) == (3, -250)
    assert figures[0, "graph.lead"]["n"] == 7


def test_without_ranges_that_say_so_nobody_knows_whether_a_step_allocated(measured):
    figures, warnings, _ = measured([*STEPS, *PREPARES])
    assert (0, "no_alloc_ranges") in warnings
    assert not [name for _, name in figures if name.startswith("alloc.")]


def test_the_loops_own_capture_without_allocation_ranges_did_not_allocate(measured):
    figures, warnings, _ = measured([mark(0, 1), *STEPS, *PREPARES])
    assert (0, "no_alloc_ranges") not in warnings
    assert figures[0, "alloc.step_share"]["value"] == 0
    assert (0, "alloc.step_cost") not in figures, "a difference to nothing is no figure"


def test_without_steps_the_most_frequent_ranges_are_offered(measured):
    iterations = [Range("iteration", k * 10, k * 10 + 5) for k in range(3)]
    figures, warnings, _ = measured(iterations)
    assert warnings[0, "no_steps"]["option"] == "--step-range iteration"
    assert "--step-range iteration (3 in a row, 60% of the time)" in warnings[0, "no_steps"]["text"]
    assert figures[0, "range.iteration"]["n"] == 3
    figures, warnings, _ = measured(iterations, (), (), "--step-range", "iteration", name="b")
    assert (0, "no_steps") not in warnings
    assert figures[0, "step.period"]["p50"] == 10


def test_ranges_open_at_the_end_are_counted_and_never_zero_long(measured):
    figures, _, _ = measured([*STEPS, Range("fill", 3500, None)])
    assert figures[0, "coverage.open_ranges"]["value"] == 1
    assert (0, "range.fill") not in figures


def test_a_name_that_a_library_uses_too_counts_for_the_program_alone(measured):
    figures, warnings, _ = measured([*STEPS, Range("sort", 10, 20), Range("sort", 12, 13, domain="cub")])
    assert figures[0, "range.sort"]["n"] == 1
    assert warnings[0, "name_in_two_domains"]["count"] == 1


def test_names_that_change_with_every_call_are_cut_and_said(measured):
    """Numbers alone make no other name."""
    names = [*(f"aten::mul, op_id = {k}" for k in range(600)), *(chr(0x4E00 + k) for k in range(600))]
    figures, _, _ = measured([Range(name, k * 10, k * 10 + 5) for k, name in enumerate(names)])
    assert figures[0, "range.aten::mul, op_id = *"]["n"] == 600
    assert len([name for r, name in figures if name.startswith("range.") and r == 0]) == 500


# ── several processes and ranks ─────────────────────────────────────────────────────────────────────────────────────


def test_calls_in_another_process_of_the_rank_than_the_steps_are_said(measured):
    """Forked workers: NVTX in one process, CUDA in another. Neither may look as if it were the whole rank."""
    calls = [Call("cudaLaunchKernel", 100, 120, id=1, pid=77, tid=77)]
    figures, warnings, _ = measured(STEPS, calls, [Work(130, 140, id=1, pid=77)], name="a_rank0")
    text = warnings[None, "cuda_in_another_process"]["text"]
    assert "and 1 CUDA calls in process 77: no step and no launch share a process" in text
    assert (0, "no_steps") not in warnings
    assert figures[0, "step.period"]["n"] == 3
    assert leads(figures) == []


def test_a_helper_without_device_rows_does_not_make_the_rank_look_blind(measured):
    calls = [launch(k) for k in range(4)] + [Call("cudaGetDevice", 1, 2, id=1, pid=77, tid=77)]
    _, warnings, _ = measured([*STEPS, Range("kv_alloc", 5, 6)], calls, [work(k) for k in range(4)], name="a_rank0")
    assert (0, "no_gpu_rows") not in warnings
    assert warnings[None, "process_without_rank"]["count"] == 1


def test_pooled_figures_that_some_rank_could_not_give_say_whose_they_are(measured):
    """Only one of two ranks has kernels: the pooled lead is that rank's."""
    ranges = [Range("decode_step", r.start, r.end, pid=pid, tid=pid) for pid in (11, 22) for r in STEPS]
    calls = [
        Call("cudaLaunchKernel", 1000 * k + 100, 1000 * k + 120, id=k + 1, pid=pid, tid=pid)
        for pid in (11, 22)
        for k in range(4)
    ]
    gpu = [Work(1000 * k + 130, 1000 * k + 800, id=k + 1, pid=11) for k in range(4)]
    figures, warnings, _ = measured(ranges, calls, gpu)
    assert (1, "no_gpu_rows") in warnings
    text = warnings[None, "partly_pooled"]["text"]
    assert "rank 1 could not give" in text
    assert "launch.lead" in text
    assert "step.period" not in text
    assert figures[None, "launch.lead"]["n"] == figures[0, "launch.lead"]["n"] == 3


def test_a_rank_that_never_agreed_is_left_out_and_said(measured):
    ranges = [Range("decode_step", r.start, r.end, pid=pid, tid=pid) for pid in (1, 2, 3) for r in STEPS]
    ranges += [Range("dp_agreement", r.start + 50 * pid, r.end, pid=pid, tid=pid) for pid in (1, 2) for r in STEPS]
    figures, warnings, _ = measured(ranges)
    assert warnings[None, "rank_without_agreement"]["count"] == 1
    assert (1, "dp.wait") in figures
    assert (2, "dp.wait") not in figures
