"""Four real duets on an H200, as samples: what verdicts are worth is counted on windows of them.

Each of four processes (`tests/data/h200-duets`) decoded 100 pairs of blocks of 20 steps in four arms in turns:
``control``, ``again`` (the same switches), ``topup``, and ``plus55us``, which is ``control`` with 55 µs planted in
``prepare_for_decode``. One rank, nsys 2025.3.1, torch 2.11, made by

    dflash-bench run --arm control --arm control,topup_pages=0 --arm topup --arm counts --delay 0:55:counts
        --workload dep32-c5768 --ranks 1 --pairs 100 --repeats 4

Kept are the primary metrics and some beside them, of every step.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import numpy as np
import pyarrow.parquet as pq

from dflash_bench.metrics.measurements import metric
from dflash_bench.model import ProcessInfo, RankSource, RunInfo, RunMetrics

FOLDER = Path(__file__).parent / "data" / "h200-duets"
PROCESSES = (1, 2, 3, 4)
ARMS = ("control", "again", "topup", "plus55us")


def arm_of(process: int, arm: str) -> RunMetrics:
    """The metrics of one arm in one of the processes."""
    samples = pq.read_table(FOLDER / f"process{process}.parquet").to_pandas()
    own = samples[samples.arm == arm]
    info = RunInfo(
        f"duet{process}", arm, "dep32-c5768", "NVIDIA H200", ("NVIDIA H200",), 1, "2026-12-01T05:46:51Z", "0",
        (), (ProcessInfo(1, 1, 0, 0, RankSource.MARK, 1, "loop", 0, 0, 0),), (), {"seed": 0}, {}, (),
    )  # fmt: skip
    found = tuple(
        metric(name, 0, part.value.to_numpy(np.float64), pair=part.pair.to_numpy(np.int64))
        for name, part in own.groupby("metric", observed=True, sort=False)
    )
    return RunMetrics(info, found, (), ())


def windows(run: RunMetrics, num: int) -> Iterator[RunMetrics]:
    """A run's metrics, so many pairs at a time; figures that no pair can be told of are left out."""
    paired = [m for m in run.metrics if m.pair is not None and len(m.pair)]
    last = max(int(m.pair.max()) for m in paired)
    for low in range(0, last + 2 - num, num):
        cut = []
        for each in paired:
            own = (each.pair >= low) & (each.pair < low + num)
            parts = {n: a[own] for n in ("values", "group", "block", "pair") if (a := getattr(each, n)) is not None}
            if own.any():
                cut.append(replace(each, num_samples=None, **parts))
        # the processes had seeds of their own: windows of several are compared in turns all the same
        info = replace(run.info, run=f"{run.info.run}-{low}", settings={**run.info.settings, "seed": 0})
        yield replace(run, info=info, metrics=tuple(cut), tables=(), findings=())


def made_worse(run: RunMetrics, name: str, share: float) -> RunMetrics:
    """The same run with that share of a metric's mean added in every step, and in what contains it."""
    (own,) = [m for m in run.metrics if m.name == name]
    more = share * float(own.values.mean())
    holding = {name, f"{name}.p99", *(["host.busy_per_step"] if name.startswith("cost.") else [])}
    return replace(run, metrics=tuple(
        replace(m, values=m.values + more) if m.name in holding else m for m in run.metrics
    ))  # fmt: skip
