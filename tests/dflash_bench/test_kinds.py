"""Steps told apart by what they did, so that like is compared with like."""

from __future__ import annotations

import pytest
from generator import Fault, Spec, write_export
from handmade import Call, Range, events, view, write

from dflash_bench.ingest.sources import IngestOptions, resolve_all
from dflash_bench.metrics.kinds import _MIN_STEPS
from dflash_bench.metrics.measure import measure
from dflash_bench.metrics.presets import Preset, reading_of
from dflash_bench.metrics.summary import figure


def kinds(ranges, calls=()):
    """The steps of each kind, by number."""
    return {str(kind): steps.nonzero()[0].tolist() for kind, steps in view(events(ranges, calls)).kinds_of_all.items()}


def steps(n):
    return [Range("decode_step", 100 * k, 100 * k + 90) for k in range(n)]


def graphs(*numbers):
    return [Call("cudaGraphLaunch", 100 * k + 50, 100 * k + 55, id=k + 1) for k in numbers]


def test_steps_of_one_kind_are_all_decode():
    assert kinds(steps(3), graphs(0, 1, 2)) == {"decode": [0, 1, 2]}
    assert kinds(steps(3)) == {"unknown": [0, 1, 2]}, "without any launch nothing tells"


def test_a_step_that_launches_kernels_but_no_graph_as_the_others_do_is_eager_and_one_without_launches_idle():
    calls = [*graphs(0, 1, 2), Call("cudaLaunchKernel", 350, 355, id=9), Call("cudaMalloc", 450, 455, id=10)]
    assert kinds(steps(5), calls) == {"decode": [0, 1, 2], "eager": [3], "idle": [4]}


def test_where_few_steps_launch_graphs_none_is_eager_and_nothing_tells_what_they_are():
    kernels = [Call("cudaLaunchKernel", 100 * k + 60, 100 * k + 65, id=10 + k) for k in range(3)]
    assert kinds(steps(3), [*graphs(0), *kernels]) == {"unknown": [0, 1, 2]}


def test_most_iterations_may_be_idle():
    assert kinds(steps(5), graphs(1)) == {"decode": [1], "idle": [0, 2, 3, 4]}


def test_prefill_between_two_steps_belongs_to_the_first_and_is_mixed_if_that_step_launched_a_graph():
    prefill = [Range("prefill", 110, 140), Range("prefill", 292, 299)]
    assert kinds([*steps(4), *prefill], graphs(0, 2, 3)) == {"decode": [0, 3], "prefill": [1], "mixed": [2]}


def test_a_decode_step_extends_its_allocation_with_the_code_of_a_prefill_but_prefills_nothing():
    prepare = [Range("prepare_for_decode", 10, 50), Range("alloc_extend", 20, 30)]
    admit = [Range("admit", 101, 120), Range("alloc_extend", 105, 110)]
    assert kinds([*steps(3), *prepare, *admit], graphs(0, 1, 2)) == {"decode": [0, 2], "mixed": [1]}


def test_prefill_in_another_domain_or_before_the_first_step_is_none_of_a_step():
    ranges = [Range("prefill", -50, -10), Range("prefill", 10, 20, domain="library")]
    assert kinds([*steps(2), *ranges], graphs(0, 1)) == {"decode": [0, 1]}


@pytest.mark.parametrize(
    ("preset", "name", "numbers"),
    [
        (Preset.VLLM, "execute_context_{}({}0)_generation_{}(7)", [(0, 36), (2, 0), (2, 36), (0, 35)]),
        (Preset.VLLM, "execute_new_{}_cached_{}", [(0, 36), (2, 0), (2, 36), (0, 35)]),
        (Preset.TRTLLM, "[Executor] _forward_step 9: {} ctx reqs, {} gen reqs", [(0, 36), (2, 0), (2, 36), (0, 35)]),
    ],
)
def test_engines_that_write_numbers_of_requests_into_a_step_say_what_it_did(tmp_path, preset, name, numbers):
    """What the name says counts more than launches: the second step launches a graph and is prefill all the same."""
    texts = [name.replace("({}0)", "(640)").format(*pair) for pair in numbers]
    ranges = [Range(text, 100 * k + 1, 100 * k + 91) for k, text in enumerate(texts)]
    export = write(tmp_path / "engine.sqlite", ranges, graphs(0, 1, 2, 3))
    (profile,) = resolve_all([str(export)], IngestOptions(profiles=tmp_path / "profiles"))
    run = measure(profile, reading_of(preset))
    found = {m.name: figure(m) for m in run.metrics if m.name.startswith("steps@") and m.rank is None}
    assert found == {"steps@decode": 2, "steps@prefill": 1, "steps@mixed": 1}


def test_idle_steps_are_counted_and_in_no_figure_of_the_others(tmp_path):
    export = write_export(tmp_path / "made.sqlite", Spec(rows=12_000, faults=frozenset([Fault.STEPS_IDLE])))
    (profile,) = resolve_all([str(export)], IngestOptions(profiles=tmp_path / "profiles"))
    run = measure(profile)
    idle, decode = run.find("steps@idle", 0), run.find("steps@decode", 0)
    assert figure(idle) + figure(decode) == idle.n == decode.n
    assert run.find("sync.calls_per_step", 0).n == figure(decode)
    assert run.find("step.period", 0).n in (figure(decode), figure(decode) - 1)
    assert {m.name for m in run.metrics if m.name.endswith("@idle")} == {"steps@idle"}


def test_kinds_with_steps_enough_are_timed_apart_and_their_samples_are_those_of_the_whole(tmp_path):
    """Every third step prefills."""
    num = 3 * _MIN_STEPS
    ranges = [*steps(num), *(Range("prefill", 100 * k + 10, 100 * k + 20) for k in range(0, num, 3))]
    export = write(tmp_path / "kinds.sqlite", ranges, graphs(*range(num)))
    (profile,) = resolve_all([str(export)], IngestOptions(profiles=tmp_path / "profiles"))
    run = measure(profile)
    apart = [run.find(f"step.period@{kind}", 0) for kind in ("mixed", "decode")]
    assert [m.n for m in apart] == [_MIN_STEPS, 2 * _MIN_STEPS - 1]
    samples = [value for m in apart for value in m.values.tolist()]
    assert sorted(samples) == sorted(run.find("step.period", 0).values.tolist())


def test_one_kind_alone_has_no_figures_beside_the_whole(tmp_path):
    export = write_export(tmp_path / "made.sqlite", Spec(rows=3000))
    (profile,) = resolve_all([str(export)], IngestOptions(profiles=tmp_path / "profiles"))
    run = measure(profile)
    assert {m.name for m in run.metrics if "@" in m.name and m.name.startswith("step")} == {"steps@decode"}
