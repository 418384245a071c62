"""A real vLLM on a CPU, captured with the product's own annotation: one process, core and worker, two workers."""

from __future__ import annotations

import os
import shutil
from collections import Counter, defaultdict
from statistics import median

import pytest
from engines.capturing import HERE, EngineRun, capture
from engines.environments import VLLM

from dflash_bench.layout import Events

pytestmark = pytest.mark.engines
ONE_PROCESS = {"VLLM_ENABLE_V1_MULTIPROCESSING": "0"}
SPLIT = {"VLLM_ENABLE_V1_MULTIPROCESSING": "1"}
TWO_WORKERS = SPLIT | {"VLLM_CPU_OMP_THREADS_BIND": "0|1"}  # on one NUMA node it asks for the cores
HAS_NSYS = shutil.which("nsys") is not None


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


@pytest.mark.nsys
@pytest.mark.skipif(not HAS_NSYS, reason="no nsys here")
@pytest.mark.parametrize("words", [[], ["--tp", "2"]], ids=["one process", "core and two workers"])
def test_medians_under_nsys_are_those_of_the_hooks_own_clock(tmp_path, words):
    """The clock encloses the range and what nsys takes for it. Ranges are 0.5 to 7 µs shorter at the median."""
    (times := tmp_path / "times").mkdir()
    variables = TWO_WORKERS if words else ONE_PROCESS
    path = os.pathsep.join([str(HERE / "site"), str(HERE)])
    run = capture(VLLM, tmp_path, *words, recorder=None, PYTHONPATH=path, ENGINE_TIMES=str(times), **variables)
    num_compared = 0
    for process in run.profile.info.processes:
        file = times / f"{process.pid}.txt"
        if not file.exists():
            continue
        clock = defaultdict(list)
        for name, start, end in (line.split() for line in file.read_text().splitlines()):
            clock[name].append(int(end) - int(start))
        found = defaultdict(list)
        for row in run.profile.events(Events.RANGES, process, ["name", "start_ns", "end_ns"]).to_pylist():
            found[row["name"]].append(row["end_ns"] - row["start_ns"])
        assert set(found) == set(clock)
        for name, values in found.items():
            # nsys may lose what a worker does last: where both cores were busy, 2 of 105
            assert 0 <= len(clock[name]) - len(values) <= 3
            assert 0 <= median(clock[name][: len(values)]) - median(values) < 10_000, name
            num_compared += 1
    assert num_compared >= 7


def test_ngram_drafts(tmp_path):
    run = capture(VLLM, tmp_path, "--spec", "ngram", **ONE_PROCESS)
    (count,) = run.processes
    assert count["draft"] == count["decode_step"] == count["sample_tokens"] < 40
    assert count["kv_alloc"] >= 60


@pytest.mark.parametrize("workers", [1, 2])
def test_core_and_workers_are_told_apart(tmp_path, workers):
    run = capture(VLLM, tmp_path, "--tp", str(workers), **(TWO_WORKERS if workers == 2 else SPLIT))
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
    roles = Counter(str(process.role) for process in run.profile.info.processes if process.num_ranges)
    assert roles == {"core": 1, "worker": workers}
    assert {process.rank for process in run.profile.info.processes if process.role == "worker"} == set(range(workers))
