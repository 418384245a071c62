"""Engine counters: what each step did, one row a step, and their summary under the names of the metrics."""

from __future__ import annotations

import csv
from dataclasses import dataclass, fields
from pathlib import Path
from typing import NamedTuple

from dflash_prep.state.pools import KVAllocator
from dflash_prep.state.swa_allocator import SWAAllocator


@dataclass(slots=True)
class StepRow:
    """One finished step of one rank. Empty fields of the file mean: not measured at this step.

    start_ns           CLOCK_MONOTONIC at the start of decode_step
    period_ns          until the next step starts; for the last one until it ends
    running            requests in the batch
    committed_tokens   tokens of the result processed in this step, so those of the step before
    processed          requests whose result was processed in this step
    allocated_tokens   taken from the pool by prepare_for_decode; 0 on a step that allocates nothing
    free_tokens        of the KV pool after it, of the full one if there are two
    swa_free_tokens    of the sliding-window pool, where there is one
    topup_pages        pages held beyond need, all requests; looked at when the step allocates
    guard_ratio        free tokens over the guard's bound, where the step allocates
    retracted          requests sent back in this step
    topup_refused      1 where the guard kept a step that allocates from topping up, 0 elsewhere
    """

    step: int
    start_ns: int
    period_ns: int
    running: int
    committed_tokens: int
    processed: int
    allocated_tokens: int
    free_tokens: int
    swa_free_tokens: int | None
    topup_pages: int | None
    guard_ratio: float | None
    retracted: int
    topup_refused: int = 0


def write_steps(rows: list[StepRow], path: Path, blocks: list[tuple[str | None, int | None]] | None = None) -> None:
    """All rows as CSV with a header, whole or not at all; of a duet also the `arm` and `pair` that each belongs to."""
    unfinished = path.with_suffix(".csv.tmp")
    names = [each.name for each in fields(StepRow)]
    with unfinished.open("w", newline="", encoding="utf-8") as file:
        writer = csv.writer(file)
        writer.writerow(names if blocks is None else [*names, "arm", "pair"])
        for row, block in zip(rows, blocks or [()] * len(rows), strict=True):
            writer.writerow([*(getattr(row, name) for name in names), *block])
    unfinished.replace(path)


class PoolTokens(NamedTuple):
    """Free tokens of the KV pool (the full one if there are two) and of the sliding-window pool, if there is one."""

    full: int
    swa: int | None

    @classmethod
    def free(cls, allocator: KVAllocator) -> PoolTokens:
        """Those free now; of a pool nobody uses yet, its size."""
        if isinstance(allocator, SWAAllocator):
            return cls(allocator.full.available_size(), allocator.swa.available_size())
        return cls(allocator.available_size(), None)


def summarise(rows: list[StepRow], pool: PoolTokens, checks: tuple[int, int]) -> dict[str, float]:
    """Metric name → value; names whose value does not exist in this run are left out.

    `pool` are the sizes. `checks` is (consistency checks, bad ones). Rates count processed tokens over the time of
    all steps.
    """
    committed, processed = sum(row.committed_tokens for row in rows), sum(row.processed for row in rows)
    seconds = sum(row.period_ns for row in rows) / 1e9
    running = sum(row.running for row in rows) / max(1, len(rows))
    found: dict[str, float | None] = {
        "tokens.committed": committed,
        "tokens.per_s": committed / seconds if seconds else None,
        "tokens.per_s_per_request": committed / seconds / running if seconds and running else None,
        "accept.length": committed / processed if processed else None,
        "kv.usage_max": _usage_max([row.free_tokens for row in rows], pool.full),
        "swa.usage_max": _usage_max([row.swa_free_tokens for row in rows if row.swa_free_tokens is not None], pool.swa),
        "kv.topup_pages_held": max((row.topup_pages for row in rows if row.topup_pages is not None), default=None),
        "topup.guard_ratio_min": min((row.guard_ratio for row in rows if row.guard_ratio is not None), default=None),
        "retracted": sum(row.retracted for row in rows),
        "alloc.steps": sum(row.allocated_tokens > 0 for row in rows),
        "consistency.checks": checks[0],
        "consistency.bad": checks[1],
    }
    return {name: value for name, value in found.items() if value is not None}


def _usage_max(free: list[int], size: int | None) -> float | None:
    return 1 - min(free) / size if free and size else None
