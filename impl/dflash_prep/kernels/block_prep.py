"""Build the block that one decode step verifies: B positions a request, anchor first (decode step, before the draft).

Column 0 is the anchor: the last bonus token, sampled already, its KV not yet written. Columns 1..B-1 are masks that
the draft model fills. A device operation that fails is an error here; there is no silent, permanent fallback to torch.
"""

from dataclasses import dataclass

import torch

from dflash_prep.device import HAS_TRITON, use_triton

if HAS_TRITON:
    import triton
    import triton.language as tl

_MIN_CAPACITY = 32
"""Rows of the first allocation; growth doubles, so that a growing batch reallocates a few times only."""


@dataclass(frozen=True, slots=True)
class BlockBuffers:
    """Per-step scratch of the worker, reused while the batch fits. All on the device but `host_lens`."""

    block_ids: torch.Tensor  # int64 [capacity, B]
    positions: torch.Tensor  # int64 [capacity, B]
    draft_tokens: torch.Tensor  # int64 [capacity, B]
    verify_slots: torch.Tensor  # int64 [capacity, B]
    block_ends: torch.Tensor  # int32 [capacity], prefix + B
    host_lens: torch.Tensor  # int32 [capacity], CPU, not pinned: it is never the source of a copy

    @classmethod
    def allocate(cls, capacity: int, B: int, device: torch.device | str) -> "BlockBuffers":
        """Uninitialised buffers for `capacity` requests."""
        wide = [torch.empty((capacity, B), dtype=torch.int64, device=device) for _ in range(4)]
        ends = torch.empty(capacity, dtype=torch.int32, device=device)
        return cls(*wide, ends, torch.empty(capacity, dtype=torch.int32))

    @property
    def capacity(self) -> int:
        return self.block_ids.shape[0]

    @property
    def B(self) -> int:  # noqa: N802 - the published symbol
        return self.block_ids.shape[1]

    def fitting(self, bs: int) -> "BlockBuffers":
        """These buffers if they hold `bs` requests, otherwise new ones of max(bs, 32, 2 * capacity) rows."""
        if bs <= self.capacity:
            return self
        return BlockBuffers.allocate(max(bs, _MIN_CAPACITY, 2 * self.capacity), self.B, self.block_ids.device)


@dataclass(frozen=True, slots=True)
class BlockInputs:
    """What the block is built from, all on the device."""

    bonus_tokens: torch.Tensor  # int64 [bs]
    prefix_lens: torch.Tensor  # int64 [bs], exact
    pool_indices: torch.Tensor  # int64 [bs], rows of req_to_token
    req_to_token: torch.Tensor  # int32 [rows, width]


def prepare_block(inputs: BlockInputs, mask_id: int, out: BlockBuffers) -> None:
    """Fill rows [0, bs) of `out.block_ids`, `positions`, `verify_slots` and `block_ends`; rows beyond stay untouched.

    ids = mask everywhere, bonus in column 0; positions = prefix + column; slot = req_to_token[pool, position], or the
    dummy slot 0 where the position lies outside the row (section 6 step 2). No host synchronisation.
    """
    bs = inputs.bonus_tokens.numel()
    if bs > out.capacity:
        raise ValueError(f"{bs} requests do not fit block buffers for {out.capacity}; grow them with fitting() first")
    if use_triton(inputs.req_to_token):
        prepare_block_triton(inputs, mask_id, out)
    else:
        prepare_block_torch(inputs, mask_id, out)


def prepare_block_torch(inputs: BlockInputs, mask_id: int, out: BlockBuffers) -> None:
    """The oracle of `prepare_block_triton`."""
    bs, width = inputs.bonus_tokens.numel(), inputs.req_to_token.shape[1]
    columns = torch.arange(out.B, dtype=torch.int64, device=inputs.prefix_lens.device)
    out.block_ids[:bs] = mask_id
    out.block_ids[:bs, 0] = inputs.bonus_tokens
    positions = inputs.prefix_lens[:, None] + columns
    out.positions[:bs] = positions
    slots = inputs.req_to_token[inputs.pool_indices[:, None], positions.clamp(max=width - 1)]
    out.verify_slots[:bs] = torch.where(positions < width, slots.to(torch.int64), 0)
    out.block_ends[:bs] = inputs.prefix_lens + out.B


if HAS_TRITON:

    @triton.jit
    def _prepare_block_kernel(
        bonus_ptr,  # int64 [bs]
        prefix_ptr,  # int64 [bs]
        pool_ptr,  # int64 [bs]
        req_to_token_ptr,  # int32 [rows, width], last dimension contiguous
        # outputs, all row-contiguous with row stride B
        ids_ptr,  # int64 [capacity, B]
        positions_ptr,  # int64 [capacity, B]
        slots_ptr,  # int64 [capacity, B]
        ends_ptr,  # int32 [capacity]
        # scalars
        mask_id,
        width,
        row_stride,
        B: tl.constexpr,
        BLOCK: tl.constexpr,
    ):
        row = tl.program_id(0).to(tl.int64)
        prefix = tl.load(prefix_ptr + row)
        pool = tl.load(pool_ptr + row).to(tl.int64)
        bonus = tl.load(bonus_ptr + row)
        column = tl.arange(0, BLOCK)
        inside = column < B
        position = prefix + column
        slot = tl.load(req_to_token_ptr + pool * row_stride + position, mask=inside & (position < width), other=0)
        tl.store(ids_ptr + row * B + column, tl.where(column == 0, bonus, mask_id), mask=inside)
        tl.store(positions_ptr + row * B + column, position, mask=inside)
        tl.store(slots_ptr + row * B + column, slot.to(tl.int64), mask=inside)
        tl.store(ends_ptr + row, (prefix + B).to(tl.int32))


def prepare_block_triton(inputs: BlockInputs, mask_id: int, out: BlockBuffers) -> None:
    """One program a request, no loop: B is at most a few dozen."""
    bs = inputs.bonus_tokens.numel()
    if bs == 0:
        return
    _prepare_block_kernel[(bs,)](
        inputs.bonus_tokens.contiguous(),
        inputs.prefix_lens.contiguous(),
        inputs.pool_indices.contiguous(),
        inputs.req_to_token,
        out.block_ids,
        out.positions,
        out.verify_slots,
        out.block_ends,
        mask_id,
        inputs.req_to_token.shape[1],
        inputs.req_to_token.stride(0),
        B=out.B,
        BLOCK=triton.next_power_of_2(out.B),
    )


def assemble_draft_tokens(bonus_tokens: torch.Tensor, drafts: torch.Tensor, out: BlockBuffers) -> torch.Tensor:
    """Write [anchor, B-1 drafts] into `out.draft_tokens` and return its view [bs, B] (section 6 step 5).

    `bonus_tokens` int64 [bs], `drafts` int64 [bs, B-1].
    """
    view = out.draft_tokens[: bonus_tokens.numel()]
    view[:, 0] = bonus_tokens
    view[:, 1:] = drafts
    return view
