"""The running batch: rows stay together through filter and merge; a plain decode step leaves old tensors alone."""

from __future__ import annotations

import torch

from dflash_prep.state.batch import DecodeBatch
from dflash_prep.state.lifetime import alloc_for_extend
from dflash_prep.state.paged_allocator import PagedAllocator
from dflash_prep.state.pools import KVPools
from dflash_prep.state.prefix_cache import ChunkCache
from dflash_prep.state.req_to_token import ReqToTokenPool
from dflash_prep.state.request import Request
from dflash_prep.variants.plain_decode import prepare_without_speculation

CPU = torch.device("cpu")


def batch_of(*prompt_lens: int, page_size: int = 4) -> tuple[KVPools, DecodeBatch]:
    allocator = PagedAllocator(64 * page_size, page_size, debug=True)
    pools = KVPools(ReqToTokenPool(8, 64), allocator, ChunkCache(allocator))
    reqs = [Request(i, length) for i, length in enumerate(prompt_lens)]
    alloc_for_extend(pools, reqs)
    return pools, DecodeBatch.of(reqs, CPU)


def test_two_steps_without_speculation_bind_new_lengths_and_leave_the_old_tensors_to_the_step_in_flight():
    pools, batch = batch_of(3, 5)
    old = [(batch.seq_lens, batch.seq_lens_cpu, batch.orig_seq_lens)]
    for expected in ([4, 6], [5, 7]):
        prepare_without_speculation(pools, batch)
        for now, before in zip((batch.seq_lens, batch.seq_lens_cpu, batch.orig_seq_lens), old[-1], strict=True):
            assert now is not before
            assert now.tolist() == expected
        old.append((batch.seq_lens, batch.seq_lens_cpu, batch.orig_seq_lens))
    assert all(tensor.tolist() == [3, 5] for tensor in old[0])
    assert all(tensor.tolist() == [4, 6] for tensor in old[1])
    assert batch.orig_seq_lens.dtype == torch.int32
    assert batch.seq_lens_sum == 12
    assert [req.kv.kv_committed_len for req in batch.reqs] == [5, 7]
    assert pools.rows.req_to_token[1, :5].tolist() == [4, 5, 6, 7, 16]
    assert pools.rows.req_to_token[2, :7].tolist() == [8, 9, 10, 11, 12, 13, 14]


def test_filtering_keeps_every_column_of_the_kept_rows():
    _, batch = batch_of(3, 5, 9)
    batch.filter_batch([0, 2])
    assert [req.rid for req in batch.reqs] == [0, 2]
    assert batch.req_pool_indices.tolist() == batch.req_pool_indices_cpu.tolist() == [1, 3]
    assert batch.seq_lens.tolist() == batch.seq_lens_cpu.tolist() == batch.orig_seq_lens.tolist() == [3, 9]
    assert batch.seq_lens_sum == 12


def test_keeping_everybody_changes_nothing():
    _, batch = batch_of(3, 5)
    before = batch.seq_lens
    batch.filter_batch([0, 1])
    assert batch.seq_lens is before


def test_merging_appends_rows_and_knows_host_lengths_only_if_both_do():
    pools, batch = batch_of(3)
    more = [Request(7, 6)]
    alloc_for_extend(pools, more)
    batch.merge_batch(DecodeBatch.of(more, CPU))
    assert [req.rid for req in batch.reqs] == [0, 7]
    assert batch.req_pool_indices.tolist() == batch.req_pool_indices_cpu.tolist() == [1, 2]
    assert batch.seq_lens_cpu.tolist() == [3, 6]
    assert batch.seq_lens_sum == 9
    unknown = DecodeBatch.of(more, CPU)
    unknown.seq_lens_cpu = unknown.seq_lens_sum = None
    batch.merge_batch(unknown)
    assert batch.seq_lens_cpu is None
    assert batch.seq_lens_sum is None
    assert batch.seq_lens.tolist() == [3, 6, 6]
