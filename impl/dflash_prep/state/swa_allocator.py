"""The hybrid allocator for sliding-window layers: a slot of the full pool may have a partner in a smaller pool."""

from __future__ import annotations

import torch

from dflash_prep.errors import MisalignedSegmentError
from dflash_prep.kernels.kv_alloc import RowSpans, count_new_pages
from dflash_prep.state.paged_allocator import PagedAllocator


class SWAAllocator:
    """A full pool, a sliding-window pool and the mapping between their slots.

    `full_to_swa_index_mapping`: int64 [full_size + page_size + 1] device; 0 means "no sliding-window slot", and the
    last entry is -1 so that the "empty row" index -1 maps to itself.

    Every reservation, top-up pages included, takes pages of both pools, so what is available is the smaller of the two.
    """

    def __init__(
        self,
        full_size: int,
        swa_size: int,
        page_size: int,
        device: torch.device | str = "cpu",
        *,
        need_sort: bool = False,
        debug: bool = False,
    ) -> None:
        self.page_size = page_size
        self.full = PagedAllocator(full_size, page_size, device, need_sort=need_sort, debug=debug)
        self.swa = PagedAllocator(swa_size, page_size, device, need_sort=need_sort, debug=debug)
        num_slots = (self.full.num_pages + 1) * page_size
        self.full_to_swa_index_mapping = torch.zeros(num_slots + 1, dtype=torch.int64, device=device)
        self.full_to_swa_index_mapping[-1] = -1

    def available_size(self) -> int:
        """Tokens that both pools can give."""
        return min(self.full.available_size(), self.swa.available_size())

    def shortfall(self, demand: int) -> tuple[int, int]:
        """Of each pool by itself; both are evicted in one call."""
        return self.full.shortfall(demand)[0], self.swa.shortfall(demand)[0]

    def alloc(self, num_tokens: int) -> torch.Tensor | None:
        """Whole pages of both pools; full-pool slots, or None when either is short."""
        if self.available_size() < num_tokens:
            return None
        slots = self.full.alloc(num_tokens)
        self.full_to_swa_index_mapping[slots] = self.swa.alloc(num_tokens)
        return slots

    def alloc_extend(
        self, spans: RowSpans, last_loc: torch.Tensor, num_tokens: int, num_new_pages: int | None = None
    ) -> torch.Tensor | None:
        """As PagedAllocator.alloc_extend, in both pools; None, with neither touched, when either is short."""
        if num_new_pages is None:
            num_new_pages = count_new_pages(spans, self.page_size)
        if num_new_pages * self.page_size > self.available_size():
            return None
        swa_last_loc = self.full_to_swa_index_mapping[last_loc.to(torch.int64)]
        slots = self.full.alloc_extend(spans, last_loc, num_tokens, num_new_pages)
        self.full_to_swa_index_mapping[slots] = self.swa.alloc_extend(spans, swa_last_loc, num_tokens, num_new_pages)
        return slots

    def free_segment(self, slots: torch.Tensor, start_pos: int, *, has_window: bool = True) -> None:
        """Free a run of row columns in both pools, or in the full one only when its window slots are gone."""
        if has_window:
            self.free_swa(slots, start_pos)
        self.full.free_segment(slots, start_pos)

    def free_swa(self, slots: torch.Tensor, start_pos: int) -> None:
        """Free only the partners of a run of row columns that all have one, and forget them."""
        if start_pos % self.page_size:
            raise MisalignedSegmentError(f"a freed window run starts at {start_pos}, inside a page of {self.page_size}")
        if len(slots):
            first = slots[:: self.page_size].to(torch.int64)
            self.swa.free_pages_of(self.full_to_swa_index_mapping[first])
            # Whole pages, also where the run ends inside one: what is behind its end is freed with it.
            by_page = self.full_to_swa_index_mapping[:-1].view(-1, self.page_size)
            # (index_fill_: assigning a Python number through an index makes the host wait for its copy)
            by_page.index_fill_(0, first // self.page_size, 0)

    join = staticmethod(torch.cat)

    def free_group_begin(self) -> None:
        """Defer frees of both pools."""
        self.full.free_group_begin()
        self.swa.free_group_begin()

    def free_group_end(self) -> None:
        """Release the deferred frees of both pools."""
        self.full.free_group_end()
        self.swa.free_group_end()
