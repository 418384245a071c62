"""Prefill, commit and release: exact counters after prefill, one range freed at the end."""

from __future__ import annotations

import pytest

from dflash_prep.errors import OutOfPagesError, OutOfRowsError, PageAccountingError, RowOverflowError
from dflash_prep.state.batch import DecodeBatch
from dflash_prep.state.decode_prep import DecodePrep, PrepOptions
from dflash_prep.state.draft_input import DraftInput
from dflash_prep.state.lifetime import alloc_for_extend, commit_accepted, release, row_slots
from dflash_prep.state.paged_allocator import PagedAllocator
from dflash_prep.state.pools import KVPools
from dflash_prep.state.prefix_cache import ChunkCache, PrefixCache
from dflash_prep.state.req_to_token import ReqToTokenPool
from dflash_prep.state.request import Request


def pools_of(num_pages: int, page_size: int, rows: int = 4, width: int = 2000, tree: type = ChunkCache) -> KVPools:
    allocator = PagedAllocator(num_pages * page_size, page_size, debug=True)
    return KVPools(ReqToTokenPool(rows, width), allocator, tree(allocator))


def test_after_prefill_both_counters_are_the_exact_length_although_the_last_page_is_taken_whole():
    pools = pools_of(8, 256)
    reqs = [Request(0, 1000), Request(1, 256)]
    alloc_for_extend(pools, reqs)
    assert [(req.kv.kv_allocated_len, req.kv.kv_committed_len) for req in reqs] == [(1000, 1000), (256, 256)]
    assert pools.allocator.available_size() == (8 - 5) * 256
    assert row_slots(pools, reqs[0], 0, 1000).tolist() == list(range(256, 1256))
    assert reqs[0].extend_batch_idx == 1


def test_hence_the_first_decode_step_of_every_request_needs_tokens():
    pools = pools_of(8, 256)
    reqs = [Request(0, 1000)]
    alloc_for_extend(pools, reqs)
    batch = DecodeBatch.of(reqs, pools.rows.device, DraftInput.create_idle_input("cpu"))
    reservation = DecodePrep(pools, PrepOptions(8)).prepare(batch)
    assert reservation.watermark == ([1000], [1024], 24)
    assert pools.allocator.available_size() == 4 * 256, "they come from the page it has"
    assert row_slots(pools, reqs[0], 1000, 1024).tolist() == list(range(1256, 1280))


def test_a_finish_frees_reserved_and_topped_up_pages_as_one_run_behind_the_last_committed_page():
    pools = pools_of(40, 4)
    req = Request(0, 9)
    alloc_for_extend(pools, [req])
    batch = DecodeBatch.of([req], pools.rows.device, DraftInput.create_idle_input("cpu"))
    DecodePrep(pools, PrepOptions(4, topup_pages=3)).prepare(batch)
    assert req.kv.kv_allocated_len == 20 + 12
    commit_accepted(req, 2)
    freed = []
    pools.allocator.free_segment = lambda slots, start, **_: freed.append((start, len(slots)))
    release(pools, req)
    assert freed == [(0, 11), (12, 20)]
    assert req.kv is None


@pytest.mark.parametrize("aligned", [True, False], ids=["whole pages", "legacy exact lengths"])
@pytest.mark.parametrize("tree", [ChunkCache, PrefixCache])
def test_whatever_was_committed_all_pages_and_rows_come_back(aligned, tree):
    for committed in range(8):
        pools = pools_of(40, 4, tree=tree)
        req = Request(0, 9, stream=1)
        alloc_for_extend(pools, [req])
        batch = DecodeBatch.of([req], pools.rows.device, DraftInput.create_idle_input("cpu"))
        DecodePrep(pools, PrepOptions(4, aligned=aligned)).prepare(batch)
        commit_accepted(req, committed)
        release(pools, req)
        pools.tree.evict(pools.tree.evictable_size())
        assert pools.allocator.available_size() == 160
        assert sorted(pools.rows.free_rows) == [1, 2, 3, 4]


def test_a_commit_counts_tokens_and_a_verified_step_and_cannot_pass_the_watermark():
    pools = pools_of(8, 4)
    req = Request(0, 6)
    alloc_for_extend(pools, [req])
    req.kv.kv_allocated_len = 8
    commit_accepted(req, 2)
    assert (req.kv.kv_committed_len, req.num_generated, req.spec_verify_ct, req.seq_len) == (8, 2, 1, 8)
    with pytest.raises(PageAccountingError, match=r"request 0 commits 8 \+ 1 of 8"):
        commit_accepted(req, 1)
    assert req.kv.kv_committed_len == 8


def test_after_a_retraction_the_prefill_covers_what_was_generated_too():
    pools = pools_of(8, 4)
    req = Request(0, 6)
    alloc_for_extend(pools, [req])
    req.kv.kv_allocated_len = 8
    commit_accepted(req, 2)
    release(pools, req, insert=False)
    assert pools.allocator.available_size() == 32
    alloc_for_extend(pools, [req])
    assert req.kv.kv_committed_len == 8
    assert pools.rows.req_generation.tolist() == [0, 1, 1, 0, 0]


@pytest.mark.parametrize(
    ("lens", "error"), [([6] * 5, OutOfRowsError), ([6, 2001], RowOverflowError), ([100, 100], OutOfPagesError)]
)
def test_a_prefill_that_cannot_be_served_holds_nothing_and_unlocks_what_it_shared(lens, error):
    pools = pools_of(30, 4, tree=PrefixCache)
    done = Request(9, 9, stream=1)
    alloc_for_extend(pools, [done])
    release(pools, done)
    reqs = [Request(i, length, stream=1) for i, length in enumerate(lens)]
    with pytest.raises(error):
        alloc_for_extend(pools, reqs)
    assert [req.kv for req in reqs] == [None] * len(reqs)
    assert len(pools.rows.free_rows) == 4
    assert pools.allocator.available_size() + pools.tree.evictable_size() == 120


def test_prefilling_nobody_does_nothing():
    pools = pools_of(8, 4)
    alloc_for_extend(pools, [])
    assert pools.rows.free_rows == [1, 2, 3, 4]
