"""A real vLLM on a CPU, captured with the product's own annotation: one process, core and worker, two workers."""

from __future__ import annotations

from collections import Counter

import pytest
from engines.capturing import EngineRun, capture
from engines.environments import VLLM

pytestmark = pytest.mark.engines
ONE_PROCESS = {"VLLM_ENABLE_V1_MULTIPROCESSING": "0"}


def by_role(run: EngineRun) -> dict[str, Counter[str]]:
    """The core's ranges and the workers', by what only they have."""
    found = {}
    for count in run.processes:
        found["core" if "schedule" in count else f"worker {len(found)}"] = count
    return found


@pytest.mark.shortest
def test_one_process(tmp_path):
    run = capture(VLLM, tmp_path, **ONE_PROCESS)
    (count,) = run.processes
    expected = run.said["expected"]
    assert count["decode_step"] == count["schedule"] == count["prepare_for_decode"] == expected["steps"] == 104
    assert count["kv_alloc"] == expected["allocations"] == 66
    assert "engine_step" not in count
    assert run.allocating_share() == pytest.approx(expected["allocating_steps"] / expected["steps"])


def test_ngram_drafts(tmp_path):
    run = capture(VLLM, tmp_path, "--spec", "ngram", **ONE_PROCESS)
    (count,) = run.processes
    assert count["draft"] == count["decode_step"] == count["sample_tokens"] < 40
    assert count["kv_alloc"] >= 60


@pytest.mark.parametrize("workers", [1, 2])
def test_core_and_workers_are_told_apart(tmp_path, workers):
    variables = {"VLLM_CPU_OMP_THREADS_BIND": "0|1"} if workers == 2 else {}
    run = capture(VLLM, tmp_path, "--tp", str(workers), VLLM_ENABLE_V1_MULTIPROCESSING="1", **variables)
    counts = by_role(run)
    core = counts.pop("core")
    assert len(counts) == workers
    assert "decode_step" not in core
    assert core["schedule"] == core["engine_step"] >= 104  # requests enter over more than one step, rounds end idle
    assert core["kv_alloc"] == 66
    for count in counts.values():
        assert count["decode_step"] == count["verify"] >= 104
        assert "kv_alloc" not in count
        assert "engine_step" not in count
    assert not any(finding.code == "rank_twice" for finding in run.figures.findings)
