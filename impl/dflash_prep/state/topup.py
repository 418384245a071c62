"""The page top-up (#47685): a step that must allocate anyway takes pages in advance for everyone who runs low.

Allocation steps become rare, and because one trigger refills all requests, the requests' next triggers fall together.

The published text leaves points open; what is taken here:
- the decision sits in the DFlash caller, so EAGLE, which shares the watermark arithmetic, is unaffected
- all or nothing: a step whose guard fails allocates exactly what it needs, for every request
- the row cap is rounded down to a page, so that topped-up lengths stay aligned
- "free" on a hybrid pool is the smaller of the full and the sliding-window pool, since a page costs both
"""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum
from typing import NamedTuple

from dflash_prep.errors import SettingError
from dflash_prep.state.request import Request, ceil_to, floor_to
from dflash_prep.state.reservation import Watermark

_TOPUP_VARIABLE = "SGLANG_OPT_DFLASH_DECODE_TOPUP_PAGES"
_DEFAULT_TOPUP_PAGES = 2
MAX_TOPUP_PAGES = 8
GUARD_MARGIN = 3
"""The free tokens must cover the eviction demand and this many times the top-up, as published."""


@dataclass(frozen=True, slots=True)
class _TopUpSetting:
    """pages: K, 0 = off; is_explicit: somebody asked for it, so a skip deserves a warning."""

    pages: int
    is_explicit: bool


def topup_from_environment(environment: Mapping[str, str] | None = None) -> _TopUpSetting:
    """K from `SGLANG_OPT_DFLASH_DECODE_TOPUP_PAGES`: default 2, 0 = off, at most 8; SettingError on anything else."""
    text = (os.environ if environment is None else environment).get(_TOPUP_VARIABLE)
    if text is None:
        return _TopUpSetting(_DEFAULT_TOPUP_PAGES, is_explicit=False)
    if not (text.isascii() and text.isdigit() and int(text) <= MAX_TOPUP_PAGES):
        raise SettingError(f"{_TOPUP_VARIABLE}={text!r}: a whole number from 0 (off) to {MAX_TOPUP_PAGES} is expected")
    return _TopUpSetting(int(text), is_explicit=True)


class TopUpDecision(StrEnum):
    """What the guard decided, and why."""

    NO_ALLOCATION = "no_allocation"  # the step needs no page, so it takes none
    OFF = "off"  # K = 0
    PAGE_SIZE_ONE = "page_size_one"
    HISPARSE = "hisparse"
    NOTHING_TO_ADD = "nothing_to_add"  # every request has its headroom, or its row is full
    SHORT = "short"  # the free tokens do not reach the bound
    TAKEN = "taken"


class TopUpGuard(NamedTuple):
    """The figures behind the decision, in tokens.

    needed  what the step must take; extra: what the top-up would add; free: what the pool has
    bound   `needed + extra + bs * page_size + 3 * extra`, what `free` must reach
    """

    needed: int
    extra: int
    free: int
    bound: int
    decision: TopUpDecision

    @property
    def ratio(self) -> float | None:
        """free / bound on a step that allocates; None on one that does not."""
        return self.free / self.bound if self.needed else None


@dataclass(frozen=True, slots=True)
class TopUp:
    """The rule's constants for one process. row_width in columns, reserve in tokens."""

    pages: int
    page_size: int
    reserve: int
    row_width: int
    is_hisparse: bool = False

    def apply(self, reqs: Sequence[Request], base: Watermark, free: int) -> tuple[Watermark, TopUpGuard]:
        """`base` or `base` raised to K pages beyond each request's page-aligned need, and the guard's figures.

        With a guard that does not pass, the watermark returned is `base` itself.
        """
        skipped = TopUpDecision.NO_ALLOCATION if base.num_needed == 0 else self.off
        top = base if skipped else self._raised(reqs, base)
        extra = top.num_needed - base.num_needed
        bound = base.num_needed + extra + len(reqs) * self.page_size + GUARD_MARGIN * extra
        decision = skipped or self.decide(extra, free, bound)
        guard = TopUpGuard(base.num_needed, extra, free, bound, decision)
        return (top if decision is TopUpDecision.TAKEN else base), guard

    @property
    def off(self) -> TopUpDecision | None:
        """Why no step ever tops up; None if steps may."""
        if self.pages == 0:
            return TopUpDecision.OFF
        if self.page_size == 1:
            return TopUpDecision.PAGE_SIZE_ONE
        return TopUpDecision.HISPARSE if self.is_hisparse else None

    def _raised(self, reqs: Sequence[Request], base: Watermark) -> Watermark:
        cap = floor_to(self.row_width, self.page_size)
        more = self.pages * self.page_size
        nxt = [
            max(enough, min(ceil_to(req.kv.kv_committed_len + self.reserve, self.page_size) + more, cap))
            for req, enough in zip(reqs, base.nxt, strict=True)
        ]
        return Watermark(base.cur, nxt, sum(nxt) - sum(base.cur))

    @staticmethod
    def decide(extra: int, free: int, bound: int) -> TopUpDecision:
        """What `extra` tokens in advance are worth when `free` must reach `bound`."""
        if extra == 0:
            return TopUpDecision.NOTHING_TO_ADD
        return TopUpDecision.TAKEN if free >= bound else TopUpDecision.SHORT
