"""Admission and pre-allocation on the decode side of prefill/decode disaggregation."""

from __future__ import annotations

import pytest

from dflash_prep.errors import MisalignedSegmentError, OutOfPagesError
from dflash_prep.state.lifetime import release, row_slots
from dflash_prep.state.paged_allocator import PagedAllocator
from dflash_prep.state.pools import KVPools
from dflash_prep.state.prefix_cache import ChunkCache
from dflash_prep.state.req_to_token import ReqToTokenPool
from dflash_prep.state.request import Request
from dflash_prep.state.reservation import page_aligned_decode_alloc_lens
from dflash_prep.state.swa_allocator import SWAAllocator
from dflash_prep.variants.pd_admission import admissible_tokens, preallocate


def pools_of(num_pages: int, page_size: int = 256) -> KVPools:
    allocator = PagedAllocator(num_pages * page_size, page_size)
    return KVPools(ReqToTokenPool(4, 4096), allocator, ChunkCache(allocator))


def test_512_tokens_per_running_request_are_kept_back():
    assert admissible_tokens(pools_of(600), 192) == 600 * 256 - 192 * 512
    assert admissible_tokens(pools_of(2), 3) == 512 - 3 * 512
    assert admissible_tokens(pools_of(2), 3, reserved_decode_tokens=0) == 512


def test_pages_topped_up_in_advance_are_counted_twice_98304_tokens_at_192_requests():
    # 1024 pages: without the top-up, and with two pages of each of 192 requests taken out of the free list
    pools = pools_of(1024)
    before = admissible_tokens(pools, 192)
    pools.allocator.alloc(192 * 2 * 256)
    assert before - admissible_tokens(pools, 192) == 98_304


def test_a_preallocated_row_is_committed_up_to_its_sequence_and_may_end_unaligned_beyond_the_reserve():
    pools = pools_of(8)
    req = Request(0, 1000)
    preallocate(pools, req, 1300)
    assert (req.kv.kv_committed_len, req.kv.kv_allocated_len) == (1000, 1300)
    assert page_aligned_decode_alloc_lens([req], 16, 256) == ([1300], [1300], 0)
    release(pools, req)
    assert pools.allocator.available_size() == 8 * 256


def test_below_the_evict_floor_there_are_no_window_slots_and_finishing_returns_the_rest():
    allocator = SWAAllocator(2048, 2048, 256, debug=True)
    pools = KVPools(ReqToTokenPool(4, 4096), allocator, ChunkCache(allocator))
    req = Request(0, 1000)
    preallocate(pools, req, 1024, evict_floor=768)
    assert (allocator.full.available_size(), allocator.swa.available_size()) == (1024, 1792)
    assert not allocator.full_to_swa_index_mapping[row_slots(pools, req, 0, 768).long()].any()
    release(pools, req)
    assert (allocator.full.available_size(), allocator.swa.available_size()) == (2048, 2048)


@pytest.mark.parametrize(
    ("num_tokens", "floor", "error"),
    [(1024, 700, MisalignedSegmentError), (999, 0, ValueError), (2048, 1024, ValueError), (3000, 0, OutOfPagesError)],
)
def test_what_makes_no_sense_or_does_not_fit_is_refused_and_nothing_is_held(num_tokens, floor, error):
    pools = pools_of(8)
    req = Request(0, 1000)
    with pytest.raises(error):
        preallocate(pools, req, num_tokens, floor)
    assert req.kv is None
    assert len(pools.rows.free_rows) == 4
    assert pools.allocator.available_size() == 8 * 256
