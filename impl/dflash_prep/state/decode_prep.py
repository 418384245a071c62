"""`prepare_for_decode`, one step in one place, and what it keeps between steps."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from time import monotonic_ns
from typing import NamedTuple

import torch

from dflash_prep.errors import SettingError
from dflash_prep.kernels.kv_alloc import RowSpans
from dflash_prep.ranges import Range, span
from dflash_prep.state.batch import DecodeBatch
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
from dflash_prep.state.spec_alloc import alloc_for_spec_decode
from dflash_prep.state.staging import FILLS, Fill, LengthBuffers, StagingRing
from dflash_prep.state.swa_eviction import SWAEviction, maybe_evict_swa
from dflash_prep.state.topup import MAX_TOPUP_PAGES, TopUp, TopUpGuard, topup_from_environment

_logger = logging.getLogger(__name__)


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


class Reservation(NamedTuple):
    """What one prepared step reserved."""

    watermark: Watermark
    guard: TopUpGuard


class DecodePrep:
    """One per scheduler: the step, and what outlives it."""

    def __init__(self, pools: KVPools, options: PrepOptions) -> None:
        self.pools = pools
        self.options = options
        self.device = pools.rows.device
        is_hisparse = isinstance(pools.allocator, HiSparseAllocator)
        self.topup = TopUp(
            options.topup_pages, pools.allocator.page_size, options.reserve, pools.rows.row_width, is_hisparse
        )
        self.plan_stream = _plan_stream_for(self.device) if options.plan_stream else None
        make_event = torch.cuda.Event if options.check and self.device.type == "cuda" else None
        self.ring = StagingRing(self.device, make_event) if options.fill is Fill.RING else None
        self.consistency = ConsistencyCheck() if options.check else None
        if is_hisparse and options.topup_pages and options.is_topup_explicit:
            _logger.warning("the page top-up is skipped: a HiSparse host pool is sized by what is allocated")

    def prepare(self, batch: DecodeBatch) -> Reservation | None:
        """`prepare_for_decode`: reserve KV for the next step of every request; None, nothing changed, if there is none.

        Afterwards rows hold slots up to nxt; `batch.seq_lens_cpu`/`_sum` are the committed lengths (provisional: the
        exact ones are resolved later); the draft input's `nxt_kv_lens_cpu`/`_sum` bound them. Both are views of the
        staging buffers: see staging.py for how long these stay untouched. On CUDA the host never waits here and
        `batch.seq_lens` is not touched. Raises RowOverflowError or OutOfPagesError before any row, counter or page
        changes.
        """
        reqs, draft, options = batch.reqs, batch.spec_info, self.options
        if draft is None:
            raise ValueError("a speculative decode batch has no draft input; prefill or admission must attach one")
        if not reqs:
            return None
        with span(Range.PREPARE_FOR_DECODE):
            if options.host_delay_us:
                busy_wait(options.host_delay_us)
            if options.swa is not None:
                maybe_evict_swa(self.pools, reqs, options.swa)
            reservation = self.reserve(reqs)  # before staging, as it may refuse: no ring slot is used up for nothing
            staging = self.ring or LengthBuffers(self.device)
            lens = staging.acquire(len(reqs))
            with span(Range.FILL):
                figures = FILLS[options.fill](lens, reqs, reservation.watermark)
            num_needed = reservation.watermark.num_needed
            with self._on_plan_stream():
                with span(Range.H2D):
                    cur, nxt = staging.ship(lens, num_needed, tuple(req.rid for req in reqs))
                spans = RowSpans(cur, nxt, lens.cur, lens.nxt)
                alloc_for_spec_decode(self.pools, reqs, batch.req_pool_indices, spans, num_needed)
            for req in reqs:
                req.decode_batch_idx += 1
            batch.seq_lens_cpu, batch.seq_lens_sum = lens.committed, figures.committed_sum
            draft.nxt_kv_lens_cpu, draft.nxt_kv_lens_sum = lens.nxt, figures.nxt_sum
            draft.max_top_k, draft.uniform_top_k_value = figures.max_top_k, figures.uniform_top_k_value
            if self.consistency is not None:
                with span(Range.CONSISTENCY):
                    self.consistency.examine(self.pools, reqs, reservation.watermark)
        return reservation

    def examine_device(self) -> None:
        """Nothing: here rows are written, and looked at, before the launch."""

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
    def _on_plan_stream(self) -> Iterator[None]:
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


def _plan_stream_for(device: torch.device) -> torch.cuda.Stream | None:
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
