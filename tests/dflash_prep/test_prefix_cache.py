"""The prefix cache: who owns which page after a finish, and that eviction frees the shortfall and nothing shared."""

from __future__ import annotations

import pytest
import torch

from dflash_prep.state.consistency import audit_pages
from dflash_prep.state.lifetime import alloc_for_extend, commit_accepted, release, row_slots
from dflash_prep.state.paged_allocator import PagedAllocator
from dflash_prep.state.pools import KVPools
from dflash_prep.state.prefix_cache import ChunkCache, PrefixCache
from dflash_prep.state.req_to_token import ReqToTokenPool
from dflash_prep.state.request import Request
from dflash_prep.state.swa_allocator import SWAAllocator


def pools_of(num_pages: int = 20, page_size: int = 4) -> KVPools:
    allocator = PagedAllocator(num_pages * page_size, page_size, debug=True)
    return KVPools(ReqToTokenPool(8, 200), allocator, PrefixCache(allocator))


def prefilled(pools: KVPools, prompt_len: int, stream: int | None) -> Request:
    req = Request(0, prompt_len, stream=stream)
    alloc_for_extend(pools, [req])
    return req


def cached(pools: KVPools) -> list[torch.Tensor]:
    return [run.slots for chain in pools.tree.chains.values() for run in chain.runs]


def test_a_finished_row_leaves_its_whole_pages_in_the_cache_and_frees_the_partial_one():
    pools = pools_of()
    release(pools, prefilled(pools, 10, stream=1))
    assert torch.cat(cached(pools)).tolist() == list(range(4, 12))
    assert pools.allocator.available_size() == 80 - 8
    assert pools.tree.evictable_size() == 8


def test_a_second_request_of_the_stream_shares_the_pages_but_computes_at_least_its_last_token():
    pools = pools_of()
    release(pools, prefilled(pools, 12, stream=1))
    second = prefilled(pools, 12, stream=1)
    assert second.kv.cache_protected_len == 8
    assert row_slots(pools, second, 0, 8).tolist() == list(range(4, 12))
    assert second.kv.kv_committed_len == second.kv.kv_allocated_len == 12
    assert pools.tree.evictable_size() == 4, "all but what the running request shares"
    audit_pages(pools.allocator, [*cached(pools), row_slots(pools, second, 8, 12)])


def test_duplicates_of_pages_that_another_request_cached_meanwhile_are_freed_and_only_the_rest_joins():
    pools = pools_of()
    slow = prefilled(pools, 10, stream=1)
    release(pools, prefilled(pools, 9, stream=1))
    assert pools.tree.evictable_size() == 8
    slow.kv.kv_allocated_len = 12
    commit_accepted(slow, 2)
    release(pools, slow)
    assert pools.tree.evictable_size() == 12
    audit_pages(pools.allocator, cached(pools))
    assert pools.allocator.available_size() == 80 - 12


def test_requests_without_a_stream_share_and_leave_nothing():
    pools = pools_of()
    release(pools, prefilled(pools, 10, stream=None))
    assert not pools.tree.chains
    assert pools.allocator.available_size() == 80


def test_a_retracted_row_leaves_nothing_but_gives_its_shared_prefix_back():
    pools = pools_of()
    release(pools, prefilled(pools, 9, stream=1))
    sharer = prefilled(pools, 15, stream=1)
    release(pools, sharer, insert=False)
    assert pools.tree.evictable_size() == 8
    assert pools.allocator.available_size() == 72


def test_eviction_takes_the_least_recently_used_stream_from_its_end():
    pools = pools_of()
    for stream in (1, 2):
        release(pools, prefilled(pools, 13, stream=stream))
    release(pools, prefilled(pools, 13, stream=1))  # used again
    assert pools.tree.evict(5) == 8
    assert {stream: chain.length for stream, chain in pools.tree.chains.items()} == {2: 4, 1: 12}
    assert pools.tree.evict(100) == 16
    assert not pools.tree.chains
    assert pools.allocator.available_size() == 80


@pytest.mark.parametrize(("demand", "left"), [(44, 36), (45, 32), (48, 32), (49, 28), (80, 0), (1000, 0)])
def test_making_room_evicts_exactly_the_shortfall_in_whole_pages(demand, left):
    pools = pools_of()
    release(pools, prefilled(pools, 37, stream=1))
    assert (pools.allocator.available_size(), pools.tree.evictable_size()) == (44, 36)
    pools.make_room(demand)
    assert pools.tree.evictable_size() == left


def test_what_running_requests_share_is_not_evicted_and_what_lies_behind_it_is():
    pools = pools_of()
    release(pools, prefilled(pools, 25, stream=1))
    short, shorter = prefilled(pools, 13, stream=1), prefilled(pools, 9, stream=1)
    assert (short.kv.cache_protected_len, shorter.kv.cache_protected_len) == (12, 8)
    assert pools.tree.evict(100) == 12
    release(pools, short)
    assert pools.tree.evict(100) == 4
    release(pools, shorter)
    assert pools.tree.evict(100) == 8
    assert pools.allocator.available_size() == 80


def test_without_a_tree_finishing_frees_everything_and_eviction_finds_nothing():
    allocator = PagedAllocator(80, 4, debug=True)
    pools = KVPools(ReqToTokenPool(8, 200), allocator, ChunkCache(allocator))
    release(pools, prefilled(pools, 10, stream=1))
    assert allocator.available_size() == 80
    assert pools.tree.evict(8) == pools.tree.evictable_size() == 0


def test_a_hybrid_pool_passes_both_shortfalls_in_one_call():
    class Spy(ChunkCache):
        calls: tuple = ()

        def evict(self, num_tokens, num_swa_tokens=0):
            self.calls += ((num_tokens, num_swa_tokens),)
            return 0

    allocator = SWAAllocator(80, 24, 4)
    pools = KVPools(ReqToTokenPool(8, 200), allocator, Spy(allocator))
    pools.make_room(24)
    pools.make_room(40)
    pools.make_room(90)
    assert pools.tree.calls == ((0, 16), (10, 66))


def test_only_pages_that_still_have_window_slots_are_lent():
    allocator = SWAAllocator(160, 80, 4, debug=True)
    pools = KVPools(ReqToTokenPool(8, 200), allocator, PrefixCache(allocator))
    first = prefilled(pools, 41, stream=1)
    allocator.free_swa(row_slots(pools, first, 8, 24), 8)
    first.kv.swa_shield_len, first.kv.swa_evicted_seqlen = 5, 24
    release(pools, first)
    assert [(len(run.slots), run.has_window) for run in pools.tree.chains[1].runs] == [
        (8, True),
        (16, False),
        (16, True),
    ]
    second = prefilled(pools, 41, stream=1)
    assert second.kv.cache_protected_len == 8
    release(pools, second)
    assert pools.tree.evict(1000) == 40
    assert (allocator.full.available_size(), allocator.swa.available_size()) == (160, 80)
