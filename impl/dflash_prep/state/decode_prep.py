"""What decode preparation keeps between steps: options, pools, plan stream, staging ring, top-up rule."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from time import monotonic_ns

import torch

from dflash_prep.errors import SettingError
from dflash_prep.state.consistency import ConsistencyCheck
from dflash_prep.state.hisparse_allocator import HiSparseAllocator
from dflash_prep.state.pools import KVPools
from dflash_prep.state.request import Request
from dflash_prep.state.reservation import (
    Watermark,
    check_row_width,
    exact_decode_alloc_lens,
    page_aligned_decode_alloc_lens,
)
from dflash_prep.state.staging import Fill, StagingRing
from dflash_prep.state.swa_eviction import SWAEviction
from dflash_prep.state.topup import MAX_TOPUP_PAGES, TopUp, TopUpGuard, topup_from_environment

logger = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class PrepOptions:
    """One switch per published change.

    num_draft_tokens   B, the block size; the reserve is 2 * B
    aligned            watermarks in whole pages (#35265, #35382)
    fill               how lengths are staged (loop; bulk #47678; ring #39154)
    topup_pages        K pages in advance, 0 = off (#47685)
    is_topup_explicit  somebody set K, so skipping it under HiSparse is worth a warning
    plan_stream        copies and row writes on a stream of their own (#29541)
    swa                give window slots back (None: not a sliding-window model)
    check              verify every allocation step, and every ring slot before it is refilled; makes the host wait
    host_delay_us      microseconds that every preparation is made slower by, for experiments (see faults.py)
    """

    num_draft_tokens: int
    aligned: bool = True
    fill: Fill = Fill.BULK
    topup_pages: int = 0
    is_topup_explicit: bool = False
    plan_stream: bool = False
    swa: SWAEviction | None = None
    check: bool = False
    host_delay_us: int = 0

    def __post_init__(self) -> None:
        if self.num_draft_tokens <= 0:
            raise SettingError(f"num_draft_tokens is {self.num_draft_tokens}; a block has at least one token")
        if not 0 <= self.topup_pages <= MAX_TOPUP_PAGES:
            raise SettingError(f"topup_pages is {self.topup_pages}; 0 to {MAX_TOPUP_PAGES} are allowed")
        if self.topup_pages and not self.aligned:
            raise SettingError("a page top-up needs page-aligned watermarks (aligned=True)")

    @classmethod
    def from_environment(cls, num_draft_tokens: int) -> PrepOptions:
        """How a server starts: the defaults, and K as `SGLANG_OPT_DFLASH_DECODE_TOPUP_PAGES` says (#47685).

        Arms do not read the variable: an arm is the same wherever it runs. Raises SettingError for a value out of
        range.
        """
        topup = topup_from_environment()
        return cls(num_draft_tokens, topup_pages=topup.pages, is_topup_explicit=topup.is_explicit)

    @property
    def reserve(self) -> int:
        """Tokens between committed length and watermark: a window for the step in flight, one for the step prepared."""
        return 2 * self.num_draft_tokens


@dataclass(frozen=True, slots=True)
class Reservation:
    """What one prepared step reserved."""

    watermark: Watermark
    guard: TopUpGuard


class DecodePrep:
    """One per scheduler. Passed to every `DraftInput.prepare_for_decode`, which itself lives for one step only."""

    def __init__(self, pools: KVPools, options: PrepOptions) -> None:
        self.pools = pools
        self.options = options
        self.device = pools.rows.device
        is_hisparse = isinstance(pools.allocator, HiSparseAllocator)
        self.topup = TopUp(
            options.topup_pages, pools.allocator.page_size, options.reserve, pools.rows.row_width, is_hisparse
        )
        self.plan_stream = plan_stream_for(self.device) if options.plan_stream else None
        make_event = torch.cuda.Event if options.check and self.device.type == "cuda" else None
        self.ring = StagingRing(self.device, make_event) if options.fill is Fill.RING else None
        self.consistency = ConsistencyCheck() if options.check else None
        if is_hisparse and options.topup_pages and options.is_topup_explicit:
            logger.warning("the page top-up is skipped: a HiSparse host pool is sized by what is allocated")

    def reserve(self, reqs: Sequence[Request]) -> Reservation:
        """The step's watermark, top-up included, before anything is taken. Raises RowOverflowError."""
        page_size = self.pools.allocator.page_size
        if self.options.aligned:
            base = page_aligned_decode_alloc_lens(reqs, self.options.reserve, page_size)
        else:
            base = exact_decode_alloc_lens(reqs, self.options.reserve)
        check_row_width(base.nxt, self.pools.rows.row_width)
        watermark, guard = self.topup.apply(reqs, base, self.pools.allocator.available_size())
        return Reservation(watermark, guard)

    @contextmanager
    def on_plan_stream(self) -> Iterator[None]:
        """Run the body on the plan stream, after all that the caller's stream holds and before all that it gets next.

        Without a plan stream the body runs where it stands.
        """
        if self.plan_stream is None:
            yield
            return
        caller = torch.cuda.current_stream(self.device)
        with torch.cuda.stream(self.plan_stream):
            # First: filter and merge may just have rebuilt the row indices and lengths on the caller's stream.
            self.plan_stream.wait_stream(caller)
            yield
        # Whatever comes next must not see half-prepared rows.
        caller.wait_stream(self.plan_stream)


_plan_streams: dict[str, torch.cuda.Stream] = {}


def plan_stream_for(device: torch.device) -> torch.cuda.Stream | None:
    """One plan stream per device for the process (`SGLANG_ENABLE_OVERLAP_PLAN_STREAM`); None on the CPU."""
    if device.type != "cuda":
        return None
    if str(device) not in _plan_streams:
        _plan_streams[str(device)] = torch.cuda.Stream(device)
    return _plan_streams[str(device)]


def busy_wait(us: int, now: Callable[[], int] = monotonic_ns) -> None:
    """Keep this thread on its core for at least `us` microseconds by `now`, in ns: a sleep would give the core away."""
    until = now() + us * 1000
    while now() < until:
        pass
