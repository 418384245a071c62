"""A decode step without speculation, for comparison: one token a row, nothing reserved ahead."""

from __future__ import annotations

import torch

from dflash_prep.device import to_device
from dflash_prep.kernels.kv_alloc import RowSpans, assign_req_to_token
from dflash_prep.state.batch import DecodeBatch
from dflash_prep.state.pools import KVPools
from dflash_prep.state.reservation import check_row_width
from dflash_prep.state.spec_alloc import take_slots


def prepare_without_speculation(pools: KVPools, batch: DecodeBatch) -> None:
    """One more token per row. Lengths become new tensors: a step in flight may still read the old ones."""
    starts = [req.kv.kv_allocated_len for req in batch.reqs]
    ends = [start + 1 for start in starts]
    check_row_width(ends, pools.rows.row_width)
    device = pools.rows.device
    spans = RowSpans(to_device(starts, device), to_device(ends, device), torch.tensor(starts), torch.tensor(ends))
    slots = take_slots(pools, batch.req_pool_indices, spans, len(batch.reqs))
    assign_req_to_token(pools.rows.req_to_token, batch.req_pool_indices, spans, slots)
    for req in batch.reqs:
        req.kv.kv_allocated_len += 1
        req.kv.kv_committed_len += 1
        req.decode_batch_idx += 1
    batch.seq_lens = batch.seq_lens + 1
    batch.orig_seq_lens = batch.orig_seq_lens + 1
    if batch.seq_lens_cpu is not None:
        batch.seq_lens_cpu = batch.seq_lens_cpu + 1
        batch.seq_lens_sum += len(batch.reqs)
