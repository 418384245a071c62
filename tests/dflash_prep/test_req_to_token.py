"""Rows: how wide they are, which are free, and how a stale one is told."""

from __future__ import annotations

import pytest
import torch

from dflash_prep.errors import OutOfRowsError, RowOverflowError
from dflash_prep.state.req_to_token import ReqToTokenPool, alloc_len_per_decode, extra_row_width
from dflash_prep.state.reservation import check_row_width


def test_dflash_writes_one_block_per_step_on_any_page_size():
    assert alloc_len_per_decode(draft_tokens=8) == 8
    assert alloc_len_per_decode(draft_tokens=8, page_size=256) == 8


def test_a_tree_draft_on_pages_of_four_under_context_parallelism_needs_sixteen_tokens_and_thirty_five_more_columns():
    # page 1, dcp 4, steps 3, topk 2, 4 draft tokens: effective page 4, 2 pages per branch, 2 * 16 + 3 columns
    assert alloc_len_per_decode(draft_tokens=4, steps=3, topk=2, page_size=4) == 16
    assert extra_row_width(draft_tokens=4, steps=3, topk=2, page_size=1, dcp_size=4) == 35


def test_extra_columns_are_two_windows_and_a_page_less_one_on_pages_and_four_plus_a_block_elsewhere():
    assert extra_row_width(draft_tokens=8, page_size=256) == 16 + 255
    assert extra_row_width(draft_tokens=8, page_size=256, speculative=False) == 12
    assert extra_row_width(draft_tokens=8, page_size=1) == 12


def test_on_pages_of_one_token_the_published_row_is_narrower_than_the_reserve_and_that_is_an_error_here():
    # 17 draft tokens: 4 + 17 = 21 columns of slack, a reserve of 34
    width = 1000 + extra_row_width(draft_tokens=17, page_size=1)
    assert width == 1021
    check_row_width([1021], width)
    with pytest.raises(RowOverflowError, match="1034 columns"):
        check_row_width([500, 1000 + 34], width)


def test_row_zero_is_never_handed_out_and_every_reuse_bumps_the_generation():
    pool = ReqToTokenPool(3, 8)
    assert pool.req_to_token.shape == (4, 8)
    assert pool.req_to_token.dtype == torch.int32
    assert not pool.req_to_token.any()
    assert pool.alloc(3) == [1, 2, 3]
    pool.free(2)
    assert pool.alloc(1) == [2]
    assert pool.req_generation.tolist() == [0, 1, 2, 1]


def test_more_rows_than_are_free_are_refused_and_none_is_taken():
    pool = ReqToTokenPool(2, 8)
    with pytest.raises(OutOfRowsError, match="3 rows asked for, 2 of 2 are free"):
        pool.alloc(3)
    assert pool.free_rows == [1, 2]
