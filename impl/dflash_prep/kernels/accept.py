"""Greedy acceptance of a verified block (section 6 step 7).

The target's argmax of position j says what should follow column j. The leading run of agreeing drafts is accepted, and
the target's own token after that run is the bonus, the next step's anchor.
"""

from dataclasses import dataclass

import torch

from dflash_prep.device import HAS_TRITON, use_triton

if HAS_TRITON:
    import triton
    import triton.language as tl

SLOTS = 2
"""Results of step N are still read (result copy, FutureMap) while step N+1 writes; by N+2 the host has fenced N."""


@dataclass(frozen=True, slots=True)
class Accepted:
    """One step's acceptance for bs requests, on the device."""

    accept_lens: torch.Tensor  # int32 [bs], accepted drafts, 0..B-1
    commit_lens: torch.Tensor  # int32 [bs], accepted + 1
    bonus_tokens: torch.Tensor  # int64 [bs]
    out_tokens: torch.Tensor  # int64 [bs, B]; columns [0, commit) are the committed tokens
    new_seq_lens: torch.Tensor  # int64 [bs], prefix + commit

    def __getitem__(self, rows: slice) -> "Accepted":
        """The same result restricted to `rows`; views."""
        return Accepted(
            self.accept_lens[rows],
            self.commit_lens[rows],
            self.bonus_tokens[rows],
            self.out_tokens[rows],
            self.new_seq_lens[rows],
        )


class AcceptBuffers:
    """Two rotating slots of outputs. `accept_lens` has a single buffer: it is consumed within its own step."""

    def __init__(self, capacity: int, B: int, device: torch.device | str) -> None:
        accept_lens = torch.zeros(capacity, dtype=torch.int32, device=device)
        self._slots = [
            Accepted(
                accept_lens,
                torch.zeros(capacity, dtype=torch.int32, device=device),
                torch.zeros(capacity, dtype=torch.int64, device=device),
                torch.zeros((capacity, B), dtype=torch.int64, device=device),
                torch.zeros(capacity, dtype=torch.int64, device=device),
            )
            for _ in range(SLOTS)
        ]
        self._turn = 0

    @property
    def capacity(self) -> int:
        return self._slots[0].accept_lens.numel()

    def take(self, bs: int) -> Accepted:
        """Views [:bs] of the next slot. ValueError if they do not fit."""
        if bs > self.capacity:
            raise ValueError(f"{bs} requests do not fit accept buffers for {self.capacity}")
        slot = self._slots[self._turn]
        self._turn = (self._turn + 1) % SLOTS
        return slot[:bs]


def greedy_accept(
    draft_tokens: torch.Tensor, target_tokens: torch.Tensor, prefix_lens: torch.Tensor, out: Accepted
) -> None:
    """Fill `out` from draft_tokens int64 [bs, B] (column 0 the anchor), target_tokens int64 [bs, B], prefix int64 [bs].

    accept = length of the leading run with draft[j+1] == target[j], j < B-1; bonus = target[accept];
    commit = accept + 1; new length = prefix + commit; out row = drafts shifted left by one with the bonus at index
    accept. Positions after the bonus hold leftover drafts; the last column is 0 unless it is the bonus.
    """
    if use_triton(draft_tokens):
        greedy_accept_triton(draft_tokens, target_tokens, prefix_lens, out)
    else:
        greedy_accept_torch(draft_tokens, target_tokens, prefix_lens, out)


def greedy_accept_torch(
    draft_tokens: torch.Tensor, target_tokens: torch.Tensor, prefix_lens: torch.Tensor, out: Accepted
) -> None:
    """The oracle of `greedy_accept_triton`."""
    agree = draft_tokens[:, 1:] == target_tokens[:, :-1]
    accept = agree.to(torch.int32).cumprod(dim=1).sum(dim=1)
    bonus = target_tokens.gather(1, accept[:, None])
    out.accept_lens.copy_(accept)
    out.commit_lens.copy_(accept + 1)
    out.bonus_tokens.copy_(bonus[:, 0])
    out.new_seq_lens.copy_(prefix_lens + accept + 1)
    out.out_tokens[:, :-1] = draft_tokens[:, 1:]
    out.out_tokens[:, -1] = 0
    out.out_tokens.scatter_(1, accept[:, None], bonus)


if HAS_TRITON:

    @triton.jit
    def _greedy_accept_kernel(
        draft_ptr,  # int64 [bs, B], last dimension contiguous
        target_ptr,  # int64 [bs, B], last dimension contiguous
        prefix_ptr,  # int64 [bs]
        # outputs
        accept_ptr,  # int32 [bs]
        commit_ptr,  # int32 [bs]
        bonus_ptr,  # int64 [bs]
        out_ptr,  # int64 [bs, B], last dimension contiguous
        new_lens_ptr,  # int64 [bs]
        # scalars
        draft_stride,
        target_stride,
        out_stride,
        B: tl.constexpr,
        BLOCK: tl.constexpr,
    ):
        row = tl.program_id(0).to(tl.int64)
        column = tl.arange(0, BLOCK)
        has_draft = column < B - 1
        draft = tl.load(draft_ptr + row * draft_stride + column + 1, mask=has_draft, other=0)
        target = tl.load(target_ptr + row * target_stride + column, mask=has_draft, other=0)
        agrees = has_draft & (draft == target)
        # The first disagreeing column is the run's length; column B-1 has no draft and always disagrees.
        accept = tl.min(tl.where(agrees, BLOCK, column), axis=0)
        bonus = tl.load(target_ptr + row * target_stride + accept)
        tl.store(accept_ptr + row, accept)
        tl.store(commit_ptr + row, accept + 1)
        tl.store(bonus_ptr + row, bonus)
        tl.store(new_lens_ptr + row, tl.load(prefix_ptr + row) + accept + 1)
        tl.store(out_ptr + row * out_stride + column, tl.where(column == accept, bonus, draft), mask=column < B)


def greedy_accept_triton(
    draft_tokens: torch.Tensor, target_tokens: torch.Tensor, prefix_lens: torch.Tensor, out: Accepted
) -> None:
    """One program a request."""
    bs, B = draft_tokens.shape
    if bs == 0:
        return
    _greedy_accept_kernel[(bs,)](
        draft_tokens,
        target_tokens,
        prefix_lens.contiguous(),
        out.accept_lens,
        out.commit_lens,
        out.bonus_tokens,
        out.out_tokens,
        out.new_seq_lens,
        draft_tokens.stride(0),
        target_tokens.stride(0),
        out.out_tokens.stride(0),
        B=B,
        BLOCK=triton.next_power_of_2(B),
    )
