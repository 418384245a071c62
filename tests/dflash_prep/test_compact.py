"""The compact draft cache: its exact length, the host's bound on it, and its rebuild, legacy and fused."""

from dataclasses import dataclass

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from dflash_prep import ranges
from dflash_prep.kernels.attention_metadata import MetadataInputs, VerifyMetadata, max_seq_len, prepare_verify_metadata
from dflash_prep.kernels.compact import (
    CompactLens,
    CompactWindow,
    RebuildInputs,
    _rebuild_rows_packed,
    rebuild_compact,
    rebuild_legacy,
    rebuild_rows_torch,
    rebuild_rows_triton,
)
from dflash_prep.kernels.host_lens import HostLens, _HostLensSource, committed_host_lens

POISON = -1


def exact(window: CompactWindow, *lens: int) -> list[int]:
    return window.device_lens(torch.tensor(lens)).tolist()


def bound(window: CompactWindow, *lens: int) -> list[int]:
    return window.host_bound(torch.tensor(lens)).tolist()


@pytest.mark.parametrize(("W", "P"), [(4096, 64), (4096, 1), (128, 32), (64, 1)])
def test_host_bound_dominates_the_exact_length_of_512_random_requests(W: int, P: int) -> None:
    """T1."""
    window = CompactWindow(W, P)
    lens = torch.randint(1, 3 * W, (512,), generator=torch.Generator().manual_seed(0))
    assert bool((window.host_bound(lens) >= window.device_lens(lens)).all())


def test_the_exact_length_is_a_sawtooth_and_the_bound_survives_it() -> None:
    """T2: a longer sequence can have a shorter compact cache, so the exact formula must not run on an over-estimate."""
    window = CompactWindow(4096, 64)
    assert exact(window, 4100, 4160) == [4100, 4096]
    assert bound(window, 4160) == [4160]


@pytest.mark.parametrize(("W", "P"), [(64, 1), (64, 16), (100, 16), (128, 32), (256, 256), (7, 4), (1, 1), (3, 8)])
def test_for_all_lengths_up_to_five_windows(W: int, P: int) -> None:
    """Invariant 12, exhaustively: closed form, range, page-aligned suffix, dominating and monotone bound."""
    window = CompactWindow(W, P)
    lens = torch.arange(0, 5 * W + 2 * P)
    device, host = window.device_lens(lens), window.host_bound(lens)
    assert device.dtype == host.dtype == torch.int32
    closed = torch.where(lens < W, lens, W + (lens - W) % P)
    assert torch.equal(device, closed.to(torch.int32))
    beyond = lens >= W
    assert bool((device[beyond] >= W).all())
    assert bool((device[beyond] <= W + P - 1).all())
    assert bool(((lens - device) % P == 0).all())
    assert bool((host >= device).all())
    assert bool((host[1:] >= host[:-1]).all())


@given(
    W=st.integers(1, 10_000),
    P=st.sampled_from([1, 2, 4, 64, 256]),
    length=st.integers(0, 1 << 20),
    surplus=st.integers(0, 4096),
)
def test_bound_of_any_over_estimate_dominates_the_exact_length(W: int, P: int, length: int, surplus: int) -> None:
    """Invariant 12: the host may feed the reservation instead of the length."""
    window = CompactWindow(W, P)
    assert bound(window, length + surplus)[0] >= exact(window, length)[0]


def test_a_window_or_page_of_nothing_is_refused() -> None:
    with pytest.raises(ValueError, match="positive"):
        CompactWindow(0, 64)
    with pytest.raises(ValueError, match="positive"):
        CompactWindow(64, 0)


@dataclass(frozen=True, slots=True)
class Case:
    bs: int
    W: int
    P: int
    B: int
    seed: int

    @property
    def window(self) -> CompactWindow:
        return CompactWindow(self.W, self.P)

    def inputs(self, device: torch.device) -> RebuildInputs:
        """A pool of 4 * bs rows in random order, target rows of 4W columns, poisoned draft rows."""
        generator = torch.Generator().manual_seed(self.seed)
        rows = 4 * self.bs
        pool = torch.randperm(rows, generator=generator)[: self.bs]
        target = torch.randint(1, 1 << 20, (rows, 4 * self.W), dtype=torch.int32, generator=generator)
        lens = torch.randint(1, 4 * self.W - self.B - 1, (self.bs,), generator=generator)
        slots = torch.randint(1, 1 << 20, (self.bs, self.B), generator=generator)
        draft = torch.full((rows, self.W + self.P + self.B + 8), POISON, dtype=torch.int32)
        return RebuildInputs(*(each.to(device) for each in (draft, target, pool, lens, slots)))


CASES = [Case(1, 64, 1, 8, 0), Case(16, 64, 32, 8, 1), Case(13, 128, 64, 8, 2), Case(7, 512, 64, 16, 3)]


def rebuilt(case: Case, inputs: RebuildInputs, rebuild) -> torch.Tensor:
    """A fresh poisoned draft table after `rebuild`."""
    draft = torch.full_like(inputs.draft_table, POISON)
    fresh = RebuildInputs(draft, inputs.target_table, inputs.pool_indices, inputs.seq_lens, inputs.verify_slots)
    lens = case.window.device_lens(fresh.seq_lens)
    if rebuild is rebuild_legacy:
        rebuild_legacy(fresh, lens)
    else:
        rebuild(fresh, fresh.seq_lens - lens, lens)
    return draft


@pytest.mark.parametrize("case", CASES, ids=str)
def test_fused_rebuild_is_bit_exact_with_legacy_and_leaves_the_tail(case: Case, device: torch.device) -> None:
    """T5."""
    inputs = case.inputs(device)
    legacy = rebuilt(case, inputs, rebuild_legacy)
    for rebuild in (_rebuild_rows_packed, rebuild_rows_torch, rebuild_rows_triton):
        assert torch.equal(rebuilt(case, inputs, rebuild), legacy)
    written = case.window.device_lens(inputs.seq_lens) + case.B
    for pool, end in zip(inputs.pool_indices.tolist(), written.tolist(), strict=True):
        assert bool((legacy[pool, :end] > 0).all())
        assert bool((legacy[pool, end:] == POISON).all())
    others = torch.ones(legacy.shape[0], dtype=torch.bool)
    others[inputs.pool_indices.cpu()] = False
    assert bool((legacy.cpu()[others] == POISON).all())


@pytest.mark.parametrize("bs", [0, 1, 7, 192, 211])
def test_every_batch_size_rebuilds_alike(bs: int, device: torch.device) -> None:
    case = Case(bs, 24, 8, 6, bs)
    inputs = case.inputs(device)
    legacy = rebuilt(case, inputs, rebuild_legacy)
    for rebuild in (_rebuild_rows_packed, rebuild_rows_torch, rebuild_rows_triton):
        assert torch.equal(rebuilt(case, inputs, rebuild), legacy)


def test_verify_slots_may_be_a_slice_of_a_wider_buffer(device: torch.device) -> None:
    case = CASES[1]
    inputs = case.inputs(device)
    padded = torch.full((case.bs + 5, case.B + 3), POISON, dtype=torch.int64, device=device)
    padded[: case.bs, : case.B] = inputs.verify_slots
    sliced = RebuildInputs(
        inputs.draft_table, inputs.target_table, inputs.pool_indices, inputs.seq_lens, padded[: case.bs, : case.B]
    )
    assert not sliced.verify_slots.is_contiguous()
    expected = rebuilt(case, inputs, rebuild_legacy)
    assert torch.equal(rebuilt(case, sliced, rebuild_rows_triton), expected)
    assert torch.equal(rebuilt(case, sliced, rebuild_legacy), expected)


def test_tables_may_be_slices_and_indices_strided(device: torch.device) -> None:
    whole = CASES[1].inputs(device)
    table = torch.full((64, 140), POISON, dtype=torch.int32, device=device)
    target, pool, lens = whole.target_table[:, 16:], whole.pool_indices[::2], whole.seq_lens[::2] % 200
    expected = None
    for rebuild in (_rebuild_rows_packed, rebuild_rows_torch, rebuild_rows_triton):
        table.fill_(POISON)
        inputs = RebuildInputs(table[:, 10:130], target, pool, lens, whole.verify_slots[::2])
        prefix_lens = CASES[1].window.device_lens(lens)
        rebuild(inputs, lens - prefix_lens, prefix_lens)
        assert bool((table[:, :10] == POISON).all())
        assert bool((table[:, 130:] == POISON).all())
        expected = table.clone() if expected is None else expected
        assert torch.equal(table, expected)


def test_a_rebuild_told_in_numbers(device: torch.device) -> None:
    # W 4, P 2, L 7: the last 4 tokens start at 3, aligned down to 2, hence 5 tokens 2..6, then the block of 2.
    window = CompactWindow(4, 2)
    target = torch.tensor([[0] * 9, [20, 21, 22, 23, 24, 25, 26, 0, 0]], dtype=torch.int32, device=device)
    draft = torch.full((2, 10), POISON, dtype=torch.int32, device=device)
    lens, at = torch.tensor([7], device=device), torch.tensor([1], device=device)
    inputs = RebuildInputs(draft, target, at, lens, torch.tensor([[90, 91]], device=device))
    prefix = window.device_lens(lens)
    assert prefix.tolist() == [5]
    rebuild_rows_triton(inputs, lens - prefix, prefix)
    assert draft.tolist() == [[POISON] * 10, [22, 23, 24, 25, 26, 90, 91, POISON, POISON, POISON]]


@pytest.mark.parametrize("bounded", [False, True])
@pytest.mark.parametrize("fused", [False, True])
def test_the_public_rebuild_returns_device_lengths_and_host_lengths_that_dominate(fused: bool, bounded: bool) -> None:
    case = CASES[2]
    inputs = case.inputs(torch.device("cpu"))
    reserved = HostLens((inputs.seq_lens + 2 * case.B).to(torch.int32), _HostLensSource.RESERVED)
    ranges.use(ranges.NullSink())
    lens = rebuild_compact(case.window, inputs, reserved if bounded else None, fused=fused)
    assert ranges.emitted() == {"rebuild_compact": 1}
    assert torch.equal(lens.prefix_lens, case.window.device_lens(inputs.seq_lens))
    assert lens.host_lens.dtype == torch.int32
    assert bool((lens.host_lens >= lens.prefix_lens).all())
    assert torch.equal(lens.host_lens, lens.prefix_lens) is not bounded
    assert lens.host_sum == sum(lens.host_lens.tolist())
    assert torch.equal(inputs.draft_table, rebuilt(case, inputs, rebuild_legacy))


def test_a_draft_row_that_cannot_hold_window_and_block_is_refused_before_anything_is_written() -> None:
    case = Case(2, 16, 4, 8, 0)
    full = case.inputs(torch.device("cpu"))
    narrow = full.draft_table[:, : case.window.min_draft_width(case.B) - 1]
    inputs = RebuildInputs(narrow, full.target_table, full.pool_indices, full.seq_lens, full.verify_slots)
    with pytest.raises(ValueError, match="too narrow"):
        rebuild_compact(case.window, inputs, HostLens(full.seq_lens, _HostLensSource.EXACT), fused=True)
    assert bool((full.draft_table == POISON).all())


@pytest.mark.gpu
@pytest.mark.parametrize("case", CASES, ids=str)
def test_on_a_gpu_legacy_waits_exactly_three_times_and_fused_never(case: Case, count_syncs, forbid_syncs) -> None:
    """Section 5.3 names the three: max().item(), the boolean mask, the copy of the lengths."""
    inputs = case.inputs(torch.device("cuda"))
    host = HostLens((inputs.seq_lens + 2 * case.B).cpu(), _HostLensSource.RESERVED)
    prefix_lens = case.window.device_lens(inputs.seq_lens)
    rebuild_compact(case.window, inputs, host, fused=False)
    rebuild_compact(case.window, inputs, host, fused=True)
    assert count_syncs(lambda: rebuild_legacy(inputs, prefix_lens)) == 3
    assert count_syncs(lambda: rebuild_compact(case.window, inputs, None, fused=False)) == 3
    assert count_syncs(lambda: rebuild_compact(case.window, inputs, host, fused=False)) == 2
    assert count_syncs(lambda: rebuild_compact(case.window, inputs, None, fused=True)) == 1
    legacy = inputs.draft_table.clone()
    inputs.draft_table.fill_(POISON)
    with forbid_syncs():
        rebuild_compact(case.window, inputs, host, fused=True)
    written = case.window.device_lens(inputs.seq_lens) + case.B
    for pool, end in zip(inputs.pool_indices.tolist(), written.tolist(), strict=True):
        assert torch.equal(inputs.draft_table[pool, :end], legacy[pool, :end])


@pytest.mark.gpu
def test_on_a_gpu_rebuild_and_verify_metadata_together_never_wait(forbid_syncs) -> None:
    """The device work between two graphs of a sync-free step: exact lengths, rebuild, advanced lengths, block table."""
    case = CASES[1]
    inputs = case.inputs(torch.device("cuda"))
    metadata = VerifyMetadata.allocate(case.bs, 4 * case.W, case.P, "cuda")
    verify = MetadataInputs(inputs.seq_lens, inputs.pool_indices, inputs.target_table)
    nxt_kv_lens_cpu = (inputs.seq_lens + 2 * case.B).to(torch.int32).cpu()

    def step() -> CompactLens:
        host = committed_host_lens(None, nxt_kv_lens_cpu, inputs.seq_lens)
        lens = rebuild_compact(case.window, inputs, host, fused=True)
        prepare_verify_metadata(verify, case.B, metadata, fused=True)
        max_seq_len(None, inputs.seq_lens, 4 * case.W, case.B, static=True)
        return lens

    step()
    with forbid_syncs():
        lens = step()
    assert bool((lens.host_lens >= lens.prefix_lens.cpu()).all())
    assert torch.equal(metadata.seq_lens_k, (inputs.seq_lens + case.B).to(torch.int32))
