"""Captures of real engines, read where they lie: a SGLang with DFlash on an H200, and on a CPU. Skipped when not there.

They stand in a folder ``shared`` beside the repository, and are no part of it. The figures were worked out by hand from
the ranges and rows of the files.
"""

from __future__ import annotations

import os
from pathlib import Path

import numpy as np
import pytest

from dflash_bench.ingest.sources import IngestOptions, ingest
from dflash_bench.metrics.measure import measure
from dflash_bench.model import RunMetrics, Sides
from dflash_bench.report.headline import run_headline, sides_headline

CAPTURES = Path(os.environ.get("DFLASH_CAPTURES", Path(__file__).parents[3] / "shared" / "captures"))
BS36, GPU_BOUND = "dflash_bs36", "dflash_bs36_gpu_bound"

pytestmark = pytest.mark.skipif(not (CAPTURES / "sglang").is_dir(), reason="the captures of engines are not here")


@pytest.fixture(scope="module")
def measured(tmp_path_factory):
    made: dict[str, RunMetrics] = {}

    def of(name: str) -> RunMetrics:
        if name not in made:
            folder = "vllm" if name.startswith("vllm") else "sglang"
            (profile,) = ingest([CAPTURES / folder / f"{name}.sqlite"], IngestOptions(tmp_path_factory.mktemp(name)))
            made[name] = measure(profile)
        return made[name]

    return of


def samples(found: RunMetrics, name: str) -> np.ndarray:
    metric = found.find(name, 0)
    assert metric is not None, name
    return metric.values


@pytest.mark.parametrize(
    ("name", "metric", "share", "num"),
    [
        (BS36, "launch.run_ahead_fraction@main", 0.3009, 8329),
        (BS36, "launch.run_ahead_fraction", 0.2663, 9411),
        (GPU_BOUND, "launch.run_ahead_fraction@main", 1.0, 5879),
        (GPU_BOUND, "launch.run_ahead_fraction", 0.9215, 6639),
        (BS36, "alloc.step_share", 78 / 170, 170),
        (GPU_BOUND, "alloc.step_share", 54 / 120, 120),
        ("cpu_decode", "alloc.step_share", 71 / 104, 104),
        ("cpu_dflash", "alloc.step_share", 72 / 104, 104),
    ],
)
def test_shares_of_launches_and_of_steps(measured, name, metric, share, num):
    values = samples(measured(name), metric)
    assert len(values) == num
    assert values.mean() == pytest.approx(share, abs=5e-5)


@pytest.mark.parametrize(
    ("name", "num", "p50", "mean", "by_cause"),
    [
        (
            BS36,
            170,
            3224.2,
            3269.1,
            {"run_batch": 224_091.1, "draft": 90_788.9, "prepare_for_decode": 83_832.3, "process_result": 52_823.6},
        ),
        (GPU_BOUND, 120, 0, 1.53, {}),
    ],
)
def test_dry_time_and_what_the_host_did_in_it(measured, name, num, p50, mean, by_cause):
    found = measured(name)
    dry = samples(found, "gpu.dry_per_step")
    assert len(dry) == num
    assert np.median(dry) / 1000 == pytest.approx(p50, abs=0.06)
    assert dry.mean() / 1000 == pytest.approx(mean, abs=0.06)
    table = next(t for t in found.tables if t.name == "dry.by_cause")
    rows = [row for each in table.rows if (row := dict(zip(table.columns, each, strict=True)))["rank"] == 0]
    assert sum(row["total_ns"] for row in rows) == dry.sum()
    total = {row["cause"]: row["total_ns"] / 1000 for row in rows}
    for cause, us in by_cause.items():
        assert total[f"{cause} · -"] == pytest.approx(us, abs=0.06)


@pytest.mark.parametrize(("name", "lead_us", "num"), [(BS36, -36, 170), (GPU_BOUND, 15_361, 120)])
def test_leads_of_the_draft_and_of_the_verify_graph_are_kept_apart(measured, name, lead_us, num):
    found = measured(name)
    draft, verify = (samples(found, f"graph.lead@{kind}") for kind in ("draft", "verify"))
    assert len(draft) == len(verify) == num
    assert np.median(draft) / 1000 == pytest.approx(lead_us, abs=1)
    assert len(samples(found, "graph.lead")) == 2 * num


def test_a_graph_whose_launch_is_always_long_is_no_full_queue(measured):
    """Each of the steps launches one graph of 96 layers, which takes 50 times as long as the other one's launch."""
    assert samples(measured(GPU_BOUND), "launch.backpressure").sum() == 1
    assert samples(measured(BS36), "launch.backpressure").sum() == 0


def test_the_engines_own_ranges_are_found_by_themselves(measured):
    """104 batches are the steps; of the loop's 155 iterations the others had nothing to do."""
    found = measured("cpu_own_nvtx")
    assert len(samples(found, "step.period")) == 103
    assert found.find("range.scheduler.get_next_batch_to_run", 0).n == 155
    (said,) = [f for f in found.findings if f.code == "preset_found"]
    assert "scheduler.run_batch" in said.text
    assert not [m for m in found.metrics if m.name.startswith("alloc.")]


@pytest.mark.parametrize("name", ["cpu_decode", "cpu_own_nvtx", "cpu_dflash", "cpu_dp2"])
def test_kinds_of_steps_are_stated_only_where_something_tells_them(measured, name):
    """Two of 104 steps are prefills, and nothing in these captures says so."""
    found = measured(name)
    kinds = {m.name for m in found.metrics if m.name.startswith("steps@")}
    assert kinds == {"steps@unknown"}


@pytest.mark.parametrize(
    ("name", "engine"),
    [(BS36, "sglang"), ("cpu_own_nvtx", "sglang"), ("cpu_dp2", "sglang"), ("vllm_tp2", "vllm"), ("vllm_none", None)],
)
def test_the_engine_is_told_by_the_titles_of_its_processes(measured, name, engine):
    assert measured(name).info.settings.get("engine") == engine


@pytest.mark.parametrize(
    ("name", "basis"),
    [
        (BS36, "SGLang, NVIDIA H200 × 1, a step is the range decode_step, 170 of them"),
        ("cpu_own_nvtx", "SGLang, no GPU traced × 1, a step is the range scheduler.run_batch, 104 of them"),
        ("cpu_dp2", "SGLang, no GPU traced × 2, a step is the range decode_step, 208 of them"),
        ("vllm_tp2", "vLLM, no GPU traced × 2, a step is the range decode_step, 212 of them"),
    ],
)
def test_the_first_lines_say_what_the_engine_and_what_a_step_is(measured, name, basis):
    assert run_headline(measured(name)).basis == basis


def test_a_comparison_says_it_too(measured):
    sides = Sides((measured(BS36),), (measured(GPU_BOUND),))
    basis = sides_headline(sides, None).basis
    assert basis == "on SGLang, NVIDIA H200 × 1, one run a side, 120 to 170 steps each (the range decode_step)"


def test_ranges_of_a_process_that_is_no_rank_are_the_first_warning(measured):
    found = measured("vllm_tp2").findings
    assert (found[0].code, found[0].count) == ("process_unassigned", 1988)
