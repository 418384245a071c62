"""The free list: order of reuse, sorting, frees that ask no device, groups, and debug checks."""

from __future__ import annotations

import pytest
import torch

from dflash_prep.errors import MisalignedSegmentError, PageAccountingError
from dflash_prep.kernels.kv_alloc import RowSpans
from dflash_prep.state.paged_allocator import PagedAllocator


def spans_of(starts: list[int], ends: list[int]) -> RowSpans:
    start, end = torch.tensor(starts), torch.tensor(ends)
    return RowSpans(start, end, start.clone(), end.clone())


def run_of(*pages: int, page_size: int = 4, length: int | None = None) -> torch.Tensor:
    """The row columns that these pages fill, int32 as in a row."""
    slots = [page * page_size + i for page in pages for i in range(page_size)]
    return torch.tensor(slots[:length], dtype=torch.int32)


def test_pages_are_numbered_from_one_so_that_slots_of_page_zero_are_never_handed_out():
    allocator = PagedAllocator(14, 4)
    assert allocator.free_pages.tolist() == [1, 2, 3]
    assert allocator.available_size() == 12
    assert allocator.alloc(8).tolist() == [4, 5, 6, 7, 8, 9, 10, 11]
    assert allocator.alloc(8) is None
    assert allocator.available_size() == 4


def test_taking_pages_moves_the_front_of_the_list_without_copying_it():
    allocator = PagedAllocator(32, 4)
    address = allocator.free_pages.data_ptr()
    allocator.alloc(12)
    assert allocator.free_pages.data_ptr() == address + 3 * 8


def test_freed_pages_are_reused_first():
    allocator = PagedAllocator(20, 4)
    allocator.alloc(20)
    allocator.free_segment(run_of(2, 5), 0)
    allocator.free_segment(run_of(3), 8)
    assert allocator.free_pages.tolist() == [3, 2, 5]


def test_in_sort_mode_freed_pages_wait_aside_until_an_allocation_might_run_short():
    allocator = PagedAllocator(24, 4, need_sort=True)
    allocator.alloc(16)
    allocator.free_segment(run_of(4, 2), 0)
    allocator.free_segment(run_of(1), 0)
    assert allocator.free_pages.tolist() == [5, 6]
    assert allocator.available_size() == 20
    assert allocator.alloc(8).tolist()[::4] == [20, 24]
    assert allocator.alloc(4).tolist() == [4, 5, 6, 7]
    assert allocator.free_pages.tolist() == [2, 4]
    assert allocator.num_staged == 0


def test_an_extension_merges_when_tokens_and_rows_together_might_exceed_the_list():
    # 5 tokens // 4 + 1 row + 1 = 3 pages might be needed; two are in the list, so the parked one is merged first
    allocator = PagedAllocator(12, 4, need_sort=True)
    allocator.alloc(4)
    allocator.free_segment(run_of(1), 0)
    slots = allocator.alloc_extend(spans_of([0], [5]), torch.tensor([-1]), 5)
    assert slots.tolist() == [4, 5, 6, 7, 8]
    assert allocator.free_pages.tolist() == [3]


def test_the_worked_extension_leaves_the_pages_it_did_not_use():
    allocator = PagedAllocator(40, 4)
    allocator.free_pages = torch.tensor([3, 7, 9, 10])
    slots = allocator.alloc_extend(spans_of([5, 8, 0], [12, 8, 6]), torch.tensor([4, 99, -1]), 13)
    assert slots.tolist() == [5, 6, 7, 12, 13, 14, 15, 28, 29, 30, 31, 36, 37]
    assert allocator.free_pages.tolist() == [10]


def test_an_extension_that_is_one_page_short_gives_none_and_takes_nothing():
    allocator = PagedAllocator(8, 4)
    assert allocator.alloc_extend(spans_of([0, 0], [5, 4]), torch.tensor([-1, -1]), 9) is None
    assert allocator.free_pages.tolist() == [1, 2]


def test_a_total_that_contradicts_the_spans_is_refused():
    with pytest.raises(PageAccountingError, match="num_tokens 3 differs from the 5"):
        PagedAllocator(40, 4).alloc_extend(spans_of([0], [5]), torch.tensor([-1]), 3)


def test_a_freed_run_names_each_page_once_and_its_partial_last_page_whole():
    allocator = PagedAllocator(20, 4)
    allocator.alloc(20)
    allocator.free_segment(run_of(5, 1, 4, length=9), 4)
    assert allocator.free_pages.tolist() == [5, 1, 4]
    allocator.free_segment(run_of(), 0)
    assert allocator.available_size() == 12


def test_a_run_that_starts_inside_a_page_is_refused():
    with pytest.raises(MisalignedSegmentError, match="starts at 6"):
        PagedAllocator(20, 4).free_segment(run_of(1), 6)


def test_the_legacy_free_takes_any_slots_and_frees_their_pages_once():
    allocator = PagedAllocator(20, 4)
    allocator.alloc(20)
    allocator.free(torch.tensor([21, 4, 22, 7]))
    assert allocator.free_pages.tolist() == [1, 5]


def test_frees_of_a_group_arrive_together_at_its_end_even_if_the_row_was_rewritten_meanwhile():
    allocator = PagedAllocator(20, 4)
    allocator.alloc(20)
    row = run_of(1, 2)
    allocator.free_group_begin()
    allocator.free_segment(row, 0)
    allocator.free_segment(run_of(4), 8)
    row.zero_()
    assert allocator.available_size() == 0
    allocator.free_group_end()
    assert allocator.free_pages.tolist() == [1, 2, 4]


def test_groups_do_not_nest_and_do_not_end_before_they_begin():
    allocator = PagedAllocator(20, 4)
    with pytest.raises(PageAccountingError, match="no free group"):
        allocator.free_group_end()
    allocator.free_group_begin()
    with pytest.raises(PageAccountingError, match="open already"):
        allocator.free_group_begin()
    allocator.free_group_end()
    assert allocator.available_size() == 20


def test_debug_mode_finds_double_frees_foreign_pages_and_lengths_that_contradict_last_loc():
    allocator = PagedAllocator(20, 4, debug=True)
    allocator.alloc(8)
    allocator.free_segment(run_of(2), 0)
    with pytest.raises(PageAccountingError, match=r"freed twice or not of this pool: \[2\]"):
        allocator.free_segment(run_of(2), 0)
    with pytest.raises(PageAccountingError, match=r"\[6\]"):
        allocator.free_segment(run_of(6), 0)
    with pytest.raises(MisalignedSegmentError, match="6 tokens"):
        allocator.alloc(6)
    with pytest.raises(PageAccountingError, match="different places"):
        allocator.alloc_extend(spans_of([5], [6]), torch.tensor([5]), 1)


@pytest.mark.gpu
@pytest.mark.parametrize("need_sort", [False, True])
def test_extending_and_freeing_never_make_the_host_wait(need_sort, forbid_syncs):
    allocator = PagedAllocator(400, 4, "cuda", need_sort=need_sort)
    host = spans_of([0, 8, 5], [8, 16, 5])
    spans = RowSpans(host.start.cuda(), host.end.cuda(), host.start_cpu, host.end_cpu)
    last_loc = torch.tensor([-1, 7, 4], device="cuda")
    with forbid_syncs():
        slots = allocator.alloc_extend(spans, last_loc, 16)
        allocator.free_group_begin()
        allocator.free_segment(slots[:8], 0)
        allocator.free_segment(slots[8:], 8)
        allocator.free_group_end()
        allocator.merge_and_sort_free()
    assert allocator.available_size() == 400
