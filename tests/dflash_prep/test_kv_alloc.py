"""The KV kernels equal their torch oracles, and write nothing they should not.

Run in Triton's interpreter without a GPU and natively with one; `device` says which.
"""

from __future__ import annotations

import pytest
import torch

from dflash_prep.kernels.kv_alloc import (
    RowSpans,
    assign_req_to_token_torch,
    assign_req_to_token_triton,
    count_new_pages,
    count_tokens,
    extend_slots_torch,
    extend_slots_triton,
    get_last_loc_torch,
    get_last_loc_triton,
)

POISON = -777


def launch_alloc_extend(spans, last_loc, free_pages, num_tokens: int, page_size: int) -> torch.Tensor:
    slots = torch.empty(num_tokens, dtype=torch.int64, device=free_pages.device)
    extend_slots_triton(slots, spans, last_loc, free_pages, page_size)
    return slots


BATCH_SIZES = [0, 1, 7, 192, 300]


def random_spans(bs: int, longest: int, device: torch.device, seed: int, dtype=torch.int32) -> RowSpans:
    """Random spans; about a third of the rows empty, as in a step that allocates for some requests only."""
    generator = torch.Generator().manual_seed(seed)
    start = torch.randint(0, longest, (bs,), generator=generator)
    more = torch.randint(0, longest, (bs,), generator=generator)
    more[torch.rand(bs, generator=generator) < 0.35] = 0
    start, end = start.to(dtype), (start + more).to(dtype)
    return RowSpans(start.to(device), end.to(device), start, end)


def strided(values: torch.Tensor) -> torch.Tensor:
    """The same values as every second element of a poisoned buffer."""
    buffer = torch.full((2 * len(values),), POISON, dtype=values.dtype, device=values.device)
    buffer[::2] = values
    return buffer[::2]


def last_locs(spans: RowSpans, page_size: int, device: torch.device) -> torch.Tensor:
    start = spans.start_cpu.to(torch.int64)
    own_page = torch.arange(1, len(start) + 1)
    return torch.where(start > 0, own_page * page_size + (start - 1) % page_size, -1).to(spans.start.dtype).to(device)


@pytest.mark.parametrize("bs", BATCH_SIZES)
@pytest.mark.parametrize("page_size", [1, 4, 256])
def test_alloc_extend_kernel_equals_the_oracle(bs, page_size, device):
    spans = random_spans(bs, 3 * page_size, device, seed=bs + page_size)
    last = last_locs(spans, page_size, device)
    count, num_tokens = count_new_pages(spans, page_size), count_tokens(spans)
    free = (torch.randperm(count, generator=torch.Generator().manual_seed(1)) + 1000).to(device)
    expected = extend_slots_torch(spans, last, free, num_tokens, page_size)
    assert torch.equal(launch_alloc_extend(spans, last, free, num_tokens, page_size), expected)


def test_alloc_extend_kernel_computes_the_worked_example_from_int64_lengths(device):
    start, end = torch.tensor([5, 8, 0]), torch.tensor([12, 8, 6])
    spans = RowSpans(start.to(device), end.to(device), start, end)
    last, free = torch.tensor([4, 99, -1], device=device), torch.tensor([3, 7, 9, 10], device=device)
    slots = launch_alloc_extend(spans, last, free, 13, 4)
    assert slots.tolist() == [5, 6, 7, 12, 13, 14, 15, 28, 29, 30, 31, 36, 37]


def test_alloc_extend_kernel_spans_several_blocks_of_whole_pages(device):
    start, end = torch.tensor([3, 256]), torch.tensor([5000, 9000])
    spans = RowSpans(start.to(device), end.to(device), start, end)
    last = torch.tensor([256 + 2, 511], device=device)
    count, num_tokens = count_new_pages(spans, 256), count_tokens(spans)
    free = torch.arange(count, 0, -1, device=device) + 50
    expected = extend_slots_torch(spans, last, free, num_tokens, 256)
    assert torch.equal(launch_alloc_extend(spans, last, free, num_tokens, 256), expected)


def test_alloc_extend_kernel_takes_strided_inputs_and_leaves_the_rest_of_its_output_and_free_list_alone(device):
    spans = random_spans(7, 12, device, seed=3)
    num_tokens, count = count_tokens(spans), count_new_pages(spans, 4)
    last = last_locs(spans, 4, device)
    strided_spans = RowSpans(strided(spans.start), strided(spans.end), spans.start_cpu, spans.end_cpu)
    # Everything past the pages that may be taken is poison: reading it would show in the result.
    free = torch.cat([torch.arange(50, 50 + count), torch.full((20,), POISON)]).to(device)
    before = free.clone()
    slots = torch.full((num_tokens + 64,), POISON, device=device)
    extend_slots_triton(slots, strided_spans, strided(last), free, 4)
    assert torch.equal(slots[:num_tokens], extend_slots_torch(spans, last, free[:count], num_tokens, 4))
    assert bool((slots[num_tokens:] == POISON).all())
    assert torch.equal(free, before)


@pytest.mark.parametrize("bs", BATCH_SIZES)
@pytest.mark.parametrize("dtype", [torch.int32, torch.int64])
def test_get_last_loc_kernel_equals_the_oracle(bs, dtype, device):
    generator = torch.Generator().manual_seed(bs)
    rows = torch.randint(1, 10_000, (bs + 1, 33), generator=generator, dtype=torch.int32).to(device)
    pool_idx = torch.randperm(bs, generator=generator).to(device) + 1
    lens = torch.randint(0, 34, (bs,), generator=generator).to(dtype).to(device)
    result = get_last_loc_triton(rows, pool_idx, lens)
    assert result.dtype == dtype
    assert torch.equal(result, get_last_loc_torch(rows, pool_idx, lens))


def test_get_last_loc_kernel_reads_a_column_slice_of_a_wider_table_and_padded_rows(device):
    wide = torch.full((5, 40), POISON, dtype=torch.int32, device=device)
    rows = wide[:, :16]
    rows.copy_(torch.arange(80, dtype=torch.int32).view(5, 16))
    # two real rows, then padding: pool index 0 with length 0
    pool_idx, lens = torch.tensor([3, 1, 0, 0], device=device), torch.tensor([16, 5, 0, 0], device=device)
    assert get_last_loc_triton(rows, strided(pool_idx), strided(lens)).tolist() == [63, 20, -1, -1]


@pytest.mark.parametrize("bs", BATCH_SIZES)
def test_assign_kernel_equals_the_oracle_and_touches_no_other_column(bs, device):
    spans = random_spans(bs, 45, device, seed=bs)
    slots = torch.randint(1, 9999, (count_tokens(spans),), generator=torch.Generator().manual_seed(2)).to(device)
    pool_idx = torch.randperm(bs, generator=torch.Generator().manual_seed(4)).to(device) + 1
    rows = torch.full((bs + 1, 90), POISON, dtype=torch.int32, device=device)
    expected = rows.clone()
    assign_req_to_token_torch(expected, pool_idx, spans, slots)
    assign_req_to_token_triton(rows, pool_idx, spans, slots)
    assert torch.equal(rows, expected)


def test_assign_kernel_writes_into_a_column_slice_and_lets_padded_rows_write_nothing(device):
    wide = torch.full((4, 64), POISON, dtype=torch.int32, device=device)
    start, end = torch.tensor([30, 2, 5, 5]), torch.tensor([48, 2, 5, 5])
    spans = RowSpans(start.to(device), end.to(device), start, end)
    slots = torch.arange(100, 118, device=device)
    assign_req_to_token_triton(wide[:, :48], torch.tensor([2, 1, 0, 0], device=device), spans, slots)
    assert wide[2, 30:48].tolist() == list(range(100, 118))
    wide[2, 30:48] = POISON
    assert bool((wide == POISON).all())
