"""Verify metadata: static bounds, fused lengths, the block table, DCP local lengths, sliding windows."""

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from dflash_prep.kernels.attention_metadata import (
    MetadataInputs,
    VerifyMetadata,
    _advance_seq_lens,
    _table_width,
    dcp_local_bound,
    dcp_local_lens,
    dcp_local_lens_from,
    dcp_max_local_len,
    fill_block_table_torch,
    fill_block_table_triton,
    max_seq_len,
    plan_window,
    prepare_verify_metadata,
)

POISON = -77


def random_inputs(bs: int, P: int, pages: int, device: torch.device, *, seed: int = 0) -> MetadataInputs:
    """A pool of 2 * bs + 1 rows in random order, rows of `pages` whole pages, lengths that leave room for 8 tokens."""
    generator = torch.Generator().manual_seed(seed)
    rows, width = 2 * bs + 1, pages * P
    lens = torch.randint(0, max(1, width - 8), (bs,), generator=generator)
    pool = torch.randperm(rows, generator=generator)[:bs]
    table = torch.randint(1, 1 << 20, (rows, width), dtype=torch.int32, generator=generator)
    return MetadataInputs(lens.to(device), pool.to(device), table.to(device))


def test_the_longest_sequence_is_the_hosts_or_the_models_context_never_the_devices() -> None:
    device_lens, host_lens = torch.tensor([5, 9]), torch.tensor([64, 32], dtype=torch.int32)
    assert max_seq_len(host_lens, device_lens, 1000, 8, static=True) == 72
    assert max_seq_len(host_lens, device_lens, 1000, 8, static=False) == 72
    assert max_seq_len(None, device_lens, 1000, 8, static=True) == 1008
    assert max_seq_len(None, device_lens, 1000, 8, static=False) == 17
    assert max_seq_len(None, device_lens[:0], 1000, 8, static=False) == 8


@pytest.mark.parametrize(
    ("max_tokens", "P", "expected"),
    [
        (1, 256, 16),  # 4096 / 256 = 16 entries a program; the attention kernel's 128 tokens are below a page
        (4096, 256, 16),
        (4097, 256, 32),
        (4096, 64, 64),
        (100, 32, 128),
        (5000, 1, 8192),
        (1, 8192, 1),
        (20_000, 8192, 3),
        (1, 48, 170),  # 85 and 2 entries: a common multiple, not the larger one
    ],
)
def test_table_width_is_padded_to_both_kernels_blocks(max_tokens: int, P: int, expected: int) -> None:
    assert _table_width(max_tokens, P) == expected


def test_lengths_are_advanced_and_narrowed_into_the_captured_buffer() -> None:
    captured = torch.full((5,), POISON, dtype=torch.int32)
    view = _advance_seq_lens(torch.tensor([10, 20, 30]), 8, captured)
    assert captured.tolist() == [18, 28, 38, POISON, POISON]
    assert view.data_ptr() == captured.data_ptr()


def test_a_block_table_told_in_numbers(device: torch.device) -> None:
    # P 4. Row 1 holds pages 3, 7, 2. 9 tokens touch three pages, 8 touch two; entries beyond stay -1.
    row = [12, 13, 14, 15, 28, 29, 30, 31, 8, 9, 10, 11]
    table = torch.tensor([[0] * 12, row], dtype=torch.int32, device=device)
    pool = torch.tensor([1, 1, 0], device=device)
    lens = torch.tensor([9, 8, 1], dtype=torch.int32, device=device)
    inputs = MetadataInputs(lens.to(torch.int64), pool, table)
    for fill in (fill_block_table_torch, fill_block_table_triton):
        out = VerifyMetadata.allocate(4, 12, 4, device)
        fill(inputs, lens, out)
        assert out.block_table[:, :4].tolist() == [[3, 7, 2, -1], [3, 7, -1, -1], [0, -1, -1, -1], [-1, -1, -1, -1]]
        assert bool((out.block_table[:, 4:] == -1).all())


@pytest.mark.parametrize("bs", [0, 1, 7, 192, 200])
@pytest.mark.parametrize(("P", "pages"), [(1, 40), (64, 70), (256, 5)])
def test_kernel_equals_oracle_and_writes_nothing_else(bs: int, P: int, pages: int, device: torch.device) -> None:
    inputs = random_inputs(bs, P, pages, device)
    lens = (inputs.seq_lens + 8).to(torch.int32)
    expected = VerifyMetadata.allocate(bs + 2, pages * P, P, device)
    actual = VerifyMetadata.allocate(bs + 2, pages * P, P, device)
    expected.block_table.fill_(POISON)
    actual.block_table.fill_(POISON)
    fill_block_table_torch(inputs, lens, expected)
    fill_block_table_triton(inputs, lens, actual)
    assert torch.equal(actual.block_table, expected.block_table)
    covered = torch.arange(actual.block_table.shape[1], device=device) < -(-lens // P)[:, None]
    assert bool((actual.block_table[:bs] != POISON)[covered].all())
    assert bool((actual.block_table[:bs] == POISON)[~covered].all())
    assert bool((actual.block_table[bs:] == POISON).all())


def test_kernel_reads_strided_indices_and_a_table_that_is_a_slice(device: torch.device) -> None:
    whole = random_inputs(14, 8, 20, device)
    inputs = MetadataInputs(whole.seq_lens[::2] % 100, whole.pool_indices[::2], whole.req_to_token[:, 16:144])
    lens = (inputs.seq_lens + 4).to(torch.int32)
    expected, actual = (VerifyMetadata.allocate(7, 128, 8, device) for _ in range(2))
    fill_block_table_torch(inputs, lens, expected)
    fill_block_table_triton(inputs, lens, actual)
    assert torch.equal(actual.block_table, expected.block_table)


@pytest.mark.parametrize("bs", [0, 1, 7, 192])
def test_fused_metadata_equals_legacy_metadata(bs: int) -> None:
    inputs = random_inputs(bs, 64, 6, torch.device("cpu"), seed=bs)
    fused, legacy = (VerifyMetadata.allocate(200, 6 * 64, 64, "cpu") for _ in range(2))
    prepare_verify_metadata(inputs, 8, fused, fused=True)
    prepare_verify_metadata(inputs, 8, legacy, fused=False)
    assert torch.equal(fused.seq_lens_k, legacy.seq_lens_k)
    assert torch.equal(fused.block_table, legacy.block_table)
    assert fused.seq_lens_k[:bs].tolist() == [length + 8 for length in inputs.seq_lens.tolist()]


def test_metadata_for_more_requests_than_captured_is_refused() -> None:
    inputs = random_inputs(3, 4, 8, torch.device("cpu"))
    with pytest.raises(ValueError, match="do not fit"):
        prepare_verify_metadata(inputs, 4, VerifyMetadata.allocate(2, 32, 4, "cpu"), fused=True)


LENS = st.lists(st.integers(0, 10_000), max_size=20).map(lambda lens: torch.tensor(lens, dtype=torch.int64))


@given(lens=LENS, n=st.integers(1, 16))
def test_dcp_local_lengths_sum_to_the_global_length_and_the_ceil_form_dominates(lens: torch.Tensor, n: int) -> None:
    local = torch.stack([dcp_local_lens(lens, n, rank) for rank in range(n)])
    assert torch.equal(local.sum(dim=0), lens)
    assert bool((dcp_local_bound(lens, n) >= local).all())
    assert torch.equal(dcp_local_bound(lens, n), local[0]), "rank 0 always holds the most"


@given(starts=LENS, length=st.integers(0, 300), n=st.integers(1, 8), data=st.data())
def test_dcp_local_lengths_from_a_start_count_the_owned_positions(
    starts: torch.Tensor, length: int, n: int, data: st.DataObject
) -> None:
    rank = data.draw(st.integers(0, n - 1))
    lens = torch.full_like(starts, length)
    owned = [sum(p % n == rank for p in range(start, start + length)) for start in starts.tolist()]
    assert dcp_local_lens_from(starts, lens, n, rank).tolist() == owned
    assert torch.equal(dcp_local_lens_from(torch.zeros_like(lens), lens, n, rank), dcp_local_lens(lens, n, rank)), (
        "from position 0 both forms are the same"
    )


def test_dcp_lengths_told_in_numbers() -> None:
    lens = torch.tensor([0, 1, 8, 10])
    assert [dcp_local_lens(lens, 4, rank).tolist() for rank in range(4)] == [
        [0, 1, 2, 3],
        [0, 0, 2, 3],
        [0, 0, 2, 2],
        [0, 0, 2, 2],
    ]
    assert dcp_local_lens(lens, 4, 3, minimum=1).tolist() == [1, 1, 2, 2]
    assert dcp_local_bound(lens, 4).tolist() == [0, 1, 2, 3]


def test_the_static_dcp_bound_dominates_every_ranks_longest_length() -> None:
    lens = torch.tensor([1000, 37])
    for rank in range(3):
        local = dcp_local_lens(lens, 3, rank)
        assert dcp_max_local_len(local, 1000, 8, 3, static=True) == 336
        assert dcp_max_local_len(local, 1000, 8, 3, static=False) == int(local.max())


def test_sliding_window_planning() -> None:
    """T10: window 4, prefixes 2, 3, 4, 7, B 4."""
    prefixes = torch.tensor([2, 3, 4, 7])
    windowed = plan_window(prefixes, prefixes + 4, 4, 4, host_has_block=True)
    assert (windowed.prefix_lens.tolist(), windowed.prefix_sum) == ([2, 3, 4, 4], 13)
    assert windowed.host_lens.tolist() == [6, 7, 8, 8]
    full = plan_window(prefixes, prefixes + 4, 4, None, host_has_block=True)
    assert (full.prefix_lens.tolist(), full.prefix_sum) == ([2, 3, 4, 7], 16)
    assert full.host_lens.tolist() == [6, 7, 8, 11]
    prefix_only = plan_window(prefixes, prefixes, 4, 4, host_has_block=False)
    assert (prefix_only.host_lens.tolist(), prefix_only.prefix_sum) == ([2, 3, 4, 4], 13)


@pytest.mark.gpu
def test_on_a_gpu_metadata_never_waits_and_each_legacy_maximum_waits_once(count_syncs, forbid_syncs) -> None:
    """Section 8.3: eager metadata asks max().item() once; DCP asks once a layer, 61 times in the published model."""
    cuda = torch.device("cuda")
    inputs, out = random_inputs(7, 64, 6, cuda), VerifyMetadata.allocate(8, 6 * 64, 64, cuda)
    legacy = VerifyMetadata.allocate(8, 6 * 64, 64, cuda)
    lens = inputs.seq_lens
    prepare_verify_metadata(inputs, 8, out, fused=True)
    with forbid_syncs():
        prepare_verify_metadata(inputs, 8, out, fused=True)
        prepare_verify_metadata(inputs, 8, legacy, fused=False)
        max_seq_len(None, lens, 4096, 8, static=True)
        local = dcp_local_lens(lens, 4, 1, minimum=1)
        for _ in range(61):
            dcp_max_local_len(local, 4096, 8, 4, static=True)
    assert torch.equal(out.block_table, legacy.block_table)
    assert torch.equal(out.seq_lens_k, legacy.seq_lens_k)
    assert count_syncs(lambda: max_seq_len(None, lens, 4096, 8, static=False)) == 1
    layers = range(61)
    assert count_syncs(lambda: [dcp_max_local_len(local, 4096, 8, 4, static=False) for _ in layers]) == 61
