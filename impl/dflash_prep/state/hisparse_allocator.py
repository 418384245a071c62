"""A HiSparse-like allocator: a large logical pool with its KV on the host, a small device pool for prefill.

What decode preparation has to know of it: decode takes logical slots only, every allocation evicts whether or not
there is room, frees are never deferred, and the host pool is sized by `kv_allocated_len`, so that a page kept in
advance costs host memory. That is why the top-up skips it (#47685).
"""

from __future__ import annotations

from collections.abc import Iterable

import torch

from dflash_prep.errors import MisalignedSegmentError, OutOfPagesError, SettingError
from dflash_prep.kernels.kv_alloc import RowSpans
from dflash_prep.state.paged_allocator import PagedAllocator
from dflash_prep.state.request import Request


class HiSparseAllocator:
    """Logical slots (`ratio * size` tokens), device slots (`size` tokens) and the mapping from the first to the second.

    `full_to_hisparse_device_index_mapping`: int64 [logical size + page_size + 1] device; 0 means "not on the device".
    """

    def __init__(
        self, size: int, ratio: int, page_size: int, device: torch.device | str = "cpu", *, debug: bool = False
    ) -> None:
        self.page_size = page_size
        self.logical = PagedAllocator(ratio * size, page_size, device, debug=debug)
        self.device = PagedAllocator(size, page_size, device, debug=debug)
        num_slots = (self.logical.num_pages + 1) * page_size
        self.full_to_hisparse_device_index_mapping = torch.zeros(num_slots + 1, dtype=torch.int64, device=device)

    def available_size(self) -> int:
        """Tokens that both pools can give."""
        return min(self.logical.available_size(), self.device.available_size())

    def shortfall(self, demand: int) -> tuple[int, int]:
        """All of it: this pool evicts whatever is free."""
        return demand, 0

    def alloc(self, num_tokens: int) -> torch.Tensor | None:
        """Logical slots on pages of one token; larger pages must say which rows they extend. Raises SettingError."""
        if self.page_size != 1:
            raise SettingError(f"a HiSparse pool allocates by row on pages of {self.page_size} tokens")
        return self.logical.alloc(num_tokens)

    def alloc_extend(
        self, spans: RowSpans, last_loc: torch.Tensor, num_tokens: int, num_new_pages: int | None = None
    ) -> torch.Tensor | None:
        """Logical slots only."""
        return self.logical.alloc_extend(spans, last_loc, num_tokens, num_new_pages)

    def swap_in(self, slots: torch.Tensor) -> None:
        """Give a run of row columns that starts on a page boundary its device slots. Raises OutOfPagesError."""
        pages = -(-len(slots) // self.page_size)
        device_slots = self.device.alloc(pages * self.page_size)
        if device_slots is None:
            raise OutOfPagesError(f"{pages} device pages asked for, {len(self.device.free_pages)} are free")
        self.full_to_hisparse_device_index_mapping[slots.to(torch.int64)] = device_slots[: len(slots)]

    def swap_out(self, slots: torch.Tensor, start_pos: int) -> None:
        """Take the device slots of such a run back: from now on the host holds its KV."""
        if start_pos % self.page_size:
            raise MisalignedSegmentError(
                f"a run on the device starts at {start_pos}, inside a page of {self.page_size}"
            )
        first = slots[:: self.page_size].to(torch.int64)
        self.device.free_pages_of(self.full_to_hisparse_device_index_mapping[first])
        by_page = self.full_to_hisparse_device_index_mapping[:-1].view(-1, self.page_size)
        # (index_fill_: assigning a Python number through an index makes the host wait for its copy)
        by_page.index_fill_(0, first // self.page_size, 0)

    def free_segment(self, slots: torch.Tensor, start_pos: int, *, has_window: bool = True) -> None:
        """Free a run of logical row columns that is not on the device."""
        self.logical.free_segment(slots, start_pos)

    join = staticmethod(torch.cat)

    def free_group_begin(self) -> None:
        """Nothing: this allocator releases at once."""

    def free_group_end(self) -> None:
        """Nothing: this allocator releases at once."""


def host_pool_tokens(reqs: Iterable[Request]) -> int:
    """Tokens the host pool must hold for these requests: all that is allocated, not what is committed."""
    return sum(req.kv.kv_allocated_len for req in reqs if req.kv is not None)
