"""Which slots extend every row of a batch from its old length to its new one.

A row's new tokens come from three places, in position order:

    1. the rest of the page that the old length ends in: the slots after `last_loc`
    2. whole new pages
    3. the front of one more new page

Rows whose old and new length are page aligned, the steady state of DFlash since #35265, have only part 2, and their
`last_loc` is never used.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch

from dflash_prep.device import use_triton
from dflash_prep.state.request import ceil_to


@dataclass(frozen=True, slots=True)
class RowSpans:
    """Columns [start, end) of each row of a batch, on the device for kernels and on the host for arithmetic.

    start, end           [bs] int32 or int64, device
    start_cpu, end_cpu   [bs], the same values on the CPU
    """

    start: torch.Tensor
    end: torch.Tensor
    start_cpu: torch.Tensor
    end_cpu: torch.Tensor


def count_tokens(spans: RowSpans) -> int:
    """`sum(end - start)`, from the host copies."""
    return int(spans.end_cpu.sum()) - int(spans.start_cpu.sum())


def count_new_pages(spans: RowSpans, page_size: int) -> int:
    """`sum(ceil(end / page_size) - ceil(start / page_size))`, from the host copies: no device is asked."""
    start, end = spans.start_cpu.numpy(), spans.end_cpu.numpy()
    return int((-(-end // page_size)).sum()) - int((-(-start // page_size)).sum())


def extend_slots(
    spans: RowSpans, last_loc: torch.Tensor, free_pages: torch.Tensor, num_tokens: int, page_size: int
) -> torch.Tensor:
    """Slots of the new tokens, int64 [num_tokens]: rows in batch order, each in position order.

    last_loc     [bs] slot of each row's last token, -1 for an empty row
    free_pages   [n] int64, pages to take from the front; the caller has checked that n is enough, because neither path
                 bounds its reads (the engine runs the kernel first and checks afterwards, #34399)
    """
    if use_triton(free_pages):
        from dflash_prep.kernels.kv_kernels import launch_alloc_extend

        return launch_alloc_extend(spans, last_loc, free_pages, num_tokens, page_size)
    return extend_slots_torch(spans, last_loc, free_pages, num_tokens, page_size)


def extend_slots_torch(
    spans: RowSpans, last_loc: torch.Tensor, free_pages: torch.Tensor, num_tokens: int, page_size: int
) -> torch.Tensor:
    """The oracle of the kernel, and what runs on CPU tensors; a row without new tokens costs next to nothing.

    Parts 2 and 3 of a row are one run: its new pages, expanded to slots, up to the row's end.
    """
    starts, ends, lasts = spans.start.tolist(), spans.end.tolist(), last_loc.tolist()
    pages = [(ceil_to(end, page_size) - ceil_to(start, page_size)) for start, end in zip(starts, ends, strict=True)]
    in_page = torch.arange(page_size, dtype=torch.int64, device=free_pages.device)
    new = (free_pages[: sum(pages) // page_size, None] * page_size + in_page).flatten()
    slots = torch.empty(num_tokens, dtype=torch.int64, device=free_pages.device)
    at = taken = 0
    for start, end, last, room in zip(starts, ends, lasts, pages, strict=True):
        if start == end:
            continue
        num_old = min(end, ceil_to(start, page_size)) - start
        num_new = end - start - num_old
        if num_old:
            torch.arange(last + 1, last + 1 + num_old, out=slots[at : at + num_old])
        slots[at + num_old : at + num_old + num_new] = new[taken : taken + num_new]
        at += num_old + num_new
        taken += room
    return slots
