"""The allocation of one decode step: look up where rows end, take slots, write them into the rows, raise the
watermark.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch

from dflash_prep.device import use_triton
from dflash_prep.errors import OutOfPagesError, PageAccountingError
from dflash_prep.kernels.alloc_extend import RowSpans
from dflash_prep.ranges import Range, span
from dflash_prep.state.pools import KVPools
from dflash_prep.state.prefix_cache import evict_for
from dflash_prep.state.request import Request
from dflash_prep.state.reservation import check_row_width


def get_last_loc(req_to_token: torch.Tensor, pool_idx: torch.Tensor, lens: torch.Tensor) -> torch.Tensor:
    """Slot of each row's last token, `req_to_token[pool_idx, lens - 1]`, or -1 for an empty row.

    req_to_token [rows, width] int32; pool_idx [bs] int64; lens [bs] int; result [bs] of the dtype of `lens`.
    """
    if use_triton(req_to_token):
        from dflash_prep.kernels.kv_kernels import launch_get_last_loc

        return launch_get_last_loc(req_to_token, pool_idx, lens)
    return get_last_loc_torch(req_to_token, pool_idx, lens)


def get_last_loc_torch(req_to_token: torch.Tensor, pool_idx: torch.Tensor, lens: torch.Tensor) -> torch.Tensor:
    """The oracle of the kernel. An empty row reads the row's last column and drops it: no mask of unknown size."""
    last = req_to_token[pool_idx, lens.to(torch.int64) - 1]
    return torch.where(lens > 0, last, -1).to(lens.dtype)


def assign_req_to_token(
    req_to_token: torch.Tensor, pool_idx: torch.Tensor, spans: RowSpans, slots: torch.Tensor
) -> None:
    """Write `slots` into columns [start, end) of each row, rows in batch order; empty spans write nothing.

    req_to_token [rows, width] int32; pool_idx [bs] int64; slots [sum(end - start)] int64. The caller has checked the
    width. The step in flight reads the same table: order this after its last read (write-after-read barrier).
    """
    if use_triton(req_to_token):
        from dflash_prep.kernels.kv_kernels import launch_assign_req_to_token

        launch_assign_req_to_token(req_to_token, pool_idx, spans, slots)
    else:
        assign_req_to_token_torch(req_to_token, pool_idx, spans, slots)


def assign_req_to_token_torch(
    req_to_token: torch.Tensor, pool_idx: torch.Tensor, spans: RowSpans, slots: torch.Tensor
) -> None:
    """The oracle of the kernel."""
    at = 0
    for row, start, end in zip(pool_idx.tolist(), spans.start.tolist(), spans.end.tolist(), strict=True):
        if end > start:
            req_to_token[row, start:end] = slots[at : at + end - start]
            at += end - start


def alloc_for_spec_decode(
    pools: KVPools, reqs: Sequence[Request], pool_idx: torch.Tensor, spans: RowSpans, num_needed: int
) -> None:
    """Extend every request's row over its span and raise `kv_allocated_len` to the span's end.

    pool_idx [bs] int64 device; spans int32. With num_needed == 0 neither the allocator nor a row is touched. Raises
    RowOverflowError, PageAccountingError or OutOfPagesError before anything is written.
    """
    ends = spans.end_cpu.tolist()
    if len(ends) != len(reqs):
        raise PageAccountingError(f"{len(reqs)} requests and {len(ends)} lengths")
    check_row_width(ends, pools.rows.row_width)
    if num_needed > 0:
        with span(Range.KV_ALLOC):
            slots = take_slots(pools, pool_idx, spans, num_needed)
            with span(Range.ASSIGN_REQ_TO_TOKEN):
                assign_req_to_token(pools.rows.req_to_token, pool_idx, spans, slots)
    for req, end in zip(reqs, ends, strict=True):
        req.kv.kv_allocated_len = max(req.kv.kv_allocated_len, end)


def take_slots(pools: KVPools, pool_idx: torch.Tensor, spans: RowSpans, num_needed: int) -> torch.Tensor:
    """Slots for every row's span, int64 [num_needed], after evicting what is short. Raises OutOfPagesError."""
    page_size = pools.allocator.page_size
    if page_size == 1:
        evict_for(pools, num_needed)
        with span(Range.ALLOC_EXTEND):
            slots = pools.allocator.alloc(num_needed)
    else:
        with span(Range.GET_LAST_LOC):
            last_loc = get_last_loc(pools.rows.req_to_token, pool_idx, spans.start)
        evict_for(pools, extend_demand(num_needed, pool_idx.shape[0], page_size))
        with span(Range.ALLOC_EXTEND):
            slots = pools.allocator.alloc_extend(spans, last_loc, num_needed)
    if slots is None:
        free = pools.allocator.available_size()
        raise OutOfPagesError(
            f"{num_needed} tokens asked for, {free} free in pages of {page_size}, nothing left to evict"
        )
    return slots


def extend_demand(num_tokens: int, bs: int, page_size: int) -> int:
    """Tokens a paged extension makes room for: each row, growing or not, may open one more page (over-estimate,
    #32217).
    """
    return num_tokens + bs * page_size
