"""What the built-in loop counted itself, step by step: step time by load, and what tracing it cost.

Both sides of the cost are read from the loop's own clock, so that the recorder's reading of time plays no part in it.
"""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from dflash_bench.layout import StepTable
from dflash_bench.metrics.events.arrays import int_values
from dflash_bench.metrics.measurements import metric
from dflash_bench.model import IntArray, Metric, RunInfo, Table, Value
from dflash_bench.profile import Profile

_BUCKET = 16
"""Running requests that share a figure; the public reports quote 32-47."""

TRACING_COST = "tracing.cost"
TRACING_COLUMNS = (
    "rank",
    "recorder",
    "traced_steps",
    "traced_p50_ns",
    "untraced_steps",
    "untraced_p50_ns",
    "ratio",
    "range_cost_ns",
)


def step_metrics(profile: Profile, rank: int) -> Iterator[Metric]:
    """``step.period@LOW-HIGH`` of one rank: samples int64 ns, of the steps with LOW to HIGH requests running."""
    steps = profile.steps(rank)
    running = int_values(steps.column("running"))[:-1] // _BUCKET
    number, period = int_values(steps.column("step"))[:-1], _periods(profile, rank, StepTable.STEPS)
    is_counted, pair = np.ones(len(number), bool), None
    if profile.arm is not None and len(number):
        arms, pair = np.array(steps.column("arm").to_pylist()), int_values(steps.column("pair"))
        # the last step of a block has no next one
        is_counted = (arms[:-1] == profile.arm) & (arms[1:] == profile.arm) & (pair[1:] == pair[:-1])
        pair = pair[:-1]
    for bucket in np.unique(running[is_counted]):
        low = int(bucket) * _BUCKET
        inside = is_counted & (running == bucket)
        own = None if pair is None else pair[inside]
        yield metric(f"step.period@{low}-{low + _BUCKET - 1}", rank, period[inside], block=number[inside], pair=own)


def tracing_cost(profile: Profile) -> Table:
    """Step p50 with and without the recorder, per rank and pooled; without rows where no unprofiled run was made."""
    ranks = profile.info.ranks
    sides = [
        {rank: _periods(profile, rank, table) for rank in ranks} for table in (StepTable.STEPS, StepTable.UNPROFILED)
    ]
    both = [rank for rank in ranks if all(len(side[rank]) for side in sides)]
    rows = [_row(rank, profile.info, *(side[rank] for side in sides)) for rank in both]
    if both:
        rows.append(_row(None, profile.info, *(np.concatenate([side[rank] for rank in both]) for side in sides)))
    return Table(TRACING_COST, TRACING_COLUMNS, tuple(rows))


def _row(rank: int | None, info: RunInfo, traced: IntArray, untraced: IntArray) -> tuple[Value, ...]:
    with_tool, without = float(np.median(traced)), float(np.median(untraced))
    cost = info.settings.get("range_cost_ns")
    return rank, _recorder(info), len(traced), with_tool, len(untraced), without, with_tool / without, cost


def _recorder(info: RunInfo) -> str:
    return " and ".join(sorted({f"{c.recorder} {c.exporter_version or ''}".strip() for c in info.captures}))


def _periods(profile: Profile, rank: int, table: StepTable) -> IntArray:
    # the last row's period ends with its own step, not at the start of another
    return int_values(profile.steps(rank, table).column("period_ns"))[:-1]
