"""The packed block and the results of a captured step: kernels equal their oracles, rings turn, overruns are late."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from dflash_prep.kernels.step_block import (
    HEADER,
    RESULT_SLOTS,
    BlockShape,
    DeviceBlock,
    HostBlocks,
    StagedBatch,
    StepOutcome,
    pack_results_torch,
    pack_results_triton,
    stage_batch_torch,
    stage_batch_triton,
)

CPU = torch.device("cpu")
SHAPE = BlockShape(max_bs=5, dp=2, entries=4)


def test_what_the_host_fills_in_is_what_the_device_reads_by_its_parts() -> None:
    host, block = HostBlocks(SHAPE, CPU), DeviceBlock.allocate(SHAPE, CPU)
    entries = np.array([[30, 31], [7, 9]])
    block.words.copy_(host.fill(np.array([3, 1]), np.array([16, 8, 2, 1, 16]), entries))
    assert block.serial.item() == host.serial == 1
    assert block.rows.tolist() == [3, 1, 0, 0, 0]
    assert block.num_tokens.tolist() == [16, 8]
    assert block.num_logprob_tokens.tolist() == [2, 1]
    assert block.num_token_non_padded.item() == 16
    assert block.entries.count.item() == 2
    assert block.entries.table[:, :2].tolist() == entries.tolist()
    block.words.copy_(host.fill(np.array([4]), np.array([8, 8, 1, 1, 8]), None))
    assert (block.serial.item(), block.entries.count.item()) == (2, 0)
    assert block.rows.tolist() == [4, 0, 0, 0, 0]


def test_slots_are_filled_in_turn_and_never_one_that_a_step_in_flight_may_read() -> None:
    host = HostBlocks(SHAPE, CPU)
    slots = [host.fill(np.array([1]), np.zeros(5), None).data_ptr() for _ in range(2 * HostBlocks.DEPTH)]
    assert len(set(slots)) == HostBlocks.DEPTH
    assert all(len(set(slots[i : i + 3])) == 3 for i in range(len(slots) - 2))


def test_more_pages_than_the_block_has_room_for_are_refused() -> None:
    with pytest.raises(ValueError, match="5 pages in one step, and its block has room for 4"):
        HostBlocks(SHAPE, CPU).fill(np.array([1]), np.zeros(5), np.zeros((2, 5)))


@pytest.mark.parametrize("n", [1, 3, 5, 130])
def test_staging_gathers_lengths_and_anchors_and_pads_with_row_zero(n, device) -> None:
    rows = torch.tensor([4, 2, 0, 0, 1] + [3] * 125, dtype=torch.int32)
    lens, tokens = torch.arange(5) * 100, torch.arange(5) * 7
    expected, found = StagedBatch.allocate(140, CPU), StagedBatch.allocate(140, device)
    stage_batch_torch(rows, lens, tokens, expected, n)
    stage_batch_triton(rows.to(device), lens.to(device), tokens.to(device), found, n)
    for one, other in ((expected.pool_indices, found.pool_indices), (expected.seq_lens, found.seq_lens)):
        assert torch.equal(one, other.cpu())
    assert torch.equal(expected.bonus, found.bonus.cpu())
    assert expected.seq_lens[2 if n > 2 else 139].item() == 1


@pytest.mark.parametrize("n", [1, 4])
def test_results_go_round_the_slots_with_their_step_and_block(n, device) -> None:
    B, generator = 3, torch.Generator().manual_seed(n)

    def outcome() -> StepOutcome:
        draft = torch.randint(0, 500, (5, B), generator=generator)
        commits = torch.randint(1, B + 1, (5,), generator=generator, dtype=torch.int32)
        return StepOutcome(draft[:, 0], commits, torch.randint(0, 500, (5, B), generator=generator))

    def empty(where: torch.device) -> tuple[DeviceBlock, torch.Tensor, torch.Tensor]:
        block = DeviceBlock.allocate(SHAPE, where)
        block.serial.fill_(41)
        answers = torch.zeros((RESULT_SLOTS, HEADER + 5 * (2 + B)), dtype=torch.int32, pin_memory=where.type == "cuda")
        return block, torch.zeros(1, dtype=torch.int32, device=where), answers

    (block, step, expected), (its_block, its_step, found) = empty(CPU), empty(device)
    for number in range(RESULT_SLOTS + 1):
        one = outcome()
        block.entries.count.fill_(2)
        its_block.entries.count.fill_(2)
        pack_results_torch(one, block, step, expected, n)
        there = StepOutcome(one.anchors.to(device), one.commit_lens.to(device), one.tokens.to(device))
        pack_results_triton(there, its_block, its_step, found, n)
        if device.type == "cuda":
            torch.cuda.synchronize()
        assert torch.equal(found, expected)
        slot = expected[number % RESULT_SLOTS]
        assert slot[:HEADER].tolist() == [number, 41]
        assert slot[HEADER : HEADER + 2].tolist() == [int(one.commit_lens[0]), int(one.anchors[0])]
        assert (its_step.item(), its_block.entries.count.item()) == (number + 1, 0)
