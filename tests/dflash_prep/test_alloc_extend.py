"""The three parts of an extension, against a token-by-token account of where each new token must go."""

from __future__ import annotations

import torch
from hypothesis import given
from hypothesis import strategies as st

from dflash_prep.kernels.kv_alloc import RowSpans, count_new_pages, count_tokens, extend_slots, extend_slots_torch


def spans_of(starts: list[int], ends: list[int], dtype: torch.dtype = torch.int32) -> RowSpans:
    start, end = torch.tensor(starts, dtype=dtype), torch.tensor(ends, dtype=dtype)
    return RowSpans(start, end, start.clone(), end.clone())


def token_by_token(starts, ends, last_locs, free_pages, page_size) -> list[int]:
    """What the three parts mean: a token inside a begun page follows its neighbour, others open the next free page."""
    slots, pages = [], iter(free_pages)
    for start, end, slot in zip(starts, ends, last_locs, strict=True):
        for position in range(start, end):
            slot = slot + 1 if position % page_size else next(pages) * page_size
            slots.append(slot)
    return slots


def test_worked_example_an_unaligned_row_a_row_without_need_and_an_empty_row():
    spans = spans_of([5, 8, 0], [12, 8, 6])
    free = torch.tensor([3, 7, 9, 10])
    slots = extend_slots(spans, torch.tensor([4, 99, -1], dtype=torch.int32), free, 13, page_size=4)
    assert slots.tolist() == [5, 6, 7, 12, 13, 14, 15, 28, 29, 30, 31, 36, 37]
    assert slots.dtype == torch.int64
    assert count_tokens(spans) == 13
    assert count_new_pages(spans, 4) == 3


def test_aligned_rows_take_their_pages_whole_whatever_last_loc_says():
    spans = spans_of([4, 0], [12, 4])
    slots = extend_slots_torch(spans, torch.tensor([-77, -77]), torch.tensor([5, 2, 6]), 12, page_size=4)
    assert slots.tolist() == [20, 21, 22, 23, 8, 9, 10, 11, 24, 25, 26, 27]


def test_a_row_that_stays_inside_its_page_takes_no_page():
    spans = spans_of([5], [7])
    assert count_new_pages(spans, 256) == 0
    assert extend_slots_torch(spans, torch.tensor([1029]), torch.empty(0, dtype=torch.int64), 2, 256).tolist() == [
        1030,
        1031,
    ]


@st.composite
def extensions(draw, page_sizes=(1, 2, 4, 64, 256)):
    """Rows with honest last locs, and exactly the pages they need in random order."""
    page_size = draw(st.sampled_from(page_sizes))
    rows = draw(st.lists(st.tuples(st.integers(0, 3 * page_size), st.integers(0, 3 * page_size)), max_size=9))
    starts = [start for start, _ in rows]
    ends = [start + more for start, more in rows]
    old_pages = draw(st.permutations(range(1, len(rows) + 1)))
    last = [p * page_size + (s - 1) % page_size if s else -1 for p, s in zip(old_pages, starts, strict=True)]
    count = sum(-(-e // page_size) - -(-s // page_size) for s, e in zip(starts, ends, strict=True))
    free = draw(st.permutations(range(100, 100 + count)))
    return page_size, starts, ends, last, free


@given(extensions(), st.sampled_from([torch.int32, torch.int64]))
def test_any_extension_equals_the_token_by_token_account(case, dtype):
    page_size, starts, ends, last, free = case
    spans = spans_of(starts, ends, dtype)
    num_tokens = count_tokens(spans)
    assert num_tokens == sum(ends) - sum(starts)
    assert count_new_pages(spans, page_size) == len(free)
    slots = extend_slots(
        spans, torch.tensor(last, dtype=dtype), torch.tensor(free, dtype=torch.int64), num_tokens, page_size
    )
    assert slots.tolist() == token_by_token(starts, ends, last, free, page_size)
