"""Profiles of a made-up decode loop on several ranks, recorded and ingested like real ones; a delay can be planted."""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path

import numpy as np

from dflash_bench.capture.recording import (
    RecordedCall,
    RecordedMark,
    RecordedRange,
    RecordedThread,
    RecordedWork,
    Recording,
    WorkKind,
)
from dflash_bench.capture.recording_file import write_recording
from dflash_bench.ingest.sources import IngestOptions, ingest
from dflash_bench.profile import Profile

DRAFT_NS, VERIFY_NS, AGREE_NS = 80_000, 110_000, 40_000
GPU_NS = 1_500_000


@dataclass(frozen=True)
class LoopRun:
    """One run to make up. ``delay_ns`` is added to every ``prepare_for_decode`` of rank ``delayed_rank``.

    ``drift`` is the standard deviation between runs, ``jitter`` that between steps, both as shares.
    """

    name: str
    seed: int
    arm: str = "control"
    world: int = 4
    steps: int = 80
    delay_ns: int = 0
    delayed_rank: int = 2
    drift: float = 0.002
    jitter: float = 0.03
    settings: dict[str, object] = field(default_factory=dict)


def make(run: LoopRun, folder: Path, profiles: Path) -> Profile:
    """Write one capture per rank into ``folder`` and ingest them as a profile of that name."""
    folder.mkdir(parents=True, exist_ok=True)
    files = []
    for recording, rank in _recordings(run):
        files.append(folder / f"{run.name}-rank{rank}.sqlite")
        write_recording(recording, files[-1])
    settings = {"recorder": "built-in recorder", "seed": 0, "steps": run.steps, "ranks": run.world, **run.settings}
    options = IngestOptions(profiles=profiles, run=run.name, arm=run.arm, workload="made-up", settings=settings)
    (profile,) = ingest(files, options)
    return profile


def _recordings(run: LoopRun) -> list[tuple[Recording, int]]:
    rng = np.random.default_rng(run.seed)
    prepare = 600_000 * (1 + run.drift * rng.standard_normal()) * (1 + run.jitter * _noise(rng, run))
    prepare[run.delayed_rank] += run.delay_ns
    ranks = [_Rank(k, run) for k in range(run.world)]
    at = np.full(run.world, 1_000_000)
    for step in range(run.steps):
        arrival = [r.prepare(int(at[k]), int(prepare[k, step]), step) for k, r in enumerate(ranks)]
        leave = max(arrival) + AGREE_NS
        at = np.array([r.launch(int(at[k]), arrival[k], leave + 2_000 * k) for k, r in enumerate(ranks)])
    return [(r.recording(int(at[k])), k) for k, r in enumerate(ranks)]


def _noise(rng: np.random.Generator, run: LoopRun) -> np.ndarray:
    """float64 [ranks, steps]: steps that are correlated, and now and then one far slower."""
    found = rng.standard_t(4, (run.world, run.steps))
    for step in range(1, run.steps):
        found[:, step] = 0.5 * found[:, step - 1] + 0.85 * found[:, step]
    return found


class _Rank:
    def __init__(self, rank: int, run: LoopRun) -> None:
        self.pid, self.tid, self.rank, self.run = 4000 + 100 * rank + run.seed, 4000 + 100 * rank + run.seed, rank, run
        self.ranges: list[RecordedRange] = []
        self.calls: list[RecordedCall] = []
        self.work: list[RecordedWork] = []
        self.gpu_free = 0

    def prepare(self, at: int, duration: int, step: int) -> int:
        """The host's part before the agreement; when it arrives there."""
        self._range("prepare_for_decode", at + 1_000, at + 1_000 + duration)
        self._range("fill", at + 2_000, at + 302_000)
        if step % 4 == 0:
            self._range("kv_alloc", at + 310_000, at + 390_000)
        return at + 1_000 + duration + 500

    def launch(self, start: int, arrival: int, leave: int) -> int:
        """Agreement, draft and verify; when the step ends."""
        self._range("dp_agreement", arrival, leave)
        at = leave + 1_000
        for name, duration in (("draft", DRAFT_NS), ("verify", VERIFY_NS)):
            self._range(name, at, at + duration)
            self._graph_launch(at + 5_000)
            at += duration + 1_000
        self._range("decode_step", start, at)
        return at + 3_000

    def _graph_launch(self, at: int) -> None:
        correlation = len(self.calls) + 1
        self.calls.append(RecordedCall("cudaGraphLaunch", self.tid, at, at + 20_000, correlation))
        begin = max(at + 25_000, self.gpu_free)
        self.gpu_free = begin + GPU_NS // 4
        self.work.append(RecordedWork(WorkKind.GRAPH, "graph", begin, self.gpu_free, correlation, 0, 7, 0, 1))

    def _range(self, name: str, start: int, end: int) -> None:
        self.ranges.append(RecordedRange(name, self.tid, start, end))

    def recording(self, end: int) -> Recording:
        text = f"dflash_bench rank={self.rank} world={self.run.world} arm={self.run.arm}"
        return Recording(
            pid=self.pid,
            domain="dflash",
            utc_origin_ns=1_795_995_537_208_158_634,
            duration_ns=end + 1_000_000,
            threads=(RecordedThread(self.tid, "main"),),
            ranges=tuple(self.ranges),
            marks=(RecordedMark(text, self.tid, 500),),
            api_calls=tuple(self.calls),
            gpu_work=tuple(self.work),
        )
