"""The page top-up: its worked example, its guard to the token, its skips and its setting."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dflash_prep.errors import SettingError
from dflash_prep.state.request import KVState, Request, ceil_to, floor_to
from dflash_prep.state.reservation import page_aligned_decode_alloc_lens
from dflash_prep.state.topup import _TOPUP_VARIABLE, TopUp, TopUpDecision, _TopUpSetting, topup_from_environment


def requests(*pairs: tuple[int, int]) -> list[Request]:
    """Requests by (committed, allocated)."""
    return [
        Request(i, committed, kv=KVState(i + 1, kv_allocated_len=allocated, kv_committed_len=committed))
        for i, (committed, allocated) in enumerate(pairs)
    ]


A, B, C = (1521, 1536), (1400, 1536), (1400, 2304)
RULE = TopUp(pages=2, page_size=256, reserve=16, row_width=10_000)


def apply(rule: TopUp, free: int, *pairs: tuple[int, int]):
    reqs = requests(*pairs)
    base = page_aligned_decode_alloc_lens(reqs, rule.reserve, rule.page_size)
    return base, *rule.apply(reqs, base, free)


def test_three_requests_of_which_one_must_grow_and_two_are_low_are_raised_when_5120_tokens_are_free():
    base, top, guard = apply(RULE, 5120, A, B, C)
    assert base.nxt == [1792, 1536, 2304]
    assert base.num_needed == 256
    assert top.nxt == [2304, 2048, 2304]
    assert top.num_needed == 1280
    assert (guard.needed, guard.extra, guard.free, guard.bound) == (256, 1024, 5120, 256 + 768 + 4096)
    assert guard.decision is TopUpDecision.TAKEN
    assert guard.ratio == 1.0


def test_with_one_token_less_the_step_allocates_exactly_as_without_the_top_up():
    base, top, guard = apply(RULE, 5119, A, B, C)
    assert top == base
    assert guard.decision is TopUpDecision.SHORT


def test_rows_of_2100_columns_cap_the_top_up_at_2048_and_the_guard_at_4096():
    capped = TopUp(pages=2, page_size=256, reserve=16, row_width=2100)
    _, top, guard = apply(capped, 4096, A, B, (1400, 2048))
    assert top.nxt == [2048, 2048, 2048]
    assert guard.extra == 768
    assert guard.bound == 256 + 768 + 3072
    assert guard.decision is TopUpDecision.TAKEN
    assert apply(capped, 4095, A, B, (1400, 2048))[2].decision is TopUpDecision.SHORT


def test_after_the_top_up_the_first_request_is_due_again_768_tokens_later():
    def needed(committed: int) -> int:
        return page_aligned_decode_alloc_lens(requests((committed, 2304)), 16, 256).num_needed

    assert needed(2288) == 0
    assert needed(2289) == 256
    assert 2289 - 1521 == 768


def test_a_step_that_needs_nothing_takes_nothing_however_low_its_requests_run():
    base, top, guard = apply(RULE, 10**9, (1400, 1536), (1500, 1536))
    assert top is base
    assert guard.decision is TopUpDecision.NO_ALLOCATION
    assert guard.ratio is None


@pytest.mark.parametrize(
    ("rule", "decision"),
    [
        (TopUp(0, 256, 16, 10_000), TopUpDecision.OFF),
        (TopUp(2, 1, 16, 10_000), TopUpDecision.PAGE_SIZE_ONE),
        (TopUp(2, 256, 16, 10_000, is_hisparse=True), TopUpDecision.HISPARSE),
        (TopUp(2, 256, 16, 1800), TopUpDecision.NOTHING_TO_ADD),
    ],
)
def test_skips(rule, decision):
    base, top, guard = apply(rule, 10**9, A)
    assert top is base
    assert guard.decision is decision


def test_at_256_tokens_a_page_192_requests_hold_up_to_98304_topped_up_tokens():
    reqs = [(1000, 1000)] * 192
    base, top, _ = apply(RULE, 10**9, *reqs)
    assert top.num_needed - base.num_needed == 192 * 2 * 256 == 98_304


@given(
    pages=st.integers(0, 8),
    page_size=st.sampled_from([1, 2, 4, 64, 256]),
    reserve=st.integers(2, 40),
    free=st.integers(0, 60_000),
    is_hisparse=st.booleans(),
    lens=st.lists(st.tuples(st.integers(1, 4000), st.integers(0, 600)), min_size=1, max_size=12),
    slack=st.integers(0, 3000),
)
def test_a_step_takes_exactly_the_base_or_raises_everyone_within_row_and_guard(
    pages, page_size, reserve, free, is_hisparse, lens, slack
):
    """Either exactly the base, or aligned, capped, with at most K pages of headroom and 3 * extra left over."""
    pairs = [(committed, ceil_to(committed + more, page_size)) for committed, more in lens]
    width = max(max(ceil_to(c + reserve, page_size), a) for c, a in pairs) + slack
    base, top, guard = apply(TopUp(pages, page_size, reserve, width, is_hisparse), free, *pairs)
    assert guard.bound == guard.needed + guard.extra + len(pairs) * page_size + 3 * guard.extra
    if guard.decision is not TopUpDecision.TAKEN:
        assert top is base
        if guard.decision is TopUpDecision.SHORT:
            assert free < guard.bound
        return
    assert base.num_needed > 0
    assert not is_hisparse
    assert free - top.num_needed >= 3 * guard.extra
    for (committed, allocated), low, high in zip(pairs, base.nxt, top.nxt, strict=True):
        assert high >= low >= allocated
        assert high % page_size == 0
        headroom = high - ceil_to(committed + reserve, page_size)
        assert headroom >= min(pages * page_size, floor_to(width, page_size) - ceil_to(committed + reserve, page_size))
        assert high == low or (headroom <= pages * page_size and high <= width)


@pytest.mark.parametrize(("text", "pages"), [("0", 0), ("1", 1), ("8", 8), ("02", 2)])
def test_the_variable_sets_the_pages_and_counts_as_asked_for(text, pages):
    assert topup_from_environment({_TOPUP_VARIABLE: text}) == _TopUpSetting(pages, is_explicit=True)


def test_without_the_variable_two_pages_are_the_default_that_nobody_asked_for(monkeypatch):
    monkeypatch.delenv(_TOPUP_VARIABLE, raising=False)
    assert topup_from_environment() == _TopUpSetting(2, is_explicit=False)
    monkeypatch.setenv(_TOPUP_VARIABLE, "5")
    assert topup_from_environment() == _TopUpSetting(5, is_explicit=True)


@pytest.mark.parametrize("text", ["9", "-1", "", "two", "1.5", "²", " 2"])
def test_anything_else_is_an_error_that_names_variable_value_and_range(text):
    with pytest.raises(SettingError, match=f"{_TOPUP_VARIABLE}=.*whole number from 0"):
        topup_from_environment({_TOPUP_VARIABLE: text})
