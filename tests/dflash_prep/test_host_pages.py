"""Pages on the host: the free list in the order of the device's, counters that are one truth, HiSparse by its rules."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from dflash_prep.errors import MisalignedSegmentError, PageAccountingError
from dflash_prep.state.batch import DecodeBatch
from dflash_prep.state.decode_prep import DecodePrep, PrepOptions
from dflash_prep.state.draft_input import DraftInput
from dflash_prep.state.hisparse_allocator import HiSparseAllocator
from dflash_prep.state.host_pages import (
    HostHiSparseAllocator,
    HostPagedAllocator,
    HostRequest,
    HostRows,
    PageRun,
)
from dflash_prep.state.host_prep import HostPrep
from dflash_prep.state.lifetime import alloc_for_extend, begin_decode, commit_accepted, release
from dflash_prep.state.paged_allocator import PagedAllocator
from dflash_prep.state.pools import KVPools
from dflash_prep.state.prefix_cache import ChunkCache
from dflash_prep.state.req_to_token import ReqToTokenPool
from dflash_prep.state.request import Request
from dflash_prep.state.topup import TopUpDecision

CPU = torch.device("cpu")


@given(st.lists(st.one_of(st.integers(1, 9), st.just(0), st.just(-1)), max_size=40), st.booleans(), st.data())
def test_pages_come_and_go_in_the_order_of_the_device_allocator(moves, need_sort, data) -> None:
    """n > 0: take n pages; 0: give some back; -1: begin or end a group."""
    on_host = HostPagedAllocator(20 * 4, 4, need_sort=need_sort, debug=True)
    on_device = PagedAllocator(20 * 4, 4, need_sort=need_sort, debug=True)
    held: list[list[int]] = []
    grouped = False
    for move in moves:
        if move > 0:
            slots, pages = on_device.alloc(move * 4), on_host.take(move)
            assert (slots is None) == (pages is None)
            if pages is not None:
                assert (slots[::4] // 4).tolist() == pages.tolist()
                held.append(pages.tolist())
        elif move == 0 and held:
            pages = held.pop(data.draw(st.integers(0, len(held) - 1)))
            on_host.free_segment(PageRun(np.array(pages), 4 * len(pages) - 1, 4), 8)
            on_device.free_segment(torch.cat([torch.arange(4 * page, 4 * page + 4) for page in pages])[:-1], 8)
        elif move < 0:
            for allocator in (on_host, on_device):
                (allocator.free_group_end if grouped else allocator.free_group_begin)()
            grouped = not grouped
        assert on_host.free_pages.tolist() == on_device.free_pages.tolist()
        assert on_host.available_size() == on_device.available_size()


def test_what_is_freed_twice_or_never_taken_is_refused() -> None:
    allocator = HostPagedAllocator(8 * 4, 4, debug=True)
    pages = allocator.take(3)
    allocator.release(pages.copy())
    with pytest.raises(PageAccountingError, match="freed twice"):
        allocator.release(pages[:1].copy())
    with pytest.raises(PageAccountingError, match="1 pages are given back, and only 0 were taken"):
        HostPagedAllocator(8 * 4, 4).release(pages[:1])
    with pytest.raises(MisalignedSegmentError):
        allocator.free_segment(PageRun(pages, 12, 4), 3)


def test_a_run_of_pages_is_cut_like_the_slots_it_stands_for() -> None:
    run = PageRun(np.array([5, 2, 9]), 10, 4)
    assert run.tolist() == [20, 21, 22, 23, 8, 9, 10, 11, 36, 37]
    assert (run[4:10].tolist(), len(run[4:9])) == ([8, 9, 10, 11, 36, 37], 5)
    assert run[8:8].tolist() == []
    with pytest.raises(MisalignedSegmentError, match="cut at 2"):
        _ = run[2:6]
    assert HostPagedAllocator.join([run[:4], run[4:8]]).tolist() == run[:8].tolist()


def host_pools(pages: int = 40, page_size: int = 16) -> KVPools:
    allocator = HostPagedAllocator(pages * page_size, page_size, debug=True)
    return KVPools(HostRows(8, 512, page_size), allocator, ChunkCache(allocator))


def test_a_requests_counters_are_those_of_the_arrays_and_stay_with_it_when_it_leaves() -> None:
    pools, req = host_pools(), HostRequest(7, 20)
    prep = HostPrep(pools, PrepOptions(4))
    for life in (1, 2):
        alloc_for_extend(pools, [req])
        batch = DecodeBatch.of([req], CPU, DraftInput.create_idle_input(CPU))
        row, arrays = req.kv.req_pool_idx, pools.rows
        for _ in range(3):
            prep.prepare(batch)
            commit_accepted(req, 2)
        assert arrays.committed[row] == req.kv.kv_committed_len == 20 + 6 * life
        assert arrays.allocated[row] == req.kv.kv_allocated_len
        arrays.commit(np.array([row]), np.array([21 + 6 * life]))
        assert (req.kv.kv_committed_len, req.num_generated) == (21 + 6 * life, 1 + 6 * life)
        arrays.commit(np.array([row]), np.array([20 + 6 * life]))
        assert (req.decode_batch_idx, req.extend_batch_idx, req.spec_verify_ct) == (3 * life, life, 5 * life)
        release(pools, req, insert=False)
        assert (req.num_generated, req.decode_batch_idx, req.spec_verify_ct) == (6 * life, 3 * life, 5 * life)
    assert pools.allocator.available_size() == 40 * 16


def test_more_than_was_allocated_is_not_committed() -> None:
    pools, req = host_pools(), HostRequest(7, 20)
    alloc_for_extend(pools, [req])
    with pytest.raises(PageAccountingError, match="more tokens are committed than allocated"):
        pools.rows.commit(np.array([req.kv.req_pool_idx]), np.array([21]))


def test_a_step_that_needs_no_page_touches_no_tensor(monkeypatch) -> None:
    pools, reqs = host_pools(), [HostRequest(i, 20) for i in range(3)]
    alloc_for_extend(pools, reqs)
    pools.rows.flush()
    batch = DecodeBatch.of(reqs, CPU)
    prep = HostPrep(pools, PrepOptions(4, topup_pages=2))
    assert prep.prepare(batch).guard.decision is TopUpDecision.TAKEN
    pools.rows.flush()
    used: list[str] = []

    class Watch(torch.utils._python_dispatch.TorchDispatchMode):
        def __torch_dispatch__(self, func, types, args=(), kwargs=None):
            used.append(str(func))
            return func(*args, **(kwargs or {}))

    with Watch():
        assert prep.prepare(batch).guard.decision is TopUpDecision.NO_ALLOCATION
    assert set(used) <= {"aten.lift_fresh.default", "aten.detach.default"}, "a view of the host's array is all"
    assert pools.rows.unwritten() is None


def test_hisparse_keeps_its_rules_with_the_same_pages() -> None:
    """Prompts enter the device and leave it when they decode; decode takes logical pages; the top-up skips it."""

    def play(allocator, rows, request, prep) -> list:
        pools = KVPools(rows, allocator, ChunkCache(allocator))
        reqs = [request(i, 20 + 9 * i) for i in range(3)]
        alloc_for_extend(pools, reqs)
        seen = [allocator.device.available_size()]
        begin_decode(pools, reqs)
        batch = DecodeBatch.of(reqs, CPU)
        batch.spec_info = DraftInput.create_idle_input(CPU)
        for _ in range(9):
            guard = prep(pools, PrepOptions(4, topup_pages=2)).prepare(batch).guard
            for req in reqs:
                commit_accepted(req, 3)
            seen.append((guard.decision, allocator.device.available_size(), allocator.logical.free_pages.tolist()))
        rows.flush()
        seen.append([rows.req_to_token[r.kv.req_pool_idx, : r.kv.kv_allocated_len].tolist() for r in reqs])
        for req in reqs:
            release(pools, req)
        seen.append((allocator.logical.free_pages.tolist(), allocator.device.available_size()))
        return seen

    on_device = play(HiSparseAllocator(128, 4, 16), ReqToTokenPool(4, 512), Request, DecodePrep)
    on_host = play(HostHiSparseAllocator(128, 4, 16), HostRows(4, 512, 16), HostRequest, HostPrep)
    assert on_host == on_device
    assert TopUpDecision.HISPARSE in [each[0] for each in on_host[1:-2]]
