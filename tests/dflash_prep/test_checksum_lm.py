"""The checksum language model: integers equal to the oracle's, and every kind of damage visible."""

from __future__ import annotations

from random import Random

import pytest
import torch

from dflash_prep.kernels.accept import AcceptBuffers, greedy_accept
from dflash_prep.kernels.block_prep import BlockBuffers, BlockInputs, assemble_draft_tokens, prepare_block
from dflash_prep.loop.checksum import VOCAB, mix_of, prompt_key, prompt_token_of, token_of
from dflash_prep.loop.checksum_lm import MASK_ID, ChecksumHead, ChecksumModel, TableView
from dflash_prep.loop.checksum_triton import TritonChecksumModel
from dflash_prep.loop.oracle import Mismatch, SequenceOracle, StepResult, first_mismatch

B = 8
HIT_RATE = 0.74


def test_mix_stays_in_31_bits_and_is_the_same_for_ints_and_tensors() -> None:
    values = [0, 1, 2**31 - 1, *(Random(0).randrange(2**31) for _ in range(200))]
    mixed = [mix_of(value) for value in values]
    assert all(0 <= value < 2**31 for value in mixed)
    assert torch.equal(mix_of(torch.tensor(values)), torch.tensor(mixed))


def test_prompts_differ_between_seeds_ranks_and_requests() -> None:
    keys = {prompt_key(seed, rank, index) for seed in range(4) for rank in range(4) for index in range(50)}
    assert len(keys) == 4 * 4 * 50
    positions = torch.arange(64)
    assert torch.equal(
        prompt_token_of(prompt_key(1, 2, 3), positions),
        torch.tensor([prompt_token_of(prompt_key(1, 2, 3), position) for position in range(64)]),
    )


def test_the_mean_accept_length_of_the_oracle_is_the_configured_one() -> None:
    oracle = SequenceOracle(prompt_key(0, 0, 0), 50, B, HIT_RATE)
    lengths = [len(oracle.step()) for _ in range(4000)]
    assert set(lengths) == set(range(1, B + 1))
    assert sum(lengths) / len(lengths) == pytest.approx(3.5, abs=0.12)


class TinyEngine:
    """A few requests decoded by the model, on rows that are one random permutation of slots; no allocator involved."""

    def __init__(
        self,
        prompts: list[int],
        width: int = 400,
        model: type[ChecksumModel] = ChecksumModel,
        device: torch.device | str = "cpu",
    ) -> None:
        self.device = device
        self.keys = [prompt_key(7, 0, index) for index in range(len(prompts))]
        self.oracles = [SequenceOracle(key, n, B, HIT_RATE) for key, n in zip(self.keys, prompts, strict=True)]
        slots = 1 + torch.randperm(width * len(prompts), generator=torch.Generator().manual_seed(1))
        self.table = torch.cat([torch.zeros(width, dtype=torch.int64), slots]).view(-1, width).to(device, torch.int32)
        self.model = model(1 + width * len(prompts), B, HIT_RATE, device)
        self.rows = torch.arange(1, len(prompts) + 1, device=device)
        self.lens = torch.tensor(prompts, device=device)
        for row, (key, n) in enumerate(zip(self.keys, prompts, strict=True), start=1):
            self.model.prefill(self.table[row, :n].long(), prompt_token_of(key, torch.arange(n, device=device)))
        self.bonus = self.model.next_tokens(TableView(self.table, self.rows, self.lens))
        self.draft_table = self.table

    def step(self) -> list[list[int]]:
        block = BlockBuffers.allocate(len(self.rows), B, self.device)
        prepare_block(BlockInputs(self.bonus, self.lens, self.rows, self.table), MASK_ID, block)
        drafts = self.model.draft(
            TableView(self.draft_table, self.rows, self.lens), block.block_ids, block.positions, block.verify_slots
        )
        tokens = assemble_draft_tokens(self.bonus, drafts, block)
        target = self.model.verify(TableView(self.table, self.rows, self.lens + B), tokens, block.positions)
        accepted = AcceptBuffers(len(self.rows), B, self.device).take(len(self.rows))
        greedy_accept(tokens, target, self.lens, accepted)
        self.model.keep_committed(tokens, block.verify_slots, accepted.commit_lens)
        self.bonus, self.lens = accepted.bonus_tokens.clone(), accepted.new_seq_lens.clone()
        commits = accepted.commit_lens.tolist()
        return [row[:commit] for row, commit in zip(accepted.out_tokens.tolist(), commits, strict=True)]


def test_batched_paged_decoding_commits_exactly_what_the_sequential_oracle_says() -> None:
    engine = TinyEngine([1, 3, 50, 120])
    assert engine.bonus.tolist() == [oracle.tokens[-1] for oracle in engine.oracles]
    for _ in range(30):
        assert engine.step() == [oracle.step() for oracle in engine.oracles]


def test_so_does_the_model_made_of_kernels(device) -> None:
    engine = TinyEngine([1, 3, 50], model=TritonChecksumModel, device=device)
    assert engine.bonus.tolist() == [oracle.tokens[-1] for oracle in engine.oracles]
    for _ in range(6):
        assert engine.step() == [oracle.step() for oracle in engine.oracles]


def _steps_until_wrong(engine: TinyEngine, limit: int = 8) -> int:
    for step in range(limit):
        if engine.step() != [oracle.step() for oracle in engine.oracles]:
            return step
    return limit


def test_a_committed_slot_off_by_one_is_seen_at_the_next_step() -> None:
    engine = TinyEngine([60, 70])
    engine.step(), [oracle.step() for oracle in engine.oracles]
    engine.table = engine.table.clone()
    engine.table[1, int(engine.lens[0]) - 1] += 1
    assert _steps_until_wrong(engine) == 0


def test_a_stale_length_is_seen_at_the_next_step() -> None:
    engine = TinyEngine([60, 70])
    before = engine.lens.clone()
    engine.step(), [oracle.step() for oracle in engine.oracles]
    engine.lens[1] = before[1]
    assert _steps_until_wrong(engine) == 0


def test_slots_shared_by_two_requests_are_seen_as_soon_as_both_write_there() -> None:
    engine = TinyEngine([60, 60])
    engine.table = engine.table.clone()
    engine.table[2, 60:] = engine.table[1, 60:]
    engine.draft_table = engine.table
    assert _steps_until_wrong(engine) <= 1


def test_a_draft_row_without_its_last_block_column_shortens_the_accept_length() -> None:
    prompts = [60, 70, 80, 90]
    engine = TinyEngine(prompts)
    expected = [len(oracle.step()) for oracle in engine.oracles]
    victim = expected.index(max(expected))
    assert expected[victim] > 1
    engine.draft_table = engine.table.clone()
    engine.draft_table[1 + victim, prompts[victim] + B - 1] = 0
    expected[victim] = 1
    assert [len(tokens) for tokens in engine.step()] == expected


def test_the_draft_head_returns_every_token_of_the_vocabulary_by_argmax() -> None:
    drafts = torch.arange(VOCAB).view(-1, 1)
    hidden = ChecksumHead("cpu").hidden(drafts)[:, 1]
    assert torch.equal((hidden @ ChecksumHead("cpu").weight.T).argmax(1), drafts[:, 0])


def _oracle() -> SequenceOracle:
    return SequenceOracle(prompt_key(0, 0, 0), 10, B, HIT_RATE)


def test_the_first_mismatch_names_step_request_and_position() -> None:
    truth = _oracle()
    first, steps = truth.tokens[-1], [tuple(truth.step()) for _ in range(3)]
    results = [StepResult(step, tokens) for step, tokens in enumerate(steps, start=5)]
    assert first_mismatch(4, _oracle(), first, results) is None
    assert first_mismatch(4, _oracle(), first + 1, results).position == 10
    bad = (*steps[1][:-1], token_of(steps[1][-1] + 1))
    wrong = first_mismatch(4, _oracle(), first, [results[0], StepResult(6, bad), results[2]])
    at = 11 + len(steps[0]) + len(steps[1]) - 1
    assert wrong == Mismatch(6, 4, at, f"token {steps[1][-1]}", f"token {bad[-1]}")
    assert str(wrong).startswith(f"step 6, request 4, position {at}: expected token")


def test_a_step_that_committed_too_little_is_a_mismatch_even_if_its_tokens_are_right() -> None:
    truth = _oracle()
    first = truth.tokens[-1]
    steps = [tuple(truth.step()) for _ in range(5)]
    long = next(number for number, tokens in enumerate(steps) if len(tokens) > 1)
    results = [StepResult(step, tokens) for step, tokens in enumerate(steps)]
    results[long] = StepResult(long, steps[long][:1])
    wrong = first_mismatch(0, _oracle(), first, results)
    assert (wrong.step, wrong.found) == (long, "1")
