"""The memory check before a step, and who is retracted when it fails."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dflash_prep.errors import OutOfPagesError
from dflash_prep.state.decode_memory import _decode_demand, fits, retract_until_it_fits
from dflash_prep.state.lifetime import alloc_for_extend, release
from dflash_prep.state.paged_allocator import PagedAllocator
from dflash_prep.state.pools import KVPools
from dflash_prep.state.prefix_cache import PrefixCache
from dflash_prep.state.req_to_token import ReqToTokenPool
from dflash_prep.state.request import KVState, Request, ceil_to
from dflash_prep.state.reservation import page_aligned_decode_alloc_lens


def pools_of(num_pages: int) -> KVPools:
    allocator = PagedAllocator(num_pages * 4, 4, debug=True)
    return KVPools(ReqToTokenPool(8, 200), allocator, PrefixCache(allocator))


def running(pools: KVPools, *lens: int) -> list[Request]:
    reqs = [Request(i, length) for i, length in enumerate(lens)]
    alloc_for_extend(pools, reqs)
    return reqs


@given(st.lists(st.tuples(st.integers(0, 900), st.integers(0, 900)), max_size=8), st.sampled_from([1, 4, 256]))
def test_for_aligned_rows_the_demand_is_exactly_what_the_step_will_ask_for(pairs, page_size):
    reqs = [
        Request(i, committed, kv=KVState(i, ceil_to(max(allocated, committed), page_size), committed))
        for i, (allocated, committed) in enumerate(pairs)
    ]
    demand = _decode_demand(reqs, 16, page_size)
    assert demand == page_aligned_decode_alloc_lens(reqs, 16, page_size).num_needed


def test_an_unaligned_row_is_asked_only_for_the_pages_it_does_not_have():
    assert _decode_demand([Request(0, 1000, kv=KVState(1, 1000, 1000))], 16, 256) == 0
    assert _decode_demand([Request(0, 1000, kv=KVState(1, 1010, 1010))], 16, 256) == 256


def test_the_check_evicts_just_what_the_demand_is_short_of():
    pools = pools_of(12)
    done = Request(9, 17, stream=1)
    alloc_for_extend(pools, [done])
    release(pools, done)
    reqs = running(pools, 8, 8, 4)
    assert (pools.allocator.available_size(), pools.tree.evictable_size()) == (12, 16)
    assert fits(pools, reqs, 8)  # 3 * 8 tokens
    assert (pools.allocator.available_size(), pools.tree.evictable_size()) == (24, 4)


def test_a_batch_that_fits_loses_nobody():
    pools = pools_of(12)
    assert retract_until_it_fits(pools, running(pools, 8, 8), 8) == []


def test_those_that_generated_least_go_first_and_among_equals_the_longest_prompt():
    pools = pools_of(10)
    reqs = running(pools, 8, 8, 12, 8)  # 9 pages held, 1 free, each needs 2 more
    reqs[0].num_generated, reqs[3].num_generated = 50, 1
    assert retract_until_it_fits(pools, reqs, 8) == [1, 2]
    assert [req.kv is None for req in reqs] == [False, True, True, False]
    assert pools.allocator.available_size() == 24


def test_a_request_that_does_not_fit_alone_is_an_error_that_names_it():
    pools = pools_of(3)
    reqs = running(pools, 8, 4)
    with pytest.raises(OutOfPagesError, match="request 1 alone does not fit: 8 tokens are free"):
        retract_until_it_fits(pools, reqs, 12)
    assert reqs[0].kv is None


def test_top_up_pages_are_nobodys_demand():
    reqs = [Request(0, 100, kv=KVState(1, 1024, 100))]
    assert _decode_demand(reqs, 16, 256) == 0
