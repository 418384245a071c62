"""Giving back sliding-window slots that decoding requests have moved past, and the alignment this rests on."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from dflash_prep.errors import MisalignedSegmentError
from dflash_prep.ranges import Range, span
from dflash_prep.state.pools import KVPools
from dflash_prep.state.request import Request, ceil_to, floor_to
from dflash_prep.state.swa_allocator import SWAAllocator

_DEFAULT_INTERVAL = 128
"""Decode batches between two looks at a request (`SGLANG_SWA_EVICTION_INTERVAL`)."""


@dataclass(frozen=True, slots=True)
class SWAEviction:
    """window in tokens; interval in decode batches; with a radix tree at least a page stays beyond the window."""

    window: int
    interval: int = _DEFAULT_INTERVAL
    has_tree: bool = True

    def is_due(self, decode_batch_idx: int) -> bool:
        """Whether a request that was prepared so often is looked at; an array of numbers gives an array."""
        return (decode_batch_idx > 0) & (decode_batch_idx % self.interval == 1 % self.interval)

    def frontier(self, req: Request, page_size: int) -> tuple[int, int]:
        """Columns [old, new) whose window slots the request no longer needs, both page aligned; empty when new <= old.

        A query at the next position reaches back `window` tokens from `committed - 1`; under overlap the device is
        ahead of the host's committed length, never behind, so the frontier is safe for the step in flight.
        """
        kv = req.kv
        reach = max(self.window, page_size) if self.has_tree else self.window
        old = max(kv.swa_evicted_seqlen, kv.cache_protected_len, ceil_to(kv.swa_shield_len, page_size))
        return old, floor_to(max(old, kv.kv_committed_len - 1 - reach), page_size)


def maybe_evict_swa(pools: KVPools, reqs: Sequence[Request], rule: SWAEviction) -> None:
    """Every `interval` decode batches of a request, free its window slots behind the window (#35382's caller does so
    first).

    A request's batch 0 is skipped: the extend before it may still run.
    """
    if isinstance(pools.allocator, SWAAllocator):
        evict_swa(pools, [req for req in reqs if rule.is_due(req.decode_batch_idx)], rule)


def evict_swa(pools: KVPools, due: Sequence[Request], rule: SWAEviction) -> None:
    """Free the window slots of these requests up to their frontier."""
    if not due:
        return
    with span(Range.EVICT_SWA):
        for req in due:
            old, new = rule.frontier(req, pools.allocator.page_size)
            if new > old:
                pools.allocator.free_swa(pools.rows.slots(req.kv.req_pool_idx, old, new), old)
                req.kv.swa_evicted_seqlen = new


def check_evict_floor(floor: int, page_size: int) -> None:
    """The evict floor of a PD pre-allocation must be a page boundary (#35286). Raises MisalignedSegmentError.

    A floor inside a page would split a page of which the rest is still in the window: freed once by the floor and
    once at finish.
    """
    if floor % page_size:
        raise MisalignedSegmentError(f"the sliding-window evict floor {floor} is inside a page of {page_size}")
