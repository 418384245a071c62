"""The decode loop, replayed: hosts meet at the agreement, launch in order, and wait for the result of an earlier step.

One step of every rank, with the names of `trace.StepTrace`:

    arrive  = start + before                          each rank on its own
    leave   = max over ranks of arrive + communication, + leave_skew
    first   = leave + to_first                        the first graph is launched …
    draft   = max(first, GPU free) + first_gpu        … and runs when the GPU is free
    last    = first + to_last
    GPU free = max(last, draft) + rest_gpu
    waited  = max(last + to_wait, end of the GPU work of `lag` steps ago)
    start'  = waited + after
"""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass

import numpy as np

from dflash_bench.model import BoolArray, FloatArray, IntArray


@dataclass(frozen=True, slots=True)
class StepWork:
    """What the steps of all ranks take, float64 [steps, replicates, ranks] in ns.

    ``communication`` is [steps, replicates]: an agreement is everybody's. ``lag`` is how many steps ago the
    work was launched whose result a step waits for.
    """

    before: FloatArray
    leave_skew: FloatArray
    to_first: FloatArray
    to_last: FloatArray
    to_wait: FloatArray
    after: FloatArray
    first_gpu: FloatArray
    rest_gpu: FloatArray
    communication: FloatArray
    lag: int


@dataclass(frozen=True, slots=True)
class Replay:
    """What came of it. ``period``, ``tax`` and ``leave`` [steps, replicates]; the others [steps, replicates, ranks].

    lead        GPU free − launch of the first graph, ns
    last_rank   int64: the rank that arrived last
    host_waits  whether the host waited for the GPU: such a step is bound by the GPU
    """

    period: FloatArray
    tax: FloatArray
    lead: FloatArray
    last_rank: IntArray
    host_waits: BoolArray


def replay(work: StepWork, ranks_per_gpu: int = 1) -> Replay:
    """Replay the steps in order. With several ranks a GPU its pieces of work run one after the other, first come."""
    num_steps, replicates, ranks = work.before.shape
    start = np.zeros((replicates, ranks))
    free = np.zeros_like(start)
    ends: deque[FloatArray] = deque([np.zeros_like(start)] * max(work.lag, 1), maxlen=max(work.lag, 1))
    arrivals, leaves = np.empty((num_steps, replicates, ranks)), np.empty((num_steps, replicates))
    lead = np.empty_like(arrivals)
    host_waits = np.empty(arrivals.shape, dtype=bool)
    for k in range(num_steps):
        arrive = start + work.before[k]
        leave = arrive.max(axis=1) + work.communication[k]
        first = leave[:, None] + work.leave_skew[k] + work.to_first[k]
        last = first + work.to_last[k]
        lead[k] = free - first
        free = _run(first, last, work.first_gpu[k], work.rest_gpu[k], free, ranks_per_gpu)
        ready = free if work.lag == 0 else ends[0]
        ends.append(free)
        reached = last + work.to_wait[k]
        host_waits[k] = ready > reached
        start = np.maximum(reached, ready) + work.after[k]
        arrivals[k], leaves[k] = arrive, leave
    return Replay(
        period=np.diff(leaves, axis=0, prepend=np.nan)[1:],
        tax=(arrivals.max(axis=2) - np.median(arrivals, axis=2)),
        lead=lead,
        last_rank=arrivals.argmax(axis=2),
        host_waits=host_waits,
    )


def _run(
    first: FloatArray, last: FloatArray, first_gpu: FloatArray, rest_gpu: FloatArray, free: FloatArray, shared_by: int
) -> FloatArray:
    """When the GPU of each rank is free again, [replicates, ranks]."""
    if shared_by == 1:
        drafted: FloatArray = np.maximum(first, free) + first_gpu
        return np.maximum(last, drafted) + rest_gpu
    out = np.empty_like(free)
    for begin in range(0, free.shape[1], shared_by):
        group = slice(begin, begin + shared_by)
        out[:, group] = _run_shared(
            first[:, group], last[:, group], first_gpu[:, group], rest_gpu[:, group], free[:, group]
        )
    return out


def _run_shared(
    first: FloatArray, last: FloatArray, first_gpu: FloatArray, rest_gpu: FloatArray, free: FloatArray
) -> FloatArray:
    """One GPU, several ranks: every piece starts when it is launched and all that came before it is done."""
    replicates, ranks = first.shape
    rows = np.arange(replicates)
    now = free.max(axis=1)
    ready = first.copy()  # when the next piece of each rank may start
    is_second = np.zeros((replicates, ranks), dtype=bool)
    done = np.full((replicates, ranks), np.nan)
    for _ in range(2 * ranks):
        rank = np.where(np.isnan(done), ready, np.inf).argmin(axis=1)
        second = is_second[rows, rank]
        now = np.maximum(now, ready[rows, rank]) + np.where(second, rest_gpu[rows, rank], first_gpu[rows, rank])
        done[rows[second], rank[second]] = now[second]
        ready[rows, rank] = np.where(second, ready[rows, rank], np.maximum(last[rows, rank], now))
        is_second[rows, rank] = True
    return done
