"""The block of a decode step: anchor, masks, positions and slots."""

import pytest
import torch

from dflash_prep.kernels.block_prep import (
    BlockBuffers,
    BlockInputs,
    assemble_draft_tokens,
    prepare_block,
    prepare_block_torch,
    prepare_block_triton,
)

MASK = 151_643
POISON = -77


def poisoned(capacity: int, B: int, device: torch.device) -> BlockBuffers:
    buffers = BlockBuffers.allocate(capacity, B, device)
    for each in (buffers.block_ids, buffers.positions, buffers.draft_tokens, buffers.verify_slots, buffers.block_ends):
        each.fill_(POISON)
    return buffers


def random_inputs(bs: int, width: int, device: torch.device, *, seed: int = 0) -> BlockInputs:
    generator = torch.Generator().manual_seed(seed)
    rows = 2 * bs + 1
    return BlockInputs(
        torch.randint(0, 1000, (bs,), generator=generator).to(device),
        torch.randint(0, width, (bs,), generator=generator).to(device),
        torch.randperm(rows, generator=generator)[:bs].to(device),
        torch.randint(1, 10_000, (rows, width), dtype=torch.int32, generator=generator).to(device),
    )


def test_a_block_told_in_numbers(device: torch.device) -> None:
    # Request in row 2 with 3 tokens committed, B = 4, rows of 6 columns: positions 3, 4, 5 have slots, 6 has none.
    table = torch.tensor([[0] * 6, [0] * 6, [10, 11, 12, 13, 14, 15]], dtype=torch.int32, device=device)
    at = torch.tensor([2], device=device)
    inputs = BlockInputs(torch.tensor([42], device=device), torch.tensor([3], device=device), at, table)
    for prepare in (prepare_block_torch, prepare_block_triton):
        out = poisoned(2, 4, device)
        prepare(inputs, MASK, out)
        assert out.block_ids.tolist() == [[42, MASK, MASK, MASK], [POISON] * 4]
        assert out.positions.tolist() == [[3, 4, 5, 6], [POISON] * 4]
        assert out.verify_slots.tolist() == [[13, 14, 15, 0], [POISON] * 4]
        assert out.block_ends.tolist() == [7, POISON]


@pytest.mark.parametrize("bs", [0, 1, 7, 192, 200])
@pytest.mark.parametrize("B", [1, 6, 8])
def test_kernel_equals_oracle_and_writes_nothing_else(bs: int, B: int, device: torch.device) -> None:
    inputs = random_inputs(bs, 33, device)
    expected, actual = poisoned(bs + 3, B, device), poisoned(bs + 3, B, device)
    prepare_block_torch(inputs, MASK, expected)
    prepare_block_triton(inputs, MASK, actual)
    for name in ("block_ids", "positions", "draft_tokens", "verify_slots", "block_ends"):
        assert torch.equal(getattr(actual, name), getattr(expected, name)), name
        assert bool((getattr(actual, name)[bs:] == POISON).all()), name


def test_kernel_reads_strided_inputs_and_a_table_that_is_a_slice(device: torch.device) -> None:
    whole = random_inputs(14, 40, device)
    inputs = BlockInputs(
        whole.bonus_tokens[::2], whole.prefix_lens[::2] % 30, whole.pool_indices[::2], whole.req_to_token[:, 3:33]
    )
    expected, actual = poisoned(7, 8, device), poisoned(7, 8, device)
    prepare_block_torch(inputs, MASK, expected)
    prepare_block_triton(inputs, MASK, actual)
    assert torch.equal(actual.verify_slots, expected.verify_slots)
    assert torch.equal(actual.block_ids, expected.block_ids)


def test_a_padded_row_reads_the_padding_row_and_gets_dummy_slots(device: torch.device) -> None:
    table = torch.zeros((3, 16), dtype=torch.int32, device=device)
    table[1:] = 99
    zero = torch.zeros(1, dtype=torch.int64, device=device)
    out = poisoned(1, 8, device)
    prepare_block_triton(BlockInputs(zero, zero, zero, table), MASK, out)
    assert out.verify_slots.tolist() == [[0] * 8]


def test_the_public_function_refuses_a_batch_that_does_not_fit() -> None:
    cpu = torch.device("cpu")
    with pytest.raises(ValueError, match="fitting"):
        prepare_block(random_inputs(3, 9, cpu), MASK, BlockBuffers.allocate(2, 4, cpu))


def test_buffers_grow_by_doubling_from_32_and_stay_while_they_fit() -> None:
    buffers = BlockBuffers.allocate(0, 8, "cpu")
    _grown = buffers.fitting(5)
    assert _grown.capacity == 32
    assert _grown.fitting(32) is _grown
    assert _grown.fitting(33).capacity == 64
    assert _grown.fitting(500).capacity == 500
    assert not _grown.host_lens.is_pinned()


def test_draft_tokens_are_the_anchor_followed_by_the_drafts() -> None:
    buffers = poisoned(3, 3, torch.device("cpu"))
    view = assemble_draft_tokens(torch.tensor([1, 2]), torch.tensor([[10, 11], [20, 21]]), buffers)
    assert view.tolist() == [[1, 10, 11], [2, 20, 21]]
    assert buffers.draft_tokens[2].tolist() == [POISON] * 3


@pytest.mark.gpu
def test_on_a_gpu_the_block_is_prepared_without_a_host_synchronisation(forbid_syncs) -> None:
    cuda = torch.device("cuda")
    inputs, out = random_inputs(7, 64, cuda), poisoned(8, 8, cuda)
    prepare_block(inputs, MASK, out)
    with forbid_syncs():
        prepare_block(inputs, MASK, out)
    expected = poisoned(8, 8, cuda)
    prepare_block_torch(inputs, MASK, expected)
    assert torch.equal(out.verify_slots, expected.verify_slots)
