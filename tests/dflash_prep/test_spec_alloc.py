"""The allocation of one step: what it writes, what it must not touch, and that it fails before writing."""

from __future__ import annotations

import pytest
import torch

from dflash_prep.errors import OutOfPagesError, PageAccountingError, RowOverflowError
from dflash_prep.kernels.kv_alloc import RowSpans, get_last_loc
from dflash_prep.state.paged_allocator import PagedAllocator
from dflash_prep.state.pools import KVPools
from dflash_prep.state.prefix_cache import ChunkCache
from dflash_prep.state.req_to_token import ReqToTokenPool
from dflash_prep.state.request import KVState, Request
from dflash_prep.state.spec_alloc import _extend_demand, alloc_for_spec_decode


def pools_of(num_pages: int, page_size: int, width: int = 64, rows: int = 8) -> KVPools:
    allocator = PagedAllocator(num_pages * page_size, page_size, debug=True)
    return KVPools(ReqToTokenPool(rows, width), allocator, ChunkCache(allocator))


def spans_of(starts: list[int], ends: list[int]) -> RowSpans:
    start, end = torch.tensor(starts, dtype=torch.int32), torch.tensor(ends, dtype=torch.int32)
    return RowSpans(start, end, start.clone(), end.clone())


def requests(*allocated: int) -> list[Request]:
    return [Request(i, n, kv=KVState(i + 1, kv_allocated_len=n, kv_committed_len=n)) for i, n in enumerate(allocated)]


class NoAllocator:
    """Fails on any use but the page size."""

    page_size = 4


def test_the_last_location_of_an_empty_row_is_minus_one_and_of_others_the_slot_before_their_end():
    rows = torch.arange(24, dtype=torch.int32).view(3, 8)
    lens = torch.tensor([0, 1, 8], dtype=torch.int32)
    result = get_last_loc(rows, torch.tensor([1, 2, 1]), lens)
    assert result.tolist() == [-1, 16, 15]
    assert result.dtype == torch.int32


def test_rows_and_watermarks_grow_over_their_spans_and_nothing_else_changes():
    pools = pools_of(8, 4)
    reqs = requests(0, 8, 0)
    pools.rows.req_to_token[2, :8] = torch.arange(400, 408)
    alloc_for_spec_decode(pools, reqs, torch.tensor([1, 2, 3]), spans_of([0, 8, 0], [8, 8, 4]), 12)
    assert [req.kv.kv_allocated_len for req in reqs] == [8, 8, 4]
    rows = pools.rows.req_to_token
    assert rows[1, :8].tolist() == [4, 5, 6, 7, 8, 9, 10, 11]
    assert rows[3, :4].tolist() == [12, 13, 14, 15]
    assert rows[2, :8].tolist() == list(range(400, 408))
    rows[1, :8] = rows[2, :8] = rows[3, :4] = 0
    assert not rows.any()
    assert pools.allocator.free_pages.tolist() == [4, 5, 6, 7, 8]


def test_watermarks_are_written_from_one_bulk_read_without_touching_single_elements():
    class BulkOnly:
        reads = 0

        def tolist(self):
            self.reads += 1
            return [4, 8]

        def __getitem__(self, index):
            raise AssertionError("an element was read")

    pools, nxt = pools_of(1, 4), BulkOnly()
    reqs = requests(5, 2)
    no_tensor = torch.empty(0)
    alloc_for_spec_decode(pools, reqs, no_tensor, RowSpans(no_tensor, no_tensor, no_tensor, nxt), 0)
    assert [req.kv.kv_allocated_len for req in reqs] == [5, 8]
    assert nxt.reads == 1


def test_a_step_that_needs_nothing_neither_asks_the_allocator_nor_writes_a_row():
    pools = KVPools(ReqToTokenPool(2, 16), NoAllocator(), None)
    version = pools.rows.req_to_token._version
    alloc_for_spec_decode(pools, requests(8, 8), torch.tensor([1, 2]), spans_of([8, 8], [8, 8]), 0)
    assert pools.rows.req_to_token._version == version


def test_pages_of_one_token_are_taken_without_looking_up_row_ends():
    pools = pools_of(10, 1)
    reqs = requests(0, 0)
    alloc_for_spec_decode(pools, reqs, torch.tensor([1, 2]), spans_of([0, 0], [3, 2]), 5)
    assert pools.rows.req_to_token[1, :3].tolist() == [1, 2, 3]
    assert pools.rows.req_to_token[2, :2].tolist() == [4, 5]


@pytest.mark.parametrize(
    ("spans", "needed", "error"),
    [
        (spans_of([0, 0], [68, 4]), 72, RowOverflowError),
        (spans_of([0], [4]), 4, PageAccountingError),
        (spans_of([0, 0], [8, 8]), 16, OutOfPagesError),
        (spans_of([0, 0], [4, 4]), 12, PageAccountingError),
    ],
    ids=["wider than the row", "a length short", "a page short", "a wrong total"],
)
def test_a_step_that_cannot_be_served_is_refused_with_nothing_written(spans, needed, error):
    pools = pools_of(3, 4)
    reqs = requests(0, 0)
    with pytest.raises(error):
        alloc_for_spec_decode(pools, reqs, torch.tensor([1, 2]), spans, needed)
    assert [req.kv.kv_allocated_len for req in reqs] == [0, 0]
    assert not pools.rows.req_to_token.any()
    assert pools.allocator.free_pages.tolist() == [1, 2, 3]


def test_the_eviction_demand_counts_one_page_for_every_row_also_for_those_that_do_not_grow():
    assert _extend_demand(256, 3, 256) == 256 + 3 * 256


def test_a_short_free_list_is_found_before_the_kernel_would_read_past_its_end(monkeypatch):
    import dflash_prep.state.paged_allocator as module

    monkeypatch.setattr(module, "extend_slots", lambda *_: pytest.fail("the kernel ran"))
    pools = pools_of(1, 4)
    with pytest.raises(OutOfPagesError, match="8 tokens asked for, 4 free"):
        alloc_for_spec_decode(pools, requests(0), torch.tensor([1]), spans_of([0], [8]), 8)
