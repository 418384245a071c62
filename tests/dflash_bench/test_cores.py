"""One engine in several processes: a core that schedules and takes pages, workers that prepare and launch."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from handmade import Range, mark, write

from dflash_bench.errors import DataError
from dflash_bench.ingest.sources import IngestOptions, ingest
from dflash_bench.metrics.measure import measure
from dflash_bench.metrics.summary import figure

VLLM = Path(__file__).parents[1] / "data" / "vllm"
CORE, A, B = 10, 20, 30


@pytest.fixture
def measured(tmp_path):
    def of(path, **more):
        (profile,) = ingest([path], IngestOptions(tmp_path / "p", run="x", is_replace=True, **more))
        return measure(profile)

    return of


def figures(found, rank=None):
    return {m.name: (figure(m), m.n) for m in found.metrics if m.rank == rank}


def codes(found):
    return {f.code: f for f in found.findings}


def test_a_real_vllm_in_one_process(measured):
    found = measured(VLLM / "vllm_none.sqlite")
    own = figures(found, 0)
    assert own["alloc.step_share"] == (pytest.approx(45 / 104), 104)
    assert own["range.kv_alloc"][1] == 66
    assert own["range.prepare_for_decode"][0] / 1000 == pytest.approx(612.2, abs=0.06)
    assert own["step.period"][0] / 1000 == pytest.approx(4432.5, abs=0.06)
    assert own["alloc.step_cost"][0] > 0
    assert "of 'schedule'" in codes(found)["alloc_cost_of"].text


def test_a_real_vllm_with_a_core_and_two_workers(measured):
    found = measured(VLLM / "vllm_tp2.sqlite", ranks="13117=core")
    group = figures(found)
    assert group["alloc.step_share"] == (pytest.approx(45 / 106), 106)
    assert group["range.kv_alloc"][1] == 66
    assert group["range.engine_step"][1] == 106
    assert group["steps@idle"] == (2, 106)
    assert group["step.period@core"][0] / 1000 == pytest.approx(4412.7, abs=0.06)
    for rank, period, prepare in ((0, 4466.0, 439.4), (1, 4422.3, 462.7)):
        own = figures(found, rank)
        assert own["step.period"][0] / 1000 == pytest.approx(period, abs=0.06)
        assert own["range.prepare_for_decode"][0] / 1000 == pytest.approx(prepare, abs=0.06)
        assert not [name for name in own if name.startswith("alloc.")]
    assert found.info.ranks == (0, 1)


def test_without_a_word_the_core_is_named_and_allocation_is_absent_and_not_zero(measured):
    found = measured(VLLM / "vllm_tp2.sqlite")
    assert not [m for m in found.metrics if m.name.startswith("alloc.")]
    said = codes(found)["process_unassigned"]
    assert said.count == 1988
    assert "--ranks 13117=core" in said.text
    assert "process_without_rank" not in codes(found), "it is no launcher"


def engine(num=10, idle=(), has_steps=True, marks=True):
    """A core and two workers; pages are taken in every third step, inside schedule."""
    rows = []
    if marks:
        rows = [mark(0, 2, "x group=g role=core", pid=CORE)]
        rows += [mark(k, 2, "x group=g role=worker", pid=pid) for k, pid in enumerate((A, B))]
    for k in range(num):
        t = 1000 * k
        if has_steps:
            rows.append(Range("engine_step", t, t + 950, pid=CORE, tid=CORE))
        rows.append(Range("schedule", t + 10, t + 60 + 30 * (k % 3 == 0), pid=CORE, tid=CORE))
        if k % 3 == 0:
            rows.append(Range("kv_alloc", t + 20, t + 40, pid=CORE, tid=CORE))
        for pid in (A, B):
            rows.append(Range("decode_step", t + 100, t + 900, pid=pid, tid=pid))
            if k not in idle:
                rows.append(Range("prepare_for_decode", t + 110, t + 200, pid=pid, tid=pid))
                rows.append(Range("verify", t + 210, t + 700, pid=pid, tid=pid))
    return rows


def test_marks_tell_the_core_and_its_figures_are_the_groups(measured, tmp_path):
    found = measured(write(tmp_path / "a.sqlite", engine()))
    group = figures(found)
    assert group["alloc.step_share"] == (pytest.approx(0.4), 10)
    assert group["alloc.step_cost"] == (30, 10)
    assert group["range.kv_alloc"] == (20, 4)
    assert group["step.period@core"] == (1000, 9)
    assert group["step.period"] == (1000, 18)
    assert group["range.decode_step"][1] == 20, "nothing counts twice"
    assert "steps@idle" not in group
    assert not codes(found).keys() & {"process_unassigned", "no_alloc_ranges"}


def test_a_core_and_its_only_worker_are_one_rank(measured, tmp_path):
    rows = [row for row in engine() if row.pid != B]
    found = measured(write(tmp_path / "a.sqlite", rows))
    assert found.info.ranks == (0,)
    group = figures(found)
    assert group["step.period"] == (1000, 9), "counted once"
    assert group["alloc.step_share"] == (pytest.approx(0.4), 10)


@pytest.mark.parametrize("has_steps", [True, False])
@pytest.mark.parametrize("workers", [(A,), (A, B)])
def test_without_marks_the_core_is_no_rank_and_no_launcher_and_its_figures_are_absent(
    measured, tmp_path, workers, has_steps
):
    rows = [row for row in engine(has_steps=has_steps, marks=False) if row.pid in (CORE, *workers)]
    found = measured(write(tmp_path / "a.sqlite", rows))
    assert found.info.ranks == tuple(range(len(workers)))
    assert figures(found)["step.period"] == (1000, 9 * len(workers))
    assert not [m for m in found.metrics if m.name.startswith("alloc.")]
    said = codes(found)
    assert said["process_unassigned"].count == (24 if has_steps else 14)
    assert "process_without_rank" not in said


def test_a_step_in_which_no_worker_did_anything_is_idle(measured, tmp_path):
    assert figures(measured(write(tmp_path / "a.sqlite", engine(40, idle=(7,)))))["steps@idle"] == (1, 40)


def test_of_a_core_without_steps_the_workers_steps_count(measured, tmp_path):
    group = figures(measured(write(tmp_path / "a.sqlite", engine(has_steps=False))))
    assert group["alloc.step_share"] == (pytest.approx(0.3), 10), "the first allocation came before any step"
    assert group["range.kv_alloc"] == (20, 4)


def test_two_processes_of_one_rank_that_both_have_steps_are_an_error_with_the_option_that_chooses(measured, tmp_path):
    rows = [mark(0, 1, "x", pid=CORE), mark(0, 1, "x", pid=A)]
    for pid in (CORE, A):
        rows += [Range("decode_step", 100 * k, 100 * k + 90, pid=pid, tid=pid) for k in range(5)]
    path = write(tmp_path / "a.sqlite", rows)
    with pytest.raises(DataError, match="processes 10 and 20 are both rank 0, and both have steps") as refused:
        measured(path)
    assert "--ranks 10=core,20=0" in refused.value.hint
    found = measured(path, ranks="10=core,20=0")
    assert found.find("step.period", 0).n == 4
    assert found.find("step.period@core", None).n == 4


def test_of_two_versions_in_turns_each_is_measured_by_its_own_process(tmp_path):
    rows = []
    for pid, arm, period in ((A, "base", 100), (B, "candidate", 90)):
        rows.append(Range("dflash_bench rank=0 world=1", 0, None, pid=pid, tid=pid, kind=34))
        rows += [Range("decode_step", k * period, k * period + 50, pid=pid, tid=pid) for k in range(9)]
        for word, t in (("open", 0), ("close", 5 * period)):
            rows.append(Range(f"dflash_bench duet pair=0 arm={arm} {word}", t, None, pid=pid, tid=pid, kind=34))
    (profile,) = ingest([write(tmp_path / "a.sqlite", rows)], IngestOptions(tmp_path / "p"))
    for arm, period in (("base", 100), ("candidate", 90)):
        found = measure(profile.of_arm(arm))
        assert set(found.find("step.period", 0).values) == {period}
        assert "process_without_steps" not in codes(found)


def test_the_engine_and_what_its_annotations_lack_stand_in_the_profile(measured, tmp_path):
    rows = [*engine(), Range("dflash_bench engine=vllm version=0.32.0", 0, None, pid=CORE, tid=CORE, kind=34)]
    rows.append(Range("dflash_bench warning annotations of vllm: no a.b.c", 0, None, pid=A, tid=A, kind=34))
    found = measured(write(tmp_path / "a.sqlite", rows))
    assert found.info.settings["engine"] == "vllm 0.32.0"
    assert codes(found)["annotation_warning"].text == "annotations of vllm: no a.b.c"
    assert np.isfinite(figures(found)["step.period"][0])
