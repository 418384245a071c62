"""The checks themselves: each kind of damage is found, and a sound state is not accused."""

from __future__ import annotations

import pytest
import torch

from dflash_prep.errors import PageAccountingError
from dflash_prep.state.consistency import ConsistencyCheck, audit_pages
from dflash_prep.state.paged_allocator import PagedAllocator
from dflash_prep.state.pools import KVPools
from dflash_prep.state.prefix_cache import ChunkCache
from dflash_prep.state.req_to_token import ReqToTokenPool
from dflash_prep.state.request import KVState, Request
from dflash_prep.state.reservation import Watermark


def one_step() -> tuple[KVPools, list[Request], Watermark]:
    """Two requests that were just extended from 4 to 8 and from 0 to 4 tokens."""
    allocator = PagedAllocator(40, 4)
    pools = KVPools(ReqToTokenPool(4, 16), allocator, ChunkCache(allocator))
    slots = allocator.alloc(12).to(torch.int32)
    pools.rows.req_to_token[1, :8], pools.rows.req_to_token[2, :4] = slots[:8], slots[8:]
    reqs = [Request(0, 4, kv=KVState(1, 8, 4)), Request(1, 0, kv=KVState(2, 4, 0))]
    return pools, reqs, Watermark([4, 0], [8, 4], 8)


def test_a_sound_step_is_counted_and_passes():
    check = ConsistencyCheck()
    assert check.examine(*one_step())
    assert (check.checks, check.bad) == (1, 0)


def test_a_step_that_needed_nothing_is_not_counted():
    pools, reqs, _ = one_step()
    check = ConsistencyCheck()
    assert check.examine(pools, reqs, Watermark([8, 4], [8, 4], 0))
    assert check.checks == 0


@pytest.mark.parametrize(
    "damage",
    [
        lambda pools, reqs: pools.rows.req_to_token[1, 6:7].zero_(),
        lambda pools, reqs: pools.rows.req_to_token[2, :1].fill_(int(pools.rows.req_to_token[1, 5])),
        lambda pools, reqs: setattr(reqs[0].kv, "kv_allocated_len", 12),
    ],
    ids=["an unwritten column", "a slot of two requests", "a watermark that was not written"],
)
def test_damage_is_found_counted_and_logged(damage, caplog):
    pools, reqs, watermark = one_step()
    damage(pools, reqs)
    check = ConsistencyCheck()
    assert not check.examine(pools, reqs, watermark)
    assert (check.checks, check.bad) == (1, 1)
    assert "allocation check 1 failed" in caplog.text


def test_damage_outside_the_new_columns_is_not_this_checks_business():
    pools, reqs, watermark = one_step()
    pools.rows.req_to_token[1, 0] = 0
    assert ConsistencyCheck().examine(pools, reqs, watermark)


def test_the_audit_accepts_pages_that_are_free_parked_or_held_once():
    allocator = PagedAllocator(24, 4, need_sort=True)
    slots = allocator.alloc(20)
    allocator.free_segment(slots[:4], 0)
    audit_pages(allocator, [slots[4:12], slots[12:18].to(torch.int32)])


def test_the_audit_names_lost_and_shared_pages():
    allocator = PagedAllocator(24, 4)
    slots = allocator.alloc(12)
    with pytest.raises(PageAccountingError, match=r"lost pages \[3\], pages held twice \[2\]"):
        audit_pages(allocator, [slots[:8], slots[4:8]])
    with pytest.raises(PageAccountingError, match="page 0 held 1 times"):
        audit_pages(allocator, [slots, torch.tensor([0, 1])])
