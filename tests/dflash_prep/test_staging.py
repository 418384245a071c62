"""Staging: the bulk fill equals the loop, and the ring copies exactly when somebody will read."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from dflash_prep.errors import StagingOverwriteError
from dflash_prep.state.request import UNLIMITED_TOP_K, KVState, Request, SamplingParams
from dflash_prep.state.reservation import Watermark
from dflash_prep.state.staging import LengthBuffers, StagedLens, StagingRing, fill_bulk, fill_loop

POISON = -9


def poisoned(bs: int, spare: int = 5) -> tuple[StagedLens, list[torch.Tensor]]:
    whole = [torch.full((bs + spare,), POISON, dtype=dtype) for dtype in (torch.int64, torch.int32, torch.int32)]
    return StagedLens(*(buffer[:bs] for buffer in whole)), whole


def requests(committed: list[int], top_ks: list[int]) -> list[Request]:
    return [
        Request(i, length, SamplingParams(top_k), kv=KVState(i + 1, kv_committed_len=length))
        for i, (length, top_k) in enumerate(zip(committed, top_ks, strict=True))
    ]


rows = st.tuples(
    st.integers(0, 2**40),
    st.integers(0, 2**31 - 1),
    st.integers(0, 2**31 - 1),
    st.sampled_from([-1, 0, 1, 40, 1 << 30]),
)


@given(st.lists(rows, min_size=1, max_size=40), st.booleans())
def test_bulk_fill_equals_the_loop_and_leaves_the_rest_of_the_buffers_alone(values, is_uniform):
    committed, cur, nxt, top_ks = map(list, zip(*values, strict=True))
    if is_uniform:
        top_ks = top_ks[:1] * len(top_ks)
    reqs, watermark = requests(committed, top_ks), Watermark(cur, nxt, 0)
    (by_loop, loop_buffers), (in_bulk, bulk_buffers) = poisoned(len(reqs)), poisoned(len(reqs))
    assert fill_loop(by_loop, reqs, watermark) == fill_bulk(in_bulk, reqs, watermark)
    for one, other in zip(loop_buffers, bulk_buffers, strict=True):
        assert torch.equal(one, other)
        assert bool((other[len(reqs) :] == POISON).all())
    assert in_bulk.committed.tolist() == committed
    assert in_bulk.cur.tolist() == cur
    assert in_bulk.nxt.tolist() == nxt


@pytest.mark.parametrize("fill", [fill_loop, fill_bulk])
@pytest.mark.parametrize(
    ("top_ks", "max_top_k", "uniform"),
    [
        ([0], 1, 0),
        ([-1, 0], 1, None),
        ([40, 40, 40], 40, 40),
        ([1, 40], 40, None),
        # the unlimited sentinel is a value like any other: all equal is uniform, one of them is the maximum
        ([UNLIMITED_TOP_K] * 2, UNLIMITED_TOP_K, UNLIMITED_TOP_K),
        ([1, UNLIMITED_TOP_K], UNLIMITED_TOP_K, None),
    ],
)
def test_top_k_figures(fill, top_ks, max_top_k, uniform):
    lens, _ = poisoned(len(top_ks))
    figures = fill(lens, requests([3] * len(top_ks), top_ks), Watermark([1] * len(top_ks), [7] * len(top_ks), 0))
    assert (figures.max_top_k, figures.uniform_top_k_value) == (max_top_k, uniform)
    assert figures.committed_sum == 3 * len(top_ks)
    assert figures.nxt_sum == 7 * len(top_ks)


def test_a_draft_inputs_buffers_have_their_dtypes_and_grow_to_the_batch_to_32_or_to_twice_what_they_were():
    buffers = LengthBuffers(torch.device("cpu"))
    lens = buffers.acquire(5)
    assert [lens.committed.dtype, lens.cur.dtype, lens.nxt.dtype] == [torch.int64, torch.int32, torch.int32]
    assert lens.cur.untyped_storage().nbytes() == 32 * 4
    assert buffers.acquire(33).cur.untyped_storage().nbytes() == 64 * 4
    assert buffers.acquire(200).cur.untyped_storage().nbytes() == 200 * 4


def test_a_draft_inputs_buffers_are_copied_every_step():
    buffers = LengthBuffers(torch.device("cpu"))
    for step in range(3):
        lens = buffers.acquire(2)
        lens.cur[:], lens.nxt[:] = step, step + 10
        cur, nxt = buffers.ship(lens, 0, (0, 1))
        assert cur.tolist() == [step] * 2
        assert nxt.tolist() == [step + 10] * 2


def filled(ring: StagingRing, bs: int, value: int) -> StagedLens:
    lens = ring.acquire(bs)
    lens.committed[:], lens.cur[:], lens.nxt[:] = value, value + 1, value + 2
    return lens


def test_the_ring_copies_when_pages_are_needed_or_the_requests_change_and_skips_otherwise():
    ring = StagingRing(torch.device("cpu"))
    steps = [(0, (1, 2)), (0, (1, 2)), (512, (1, 2)), (0, (1, 2)), (0, (2, 1)), (0, (2, 1))]
    copied = []
    for value, (needed, rids) in enumerate(steps):
        before = ring.num_copies
        cur, _ = ring.ship(filled(ring, 2, value), needed, rids)
        copied.append(ring.num_copies > before)
        assert cur.tolist() == [(value if copied[-1] else value - 1) + 1] * 2
    assert copied == [True, False, True, False, True, False]
    assert ring.num_skipped == 3


def test_what_a_step_was_handed_survives_the_next_step_and_no_longer():
    ring = StagingRing(torch.device("cpu"))
    first = filled(ring, 3, 100)
    second = filled(ring, 3, 200)
    assert first.nxt.tolist() == [102] * 3
    filled(ring, 3, 300)
    assert first.nxt.tolist() == [302] * 3
    assert second.committed.tolist() == [200] * 3


def test_growing_keeps_what_was_handed_out_and_copies_again_although_nothing_else_changed():
    ring = StagingRing(torch.device("cpu"))
    small = filled(ring, 32, 7)
    ring.ship(small, 0, tuple(range(32)))
    large = filled(ring, 40, 8)
    cur, nxt = ring.ship(large, 0, tuple(range(32)))
    assert ring.num_copies == 2
    assert small.cur.tolist() == [8] * 32
    assert cur.tolist() == [9] * 40
    assert nxt.tolist() == [10] * 40


class SlowEvent:
    """A copy that is done when it is told so."""

    def __init__(self) -> None:
        self.is_done = False
        self.is_recorded = False

    def record(self) -> None:
        self.is_recorded = True

    def query(self) -> bool:
        return self.is_done


def test_a_checking_ring_always_copies_and_refuses_to_refill_a_slot_whose_copy_is_under_way():
    events = [SlowEvent(), SlowEvent()]
    to_give = iter(events)
    ring = StagingRing(torch.device("cpu"), lambda: next(to_give))
    for value in range(2):
        ring.ship(filled(ring, 2, value), 0, (1, 2))
    assert ring.num_copies == 2
    assert all(event.is_recorded for event in events)
    with pytest.raises(StagingOverwriteError, match="slot 0"):
        ring.acquire(2)
    for event in events:
        event.is_done = True
    ring.acquire(2)


@pytest.mark.gpu
def test_on_a_gpu_host_lengths_are_pinned_and_both_vectors_travel_in_one_copy_without_a_wait(forbid_syncs):
    ring = StagingRing(torch.device("cuda"))
    filled(ring, 4, 0)
    with forbid_syncs():
        lens = filled(ring, 4, 5)
        cur, nxt = ring.ship(lens, 1, (1, 2, 3, 4))
    assert lens.cur.is_pinned()
    assert cur.tolist() == [6] * 4
    assert nxt.tolist() == [7] * 4
