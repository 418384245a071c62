"""The stores that every allocation touches together, and what is asked of each."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

import torch

from dflash_prep.kernels.kv_alloc import RowSpans
from dflash_prep.ranges import Range, span
from dflash_prep.state.req_to_token import ReqToTokenPool
from dflash_prep.state.request import Request


class KVAllocator(Protocol):
    """What the rest of the package asks of an allocator; sizes are in tokens.

    `has_window` of `free_segment` says whether the run still has its slots in a sliding-window pool. Pools without
    one ignore it.
    """

    page_size: int

    def available_size(self) -> int: ...

    def shortfall(self, demand: int) -> tuple[int, int]:
        """Tokens to evict before `demand` can be taken: of the (full) pool, and of a sliding-window pool."""

    def alloc(self, num_tokens: int) -> torch.Tensor | None: ...

    def alloc_extend(
        self, spans: RowSpans, last_loc: torch.Tensor, num_tokens: int, num_new_pages: int | None = None
    ) -> torch.Tensor | None: ...

    def free_segment(self, slots: torch.Tensor, start_pos: int, *, has_window: bool = True) -> None: ...

    def join(self, runs: Sequence[torch.Tensor]) -> torch.Tensor: ...

    def free_group_begin(self) -> None: ...

    def free_group_end(self) -> None: ...


class TreeCache(Protocol):
    """Takes rows over and gives pages back; lengths in tokens, slots int32 or int64 on the device."""

    def match(self, req: Request) -> torch.Tensor | None:
        """Slots of the longest cached prefix that `req` may share, whole pages, locked until `finish`; None without
        one.
        """

    def finish(self, req: Request, slots: torch.Tensor, *, insert: bool) -> None:
        """Take over columns [0, kv_committed_len) of a row that ends: keep (insert) or free them, unlock what was
        shared.
        """

    def unlock(self, req: Request, length: int) -> None:
        """Give up a match of `length` tokens whose request was not admitted after all."""

    def evict(self, num_tokens: int, num_swa_tokens: int = 0) -> int:
        """Free at least this many tokens of unshared prefixes, or all there are, whole pages; returns full-pool
        tokens freed.
        """

    def evictable_size(self) -> int:
        """Tokens that `evict` could free."""


@dataclass(frozen=True, slots=True)
class KVPools:
    """rows: position to slot; allocator: free slots; tree: what finished requests left behind and can be evicted."""

    rows: ReqToTokenPool
    allocator: KVAllocator
    tree: TreeCache

    def make_room(self, demand: int) -> None:
        """Evict what is short of `demand` tokens, not the demand itself, as older engines did."""
        short, swa_short = self.allocator.shortfall(demand)
        if short > 0 or swa_short > 0:
            with span(Range.EVICT):
                self.tree.evict(short, swa_short)
