"""Watermarks, with the published numbers."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dflash_prep.state.request import KVState, Request
from dflash_prep.state.reservation import exact_decode_alloc_lens, page_aligned_decode_alloc_lens


def requests(*pairs: tuple[int, int]) -> list[Request]:
    """Requests by (allocated, committed)."""
    return [
        Request(i, committed, kv=KVState(i + 1, kv_allocated_len=allocated, kv_committed_len=committed))
        for i, (allocated, committed) in enumerate(pairs)
    ]


def test_no_requests_need_nothing():
    assert page_aligned_decode_alloc_lens([], 4, 4) == ([], [], 0)


@pytest.mark.parametrize(
    ("allocated", "committed", "reserve", "page_size", "nxt", "needed"),
    [
        (8, 10, 4, 4, 16, 8),
        (4, 8, 4, 4, 12, 8),
        (32, 10, 4, 4, 32, 0),
        (7, 9, 3, 1, 12, 5),
        (8, 8, 17, 8, 32, 24),
        # P = 256, B = 8: straight after prefill, at the trigger and one before it
        (1000, 1000, 16, 256, 1024, 24),
        (1024, 1000, 16, 256, 1024, 0),
        (1024, 1009, 16, 256, 1280, 256),
        (1536, 1520, 16, 256, 1536, 0),
        (1536, 1521, 16, 256, 1792, 256),
        (256, 240, 16, 256, 256, 0),
        (256, 241, 16, 256, 512, 256),
    ],
)
def test_one_request(allocated, committed, reserve, page_size, nxt, needed):
    result = page_aligned_decode_alloc_lens(requests((allocated, committed)), reserve, page_size)
    assert result == ([allocated], [nxt], needed)


def test_three_requests_of_which_one_has_enough():
    result = page_aligned_decode_alloc_lens(requests((0, 5), (8, 5), (20, 30)), 4, 4)
    assert result.nxt == [12, 12, 36]
    assert result.num_needed == 32


def test_two_requests_on_pages_of_sixty_four():
    result = page_aligned_decode_alloc_lens(requests((64, 65), (192, 100)), 16, 64)
    assert result == ([64, 192], [128, 192], 64)


def test_an_unaligned_length_that_suffices_stays_unaligned():
    # only PD pre-allocation can produce it: more than the reserve, not a page multiple
    assert page_aligned_decode_alloc_lens(requests((1010, 1000)), 16, 256).nxt == [1024]
    assert page_aligned_decode_alloc_lens(requests((1300, 1000)), 16, 256) == ([1300], [1300], 0)


def test_the_legacy_watermark_follows_committed_token_by_token():
    assert exact_decode_alloc_lens(requests((1000, 1000), (1020, 1003), (1024, 1003)), 16) == (
        [1000, 1020, 1024],
        [1016, 1020, 1024],
        16,
    )


@given(
    st.lists(st.tuples(st.integers(0, 5000), st.integers(0, 5000)), max_size=20),
    st.integers(1, 64),
    st.sampled_from([1, 2, 4, 64, 256]),
)
def test_watermarks_cover_the_reserve_never_shrink_and_stay_aligned(pairs, reserve, page_size):
    reqs = requests(*pairs)
    cur, nxt, needed = page_aligned_decode_alloc_lens(reqs, reserve, page_size)
    assert needed == sum(nxt) - sum(cur)
    for (allocated, committed), old, new in zip(pairs, cur, nxt, strict=True):
        assert old == allocated
        assert new >= max(old, committed + reserve)
        assert new == old or new % page_size == 0
        assert new == old or new < committed + reserve + page_size
