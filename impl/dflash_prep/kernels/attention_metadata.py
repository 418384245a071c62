"""Attention metadata of the verify forward without asking the device for a number (section 8.3, #31468).

Three changes, each beside its legacy form: a static context bound instead of `max().item()`; sequence lengths advanced
by T straight into the captured int32 buffer; local lengths under decode context parallelism (DCP) from a formula.
"""

import math
from dataclasses import dataclass

import torch

from dflash_prep.device import HAS_TRITON, use_triton

if HAS_TRITON:
    import triton
    import triton.language as tl

_TABLE_KERNEL_TOKENS = 4096
"""Tokens of one request whose pages one program of the page-table kernel looks up."""
_ATTENTION_KERNEL_TOKENS = 128
"""Tokens per block of the attention kernel that reads the table; it reads whole blocks of entries."""


def max_seq_len(
    seq_lens_cpu: torch.Tensor | None, seq_lens: torch.Tensor, max_context: int, T: int, *, static: bool
) -> int:
    """Longest sequence of the batch including T new tokens; it only sizes the block table and a scheduling hint.

    From host lengths where they exist, int [bs] CPU. Otherwise the model's context length (`static`, #31468), or the
    device's maximum, for which the host waits (legacy).
    """
    if seq_lens_cpu is not None:
        longest = int(seq_lens_cpu.max()) if seq_lens_cpu.numel() else 0
    elif static:
        longest = max_context
    else:
        longest = int(seq_lens.max().item()) if seq_lens.numel() else 0  # legacy: one sync
    return longest + T


def _table_width(max_tokens: int, page_size: int) -> int:
    """Block-table columns for `max_tokens`, padded up to a multiple of both kernels' entries per block."""
    entries = math.lcm(max(1, _TABLE_KERNEL_TOKENS // page_size), max(1, _ATTENTION_KERNEL_TOKENS // page_size))
    pages = -(-max_tokens // page_size)
    return -(-pages // entries) * entries


@dataclass(frozen=True, slots=True)
class VerifyMetadata:
    """Buffers whose addresses a captured verify graph holds."""

    seq_lens_k: torch.Tensor  # int32 [capacity], lengths including the T new tokens
    block_table: torch.Tensor  # int32 [capacity, width], page numbers, -1 where never written
    page_size: int

    @classmethod
    def allocate(cls, capacity: int, max_tokens: int, page_size: int, device: torch.device | str) -> "VerifyMetadata":
        """For `capacity` requests of at most `max_tokens` tokens, block included."""
        width = _table_width(max_tokens, page_size)
        return cls(
            torch.zeros(capacity, dtype=torch.int32, device=device),
            torch.full((capacity, width), -1, dtype=torch.int32, device=device),
            page_size,
        )


@dataclass(frozen=True, slots=True)
class MetadataInputs:
    """What the metadata is derived from, on the device."""

    seq_lens: torch.Tensor  # int64 [bs], without the T new tokens
    pool_indices: torch.Tensor  # int64 [bs]
    req_to_token: torch.Tensor  # int32 [rows, row width]


def prepare_verify_metadata(inputs: MetadataInputs, T: int, out: VerifyMetadata, *, fused: bool) -> None:
    """Write rows [0, bs) of `out`: lengths + T, and the pages that they cover.

    `fused` (#31468): one kernel adds and narrows into the captured buffer, which the page-table kernel then reads.
    Legacy: a sum, a narrowing temporary, a copy; the page-table kernel reads the temporary. Neither synchronises.
    """
    bs = inputs.seq_lens.numel()
    if bs > out.seq_lens_k.numel():
        raise ValueError(f"{bs} requests do not fit verify metadata for {out.seq_lens_k.numel()}")
    if fused:
        lens = _advance_seq_lens(inputs.seq_lens, T, out.seq_lens_k)
    else:
        lens = (inputs.seq_lens + T).to(torch.int32)
        out.seq_lens_k[:bs].copy_(lens)
    _fill_block_table(inputs, lens, out)


def _advance_seq_lens(seq_lens: torch.Tensor, T: int, out: torch.Tensor) -> torch.Tensor:
    """out[:bs] = seq_lens + T, int64 -> int32 through `out=`: one kernel, no temporary. Returns the view out[:bs]."""
    return torch.add(seq_lens, T, out=out[: seq_lens.numel()])


def _fill_block_table(inputs: MetadataInputs, lens: torch.Tensor, out: VerifyMetadata) -> None:
    """block_table[i, p] = req_to_token[pool_i, p * P] // P for p < ceil(lens_i / P); other entries stay.

    `lens` int32 [bs].
    """
    if use_triton(out.block_table):
        fill_block_table_triton(inputs, lens, out)
    else:
        fill_block_table_torch(inputs, lens, out)


def fill_block_table_torch(inputs: MetadataInputs, lens: torch.Tensor, out: VerifyMetadata) -> None:
    """The oracle of `fill_block_table_triton`."""
    P, table = out.page_size, out.block_table[: lens.numel()]
    first_slots = inputs.req_to_token[inputs.pool_indices, ::P][:, : table.shape[1]]
    shown = first_slots.shape[1]
    covered = torch.arange(shown, device=lens.device) * P < lens[:, None]
    table[:, :shown] = torch.where(covered, first_slots // P, table[:, :shown])


if HAS_TRITON:

    @triton.jit
    def _block_table_kernel(
        req_to_token_ptr,  # int32 [rows, row width], last dimension contiguous
        pool_ptr,  # int64 [bs]
        lens_ptr,  # int32 [bs]
        # outputs
        table_ptr,  # int32 [capacity, width], last dimension contiguous
        # scalars
        row_stride,
        table_stride,
        width,
        P: tl.constexpr,
        ENTRIES: tl.constexpr,
    ):
        row = tl.program_id(0).to(tl.int64)
        page = tl.program_id(1) * ENTRIES + tl.arange(0, ENTRIES)
        pool = tl.load(pool_ptr + row).to(tl.int64)
        pages = (tl.load(lens_ptr + row) + P - 1) // P
        covered = (page < pages) & (page < width)
        slot = tl.load(req_to_token_ptr + pool * row_stride + page.to(tl.int64) * P, mask=covered, other=0)
        tl.store(table_ptr + row * table_stride + page, slot // P, mask=covered)


def fill_block_table_triton(inputs: MetadataInputs, lens: torch.Tensor, out: VerifyMetadata) -> None:
    """One program per request and 4096 of its tokens."""
    bs, width = lens.numel(), out.block_table.shape[1]
    if bs == 0:
        return
    entries = triton.next_power_of_2(max(1, _TABLE_KERNEL_TOKENS // out.page_size))
    _block_table_kernel[(bs, triton.cdiv(width, entries))](
        inputs.req_to_token,
        inputs.pool_indices.contiguous(),
        lens.contiguous(),
        out.block_table,
        inputs.req_to_token.stride(0),
        out.block_table.stride(0),
        width,
        P=out.page_size,
        ENTRIES=entries,
    )


@dataclass(frozen=True, slots=True)
class _WindowPlan:
    """Lengths with which a backend plans one kind of layer, windowed or full."""

    prefix_lens: torch.Tensor  # int [bs], device
    host_lens: torch.Tensor  # int [bs], CPU, at least the device's (plus T where they include the block)
    prefix_sum: int  # of the prefixes, from the host's lengths


def plan_window(
    prefix_lens: torch.Tensor, host_lens: torch.Tensor, T: int, window: int | None, *, host_has_block: bool
) -> _WindowPlan:
    """Clip lengths to a sliding window; None plans a full-attention layer with the originals.

    `prefix_lens` int [bs] device, without the T new tokens; `host_lens` int [bs] CPU, including them if
    `host_has_block`. The window bounds the prefix, so host lengths that include the block are bounded by window + T.
    """
    block = T if host_has_block else 0
    if window is not None:
        prefix_lens = prefix_lens.clamp(max=window)
        host_lens = host_lens.clamp(max=window + block)
    return _WindowPlan(prefix_lens, host_lens, int(host_lens.sum()) - block * host_lens.numel())


def dcp_local_lens(lens: torch.Tensor, n: int, rank: int, *, minimum: int = 0) -> torch.Tensor:
    """Tokens of each request that DCP rank `rank` of `n` owns, by the rule position mod n == rank; int [bs].

    Exact; sums to `lens` over the ranks. Engines pass minimum=1, since attention over no keys at all is undefined.
    """
    return (lens // n + (lens % n > rank)).clamp(min=minimum)


def dcp_local_bound(lens: torch.Tensor, n: int) -> torch.Tensor:
    """ceil(lens / n), #31468's form: the same for every rank and never below a rank's exact count."""
    return (lens + n - 1) // n


def dcp_local_lens_from(start: torch.Tensor, lens: torch.Tensor, n: int, rank: int) -> torch.Tensor:
    """As `dcp_local_lens` for the positions [start, start + lens), for windows that do not begin at 0."""
    first = start + (rank - start) % n
    return ((start + lens - first + n - 1) // n).clamp(min=0)


def dcp_max_local_len(local_lens: torch.Tensor, max_context: int, T: int, n: int, *, static: bool) -> int:
    """Longest local length, asked for by every layer.

    `static` (#31468): ceil((max_context + T) / n), host integers only. Legacy reads the device's maximum: one
    synchronisation per call, 61 a step in the published 61-layer model.
    """
    if static:
        return -(-(max_context + T) // n)
    return int(local_lens.max().item())
