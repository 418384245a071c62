"""The checksum language model as Triton kernels: five launches where `checksum_lm.py` takes dozens, the same integers.

`ChecksumModel` is the oracle of everything here. Writing and reading are different kernels, because what one request
writes another may read if a page is theirs by mistake: all of a block's KV is there before anything is read back. No
kernel reads on the host or depends on data for its shape, so all of them can be captured; each is compiled by the run
that precedes a capture (`cuda_device.WARM_UP_RUNS`). Slot 0 is never written, so it reads as token 0.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch

from dflash_prep.device import HAS_TRITON, use_triton
from dflash_prep.errors import SettingError
from dflash_prep.loop.checksum import CONTEXT, DRAFT_SALT, MASK31, POSITION_WEIGHT, VOCAB, ModelKind
from dflash_prep.loop.checksum_lm import MASK_ID, ChecksumModel, PageTableView, TableView

if HAS_TRITON or TYPE_CHECKING:
    import triton
    import triton.language as tl

    _MASK31 = tl.constexpr(MASK31)
    _POSITION_WEIGHT = tl.constexpr(POSITION_WEIGHT)
    _DRAFT_SALT = tl.constexpr(DRAFT_SALT)
    _VOCAB = tl.constexpr(VOCAB)
    _CONTEXT = tl.constexpr(CONTEXT)
    _MASK_ID = tl.constexpr(MASK_ID)

    @triton.jit
    def _mix(value):
        """`checksum.mix_of` of int64 values."""
        value = value ^ (value >> 15)
        value = (value * 0x2C1B3C6D) & _MASK31
        value = value ^ (value >> 12)
        value = (value * 0x297A2D39) & _MASK31
        return value ^ (value >> 15)

    @triton.jit
    def _hash(weighted_sum, position):
        """`checksum.hash_of` of int64 values."""
        return _mix((weighted_sum + (position + 1) * _POSITION_WEIGHT) & _MASK31)

    @triton.jit
    def _row(table_ptr, rows_ptr, row_stride, request):
        """Where the request's row of the table begins."""
        if rows_ptr is None:
            row = request
        else:
            row = tl.load(rows_ptr + request).to(tl.int64)
        return table_ptr + row * row_stride

    @triton.jit
    def _slots(row_ptr, length, width, column, is_wanted, PAGE_SIZE: tl.constexpr):
        """Slots int64 of `column` int64; 0 where it is not wanted or outside [0, length)."""
        inside = is_wanted & (column >= 0) & (column < length)
        entry = tl.minimum(tl.maximum(column // PAGE_SIZE, 0), width - 1)
        page = tl.load(row_ptr + entry, mask=inside, other=0).to(tl.int64)
        return tl.where(inside, page * PAGE_SIZE + column % PAGE_SIZE, 0)

    @triton.jit
    def _write_target_kernel(
        table_ptr,  # int32 [rows, width], last dimension contiguous
        rows_ptr,  # int64 [bs]; None: request i reads row i
        lens_ptr,  # int32 or int64 [bs]
        positions_ptr,  # int64 [bs, B]
        tokens_ptr,  # int64 [bs, B]
        # outputs
        kv_ptr,  # int32 [num_slots]
        # scalars
        width,
        row_stride,
        B: tl.constexpr,
        PAGE_SIZE: tl.constexpr,
        BLOCK: tl.constexpr,
    ):
        request = tl.program_id(0).to(tl.int64)
        lane = tl.arange(0, BLOCK)
        length = tl.load(lens_ptr + request).to(tl.int64)
        column = tl.load(positions_ptr + request * B) + lane
        row_ptr = _row(table_ptr, rows_ptr, row_stride, request)
        slot = _slots(row_ptr, length, width, column, lane < B, PAGE_SIZE)
        token = tl.load(tokens_ptr + request * B + lane, mask=lane < B, other=0)
        tl.store(kv_ptr + slot, token.to(tl.int32), mask=slot != 0)

    @triton.jit
    def _target_kernel(
        kv_ptr,  # int32 [num_slots]
        table_ptr,  # int32 [rows, width], last dimension contiguous
        rows_ptr,  # int64 [bs]; None: request i reads row i
        lens_ptr,  # int32 or int64 [bs]
        positions_ptr,  # int64 [bs, N], consecutive in a row
        weights_ptr,  # int64 [CONTEXT]
        # outputs
        next_ptr,  # int64 [bs, N]: the token after each position
        # scalars
        width,
        row_stride,
        N: tl.constexpr,
        PAGE_SIZE: tl.constexpr,
        BLOCK: tl.constexpr,
    ):
        request = tl.program_id(0).to(tl.int64)
        lane = tl.arange(0, BLOCK)
        back = tl.arange(0, _CONTEXT)
        length = tl.load(lens_ptr + request).to(tl.int64)
        first = tl.load(positions_ptr + request * N) - (_CONTEXT - 1)
        column = first + lane[:, None] + back[None, :]
        row_ptr = _row(table_ptr, rows_ptr, row_stride, request)
        slot = _slots(row_ptr, length, width, column, (lane < N)[:, None], PAGE_SIZE)
        seen = tl.load(kv_ptr + slot).to(tl.int64)
        weight = tl.load(weights_ptr + back)
        position = tl.load(positions_ptr + request * N + lane, mask=lane < N, other=0)
        hashed = _hash(tl.sum(seen * weight[None, :], axis=1), position)
        tl.store(next_ptr + request * N + lane, hashed % _VOCAB, mask=lane < N)

    @triton.jit
    def _write_draft_kernel(
        slots_ptr,  # int64 [bs, B]
        block_ids_ptr,  # int64 [bs, B]
        positions_ptr,  # int64 [bs, B]
        # outputs
        kv_ptr,  # int32 [num_slots]
        # scalars
        B: tl.constexpr,
        BLOCK: tl.constexpr,
    ):
        lane = tl.arange(0, BLOCK)
        here = tl.program_id(0).to(tl.int64) * B + lane
        slot = tl.load(slots_ptr + here, mask=lane < B, other=0)
        anchor = tl.load(block_ids_ptr + here, mask=lane < B, other=0)
        position = tl.load(positions_ptr + here, mask=lane < B, other=0)
        token = tl.where(lane == 0, anchor, _MASK_ID + position)
        tl.store(kv_ptr + slot, token.to(tl.int32), mask=slot != 0)

    @triton.jit
    def _propose_kernel(
        kv_ptr,  # int32 [num_slots]
        table_ptr,  # int32 [rows, width], last dimension contiguous
        rows_ptr,  # int64 [bs]
        lens_ptr,  # int32 or int64 [bs]: the prefix, without the block
        positions_ptr,  # int64 [bs, B]
        weights_ptr,  # int64 [CONTEXT]
        # outputs
        drafts_ptr,  # int64 [bs, B - 1]
        # scalars
        width,
        row_stride,
        threshold,
        B: tl.constexpr,
        BLOCK: tl.constexpr,
    ):
        """Tokens are numbered from the oldest of the anchor's context; proposal c hashes those from c to c + 7.

        Lane c of `weighted` is that sum over the tokens that are known: first the context and the anchor, number 7;
        then every proposal adds itself to the lanes that reach it.
        """
        request = tl.program_id(0).to(tl.int64)
        lane = tl.arange(0, BLOCK)
        back = tl.arange(0, _CONTEXT)
        prefix = tl.load(lens_ptr + request).to(tl.int64)
        row_ptr = _row(table_ptr, rows_ptr, row_stride, request)
        is_mask = (lane > 0) & (lane < B)
        slot = _slots(row_ptr, prefix + B, width, prefix + lane, is_mask, 1)
        position = tl.load(positions_ptr + request * B + lane, mask=lane < B, other=0)
        difference = tl.load(kv_ptr + slot).to(tl.int64) - _MASK_ID - position
        damage = tl.sum(tl.where(is_mask, tl.abs(difference), 0), axis=0)

        number = lane[:, None] + back[None, :]
        column = prefix - (_CONTEXT - 1) + number
        slot = _slots(row_ptr, prefix + B, width, column, number < _CONTEXT, 1)
        known = tl.load(kv_ptr + slot).to(tl.int64)
        weighted = tl.sum(known * tl.load(weights_ptr + back)[None, :], axis=1)
        for c in tl.static_range(B - 1):
            own = tl.sum(tl.where(lane == c, weighted, 0), axis=0)
            hashed = _hash(own + damage, tl.load(positions_ptr + request * B + c))
            is_miss = _mix(hashed ^ _DRAFT_SALT) >= threshold
            proposal = (hashed % _VOCAB + is_miss.to(tl.int64)) % _VOCAB
            tl.store(drafts_ptr + request * (B - 1) + c, proposal)
            reach = _CONTEXT + c - lane
            weighted += proposal * tl.load(weights_ptr + reach, mask=(reach >= 0) & (reach < _CONTEXT), other=0)

    @triton.jit
    def _keep_kernel(
        slots_ptr,  # int64 [bs, B]
        tokens_ptr,  # int64 [bs, B]
        commit_lens_ptr,  # int32 [bs]
        # outputs
        kv_ptr,  # int32 [num_slots]
        # scalars
        B: tl.constexpr,
        BLOCK: tl.constexpr,
    ):
        request = tl.program_id(0).to(tl.int64)
        lane = tl.arange(0, BLOCK)
        is_kept = (lane < B) & (lane < tl.load(commit_lens_ptr + request))
        slot = tl.load(slots_ptr + request * B + lane, mask=is_kept, other=0)
        token = tl.load(tokens_ptr + request * B + lane, mask=is_kept, other=0)
        tl.store(kv_ptr + slot, token.to(tl.int32), mask=slot != 0)


class TritonChecksumModel(ChecksumModel):
    """`ChecksumModel` with a kernel for everything that a decode step computes; one program a request, one warp each.

    Tensors [bs, B] must be contiguous. Prompts are still stored by torch.
    """

    kind = ModelKind.TRITON

    def target_tokens(self, view: TableView | PageTableView, positions: torch.Tensor) -> torch.Tensor:
        """As `ChecksumModel.target_tokens`."""
        bs, n = positions.shape
        found = torch.empty((bs, n), dtype=torch.int64, device=positions.device)
        if bs:
            table, rows, page_size = view.layout
            _target_kernel[(bs,)](
                self.target_kv,
                table,
                rows,
                view.lens,
                positions,
                self._weights,
                found,
                table.shape[1],
                table.stride(0),
                N=n,
                PAGE_SIZE=page_size,
                BLOCK=triton.next_power_of_2(n),
                num_warps=1,
            )
        return found

    def draft(
        self, view: TableView, block_ids: torch.Tensor, positions: torch.Tensor, verify_slots: torch.Tensor
    ) -> torch.Tensor:
        """As `ChecksumModel.draft`."""
        bs, B = positions.shape
        drafts = torch.empty((bs, B - 1), dtype=torch.int64, device=positions.device)
        if bs == 0:
            return drafts
        shape = {"B": B, "BLOCK": triton.next_power_of_2(B), "num_warps": 1}
        _write_draft_kernel[(bs,)](verify_slots, block_ids, positions, self.draft_kv, **shape)
        table, rows, _ = view.layout
        _propose_kernel[(bs,)](
            self.draft_kv,
            table,
            rows,
            view.lens,
            positions,
            self._weights,
            drafts,
            table.shape[1],
            table.stride(0),
            self._threshold,
            **shape,
        )
        return drafts

    def _write_target(self, view: TableView | PageTableView, tokens: torch.Tensor, positions: torch.Tensor) -> None:
        bs, B = positions.shape
        if bs:
            table, rows, page_size = view.layout
            _write_target_kernel[(bs,)](
                table,
                rows,
                view.lens,
                positions,
                tokens,
                self.target_kv,
                table.shape[1],
                table.stride(0),
                B=B,
                PAGE_SIZE=page_size,
                BLOCK=triton.next_power_of_2(B),
                num_warps=1,
            )

    def keep_committed(self, draft_tokens: torch.Tensor, verify_slots: torch.Tensor, commit_lens: torch.Tensor) -> None:
        """As `ChecksumModel.keep_committed`."""
        bs, B = draft_tokens.shape
        if bs:
            block = triton.next_power_of_2(B)
            _keep_kernel[(bs,)](verify_slots, draft_tokens, commit_lens, self.draft_kv, B=B, BLOCK=block, num_warps=1)


def checksum_model(
    kind: ModelKind, num_slots: int, block: int, hit_rate: float, device: torch.device | str
) -> ChecksumModel:
    """The model that `kind` asks for. SettingError if it asks for kernels that cannot run on `device`."""
    can_run = use_triton(torch.empty(0, device=device))
    if kind is ModelKind.TRITON and not can_run:
        raise SettingError(
            "--model triton needs a GPU and triton, or both variables of Triton's interpreter; see device.py"
        )
    model = TritonChecksumModel if can_run and kind is not ModelKind.TORCH else ChecksumModel
    return model(num_slots, block, hit_rate, device)
