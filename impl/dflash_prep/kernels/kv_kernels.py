"""The three Triton kernels of KV allocation, each with its launcher. Their oracles are the `*_torch` functions beside
`extend_slots`, `get_last_loc` and `assign_req_to_token`, whose docstrings say what is computed.

Two of them need, per row, a sum over all earlier rows. Each program loads all rows up to its own and adds them up:
O(bs) masked loads in one launch are cheaper than a scan kernel for a few hundred rows.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch
import triton
import triton.language as tl

if TYPE_CHECKING:
    from dflash_prep.kernels.alloc_extend import RowSpans

EXTEND_BLOCK = 4096
LAST_LOC_ROWS = 256
ASSIGN_BLOCK = 32


# free_pages moves by 8 bytes per page taken: specialising on its alignment would compile a second variant on first use.
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
    while first < num_whole:  # not range(): Triton's interpreter cannot take a loaded bound there under numpy >= 2.4
        token = first + block
        is_mine = token < num_whole
        page = tl.load(first_page + token // page_size, mask=is_mine, other=0)
        tl.store(slots + num_old + token, page * page_size + token % page_size, mask=is_mine)
        first += BLOCK
    if start + num_old + num_whole == end:
        return

    page = tl.load(first_page + num_pages - 1)
    tl.store(slots + num_old + num_whole + in_page, page * page_size + in_page, mask=in_page < end - end_down)


def launch_alloc_extend(
    spans: RowSpans, last_loc: torch.Tensor, free_pages: torch.Tensor, num_tokens: int, page_size: int
) -> torch.Tensor:
    """`extend_slots` as one launch; page_size must be a power of two."""
    slots = torch.empty(num_tokens, dtype=torch.int64, device=free_pages.device)
    launch_alloc_extend_into(slots, spans, last_loc, free_pages, page_size)
    return slots


def launch_alloc_extend_into(
    slots: torch.Tensor, spans: RowSpans, last_loc: torch.Tensor, free_pages: torch.Tensor, page_size: int
) -> None:
    """The same into the front of a buffer of the caller, int64 [>= new tokens]."""
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
        BLOCK=EXTEND_BLOCK,
    )


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


def launch_get_last_loc(req_to_token: torch.Tensor, pool_idx: torch.Tensor, lens: torch.Tensor) -> torch.Tensor:
    """`get_last_loc` as one launch, 256 rows per program."""
    result = torch.empty(lens.shape, dtype=lens.dtype, device=lens.device)
    bs = lens.shape[0]
    if bs:
        _get_last_loc_kernel[(triton.cdiv(bs, LAST_LOC_ROWS),)](
            req_to_token,
            pool_idx.contiguous(),
            lens.contiguous(),
            result,
            bs,
            req_to_token.stride(0),
            ROWS=LAST_LOC_ROWS,
        )
    return result


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


def launch_assign_req_to_token(
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
        BLOCK=ASSIGN_BLOCK,
    )
