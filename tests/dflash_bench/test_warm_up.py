"""Steps that load modules, compile or instantiate graphs: told, in every figure, and in no ranking."""

from __future__ import annotations

import numpy as np
import pytest
from handmade import Call, Range, Work, mark, write

from dflash_bench.ingest.sources import IngestOptions, ingest
from dflash_bench.metrics.measure import measure
from dflash_bench.metrics.reading import Reading
from dflash_bench.profile import open_profile
from dflash_bench.report.causes import dry_causes, host_waits
from dflash_bench.report.run import run_report
from dflash_bench.report.timeline import timeline_document

US = 1000
STEP = 1000 * US
NUM = 30


@pytest.fixture
def measured(tmp_path):
    """A run of 30 steps of 1 ms: the GPU runs dry while the host fills, and waits once. ``loads``: calls by step."""

    def run(loads=(), reading=None):
        ranges, calls, work = [mark(0, 1)], [], []
        at, end = 10 * STEP, 0
        for k in range(NUM):
            extra = [Call(name, 0, length, 0) for step, name, length in loads if step == k]
            begin, t = at, at + 10 * US
            fill = t
            for call in extra:
                calls.append(Call(call.name, t, t + call.end, len(calls) + 1))
                t += call.end
            t += 400 * US
            ranges.append(Range("fill", fill, t))
            calls.append(Call("cudaLaunchKernel", t, t + 10 * US, len(calls) + 1))
            work.append(Work(t + 20 * US, t + 320 * US, len(calls)))
            end = t + 320 * US
            calls.append(Call("cudaStreamSynchronize", t + 30 * US, end, len(calls) + 1))
            at = begin + STEP + sum(c.end for c in extra)
            ranges.append(Range("decode_step", begin, at - US))
        path = write(tmp_path / f"c{len(list(tmp_path.iterdir()))}.sqlite", ranges, calls, work)
        (made,) = ingest([path], IngestOptions(profiles=tmp_path / "profiles"))
        profile = open_profile(made.path)
        return profile, measure(profile, reading or Reading())

    return run


def warm_up(run):
    return [f for f in run.findings if f.code == "warm_up_steps"]


LOADS = ((0, "cuLibraryLoadData", 80 * STEP), (1, "cudaGraphInstantiate", 30 * STEP))


def test_they_are_counted_with_the_calls_their_share_and_what_leaves_them_out(measured):
    _, run = measured(LOADS)
    (found,) = warm_up(run)
    assert (found.rank, found.count) == (0, 2)
    share = (82 + 30) / (82 + 30 + 28)
    assert "2 of 30 steps" in found.text
    assert "(cuLibraryLoadData, cudaGraphInstantiate)" in found.text
    assert f"{share:.0%}" in found.text
    assert f"{found.option} leaves them out" in found.text
    assert found.option == "--skip-steps 2"
    assert "dflash-bench metrics c0 --skip-steps 2" in run_report(run).following


def test_they_are_in_every_figure_and_in_no_ranking(measured):
    _, plain = measured()
    _, run = measured(LOADS)
    assert not warm_up(plain)
    period = run.find("step.period", 0).values
    assert len(period) == NUM - 1
    assert period.max() == 81 * STEP
    (table,) = [t for t in run.tables if t.name == "dry.by_cause"]
    of_all = {row[1]: dict(zip(table.columns, row, strict=True)) for row in table.rows if row[0] is None}
    dry = run.find("gpu.dry_per_step", 0).values
    assert sum(row["total_ns"] for row in of_all.values()) == dry.sum()
    assert of_all["fill · cudaGraphInstantiate"]["total_ns"] == 30 * STEP
    (table,) = [t for t in run.tables if t.name == "warm_up.by_cause"]
    assert (None, "dry.by_cause", "fill · cudaGraphInstantiate", None, 30 * STEP) in table.rows
    # behind the warm-up it is what a run without one shows, less the two steps
    causes = {c.where: c.total_ns for c in dry_causes(run)}
    wanted = {c.where: c.total_ns for c in dry_causes(plain)}
    assert causes.keys() == wanted.keys()
    assert causes["fill · -"] == wanted["fill · -"] * (NUM - 2) / (NUM - 1)  # before the first work nothing is dry
    (wait,), (plain_wait,) = host_waits(run), host_waits(plain)
    assert wait.total_ns == plain_wait.total_ns * (NUM - 2) / NUM


def test_the_longest_step_of_the_page_is_none_of_them(measured):
    profile, run = measured(((0, "cuModuleLoadDataEx", 80 * STEP),))
    windows = timeline_document([("a", profile, run)], [0], 0, Reading())["sides"][0]["ranks"]["0"]
    assert [w["length"] for w in windows if w["title"] == "longest step"] == [STEP - US]


@pytest.mark.parametrize(
    ("name", "length", "is_load"),
    [
        ("cuModuleLoadData", 50 * US, True),
        ("cudaStreamEndCapture", 20 * US, True),
        ("hipGraphInstantiate", 20 * US, True),
        ("cudaFuncGetAttributes", 5000 * US, True),
        ("cudaFuncGetAttributes", 5 * US, False),
        ("cuLibraryGetKernel", 2 * US, False),
        ("cudaLaunchKernel", 5000 * US, False),
        ("cudaGraphLaunch", 5000 * US, False),
    ],
)
def test_what_a_load_is(measured, name, length, is_load):
    _, run = measured(((7, name, length),))
    assert bool(warm_up(run)) is is_load


def test_in_the_midst_of_a_run_no_option_is_offered(measured):
    _, run = measured(((20, "cuModuleLoadData", 50 * US),))
    (found,) = warm_up(run)
    assert "--skip-steps" not in found.text
    assert found.option == ""


def test_steps_that_are_left_out_are_no_warm_up(measured):
    _, run = measured(LOADS, Reading(first=2))
    assert not warm_up(run)
    assert np.all(run.find("step.period", 0).values == STEP)


def test_steps_told_by_a_call_need_no_range(tmp_path):
    """Nothing but calls and GPU work: figures per step all the same, and no word of an end that is missing."""
    calls = [Call("cudaGraphLaunch", k * STEP, k * STEP + US, k + 1) for k in range(12)]
    work = [Work(c.start + 5 * US, c.start + 300 * US, c.id) for c in calls]
    (made,) = ingest([write(tmp_path / "a.sqlite", [], calls, work)], IngestOptions(profiles=tmp_path / "profiles"))
    run = measure(open_profile(made.path), Reading(step="call:cudaGraphLaunch"))
    assert run.find("step.period", 0).values.tolist() == [STEP] * 11
    assert run.find("gpu.dry_per_step", 0) is not None
    assert not [f.code for f in run.findings if f.code in ("ranges_end_early", "tail_incomplete", "no_steps")]
