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
"""Tokens behind the window that make a look worth it (`SGLANG_SWA_EVICTION_INTERVAL`); before 0.5.18 decode batches
between two looks."""


@dataclass(frozen=True, slots=True)
class SWAEviction:
    """Whose window slots are given back, and which: as 0.5.18 and later do, `by_batches` as the engines before it.

    window    in tokens
    interval  tokens that must have slid out before a request is looked at; by_batches: preparations between two looks
    has_tree  a prefix cache keeps what lies in the window behind any page boundary: whole pages of it, and at least one
    """

    window: int
    interval: int = _DEFAULT_INTERVAL
    has_tree: bool = True
    by_batches: bool = False

    def is_due(self, decode_batch_idx: int, committed: int, evicted: int) -> bool:
        """Whether a request that was prepared so often is looked at; arrays give an array.

        A request's batch 0 is skipped: the extend before it may still run.
        """
        is_later = decode_batch_idx > 0
        if self.by_batches:
            return is_later & (decode_batch_idx % self.interval == 1 % self.interval)
        return is_later & (committed - self.window >= evicted + self.interval)

    def frontier(self, req: Request, page_size: int) -> tuple[int, int]:
        """Columns [old, new) whose window slots the request no longer needs, both page aligned; empty when new <= old.

        A query at position `committed` reaches back `window` tokens; under overlap the device is ahead of the host's
        committed length, never behind, so the frontier is safe for the step in flight.
        """
        kv = req.kv
        reach = max(self.window, page_size) if self.has_tree else self.window
        if self.by_batches:
            reach += 1  # one token more than is read, as published
        elif self.has_tree:
            reach = ceil_to(reach, page_size)
        old = max(kv.swa_evicted_seqlen, kv.cache_protected_len, ceil_to(kv.swa_shield_len, page_size))
        return old, floor_to(max(old, kv.kv_committed_len - reach), page_size)


def maybe_evict_swa(pools: KVPools, reqs: Sequence[Request], rule: SWAEviction) -> None:
    """Free the window slots behind the window of every request that is due (#35382's caller does so first)."""
    if isinstance(pools.allocator, SWAAllocator):
        due = (rule.is_due(req.decode_batch_idx, req.kv.kv_committed_len, req.kv.swa_evicted_seqlen) for req in reqs)
        evict_swa(pools, [req for req, is_due in zip(reqs, due, strict=True) if is_due], rule)


def evict_swa(pools: KVPools, due: Sequence[Request], rule: SWAEviction) -> None:
    """Free the window slots of these requests up to their frontier, all together."""
    if not due:
        return
    with span(Range.EVICT_SWA):
        pools.allocator.free_group_begin()
        for req in due:
            old, new = rule.frontier(req, pools.allocator.page_size)
            if new > old:
                pools.allocator.free_swa(pools.rows.slots(req.kv.req_pool_idx, old, new), old)
            req.kv.swa_evicted_seqlen = max(old, new)
        pools.allocator.free_group_end()


def check_evict_floor(floor: int, page_size: int) -> None:
    """The evict floor of a PD pre-allocation must be a page boundary (#35286). Raises MisalignedSegmentError.

    A floor inside a page would split a page of which the rest is still in the window: freed once by the floor and
    once at finish.
    """
    if floor % page_size:
        raise MisalignedSegmentError(f"the sliding-window evict floor {floor} is inside a page of {page_size}")
