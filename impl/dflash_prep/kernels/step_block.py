"""What a captured step is told and what it answers: one packed block in, one block of results out (switch step_graph).

A graph's launch has no arguments, so everything that changes from step to step lies in device memory at fixed
addresses: the packed block, which the host copies there when it changed, and the buffers of the step before. Results
go straight into pinned memory of the host, into the slot whose turn it is by the device's own count of steps. Every
answer says which step and which block it belongs to, so a host that looks into a slot too early or too late knows.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import torch

from dflash_prep.device import HAS_TRITON, use_triton
from dflash_prep.kernels.glue_graph import PADDED_SEQ_LEN
from dflash_prep.kernels.page_rows import PageEntries

if HAS_TRITON:
    import triton
    import triton.language as tl

RESULT_SLOTS = 4
"""The host is at most one step behind the launch, so two are in use; the others make an overrun a late one."""
HEADER = 2
"""Words of a result before its rows: number of the step, serial of the packed block."""


@dataclass(frozen=True, slots=True)
class BlockShape:
    """Words of a packed block, int32: serial, number of entries, rows [max_bs], dp counts, entries [2, entries]."""

    max_bs: int
    dp: int
    entries: int

    @property
    def counts_at(self) -> int:
        return 2 + self.max_bs

    @property
    def entries_at(self) -> int:
        return self.counts_at + 2 * self.dp + 1

    @property
    def words(self) -> int:
        return self.entries_at + 2 * self.entries


@dataclass(frozen=True, slots=True)
class DeviceBlock:
    """The packed block on the device, by its parts; all views of `words`."""

    words: torch.Tensor
    serial: torch.Tensor  # int32 [1]
    rows: torch.Tensor  # int32 [max_bs]: req_to_token rows of the batch, then 0
    num_tokens: torch.Tensor  # int32 [dp], in draft tokens
    num_logprob_tokens: torch.Tensor  # int32 [dp]
    num_token_non_padded: torch.Tensor  # int32 [1]
    entries: PageEntries

    @classmethod
    def allocate(cls, shape: BlockShape, device: torch.device) -> DeviceBlock:
        """All zero: nobody runs, nothing is to be written."""
        words = torch.zeros(shape.words, dtype=torch.int32, device=device)
        counts = words[shape.counts_at : shape.entries_at]
        entries = PageEntries(words[shape.entries_at :].view(2, shape.entries), words[1:2])
        dp = shape.dp
        return cls(words, words[:1], words[2 : shape.counts_at], counts[:dp], counts[dp:-1], counts[-1:], entries)


class HostBlocks:
    """Pinned copies of the packed block, filled in turn.

    A slot is filled again `DEPTH` shipped blocks later; the host has processed the result of a step launched after the
    one that read it, so its copy is long done.
    """

    DEPTH = 3

    def __init__(self, shape: BlockShape, device: torch.device) -> None:
        pinned = device.type == "cuda"
        self.shape = shape
        self._slots = [torch.zeros(shape.words, dtype=torch.int32, pin_memory=pinned) for _ in range(self.DEPTH)]
        self._words = [slot.numpy() for slot in self._slots]
        self.serial = 0

    def fill(self, rows: np.ndarray, counts: np.ndarray, entries: np.ndarray | None) -> torch.Tensor:
        """The next slot with this content, to be copied. ValueError for more page entries than it has room for."""
        shape = self.shape
        self.serial += 1
        turn = self.serial % self.DEPTH
        words, bs = self._words[turn], len(rows)
        num_entries = 0 if entries is None else entries.shape[1]
        if num_entries > shape.entries:
            raise ValueError(f"{num_entries} pages in one step, and its block has room for {shape.entries}")
        words[0], words[1] = self.serial, num_entries
        words[2 : 2 + bs] = rows
        words[2 + bs : shape.counts_at] = 0
        words[shape.counts_at : shape.entries_at] = counts
        if num_entries:
            words[shape.entries_at :].reshape(2, shape.entries)[:, :num_entries] = entries
        return self._slots[turn]


@dataclass(frozen=True, slots=True)
class StagedBatch:
    """Static inputs of the step, int64 [max_bs] on the device; padding: row 0, length 1, token 0."""

    pool_indices: torch.Tensor
    seq_lens: torch.Tensor
    bonus: torch.Tensor

    @classmethod
    def allocate(cls, max_bs: int, device: torch.device) -> StagedBatch:
        """All padding."""
        rows, lens, bonus = torch.zeros((3, max_bs), dtype=torch.int64, device=device)
        return cls(rows, lens.fill_(PADDED_SEQ_LEN), bonus)


def stage_batch(
    rows: torch.Tensor, new_seq_lens: torch.Tensor, output_tokens: torch.Tensor, out: StagedBatch, n: int
) -> None:
    """The first `n` requests of the step, lengths and anchors as the step before published them.

    rows int32 [>= n], 0 for padding; new_seq_lens, output_tokens int64 [pool rows].
    """
    stage = stage_batch_triton if use_triton(rows) else stage_batch_torch
    stage(rows, new_seq_lens, output_tokens, out, n)


def stage_batch_torch(
    rows: torch.Tensor, new_seq_lens: torch.Tensor, output_tokens: torch.Tensor, out: StagedBatch, n: int
) -> None:
    """The oracle of the kernel."""
    index = rows[:n].long()
    out.pool_indices[:n] = index
    out.seq_lens[:n] = torch.where(index > 0, new_seq_lens[index], PADDED_SEQ_LEN)
    out.bonus[:n] = torch.where(index > 0, output_tokens[index], 0)


@dataclass(frozen=True, slots=True)
class StepOutcome:
    """What a step decided, on the device: anchors int64 [>= n], commits int32 [>= n], tokens int64 [>= n, B]."""

    anchors: torch.Tensor
    commit_lens: torch.Tensor
    tokens: torch.Tensor


def pack_results(outcome: StepOutcome, block: DeviceBlock, step: torch.Tensor, out: torch.Tensor, n: int) -> None:
    """Write the results of the first `n` requests into the slot whose turn it is, and count the step.

    step  int32 [1] device: steps so far; afterwards one more
    out   int32 [RESULT_SLOTS, HEADER + max_bs * (2 + B)], pinned: header, then a row of commit, anchor, B tokens each
    The block's page entries are written by now and are taken out, so that a replay without a new block repeats none.
    """
    pack = pack_results_triton if use_triton(step) else pack_results_torch
    pack(outcome, block, step, out, n)


def pack_results_torch(outcome: StepOutcome, block: DeviceBlock, step: torch.Tensor, out: torch.Tensor, n: int) -> None:
    """The oracle of the kernels."""
    number, B = int(step), outcome.tokens.shape[1]
    slot = out[number % RESULT_SLOTS]
    slot[0], slot[1] = number, block.serial[0]
    rows = slot[HEADER : HEADER + n * (2 + B)].view(n, 2 + B)
    rows[:, 0], rows[:, 1], rows[:, 2:] = outcome.commit_lens[:n], outcome.anchors[:n], outcome.tokens[:n]
    step += 1
    block.entries.count.zero_()


if HAS_TRITON:

    @triton.jit
    def _stage_batch_kernel(
        rows_ptr,  # int32 [>= n]
        new_seq_lens_ptr,  # int64 [pool rows]
        output_tokens_ptr,  # int64 [pool rows]
        # outputs, int64 [max_bs]
        pool_ptr,
        seq_lens_ptr,
        bonus_ptr,
        # scalars
        n,
        PADDED: tl.constexpr,
        BLOCK: tl.constexpr,
    ):
        request = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
        row = tl.load(rows_ptr + request, mask=request < n, other=0).to(tl.int64)
        is_real = (request < n) & (row > 0)
        length = tl.load(new_seq_lens_ptr + row, mask=is_real, other=PADDED)
        token = tl.load(output_tokens_ptr + row, mask=is_real, other=0)
        tl.store(pool_ptr + request, row, mask=request < n)
        tl.store(seq_lens_ptr + request, length, mask=request < n)
        tl.store(bonus_ptr + request, token, mask=request < n)

    @triton.jit
    def _pack_results_kernel(
        anchors_ptr,  # int64 [>= n], stride anchor_stride
        commit_ptr,  # int32 [>= n]
        tokens_ptr,  # int64 [>= n, B], last dimension contiguous
        step_ptr,  # int32 [1]
        serial_ptr,  # int32 [1]
        # outputs
        out_ptr,  # int32 [SLOTS, slot_words], pinned memory of the host
        # scalars
        anchor_stride,
        token_stride,
        slot_words,
        B: tl.constexpr,
        SLOTS: tl.constexpr,
        HEAD: tl.constexpr,
        BLOCK: tl.constexpr,
    ):
        request = tl.program_id(0)
        number = tl.load(step_ptr)
        slot_ptr = out_ptr + (number % SLOTS) * slot_words
        if request == 0:
            tl.store(slot_ptr, number)
            tl.store(slot_ptr + 1, tl.load(serial_ptr))
        row_ptr = slot_ptr + HEAD + request * (2 + B)
        lane = tl.arange(0, BLOCK)
        tl.store(row_ptr, tl.load(commit_ptr + request))
        tl.store(row_ptr + 1, tl.load(anchors_ptr + request * anchor_stride).to(tl.int32))
        token = tl.load(tokens_ptr + request * token_stride + lane, mask=lane < B, other=0)
        tl.store(row_ptr + 2 + lane, token.to(tl.int32), mask=lane < B)

    @triton.jit
    def _count_step_kernel(
        # outputs, int32 [1] each
        step_ptr,
        num_entries_ptr,
    ):
        tl.store(step_ptr, tl.load(step_ptr) + 1)
        tl.store(num_entries_ptr, 0)


def stage_batch_triton(
    rows: torch.Tensor, new_seq_lens: torch.Tensor, output_tokens: torch.Tensor, out: StagedBatch, n: int
) -> None:
    """One program for every 128 requests."""
    _stage_batch_kernel[(triton.cdiv(n, 128),)](
        rows,
        new_seq_lens,
        output_tokens,
        out.pool_indices,
        out.seq_lens,
        out.bonus,
        n,
        PADDED=PADDED_SEQ_LEN,
        BLOCK=128,
    )


def pack_results_triton(
    outcome: StepOutcome, block: DeviceBlock, step: torch.Tensor, out: torch.Tensor, n: int
) -> None:
    """A program a request, then one that counts, because all of the first read the count."""
    B = outcome.tokens.shape[1]
    _pack_results_kernel[(n,)](
        outcome.anchors,
        outcome.commit_lens,
        outcome.tokens,
        step,
        block.serial,
        out,
        outcome.anchors.stride(0),
        outcome.tokens.stride(0),
        out.shape[1],
        B=B,
        SLOTS=RESULT_SLOTS,
        HEAD=HEADER,
        BLOCK=triton.next_power_of_2(B),
        num_warps=1,
    )
    _count_step_kernel[(1,)](step, block.entries.count, num_warps=1)
