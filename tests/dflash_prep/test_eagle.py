"""The EAGLE caller: the same arithmetic with its own reserve."""

from __future__ import annotations

import pytest
import torch

from dflash_prep.errors import RowOverflowError
from dflash_prep.state.lifetime import alloc_for_extend, row_slots
from dflash_prep.state.paged_allocator import PagedAllocator
from dflash_prep.state.pools import KVPools
from dflash_prep.state.prefix_cache import ChunkCache
from dflash_prep.state.req_to_token import ReqToTokenPool
from dflash_prep.state.request import Request
from dflash_prep.variants.eagle import EagleShape, prepare_for_decode_eagle


def prefilled(page_size: int, width: int, *lens: int) -> tuple[KVPools, list[Request], torch.Tensor]:
    allocator = PagedAllocator(4096, page_size, debug=True)
    pools = KVPools(ReqToTokenPool(4, width), allocator, ChunkCache(allocator))
    reqs = [Request(i, length) for i, length in enumerate(lens)]
    alloc_for_extend(pools, reqs)
    return pools, reqs, torch.tensor([req.kv.req_pool_idx for req in reqs])


def test_a_chain_no_longer_than_its_block_reserves_what_dflash_reserves_and_a_tree_whole_pages_per_branch():
    assert EagleShape(steps=1, topk=1, draft_tokens=8).reserve(256) == 16
    assert EagleShape(steps=5, topk=1, draft_tokens=4).reserve(256) == 10
    assert EagleShape(steps=3, topk=2, draft_tokens=4).reserve(1) == 12
    assert EagleShape(steps=3, topk=2, draft_tokens=4).reserve(4) == 32


def test_a_step_extends_every_row_to_whole_pages_and_counts_the_batch():
    pools, reqs, pool_idx = prefilled(4, 128, 9, 16)
    watermark = prepare_for_decode_eagle(pools, reqs, pool_idx, EagleShape(3, 2, 4))
    assert watermark == ([9, 16], [44, 48], 67)
    assert [req.kv.kv_allocated_len for req in reqs] == [44, 48]
    assert [req.decode_batch_idx for req in reqs] == [1, 1]
    assert len({*row_slots(pools, reqs[0], 0, 44).tolist(), *row_slots(pools, reqs[1], 0, 48).tolist()}) == 92
    assert prepare_for_decode_eagle(pools, reqs, pool_idx, EagleShape(3, 2, 4)).num_needed == 0


@pytest.mark.parametrize(("page_size", "shape"), [(4, EagleShape(3, 2, 4)), (1, EagleShape(1, 1, 17))])
def test_a_row_that_is_too_narrow_is_refused_for_trees_on_pages_and_for_chains_on_single_tokens(page_size, shape):
    pools, reqs, pool_idx = prefilled(page_size, 43, 10)
    with pytest.raises(RowOverflowError, match="44 columns"):
        prepare_for_decode_eagle(pools, reqs, pool_idx, shape)
    assert reqs[0].kv.kv_allocated_len == 10
    assert reqs[0].decode_batch_idx == 0


def test_nobody_needs_nothing():
    pools, _, pool_idx = prefilled(4, 43)
    assert prepare_for_decode_eagle(pools, [], pool_idx, EagleShape(3, 2, 4)) == ([], [], 0)
