"""How far each request's row must reach before the next decode step: pure host integers.

Under overlap the host's committed length lags the device by one step. One window of B tokens covers what that step may
commit, a second one the verify window of the step being prepared: DFlash reserves R = 2 * B.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from dflash_prep.errors import RowOverflowError
from dflash_prep.state.request import Request, ceil_to


class Watermark(NamedTuple):
    """Old and new `kv_allocated_len` of each request and the tokens between them.

    cur, nxt    [bs] tokens, nxt >= cur
    num_needed  sum(nxt - cur)
    """

    cur: list[int]
    nxt: list[int]
    num_needed: int


def page_aligned_decode_alloc_lens(reqs: Sequence[Request], reserve: int, page_size: int) -> Watermark:
    """`nxt = max(cur, ceil_to(committed + reserve, page_size))`, shared by DFlash and EAGLE (#35265, #35382).

    Never shrinks and only reads the counters. With whole pages the row's end always names the whole of its last page,
    so freeing and memory checks see everything that is held. A `cur` that is unaligned and suffices stays unaligned.
    """
    cur = [req.kv.kv_allocated_len for req in reqs]
    nxt = [
        max(allocated, ceil_to(req.kv.kv_committed_len + reserve, page_size))
        for allocated, req in zip(cur, reqs, strict=True)
    ]
    return Watermark(cur, nxt, sum(nxt) - sum(cur))


def exact_decode_alloc_lens(reqs: Sequence[Request], reserve: int) -> Watermark:
    """`nxt = max(cur, committed + reserve)`: the off position of #35265.

    The allocator hands out whole pages all the same; the tail of the last one is held but not recorded, and nearly
    every step extends some row by a few tokens.
    """
    return page_aligned_decode_alloc_lens(reqs, reserve, page_size=1)


def check_row_width(nxt: Sequence[int], row_width: int) -> None:
    """Refuse lengths that no row can hold. Raises RowOverflowError.

    The engine asserts this for EAGLE trees on pages only; elsewhere the row write has no column bound and spills into
    the next request's row, which is what happens on pages of one token near the context limit (#33579).
    """
    longest = max(nxt, default=0)
    if longest > row_width:
        raise RowOverflowError(f"a request needs {longest} columns and its req_to_token row has {row_width}")
