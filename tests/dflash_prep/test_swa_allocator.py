"""The hybrid pool: both halves move together, and the mapping says which window slot belongs to which full slot."""

from __future__ import annotations

import pytest
import torch

from dflash_prep.errors import MisalignedSegmentError
from dflash_prep.kernels.kv_alloc import RowSpans
from dflash_prep.state.swa_allocator import SWAAllocator


def spans_of(starts: list[int], ends: list[int]) -> RowSpans:
    start, end = torch.tensor(starts), torch.tensor(ends)
    return RowSpans(start, end, start.clone(), end.clone())


def test_the_mapping_starts_at_none_everywhere_and_maps_minus_one_to_itself():
    allocator = SWAAllocator(40, 20, 4)
    mapping = allocator.full_to_swa_index_mapping
    assert mapping.shape == (45,)
    assert mapping.dtype == torch.int64
    assert mapping[-1] == -1
    assert not mapping[:-1].any()


def test_an_extension_takes_the_same_tokens_of_both_pools_and_continues_each_in_its_own_begun_page():
    allocator = SWAAllocator(40, 40, 4, debug=True)
    allocator.swa.free_pages = torch.tensor([9, 8, 7, 6])
    first = allocator.alloc_extend(spans_of([0], [6]), torch.tensor([-1]), 6)
    assert first.tolist() == [4, 5, 6, 7, 8, 9]
    assert allocator.full_to_swa_index_mapping[first].tolist() == [36, 37, 38, 39, 32, 33]
    second = allocator.alloc_extend(spans_of([6], [9]), first[-1:], 3)
    assert second.tolist() == [10, 11, 12]
    assert allocator.full_to_swa_index_mapping[second].tolist() == [34, 35, 28]
    assert allocator.available_size() == 4


@pytest.mark.parametrize(("full", "swa"), [(40, 8), (8, 40)])
def test_when_either_pool_is_short_neither_is_touched(full, swa):
    allocator = SWAAllocator(full, swa, 4)
    assert allocator.available_size() == 8
    assert allocator.alloc_extend(spans_of([0], [9]), torch.tensor([-1]), 9) is None
    assert allocator.alloc(12) is None
    assert (allocator.full.available_size(), allocator.swa.available_size()) == (full, swa)


def test_window_slots_can_go_first_and_the_rest_of_the_row_later():
    allocator = SWAAllocator(40, 16, 4, debug=True)
    slots = allocator.alloc(16)
    allocator.free_swa(slots[:8], 0)
    assert (allocator.full.available_size(), allocator.swa.available_size()) == (24, 8)
    assert allocator.full_to_swa_index_mapping[slots[:8]].tolist() == [0] * 8
    allocator.free_segment(slots[:8], 0, has_window=False)
    allocator.free_segment(slots[8:], 8)
    assert (allocator.full.available_size(), allocator.swa.available_size()) == (40, 16)


def test_window_slots_are_freed_from_a_page_boundary_only():
    allocator = SWAAllocator(40, 16, 4)
    slots = allocator.alloc(8)
    with pytest.raises(MisalignedSegmentError, match="starts at 2"):
        allocator.free_swa(slots[2:], 2)
    assert allocator.swa.available_size() == 8


def test_a_group_defers_the_frees_of_both_pools():
    allocator = SWAAllocator(40, 16, 4)
    slots = allocator.alloc(8)
    allocator.free_group_begin()
    allocator.free_segment(slots, 0)
    assert allocator.available_size() == 8
    allocator.free_group_end()
    assert (allocator.full.available_size(), allocator.swa.available_size()) == (40, 16)


@pytest.mark.gpu
def test_extending_and_freeing_both_pools_never_makes_the_host_wait(forbid_syncs):
    allocator = SWAAllocator(400, 200, 4, "cuda")
    host = spans_of([0], [8])
    spans, last_loc = (
        RowSpans(host.start.cuda(), host.end.cuda(), host.start_cpu, host.end_cpu),
        torch.tensor([-1]).cuda(),
    )
    allocator.alloc_extend(spans, last_loc, 8)
    with forbid_syncs():
        slots = allocator.alloc_extend(spans, last_loc, 8)
        allocator.free_swa(slots[:4], 0)
        allocator.free_segment(slots[:4], 0, has_window=False)
        allocator.free_segment(slots[4:], 4)
    assert (allocator.full.available_size(), allocator.swa.available_size()) == (392, 192)
