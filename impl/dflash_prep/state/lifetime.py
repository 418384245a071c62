"""What happens to a request's KV outside decode preparation: prefill, joining decode, commit, release."""

from __future__ import annotations

from collections.abc import Sequence

import torch

from dflash_prep.device import to_device
from dflash_prep.errors import OutOfPagesError, OutOfRowsError, PageAccountingError, RowOverflowError
from dflash_prep.kernels.kv_alloc import RowSpans, assign_req_to_token
from dflash_prep.state.hisparse_allocator import HiSparseAllocator
from dflash_prep.state.host_pages import HostRows, fill_host_rows
from dflash_prep.state.pools import KVPools
from dflash_prep.state.request import Request, ceil_to
from dflash_prep.state.reservation import check_row_width
from dflash_prep.state.spec_alloc import take_slots


def alloc_for_extend(pools: KVPools, reqs: Sequence[Request]) -> None:
    """Give each request a row that covers its whole sequence: a cached prefix if there is one, new slots beyond it.

    Both counters become the exact length, not a page multiple, although the last page is taken whole: a request's
    first decode step therefore always needs tokens. Raises OutOfRowsError, RowOverflowError or OutOfPagesError with
    nothing held by any of `reqs`.
    """
    if not reqs:
        return
    ends = [req.seq_len for req in reqs]
    prefixes = [pools.tree.match(req) for req in reqs]
    open_rows(pools, reqs, prefixes, ends)
    if isinstance(pools.allocator, HiSparseAllocator):
        _enter_device(pools, reqs)
    for req in reqs:
        req.extend_batch_idx += 1


def _enter_device(pools: KVPools, reqs: Sequence[Request]) -> None:
    try:
        for req in reqs:
            start, end = req.kv.cache_protected_len, req.kv.kv_committed_len
            pools.allocator.swap_in(row_slots(pools, req, start, end))
            req.kv.device_len = end
    except OutOfPagesError:
        for req in reqs:
            release(pools, req, insert=False)
        raise


def open_rows(
    pools: KVPools, reqs: Sequence[Request], prefixes: Sequence[torch.Tensor | None], ends: Sequence[int]
) -> None:
    """A row for each request, its shared prefix in front and new slots up to `ends`; both counters at `ends`.

    prefixes   slots that the cache lends, whole pages, or None. Raises as `alloc_for_extend`, prefixes unlocked again.
    """
    starts = [0 if prefix is None else len(prefix) for prefix in prefixes]
    rows: list[int] = []
    try:
        check_row_width(ends, pools.rows.row_width)
        rows = pools.rows.alloc(len(reqs))
        if isinstance(pools.rows, HostRows):
            fill_host_rows(pools, rows, prefixes, starts, ends)
        else:
            _fill_rows(pools, rows, prefixes, starts, ends)
    except (RowOverflowError, OutOfRowsError, OutOfPagesError):
        _give_up(pools, reqs, rows, starts)
        raise
    for req, row, start, end in zip(reqs, rows, starts, ends, strict=True):
        req.kv = pools.rows.kv_state(row, end, start)


def _fill_rows(
    pools: KVPools,
    rows: Sequence[int],
    prefixes: Sequence[torch.Tensor | None],
    starts: Sequence[int],
    ends: Sequence[int],
) -> None:
    for row, prefix in zip(rows, prefixes, strict=True):
        if prefix is not None:
            pools.rows.req_to_token[row, : len(prefix)] = prefix
    device = pools.rows.device
    pool_idx = to_device(rows, device)
    spans = RowSpans(to_device(starts, device), to_device(ends, device), torch.tensor(starts), torch.tensor(ends))
    slots = take_slots(pools, pool_idx, spans, sum(ends) - sum(starts))
    assign_req_to_token(pools.rows.req_to_token, pool_idx, spans, slots)


def _give_up(pools: KVPools, reqs: Sequence[Request], rows: Sequence[int], shared: Sequence[int]) -> None:
    for req, length in zip(reqs, shared, strict=True):
        pools.tree.unlock(req, length)
    for row in rows:
        pools.rows.free(row)


def row_slots(pools: KVPools, req: Request, start: int, end: int) -> torch.Tensor:
    """What lies in columns [start, end) of a request's row: slots, a view; with host pages a run of pages."""
    return pools.rows.slots(req.kv.req_pool_idx, start, end)


def begin_decode(pools: KVPools, reqs: Sequence[Request]) -> None:
    """Between prefill and first decode step a HiSparse pool moves the prompt's KV to the host; others do nothing."""
    if isinstance(pools.allocator, HiSparseAllocator):
        for req in reqs:
            _leave_device(pools, req)


def _leave_device(pools: KVPools, req: Request) -> None:
    if req.kv.device_len:
        start = req.kv.cache_protected_len
        pools.allocator.swap_out(row_slots(pools, req, start, req.kv.device_len), start)
        req.kv.device_len = 0


def commit_accepted(req: Request, num_tokens: int) -> None:
    """The result processor's write: `num_tokens` more are committed, fewer than accepted when the request ends early.

    Raises PageAccountingError when that is more than the row was given room for.
    """
    kv = req.kv
    if kv.kv_committed_len + num_tokens > kv.kv_allocated_len:
        raise PageAccountingError(
            f"request {req.rid} commits {kv.kv_committed_len} + {num_tokens} of {kv.kv_allocated_len} allocated tokens"
        )
    kv.kv_committed_len += num_tokens
    req.num_generated += num_tokens
    req.spec_verify_ct += 1


def release(pools: KVPools, req: Request, *, insert: bool = True) -> None:
    """End a request's hold on the pools (finish: insert; retraction: not).

    The prefix cache takes [0, committed). All behind the last committed page, drafts that were never accepted, pages
    reserved or topped up, goes back as one run, [ceil(committed), allocated); nobody walks single tokens. Safe while
    a step in flight still writes those slots: a later owner's writes follow on the same stream.
    """
    kv = req.kv
    if isinstance(pools.allocator, HiSparseAllocator):
        _leave_device(pools, req)
    pools.tree.finish(req, row_slots(pools, req, 0, kv.kv_committed_len), insert=insert)
    start = ceil_to(kv.kv_committed_len, pools.allocator.page_size)
    if start < kv.kv_allocated_len:
        pools.allocator.free_segment(row_slots(pools, req, start, kv.kv_allocated_len), start)
    pools.rows.free(kv.req_pool_idx)
    req.kv = None
