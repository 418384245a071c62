"""The HiSparse-like pool: decode takes logical slots only, always evicts, and no page is kept in advance."""

from __future__ import annotations

import logging

import pytest
import torch

from dflash_prep.errors import OutOfPagesError, SettingError
from dflash_prep.state.batch import DecodeBatch
from dflash_prep.state.decode_prep import DecodePrep, PrepOptions
from dflash_prep.state.draft_input import DraftInput
from dflash_prep.state.hisparse_allocator import HiSparseAllocator, host_pool_tokens
from dflash_prep.state.lifetime import alloc_for_extend, begin_decode, release
from dflash_prep.state.pools import KVPools
from dflash_prep.state.prefix_cache import ChunkCache, PrefixCache
from dflash_prep.state.req_to_token import ReqToTokenPool
from dflash_prep.state.request import Request
from dflash_prep.state.topup import _TOPUP_VARIABLE, TopUpDecision


def pools_of(size: int = 64, ratio: int = 4, page_size: int = 4) -> KVPools:
    allocator = HiSparseAllocator(size, ratio, page_size, debug=True)
    return KVPools(ReqToTokenPool(8, 256), allocator, ChunkCache(allocator))


def sizes(pools: KVPools) -> tuple[int, int]:
    return pools.allocator.logical.available_size(), pools.allocator.device.available_size()


def test_a_prompt_is_on_the_device_until_its_request_decodes():
    pools = pools_of()
    req = Request(0, 10)
    alloc_for_extend(pools, [req])
    assert sizes(pools) == (256 - 12, 64 - 12)
    assert pools.allocator.available_size() == 52
    mapping = pools.allocator.full_to_hisparse_device_index_mapping
    assert mapping[4:14].tolist() == list(range(4, 14))
    begin_decode(pools, [req])
    assert sizes(pools) == (244, 64)
    assert not mapping.any()


def test_a_decode_step_takes_logical_slots_only_and_the_host_pool_follows_what_is_allocated():
    pools = pools_of()
    reqs = [Request(i, 10) for i in range(2)]
    alloc_for_extend(pools, reqs)
    begin_decode(pools, reqs)
    batch = DecodeBatch.of(reqs, torch.device("cpu"), DraftInput.create_idle_input("cpu"))
    DecodePrep(pools, PrepOptions(4)).prepare(batch)
    assert sizes(pools) == (256 - 40, 64)
    assert host_pool_tokens(reqs) == 40
    assert host_pool_tokens([*reqs, Request(9, 100)]) == 40
    for req in reqs:
        release(pools, req)
    assert sizes(pools) == (256, 64)


def test_a_request_released_before_it_decodes_gives_its_device_slots_back_too():
    pools = pools_of()
    req = Request(0, 10)
    alloc_for_extend(pools, [req])
    release(pools, req, insert=False)
    assert sizes(pools) == (256, 64)
    assert not pools.allocator.full_to_hisparse_device_index_mapping.any()


def test_a_prompt_that_does_not_fit_the_device_is_refused_and_nothing_is_held():
    pools = pools_of()
    reqs = [Request(0, 40), Request(1, 40)]
    with pytest.raises(OutOfPagesError, match="10 device pages asked for, 6 are free"):
        alloc_for_extend(pools, reqs)
    assert sizes(pools) == (256, 64)
    assert len(pools.rows.free_rows) == 8
    assert [req.kv for req in reqs] == [None, None]


def test_generic_allocation_is_for_pages_of_one_token():
    assert HiSparseAllocator(8, 2, 1).alloc(3).tolist() == [1, 2, 3]
    with pytest.raises(SettingError, match="pages of 4"):
        HiSparseAllocator(8, 2, 4).alloc(4)


def test_every_allocation_evicts_its_whole_demand_however_much_is_free():
    pools = pools_of()
    pools = KVPools(pools.rows, pools.allocator, PrefixCache(pools.allocator))
    done, running = Request(0, 33, stream=1), Request(1, 8)
    alloc_for_extend(pools, [done])
    release(pools, done)
    assert pools.tree.evictable_size() == 32
    alloc_for_extend(pools, [running])  # needs 8, asks for 8 + 1 row * 4
    assert pools.tree.evictable_size() == 20


def test_frees_are_never_deferred():
    pools = pools_of()
    req = Request(0, 8)
    alloc_for_extend(pools, [req])
    pools.allocator.free_group_begin()
    release(pools, req)
    assert sizes(pools) == (256, 64)
    pools.allocator.free_group_end()


@pytest.mark.parametrize(("is_explicit", "warnings"), [(True, 1), (False, 0)])
def test_the_top_up_is_skipped_and_said_once_and_only_to_those_who_asked_for_it(is_explicit, warnings, caplog):
    pools = pools_of()
    reqs = [Request(0, 10)]
    alloc_for_extend(pools, reqs)
    begin_decode(pools, reqs)
    with caplog.at_level(logging.WARNING):
        prep = DecodePrep(pools, PrepOptions(4, topup_pages=2, is_topup_explicit=is_explicit))
        batch = DecodeBatch.of(reqs, torch.device("cpu"), DraftInput.create_idle_input("cpu"))
        for _ in range(3):
            reservation = prep.prepare(batch)
            if reservation.watermark.num_needed:
                assert reservation.guard.decision is TopUpDecision.HISPARSE
            reqs[0].kv.kv_committed_len += 4
    assert reqs[0].kv.kv_allocated_len == 28
    assert len(caplog.records) == warnings


@pytest.mark.parametrize(("text", "pages", "is_warned"), [(None, 2, False), ("2", 2, True), ("0", 0, False)])
def test_a_server_warns_of_the_skipped_top_up_only_where_the_variable_asked_for_one(
    text, pages, is_warned, caplog, monkeypatch
):
    if text is None:
        monkeypatch.delenv(_TOPUP_VARIABLE, raising=False)
    else:
        monkeypatch.setenv(_TOPUP_VARIABLE, text)
    options = PrepOptions.from_environment(4)
    assert options.topup_pages == pages
    with caplog.at_level(logging.WARNING):
        DecodePrep(pools_of(), options)
    assert ("the page top-up is skipped" in caplog.text) == is_warned
