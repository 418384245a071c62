"""Prefill/decode disaggregation, the decode side: how much may be admitted, and the row that waits for a prefilled
KV.
"""

from __future__ import annotations

from dflash_prep.state.lifetime import open_rows, row_slots
from dflash_prep.state.pools import KVPools
from dflash_prep.state.request import Request
from dflash_prep.state.swa_allocator import SWAAllocator
from dflash_prep.state.swa_eviction import check_evict_floor

_DEFAULT_RESERVED_DECODE_TOKENS = 512
"""`--num-reserved-decode-tokens`: kept free per running request."""


def admissible_tokens(
    pools: KVPools, num_running: int, reserved_decode_tokens: int = _DEFAULT_RESERVED_DECODE_TOKENS
) -> int:
    """Free tokens less the reserve for those who run; below zero when the reserve is not covered.

    Free tokens exclude pages topped up in advance, which are reserves too: up to `K * page_size` tokens per request
    count twice. At 256 tokens a page, K = 2 and 192 requests that is 98,304 tokens (#47685).
    """
    return pools.allocator.available_size() - reserved_decode_tokens * num_running


def preallocate(pools: KVPools, req: Request, num_tokens: int, evict_floor: int = 0) -> None:
    """Give `req` a row of `num_tokens` >= its sequence, committed up to the sequence, before its KV arrives.

    evict_floor   columns below get no sliding-window slot; must be a page boundary (#35286)
    Raises MisalignedSegmentError, RowOverflowError, OutOfRowsError or OutOfPagesError with nothing held.
    """
    if not evict_floor <= req.seq_len <= num_tokens:
        raise ValueError(f"floor {evict_floor}, sequence {req.seq_len} and row {num_tokens} must ascend ({req.rid})")
    check_evict_floor(evict_floor, pools.allocator.page_size)
    open_rows(pools, [req], [None], [num_tokens])
    req.kv.kv_committed_len = req.seq_len
    if evict_floor and isinstance(pools.allocator, SWAAllocator):
        pools.allocator.free_swa(row_slots(pools, req, 0, evict_floor), 0)
        req.kv.swa_evicted_seqlen = evict_floor
