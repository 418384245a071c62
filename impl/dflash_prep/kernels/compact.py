"""The compact draft cache: draft attention sees the last W committed tokens only (sections 5.1 to 5.4).

The draft worker owns a private `req_to_token` table over the same KV slots. Before every draft forward its rows are
rebuilt: the page-aligned suffix of the target row, then the B verify slots. Two choices, each by an argument:

- rows: gather a rectangle and pack it (legacy, two host synchronisations), or one kernel (#31468, moved in #31677);
- host lengths: copy the exact ones (legacy, a third synchronisation), or plan with an upper bound (#31468).
"""

from dataclasses import dataclass

import torch

from dflash_prep.device import HAS_TRITON, use_triton
from dflash_prep.kernels.host_lens import HostLens
from dflash_prep.ranges import Range, span

if HAS_TRITON:
    import triton
    import triton.language as tl

_REBUILD_BLOCK = 256
"""Columns copied per loop turn of the fused kernel, as published."""


@dataclass(frozen=True, slots=True)
class CompactWindow:
    """Draft window of `window` tokens over pages of `page_size` tokens."""

    window: int
    page_size: int

    def __post_init__(self) -> None:
        if self.window < 1 or self.page_size < 1:
            raise ValueError(f"window and page size must be positive, not {self.window} and {self.page_size}")

    def device_lens(self, seq_lens: torch.Tensor) -> torch.Tensor:
        """Exact compact length of each request: int64 [bs] -> int32 [bs], same device (section 5.1).

        The suffix must start on a page boundary because paged attention derives its page table from local positions,
        so up to P-1 older tokens stay. Equals L for L < W, otherwise W + (L - W) mod P: a sawtooth, not monotone.
        """
        visible = seq_lens.clamp(max=self.window)
        if self.page_size <= 1:
            return visible.to(torch.int32)
        start = seq_lens - visible
        return (seq_lens - (start - start % self.page_size)).to(torch.int32)

    def host_bound(self, host_lens: torch.Tensor) -> torch.Tensor:
        """Upper bound min(len, W + P): CPU int [bs] -> CPU int32 [bs] (section 5.2, #31468).

        It dominates `device_lens` of every length and is monotone, so it still dominates when fed an over-estimate.
        The exact formula on the host would not: at W 4096, P 64 a reserved 4160 gives 4096, yet a true 4100 needs 4100.
        """
        page = self.page_size if self.page_size > 1 else 0
        return host_lens.to(torch.int64).clamp(max=self.window + page).to(torch.int32)

    def min_draft_width(self, B: int) -> int:
        """Columns a draft row must have: the longest suffix W + P - 1 and the verify block."""
        return self.window + self.page_size - 1 + B


@dataclass(frozen=True, slots=True)
class RebuildInputs:
    """Tables and lengths of one rebuild, all on the device. The same pool index addresses both tables."""

    draft_table: torch.Tensor  # int32 [rows, draft width], written
    target_table: torch.Tensor  # int32 [rows, target width]
    pool_indices: torch.Tensor  # int64 [bs]
    seq_lens: torch.Tensor  # int64 [bs], exact committed lengths
    verify_slots: torch.Tensor  # int64 [bs, B], any row stride


@dataclass(frozen=True, slots=True)
class CompactLens:
    """Lengths for the draft forward after a rebuild."""

    prefix_lens: torch.Tensor  # int32 [bs], device, exact
    host_lens: torch.Tensor  # int32 [bs], CPU, exact (legacy) or an upper bound

    @property
    def host_sum(self) -> int:
        """Sum of the host lengths; an operation on CPU memory, no device synchronisation."""
        return int(self.host_lens.sum())


def rebuild_compact(window: CompactWindow, inputs: RebuildInputs, host: HostLens | None, *, fused: bool) -> CompactLens:
    """Rebuild the draft rows of this batch and return the draft's lengths (#31468; sections 5.2 to 5.4).

    `host` are lengths the host knows, exact or reserved, from which it gets the bound; None copies the exact compact
    lengths (legacy, one synchronisation). `fused` rebuilds the rows in one kernel; otherwise legacy packing (two). Runs
    on the current stream, after the block prep that made `verify_slots`. Columns from prefix + B on keep their content.
    Raises ValueError when the draft row is too narrow: the write has no column bound and would hit the next row.
    """
    with span(Range.REBUILD_COMPACT):
        if fused:
            prefix_lens = rebuild_rows(window, inputs)
        else:
            _check_width(window, inputs)
            prefix_lens = window.device_lens(inputs.seq_lens)
            _rebuild_rows_packed(inputs, inputs.seq_lens - prefix_lens, prefix_lens)
        return CompactLens(prefix_lens, prefix_lens.cpu() if host is None else window.host_bound(host.lens))


def rebuild_rows(window: CompactWindow, inputs: RebuildInputs) -> torch.Tensor:
    """The device half of a fused rebuild, which can be captured: rows rebuilt, exact compact lengths int32 [bs]."""
    _check_width(window, inputs)
    prefix_lens = window.device_lens(inputs.seq_lens)
    rebuild = rebuild_rows_triton if use_triton(inputs.draft_table) else rebuild_rows_torch
    rebuild(inputs, inputs.seq_lens - prefix_lens, prefix_lens)
    return prefix_lens


def _check_width(window: CompactWindow, inputs: RebuildInputs) -> None:
    need, have = window.min_draft_width(inputs.verify_slots.shape[1]), inputs.draft_table.shape[1]
    if have < need:
        raise ValueError(f"draft rows of {have} columns are too narrow for window + page - 1 + block = {need}")


def rebuild_legacy(inputs: RebuildInputs, prefix_lens: torch.Tensor) -> torch.Tensor:
    """The whole path before #31468: three synchronisations. Returns the exact lengths on the CPU, int32 [bs]."""
    _rebuild_rows_packed(inputs, inputs.seq_lens - prefix_lens, prefix_lens)
    return prefix_lens.cpu()  # sync 3


def _rebuild_rows_packed(inputs: RebuildInputs, suffix_start: torch.Tensor, prefix_lens: torch.Tensor) -> None:
    """Rectangle, mask, pack, assign twice (section 5.3). `suffix_start` int64, `prefix_lens` int32 [bs].

    Synchronises the host exactly twice on a GPU: `item()` and the mask's hidden nonzero.
    """
    bs, B = inputs.verify_slots.shape
    if bs == 0:
        return
    max_len = int(prefix_lens.max().item())  # sync 1
    columns = torch.arange(max_len, device=prefix_lens.device)
    inside = columns < prefix_lens[:, None]
    source = torch.where(inside, suffix_start[:, None] + columns, 0)
    packed = inputs.target_table[inputs.pool_indices[:, None], source][inside]  # sync 2
    _write_packed(inputs.draft_table, inputs.pool_indices, torch.zeros_like(prefix_lens), prefix_lens, packed)
    block = torch.full_like(prefix_lens, B)
    _write_packed(inputs.draft_table, inputs.pool_indices, prefix_lens, block, inputs.verify_slots.reshape(-1))


def _write_packed(
    table: torch.Tensor, pool_indices: torch.Tensor, start: torch.Tensor, lens: torch.Tensor, packed: torch.Tensor
) -> None:
    """table[pool_i, start_i : start_i + len_i] = the i-th piece of `packed`, without a synchronisation of its own."""
    total = packed.numel()
    offsets = lens.cumsum(0) - lens
    row = torch.repeat_interleave(pool_indices, lens, output_size=total)
    shift = torch.repeat_interleave(start - offsets, lens, output_size=total)
    column = torch.arange(total, device=table.device) + shift
    table[row, column] = packed.to(table.dtype)


def rebuild_rows_torch(inputs: RebuildInputs, suffix_start: torch.Tensor, prefix_lens: torch.Tensor) -> None:
    """The oracle of `rebuild_rows_triton`: row by row, as section 5.4 reads. `suffix_start` int64, lens int32 [bs]."""
    B = inputs.verify_slots.shape[1]
    for i, (pool, start, n) in enumerate(
        zip(inputs.pool_indices.tolist(), suffix_start.tolist(), prefix_lens.tolist(), strict=True)
    ):
        inputs.draft_table[pool, :n] = inputs.target_table[pool, start : start + n]
        inputs.draft_table[pool, n : n + B] = inputs.verify_slots[i].to(torch.int32)


if HAS_TRITON:

    @triton.jit
    def _rebuild_kernel(
        target_ptr,  # int32 [rows, target width], last dimension contiguous
        pool_ptr,  # int64 [bs]
        suffix_start_ptr,  # int64 [bs]
        prefix_lens_ptr,  # int32 [bs]
        verify_ptr,  # int64 [bs, B], last dimension contiguous
        # outputs
        draft_ptr,  # int32 [rows, draft width], last dimension contiguous
        # scalars
        target_stride,
        verify_stride,
        draft_stride,
        B: tl.constexpr,
        BLOCK: tl.constexpr,
    ):
        row = tl.program_id(0).to(tl.int64)
        pool = tl.load(pool_ptr + row).to(tl.int64)
        start = tl.load(suffix_start_ptr + row)
        n = tl.load(prefix_lens_ptr + row)
        total = n + B
        source = target_ptr + pool * target_stride + start
        verify = verify_ptr + row * verify_stride
        destination = draft_ptr + pool * draft_stride
        first = 0
        while first < total:
            column = first + tl.arange(0, BLOCK)
            is_prefix = column < n
            is_block = (column >= n) & (column < total)
            kept = tl.load(source + column, mask=is_prefix, other=0)
            drafted = tl.load(verify + (column - n), mask=is_block, other=0).to(tl.int32)
            tl.store(destination + column, tl.where(is_prefix, kept, drafted), mask=column < total)
            first += BLOCK


def rebuild_rows_triton(inputs: RebuildInputs, suffix_start: torch.Tensor, prefix_lens: torch.Tensor) -> None:
    """One program a request over its real, not padded, batch; no data-dependent shape, no host read (#31468)."""
    bs, B = inputs.verify_slots.shape
    if bs == 0:
        return
    _rebuild_kernel[(bs,)](
        inputs.target_table,
        inputs.pool_indices.contiguous(),
        suffix_start.contiguous(),
        prefix_lens.contiguous(),
        inputs.verify_slots,
        inputs.draft_table,
        inputs.target_table.stride(0),
        inputs.verify_slots.stride(0),
        inputs.draft_table.stride(0),
        B=B,
        BLOCK=_REBUILD_BLOCK,
    )
