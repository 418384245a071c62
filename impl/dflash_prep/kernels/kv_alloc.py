"""A KV allocation on tensors: where rows end, which slots extend them, and writing these into the rows.

New tokens of a row come from three places, in position order: the rest of the page that its old length ends in (the
slots after `last_loc`), whole new pages, the front of one more new page. Rows whose old and new length are page
aligned, the steady state of DFlash since #35265, have only whole new pages, and their `last_loc` is never used.

Two of the kernels need, per row, a sum over all earlier rows. Each program loads all rows up to its own and adds them
up: O(bs) masked loads in one launch are cheaper than a scan kernel for a few hundred rows.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch

from dflash_prep.device import HAS_TRITON, use_triton

if HAS_TRITON:
    import triton
    import triton.language as tl

_EXTEND_BLOCK = 4096
_LAST_LOC_ROWS = 256
_ASSIGN_BLOCK = 32


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


def get_last_loc(req_to_token: torch.Tensor, pool_idx: torch.Tensor, lens: torch.Tensor) -> torch.Tensor:
    """Slot of each row's last token, `req_to_token[pool_idx, lens - 1]`, or -1 for an empty row.

    req_to_token [rows, width] int32; pool_idx [bs] int64; lens [bs] int; result [bs] of the dtype of `lens`.
    """
    return (get_last_loc_triton if use_triton(req_to_token) else get_last_loc_torch)(req_to_token, pool_idx, lens)


def get_last_loc_torch(req_to_token: torch.Tensor, pool_idx: torch.Tensor, lens: torch.Tensor) -> torch.Tensor:
    """The oracle of the kernel. An empty row reads the row's last column and drops it: no mask of unknown size."""
    last = req_to_token[pool_idx, lens.to(torch.int64) - 1]
    return torch.where(lens > 0, last, -1).to(lens.dtype)


def extend_slots(
    spans: RowSpans, last_loc: torch.Tensor, free_pages: torch.Tensor, num_tokens: int, page_size: int
) -> torch.Tensor:
    """Slots of the new tokens, int64 [num_tokens]: rows in batch order, each in position order.

    last_loc     [bs] slot of each row's last token, -1 for an empty row
    free_pages   [n] int64, pages to take from the front; the caller has checked that n is enough, because neither path
                 bounds its reads (the engine runs the kernel first and checks afterwards, #34399)
    """
    if not use_triton(free_pages):
        return extend_slots_torch(spans, last_loc, free_pages, num_tokens, page_size)
    slots = torch.empty(num_tokens, dtype=torch.int64, device=free_pages.device)
    extend_slots_triton(slots, spans, last_loc, free_pages, page_size)
    return slots


def extend_slots_torch(
    spans: RowSpans, last_loc: torch.Tensor, free_pages: torch.Tensor, num_tokens: int, page_size: int
) -> torch.Tensor:
    """The oracle of the kernel, and what runs on CPU tensors; a row without new tokens costs next to nothing.

    Parts 2 and 3 of a row are one run: its new pages, expanded to slots, up to the row's end.
    """
    starts, ends, lasts = spans.start.tolist(), spans.end.tolist(), last_loc.tolist()
    to_page = [-start % page_size for start in starts]  # what is left of each row's last page
    room = [
        -(-end // page_size) * page_size - start - left for start, end, left in zip(starts, ends, to_page, strict=True)
    ]
    in_page = torch.arange(page_size, dtype=torch.int64, device=free_pages.device)
    new = (free_pages[: sum(room) // page_size, None] * page_size + in_page).flatten()
    slots = torch.empty(num_tokens, dtype=torch.int64, device=free_pages.device)
    at = taken = 0
    for start, end, last, left, new_tokens in zip(starts, ends, lasts, to_page, room, strict=True):
        if start == end:
            continue
        num_old = min(end - start, left)
        num_new = end - start - num_old
        if num_old:
            torch.arange(last + 1, last + 1 + num_old, out=slots[at : at + num_old])
        slots[at + num_old : at + num_old + num_new] = new[taken : taken + num_new]
        at += num_old + num_new
        taken += new_tokens
    return slots


def assign_req_to_token(
    req_to_token: torch.Tensor, pool_idx: torch.Tensor, spans: RowSpans, slots: torch.Tensor
) -> None:
    """Write `slots` into columns [start, end) of each row, rows in batch order; empty spans write nothing.

    req_to_token [rows, width] int32; pool_idx [bs] int64; slots [sum(end - start)] int64. The caller has checked the
    width. The step in flight reads the same table: order this after its last read (write-after-read barrier).
    """
    write = assign_req_to_token_triton if use_triton(req_to_token) else assign_req_to_token_torch
    write(req_to_token, pool_idx, spans, slots)


def assign_req_to_token_torch(
    req_to_token: torch.Tensor, pool_idx: torch.Tensor, spans: RowSpans, slots: torch.Tensor
) -> None:
    """The oracle of the kernel."""
    at = 0
    for row, start, end in zip(pool_idx.tolist(), spans.start.tolist(), spans.end.tolist(), strict=True):
        if end > start:
            req_to_token[row, start:end] = slots[at : at + end - start]
            at += end - start


if HAS_TRITON:
    # free_pages moves by 8 bytes per page taken: specialised on its alignment, it would compile twice.
    @triton.jit(do_not_specialize_on_alignment=["free_pages_ptr"])
    def _alloc_extend_kernel(
        # inputs
        start_ptr,  # [bs] int32 or int64
        end_ptr,  # [bs] int32 or int64
        last_loc_ptr,  # [bs] int32 or int64
        free_pages_ptr,  # [>= new pages of the batch] int64
        # output
        slots_ptr,  # [new tokens of the batch] int64
        # scalars
        bs_upper: tl.constexpr,  # power of two >= bs
        page_size: tl.constexpr,
        BLOCK: tl.constexpr,
    ):
        row = tl.program_id(0)
        lanes = tl.arange(0, bs_upper)
        starts = tl.load(start_ptr + lanes, mask=lanes <= row, other=0).to(tl.int64)
        ends = tl.load(end_ptr + lanes, mask=lanes <= row, other=0).to(tl.int64)
        start = tl.load(start_ptr + row).to(tl.int64)
        end = tl.load(end_ptr + row).to(tl.int64)

        start_up = (start + page_size - 1) // page_size * page_size
        end_down = end // page_size * page_size
        num_pages = (end + page_size - 1) // page_size - start_up // page_size
        pages_up_to = (ends + page_size - 1) // page_size - (starts + page_size - 1) // page_size
        first_page = free_pages_ptr + tl.sum(pages_up_to) - num_pages
        slots = slots_ptr + tl.sum(ends - starts) - (end - start)

        num_old = tl.minimum(end, start_up) - start
        last_loc = tl.load(last_loc_ptr + row).to(tl.int64)
        in_page = tl.arange(0, page_size)
        tl.store(slots + in_page, last_loc + 1 + in_page, mask=in_page < num_old)
        if start + num_old == end:
            return

        num_whole = end_down - start_up
        block = tl.arange(0, BLOCK)
        first = 0
        while first < num_whole:  # not range(): see device.use_triton
            token = first + block
            is_mine = token < num_whole
            page = tl.load(first_page + token // page_size, mask=is_mine, other=0)
            tl.store(slots + num_old + token, page * page_size + token % page_size, mask=is_mine)
            first += BLOCK
        if start + num_old + num_whole == end:
            return

        page = tl.load(first_page + num_pages - 1)
        tl.store(slots + num_old + num_whole + in_page, page * page_size + in_page, mask=in_page < end - end_down)

    # bs changes from step to step: specialising on 1 and multiples of 16 would compile three variants.
    @triton.jit(do_not_specialize=["bs"])
    def _get_last_loc_kernel(
        # inputs
        req_to_token_ptr,  # [rows, row_stride] int32
        pool_idx_ptr,  # [bs] int64
        len_ptr,  # [bs] int32 or int64
        # output
        result_ptr,  # [bs] like len
        # scalars
        bs,
        row_stride,
        ROWS: tl.constexpr,
    ):
        row = tl.program_id(0) * ROWS + tl.arange(0, ROWS)
        is_row = row < bs
        length = tl.load(len_ptr + row, mask=is_row, other=0).to(tl.int64)
        pool_idx = tl.load(pool_idx_ptr + row, mask=is_row, other=0).to(tl.int64)
        last = tl.load(req_to_token_ptr + pool_idx * row_stride + length - 1, mask=is_row & (length > 0), other=-1)
        tl.store(result_ptr + row, last, mask=is_row)

    @triton.jit
    def _assign_req_to_token_kernel(
        # output
        req_to_token_ptr,  # [rows, row_stride] int32
        # inputs
        pool_idx_ptr,  # [bs] int64
        start_ptr,  # [bs] int32 or int64
        end_ptr,  # [bs] int32 or int64
        slots_ptr,  # [sum(end - start)] int64
        # scalars
        row_stride: tl.constexpr,
        bs_upper: tl.constexpr,  # power of two >= bs
        BLOCK: tl.constexpr,
    ):
        row = tl.program_id(0)
        lanes = tl.arange(0, bs_upper)
        starts = tl.load(start_ptr + lanes, mask=lanes < row, other=0).to(tl.int64)
        ends = tl.load(end_ptr + lanes, mask=lanes < row, other=0).to(tl.int64)
        start = tl.load(start_ptr + row).to(tl.int64)
        end = tl.load(end_ptr + row).to(tl.int64)
        columns = req_to_token_ptr + tl.load(pool_idx_ptr + row).to(tl.int64) * row_stride
        slots = slots_ptr + tl.sum(ends - starts)
        block = tl.arange(0, BLOCK)
        first = 0
        while first < end - start:
            token = first + block
            is_mine = token < end - start
            slot = tl.load(slots + token, mask=is_mine, other=0)
            tl.store(columns + start + token, slot.to(tl.int32), mask=is_mine)
            first += BLOCK


def get_last_loc_triton(req_to_token: torch.Tensor, pool_idx: torch.Tensor, lens: torch.Tensor) -> torch.Tensor:
    """`get_last_loc` as one launch, 256 rows per program."""
    result = torch.empty(lens.shape, dtype=lens.dtype, device=lens.device)
    bs = lens.shape[0]
    if bs:
        _get_last_loc_kernel[(triton.cdiv(bs, _LAST_LOC_ROWS),)](
            req_to_token,
            pool_idx.contiguous(),
            lens.contiguous(),
            result,
            bs,
            req_to_token.stride(0),
            ROWS=_LAST_LOC_ROWS,
        )
    return result


def extend_slots_triton(
    slots: torch.Tensor, spans: RowSpans, last_loc: torch.Tensor, free_pages: torch.Tensor, page_size: int
) -> None:
    """`extend_slots` as one launch, into the front of `slots` int64 [>= new tokens]; page_size is a power of two."""
    bs = spans.start.shape[0]
    if bs == 0:
        return
    _alloc_extend_kernel[(bs,)](
        spans.start.contiguous(),
        spans.end.contiguous(),
        last_loc.contiguous(),
        free_pages.contiguous(),
        slots,
        bs_upper=triton.next_power_of_2(bs),
        page_size=page_size,
        BLOCK=_EXTEND_BLOCK,
    )


def assign_req_to_token_triton(
    req_to_token: torch.Tensor, pool_idx: torch.Tensor, spans: RowSpans, slots: torch.Tensor
) -> None:
    """`assign_req_to_token` as one launch, 32 columns per iteration."""
    bs = pool_idx.shape[0]
    if bs == 0:
        return
    _assign_req_to_token_kernel[(bs,)](
        req_to_token,
        pool_idx.contiguous(),
        spans.start.contiguous(),
        spans.end.contiguous(),
        slots.contiguous(),
        row_stride=req_to_token.stride(0),
        bs_upper=triton.next_power_of_2(bs),
        BLOCK=_ASSIGN_BLOCK,
    )
