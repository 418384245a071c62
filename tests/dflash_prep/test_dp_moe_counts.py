"""DP-MoE counts: the persistent buffers hold what the legacy lists say, at fixed addresses, without waiting."""

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from dflash_prep.kernels.dp_moe_counts import DpMoeCountBuffers, RankCounts, _DpMoeCounts, build_counts_legacy

COUNTS = RankCounts((3, 0, 7, 1), (3, 0, 2, 1))


def values(counts: _DpMoeCounts) -> tuple[list[int], list[int], list[int]]:
    return counts.num_token_non_padded.tolist(), counts.num_tokens.tolist(), counts.num_logprob_tokens.tolist()


def test_requests_are_scaled_to_draft_tokens_and_logprob_counts_are_not() -> None:
    legacy = build_counts_legacy(COUNTS, rank=2, B=8, device="cpu")
    assert values(legacy) == ([56], [24, 0, 56, 8], [3, 0, 2, 1])
    assert (legacy.num_token_non_padded.dtype, legacy.num_tokens.dtype) == (torch.int32, torch.int64)
    assert values(DpMoeCountBuffers(4, 2, 8, "cpu").update(COUNTS)) == values(legacy)


@given(
    dp=st.integers(1, 32),
    B=st.integers(1, 16),
    data=st.data(),
)
def test_persistent_counts_equal_legacy_counts_step_after_step(dp: int, B: int, data: st.DataObject) -> None:
    rank = data.draw(st.integers(0, dp - 1))
    buffers, addresses = DpMoeCountBuffers(dp, rank, B, "cpu"), set()
    ints = st.lists(st.integers(0, 1024), min_size=dp, max_size=dp).map(tuple)
    for tokens, logprobs in data.draw(st.lists(st.tuples(ints, ints), min_size=1, max_size=6)):
        counts = RankCounts(tokens, logprobs)
        actual, legacy = buffers.update(counts), build_counts_legacy(counts, rank, B, "cpu")
        for name in ("num_token_non_padded", "num_tokens", "num_logprob_tokens"):
            assert torch.equal(getattr(actual, name), getattr(legacy, name)), name
            assert getattr(actual, name).dtype == getattr(legacy, name).dtype, name
        addresses.add(tuple(getattr(actual, n).data_ptr() for n in ("num_token_non_padded", "num_tokens")))
    assert len(addresses) == 1


def test_unchanged_counts_are_not_copied_again() -> None:
    buffers = DpMoeCountBuffers(4, 0, 8, "cpu")
    out = buffers.update(COUNTS)
    out.num_tokens.fill_(-5)
    assert buffers.update(COUNTS).num_tokens.tolist() == [-5] * 4, "a copy would have restored the counts"
    other = RankCounts((1, 1, 1, 1), (0, 0, 0, 0))
    assert buffers.update(other).num_tokens.tolist() == [8] * 4
    assert buffers.update(COUNTS).num_tokens.tolist() == [24, 0, 56, 8]


def test_counts_for_another_number_of_ranks_are_refused() -> None:
    with pytest.raises(ValueError, match="4 ranks do not fit buffers for 3"):
        DpMoeCountBuffers(3, 0, 8, "cpu").update(COUNTS)


@pytest.mark.gpu
def test_on_a_gpu_legacy_waits_for_three_pageable_copies_and_persistent_never(count_syncs, forbid_syncs) -> None:
    buffers = DpMoeCountBuffers(4, 2, 8, "cuda")
    assert count_syncs(lambda: build_counts_legacy(COUNTS, 2, 8, "cuda")) == 3
    with forbid_syncs():
        out = buffers.update(COUNTS)
    assert values(out) == ([56], [24, 0, 56, 8], [3, 0, 2, 1])
