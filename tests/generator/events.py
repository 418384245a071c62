"""What one rank does, step by step, as NumPy columns: a decode step's ranges, calls and GPU work, with jitter.

The GPU runs one stream in order: a piece of work starts when its launch call is past and the one before has ended. So
leads, stalls and waits come out as they would on a machine.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from itertools import pairwise

import numpy as np
import numpy.typing as npt

from generator.spec import Fault, Mode, Spec

Ints = npt.NDArray[np.int64]
NULL = np.iinfo(np.int64).min
"""Stands for NULL in a column."""

CHUNK_STEPS = 2000
PERIOD_NS = 10_000_000
FILLS = 12
"""Small ranges inside prepare_for_decode."""
LAUNCHES = 18
"""Eager kernel launches of a step."""
NODES = 16
"""Kernels of a CUDA graph, seen in node mode."""
KERNEL_NAMES = tuple(f"kernel_{letter}" for letter in "abcdefghijkl")

RANGES = ("decode_step", "prepare_for_decode", "dp_agreement", "draft", "verify", "sample", *["fill"] * FILLS)
RANGE_BEGIN = (0, 40, 900, 1000, 1500, 2300, *range(60, 60 + 25 * FILLS, 25))
RANGE_LENGTH = (9800, 800, 80, 450, 700, 150, *[12] * FILLS)
"""Begin and length in µs from the step's start."""

CALLS = (
    *["cudaLaunchKernel_v7000"] * LAUNCHES,
    "cudaMemcpyAsync_v3020", "cudaMemcpyAsync_v3020", "cudaMemsetAsync_v3020",
    "cudaGraphLaunch_v10000", "cudaGraphLaunch_v10000",
    "cudaEventSynchronize_v3020", "cudaStreamSynchronize_v3020",
)  # fmt: skip
CALL_BEGIN = (*range(380, 380 + 22 * LAUNCHES, 22), 830, 850, 870, 1100, 1600, 2310, 2400)
GPU_LENGTH = (*[20] * LAUNCHES, 5, 6, 3, 1500, 4800)
FIRST_COPY, MEMSET, FIRST_GRAPH, FIRST_SYNC = LAUNCHES, LAUNCHES + 2, LAUNCHES + 3, LAUNCHES + 5
NUM_WORK = LAUNCHES + 5


def rows_per_step(spec: Spec) -> int:
    """About how many event rows a rank has per step."""
    graphs = {Mode.NODE: 2 * NODES, Mode.MIXED: NODES + 1, Mode.GRAPH: 2}[spec.mode]
    calls = len(CALLS) - (0 if spec.is_sync else 1)
    return len(RANGES) + calls + NUM_WORK - 2 + graphs + 1


@dataclass(frozen=True, slots=True)
class Chunk:
    """Some steps of one rank. Every array has one entry per event; names are texts of a small set, by code.

    ``range_name`` indexes RANGES + kv_alloc (len(RANGES)); ``call_name`` CALLS; ``work_kind`` the place of the work's
    launch in CALLS; ``step_number``, ``call_step`` and ``work_step`` the step each event belongs to.
    """

    rank: int
    range_name: Ints
    range_start: Ints
    range_end: Ints
    step_number: Ints
    call_name: Ints
    call_start: Ints
    call_end: Ints
    call_id: Ints
    call_step: Ints
    work_kind: Ints
    work_start: Ints
    work_end: Ints
    work_id: Ints
    work_step: Ints


def chunks(spec: Spec, ranks: tuple[int, ...]) -> Iterator[Chunk]:
    """All events of these ranks, in chunks of steps. The same seed gives the same events, whichever ranks are asked."""
    queue = dict.fromkeys(ranks, -(1 << 60))
    for begin, stop in pairwise([*range(0, spec.steps, CHUNK_STEPS), spec.steps]):
        late = np.random.default_rng([spec.seed, begin]).exponential(60_000, (stop - begin, spec.ranks))
        is_alloc = np.random.default_rng([spec.seed, begin, 1]).random((stop - begin, spec.ranks)) < spec.alloc_share
        late += is_alloc * 500_000
        for rank in ranks:
            random = np.random.default_rng([spec.seed, begin, 2 + rank])
            made = _chunk(spec, rank, begin, late, is_alloc[:, rank], random, queue[rank])
            queue[rank] = int(made.work_end.max())
            yield made


def _chunk(
    spec: Spec,
    rank: int,
    begin: int,
    late: npt.NDArray[np.float64],
    is_alloc: npt.NDArray[np.bool_],
    random: np.random.Generator,
    queue_end: int,
) -> Chunk:
    n = len(late)
    origin = -20_000_000_000 if spec.has(Fault.NEGATIVE_TIMES) else 1_000_000_000
    number = np.arange(begin, begin + n)
    start = origin + number * PERIOD_NS
    # the host does its own extra work inside prepare_for_decode; everything after that moves with it
    own, last = late[:, rank].astype(np.int64), late.max(axis=1).astype(np.int64)
    ranges_at, ranges_end = _ranges(random, start, own, last)
    alloc = np.flatnonzero(is_alloc)
    alloc_at = start[alloc] + 400_000
    calls_at, calls_end = _calls(random, start, last)
    first_id = 1000 + number * len(CALLS) + (0 if spec.has(Fault.SHARED_IDS) else rank * (1 << 28))
    ids = first_id[:, None] + np.arange(len(CALLS))
    work_start, work_end = _work(random, calls_at[:, :NUM_WORK], queue_end)
    used = len(CALLS) if spec.is_sync else len(CALLS) - 1
    return Chunk(
        rank=rank,
        range_name=np.concatenate([np.tile(np.arange(len(RANGES)), n), np.full(len(alloc), len(RANGES))]),
        range_start=np.concatenate([ranges_at.ravel(), alloc_at]),
        range_end=np.concatenate([ranges_end.ravel(), alloc_at + 10_000 + own[alloc] // 2]),
        step_number=np.concatenate([np.repeat(number, len(RANGES)), number[alloc]]),
        call_name=np.tile(np.arange(used), n),
        call_start=calls_at[:, :used].ravel(),
        call_end=calls_end[:, :used].ravel(),
        call_id=ids[:, :used].ravel(),
        call_step=np.repeat(number, used),
        work_kind=np.tile(np.arange(NUM_WORK), n),
        work_start=work_start,
        work_end=work_end,
        work_id=ids[:, :NUM_WORK].ravel(),
        work_step=np.repeat(number, NUM_WORK),
    )


def _ranges(random: np.random.Generator, start: Ints, own: Ints, last: Ints) -> tuple[Ints, Ints]:
    at = start[:, None] + np.asarray(RANGE_BEGIN) * 1000
    length = np.tile(np.asarray(RANGE_LENGTH) * 1000, (len(start), 1)) + random.integers(0, 9000, at.shape)
    length[:, 0] = RANGE_LENGTH[0] * 1000
    length[:, 1] += own
    at[:, 2] += own
    for later in (3, 4, 5):
        at[:, later] += last
    # nobody leaves the agreement before the last one has arrived
    length[:, 2] = start + 900_000 + last + 30_000 - at[:, 2]
    return at, at + length


def _calls(random: np.random.Generator, start: Ints, last: Ints) -> tuple[Ints, Ints]:
    at = start[:, None] + np.asarray(CALL_BEGIN) * 1000 + random.integers(0, 2000, (len(start), len(CALLS)))
    at[:, FIRST_GRAPH:] += last[:, None]
    length = random.integers(4000, 9000, at.shape)
    length[:, FIRST_SYNC:] = random.integers(20_000, 400_000, (len(start), len(CALLS) - FIRST_SYNC))
    return at, at + length


def _work(random: np.random.Generator, launched: Ints, queue_end: int) -> tuple[Ints, Ints]:
    ready = launched.ravel() + 3000
    length = np.tile(np.asarray(GPU_LENGTH) * 1000, len(launched)) + random.integers(0, 2000, len(ready))
    # end_i = max(end_{i-1}, ready_i) + length_i, unrolled: a running maximum over what is left after the lengths so far
    done = np.cumsum(length)
    end = done + np.maximum.accumulate(np.maximum(ready, queue_end) - (done - length))
    return end - length, end
