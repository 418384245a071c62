"""When and how far window slots of a decoding request are given back."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dflash_prep.errors import MisalignedSegmentError
from dflash_prep.state.lifetime import alloc_for_extend, release
from dflash_prep.state.paged_allocator import PagedAllocator
from dflash_prep.state.pools import KVPools
from dflash_prep.state.prefix_cache import ChunkCache
from dflash_prep.state.req_to_token import ReqToTokenPool
from dflash_prep.state.request import KVState, Request, ceil_to
from dflash_prep.state.swa_allocator import SWAAllocator
from dflash_prep.state.swa_eviction import SWAEviction, check_evict_floor, maybe_evict_swa


def request(committed: int, **kv: int) -> Request:
    return Request(0, committed, kv=KVState(1, committed, committed, **kv))


def test_with_a_radix_tree_at_least_a_page_stays_and_without_one_exactly_the_window():
    assert SWAEviction(window=16).frontier(request(1000), 64) == (0, 896)  # 1000 - 64 = 936
    assert SWAEviction(window=16, has_tree=False).frontier(request(1000), 64) == (0, 960)  # 1000 - 16 = 984
    assert SWAEviction(window=300).frontier(request(1000), 64) == (0, 640)  # 1000 - 320 = 680


def test_before_0_5_18_a_token_more_stayed_and_a_window_beside_a_tree_was_not_rounded_up():
    assert SWAEviction(window=40, has_tree=False, by_batches=True).frontier(request(1000), 64) == (0, 896)  # 959
    assert SWAEviction(window=40, has_tree=False).frontier(request(1000), 64) == (0, 960)  # 960
    assert SWAEviction(window=295, by_batches=True).frontier(request(1000), 64) == (0, 704)  # 1000 - 1 - 295 = 704
    assert SWAEviction(window=295).frontier(request(1000), 64) == (0, 640)  # 1000 - 320 = 680


def test_what_the_cache_owns_what_is_shielded_and_what_is_gone_already_lie_below_the_frontier():
    rule = SWAEviction(window=100, has_tree=False)
    assert rule.frontier(request(1001, cache_protected_len=256), 64) == (256, 896)
    assert rule.frontier(request(1001, swa_shield_len=257), 64) == (320, 896)
    assert rule.frontier(request(1001, swa_evicted_seqlen=832), 64) == (832, 896)
    assert rule.frontier(request(1001, cache_protected_len=960), 64) == (960, 960)
    assert rule.frontier(request(50), 64) == (0, 0)


def decoding(page_size: int, lens: list[int], **kv: int) -> tuple[KVPools, list[Request]]:
    allocator = SWAAllocator(4096, 4096, page_size, debug=True)
    pools = KVPools(ReqToTokenPool(8, 2048), allocator, ChunkCache(allocator))
    reqs = [Request(i, length) for i, length in enumerate(lens)]
    alloc_for_extend(pools, reqs)
    for req in reqs:
        for name, value in kv.items():
            setattr(req.kv, name, value)
    return pools, reqs


@pytest.mark.parametrize("page_size", [1, 64])
def test_a_batch_and_its_requests_one_by_one_have_the_same_frontiers_and_free_the_same(page_size):
    def evicted(in_one_batch: bool) -> tuple[list[int], list[int]]:
        pools, reqs = decoding(page_size, [1001, 90, 400])
        for req in reqs:
            req.decode_batch_idx = 1
        for group in [reqs] if in_one_batch else [[req] for req in reqs]:
            maybe_evict_swa(pools, group, SWAEviction(window=100))
        return [req.kv.swa_evicted_seqlen for req in reqs], sorted(pools.allocator.swa.free_pages.tolist())

    assert evicted(True) == evicted(False)
    assert evicted(True)[0] == ([901, 0, 300] if page_size == 1 else [832, 0, 256])


@pytest.mark.parametrize(("batch", "is_due"), [(0, False), (1, True), (2, False), (4, False), (5, True), (9, True)])
def test_a_request_is_looked_at_in_its_first_decode_batch_and_every_interval_after_it(batch, is_due):
    pools, reqs = decoding(64, [1001])
    reqs[0].decode_batch_idx = batch
    maybe_evict_swa(pools, reqs, SWAEviction(window=100, interval=4, by_batches=True))
    assert (reqs[0].kv.swa_evicted_seqlen > 0) == is_due


@pytest.mark.parametrize(
    ("batch", "committed", "evicted", "is_due"),
    [(0, 900, 0, False), (1, 227, 0, False), (1, 228, 0, True), (7, 355, 128, False), (7, 356, 128, True)],
)
def test_a_request_is_looked_at_when_an_interval_of_tokens_has_slid_out_of_the_window(
    batch, committed, evicted, is_due
):
    assert SWAEviction(window=100).is_due(batch, committed, evicted) == is_due


def test_what_the_cache_owns_counts_as_given_back_from_the_first_look_on():
    """So the next look comes an interval behind it, as the engine's."""
    pools, reqs = decoding(64, [330], cache_protected_len=256)
    reqs[0].decode_batch_idx = 1
    maybe_evict_swa(pools, reqs, SWAEviction(window=100))
    assert reqs[0].kv.swa_evicted_seqlen == 256


def test_an_interval_of_one_looks_in_every_batch_but_the_first():
    for batch, is_due in ((0, False), (1, True), (2, True)):
        pools, reqs = decoding(64, [1001])
        reqs[0].decode_batch_idx = batch
        maybe_evict_swa(pools, reqs, SWAEviction(window=100, interval=1, by_batches=True))
        assert (reqs[0].kv.swa_evicted_seqlen > 0) == is_due


def test_pools_without_a_window_have_nothing_to_give_back():
    allocator = PagedAllocator(4096, 64)
    pools = KVPools(ReqToTokenPool(2, 2048), allocator, ChunkCache(allocator))
    req = Request(0, 1001, decode_batch_idx=1)
    alloc_for_extend(pools, [req])
    maybe_evict_swa(pools, [req], SWAEviction(window=100))
    assert req.kv.swa_evicted_seqlen == 0


@given(
    st.sampled_from([1, 4, 64]),
    st.lists(st.integers(1, 1500), min_size=1, max_size=2),
    st.integers(1, 300),
    st.integers(0, 200),
)
def test_whatever_was_evicted_a_finished_row_gives_both_pools_back_whole(page_size, lens, window, shield):
    pools, reqs = decoding(page_size, lens, swa_shield_len=shield)
    for _ in range(3):
        for req in reqs:
            req.decode_batch_idx = 1
        maybe_evict_swa(pools, reqs, SWAEviction(window=window, has_tree=False))
    for req in reqs:
        kept = req.kv.kv_committed_len - req.kv.swa_evicted_seqlen
        assert req.kv.swa_evicted_seqlen <= ceil_to(shield, page_size) or kept >= window
        release(pools, req)
    assert pools.allocator.full.available_size() == pools.allocator.swa.available_size() == 4096


def test_an_evict_floor_inside_a_page_is_refused():
    check_evict_floor(512, 256)
    with pytest.raises(MisalignedSegmentError, match="evict floor 500 is inside a page of 256"):
        check_evict_floor(500, 256)
