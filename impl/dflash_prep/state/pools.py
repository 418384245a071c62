"""The three stores that every allocation touches together."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from dflash_prep.state.req_to_token import ReqToTokenPool

if TYPE_CHECKING:
    from dflash_prep.state.paged_allocator import KVAllocator
    from dflash_prep.state.prefix_cache import TreeCache


@dataclass(frozen=True, slots=True)
class KVPools:
    """rows: position to slot; allocator: free slots; tree: what finished requests left behind and can be evicted."""

    rows: ReqToTokenPool
    allocator: KVAllocator
    tree: TreeCache
