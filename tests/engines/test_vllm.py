"""A real vLLM on a CPU, captured with the product's own annotation: in one process, with drafts, with workers."""

from __future__ import annotations

import os
import shutil
from collections import Counter, defaultdict
from dataclasses import dataclass
from statistics import median

import pytest
from engines.capturing import HERE, EngineRun, capture
from engines.environments import VLLM

from dflash_bench.layout import Events
from dflash_bench.model import ProcessInfo, ProcessRole

pytestmark = pytest.mark.engines
HAS_NSYS = shutil.which("nsys") is not None


@dataclass(frozen=True)
class SetUp:
    """How the engine is split. ``workers``: processes of their own beside a core; 0: all in one."""

    words: tuple[str, ...] = ()
    workers: int = 0

    @property
    def variables(self) -> dict[str, str]:
        # on one NUMA node two workers ask for the cores
        binding = {"VLLM_CPU_OMP_THREADS_BIND": "0|1"} if self.workers == 2 else {}
        return {"VLLM_ENABLE_V1_MULTIPROCESSING": str(int(self.workers > 0)), **binding}


ONE, NGRAM = SetUp(), SetUp(("--spec", "ngram"))
SPLIT, TWO = SetUp(workers=1), SetUp(("--tp", "2"), 2)


@dataclass(frozen=True)
class Clock:
    """What the hook itself timed in one process: range → (start, end) of each; it encloses the range."""

    of: dict[str, list[tuple[int, int]]]

    @classmethod
    def read(cls, text: str) -> Clock:
        found = defaultdict(list)
        for name, start, end in (line.split() for line in text.splitlines()):
            found[name].append((int(start), int(end)))
        return cls(dict(found))

    def allocating_steps(self) -> tuple[int, int]:
        """(steps in which blocks were taken, steps) of the process that takes them."""
        steps = self.of.get("engine_step") or self.of["decode_step"]
        return sum(any(a <= t < b for t, _ in self.of["kv_alloc"]) for a, b in steps), len(steps)


@pytest.mark.parametrize(
    ("setup", "is_nsys"),
    [
        pytest.param(setup, is_nsys, id=f"{name}{', nsys' * is_nsys}", marks=marks)
        for name, setup in {"one": ONE, "ngram": NGRAM, "core and worker": SPLIT, "core and two workers": TWO}.items()
        for is_nsys, marks in (
            (False, [pytest.mark.shortest] if setup is ONE else []),
            (True, [pytest.mark.nsys, pytest.mark.skipif(not HAS_NSYS, reason="no nsys here")]),
        )
    ],
)
def test_counts_medians_and_shares_are_those_of_the_hooks_own_clock(tmp_path, setup, is_nsys):
    (times := tmp_path / "times").mkdir()
    path = os.pathsep.join([str(HERE / "site"), str(HERE)])
    more = {"PYTHONPATH": path, "ENGINE_TIMES": str(times), **setup.variables}
    run = capture(VLLM, tmp_path, *setup.words, recorder=None if is_nsys else "--recorder", **more)
    ranged = [process for process in run.profile.info.processes if process.num_ranges]
    assert len(ranged) == len(list(times.iterdir())) == (setup.workers + 1 if setup.workers else 1)
    for process in ranged:
        clock = Clock.read((times / f"{process.pid}.txt").read_text())
        check_ranges(run, process, clock)
        if "kv_alloc" in clock.of:
            allocating, steps = clock.allocating_steps()
            share = run.figures.find("alloc.step_share", None if setup.workers else 0)
            assert (share.values.sum(), len(share.values)) == (allocating, steps)
    check_set_up(run, setup)


def check_ranges(run: EngineRun, process: ProcessInfo, clock: Clock) -> None:
    """Every range of the clock is there, as long as it was."""
    found = defaultdict(list)
    for row in run.profile.events(Events.RANGES, process, ["name", "start_ns", "end_ns"]).to_pylist():
        found[row["name"]].append(row["end_ns"] - row["start_ns"])
    assert set(found) == set(clock.of)
    for name, values in found.items():
        timed = [end - start for start, end in clock.of[name]]
        assert len(timed) == len(values), name
        assert 0 <= median(timed) - median(values) < 10_000, name


def check_set_up(run: EngineRun, setup: SetUp) -> None:
    """What the lengths and the block size say, and that a core and its workers are told apart."""
    core, *workers = sorted(run.processes, key=lambda count: "schedule" not in count)
    if setup.workers:
        roles = Counter(process.role for process in run.profile.info.processes if process.num_ranges)
        assert roles == {ProcessRole.CORE: 1, ProcessRole.WORKER: setup.workers}
        ranks = {process.rank for process in run.profile.info.processes if process.role == ProcessRole.WORKER}
        assert ranks == set(range(setup.workers))
        assert core["schedule"] == core["engine_step"] >= 104  # requests enter over more than one step
        assert core["kv_alloc"] == 66
        assert "decode_step" not in core
        for count in workers:
            assert count["decode_step"] == count["verify"] >= 104
            assert not {"kv_alloc", "engine_step"} & count.keys()
        return
    assert "engine_step" not in core
    assert core["decode_step"] == core["schedule"] == core["prepare_for_decode"] == core["process_result"]
    if setup is NGRAM:
        assert core["draft"] == core["decode_step"] < 40
        return
    expected = run.said["expected"]
    assert (core["decode_step"], core["kv_alloc"]) == (expected["steps"], expected["allocations"]) == (104, 66)
    assert run.allocating_share() == pytest.approx(expected["allocating_steps"] / expected["steps"])
