"""Pages into rows: the device's copy of `req_to_token` catches up with the host's page table, in one launch."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import torch

from dflash_prep.device import HAS_TRITON, to_device, use_triton

if HAS_TRITON:
    import triton
    import triton.language as tl

_BLOCK = 256


@dataclass(frozen=True, slots=True)
class PageEntries:
    """What is to be written: `table` int32 [2, capacity] of places and pages; the first `count` count.

    A place is row times columns plus column, in pages: `columns` are those of the host's page table.
    count  int32 [1], on the device like the table: a captured kernel reads it anew at every replay
    """

    table: torch.Tensor
    count: torch.Tensor

    @classmethod
    def of(cls, entries: np.ndarray, device: torch.device) -> PageEntries:
        """Entries int [2, n] of the host, brought to the device in one copy that the host does not wait for."""
        block = to_device(np.append(entries.ravel(), entries.shape[1]), device, torch.int32)
        return cls(block[:-1].view(2, -1), block[-1:])


def write_pages(req_to_token: torch.Tensor, entries: PageEntries, page_size: int) -> None:
    """req_to_token[row, column * P : (column + 1) * P] = page * P + 0..P-1, as far as the row goes.

    req_to_token int32 [rows, width]. A page is written whole, also where its row ends inside it: what is behind the
    end is the request's own and will be reserved next.
    """
    write = write_pages_triton if use_triton(req_to_token) else write_pages_torch
    write(req_to_token, entries, page_size)


def write_pages_torch(req_to_token: torch.Tensor, entries: PageEntries, page_size: int) -> None:
    """The oracle of the kernel."""
    place, page = entries.table[:, : int(entries.count)].long()
    columns_a_row = -(-req_to_token.shape[1] // page_size)
    row, column = place // columns_a_row, place % columns_a_row
    in_page = torch.arange(page_size, device=page.device)
    columns = column[:, None] * page_size + in_page
    inside = columns < req_to_token.shape[1]
    slots = (page[:, None] * page_size + in_page).to(torch.int32)
    req_to_token[row[:, None].expand_as(columns)[inside], columns[inside]] = slots[inside]


if HAS_TRITON:
    # The table's place in its block changes with its length: specialised on its alignment, it would compile twice.
    @triton.jit(do_not_specialize_on_alignment=["table_ptr", "count_ptr"], do_not_specialize=["capacity"])
    def _write_pages_kernel(
        table_ptr,  # int32 [2, capacity]
        count_ptr,  # int32 [1]
        # outputs
        req_to_token_ptr,  # int32 [rows, width], last dimension contiguous
        # scalars
        capacity,
        width,
        row_stride,
        page_size: tl.constexpr,
        BLOCK: tl.constexpr,
    ):
        entry = tl.program_id(0)
        if entry >= tl.load(count_ptr):
            return
        place = tl.load(table_ptr + entry)
        columns_a_row = (width + page_size - 1) // page_size
        row = (place // columns_a_row).to(tl.int64)
        first = place % columns_a_row * page_size
        slot = tl.load(table_ptr + capacity + entry) * page_size
        in_page = tl.arange(0, BLOCK)
        done = 0
        while done < page_size:
            here = done + in_page
            column = first + here
            is_mine = (here < page_size) & (column < width)
            tl.store(req_to_token_ptr + row * row_stride + column, slot + here, mask=is_mine)
            done += BLOCK


def write_pages_triton(req_to_token: torch.Tensor, entries: PageEntries, page_size: int) -> None:
    """One program an entry; those beyond the count return at once."""
    capacity = entries.table.shape[1]
    if capacity:
        _write_pages_kernel[(capacity,)](
            entries.table,
            entries.count,
            req_to_token,
            capacity,
            req_to_token.shape[1],
            req_to_token.stride(0),
            page_size=page_size,
            BLOCK=min(_BLOCK, triton.next_power_of_2(page_size)),
        )
