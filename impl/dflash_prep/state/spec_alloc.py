"""The allocation of one decode step: look up where rows end, take slots, write them into the rows, raise the
watermark.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch

from dflash_prep.errors import OutOfPagesError, PageAccountingError
from dflash_prep.kernels.kv_alloc import RowSpans, assign_req_to_token, get_last_loc
from dflash_prep.ranges import Range, span
from dflash_prep.state.pools import KVPools
from dflash_prep.state.request import Request
from dflash_prep.state.reservation import check_row_width


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
        pools.make_room(num_needed)
        with span(Range.ALLOC_EXTEND):
            slots = pools.allocator.alloc(num_needed)
    else:
        with span(Range.GET_LAST_LOC):
            last_loc = get_last_loc(pools.rows.req_to_token, pool_idx, spans.start)
        pools.make_room(_extend_demand(num_needed, pool_idx.shape[0], page_size))
        with span(Range.ALLOC_EXTEND):
            slots = pools.allocator.alloc_extend(spans, last_loc, num_needed)
    if slots is None:
        free = pools.allocator.available_size()
        raise OutOfPagesError(
            f"{num_needed} tokens asked for, {free} free in pages of {page_size}, nothing left to evict"
        )
    return slots


def _extend_demand(num_tokens: int, bs: int, page_size: int) -> int:
    """Tokens a paged extension makes room for: each row, growing or not, may open one more page (over-estimate,
    #32217).
    """
    return num_tokens + bs * page_size
