"""Will the next step's reservation fit, and who goes back to the queue when it does not."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from dflash_prep.errors import OutOfPagesError
from dflash_prep.state.lifetime import release
from dflash_prep.state.pools import KVPools
from dflash_prep.state.request import Request, ceil_to


def _decode_demand(reqs: Sequence[Request], reserve: int, page_size: int) -> int:
    """Tokens of new pages that preparing these requests will take: exact, in whole pages, without any top-up.

    `sum(ceil(max(cur, committed + reserve)) - ceil(cur))`; for aligned watermarks this is their `num_needed`. A
    top-up is taken only from what is left over, so it is nobody's demand.
    """
    return sum(
        ceil_to(max(req.kv.kv_allocated_len, req.kv.kv_committed_len + reserve), page_size)
        - ceil_to(req.kv.kv_allocated_len, page_size)
        for req in reqs
    )


def fits(pools: KVPools, reqs: Sequence[Request], reserve: int) -> bool:
    """Whether the next step of `reqs` can be prepared, after evicting what its demand is short of."""
    demand = _decode_demand(reqs, reserve, pools.allocator.page_size)
    pools.make_room(demand)
    return pools.allocator.available_size() >= demand


def retract_until_it_fits(
    pools: KVPools, reqs: Sequence[Request], reserve: int, before_release: Callable[[int], None] = lambda _index: None
) -> list[int]:
    """Take requests' KV back until the rest fits; the indices of those retracted, ascending, for the caller to requeue.

    Those that generated least go first, among equals the longest prompt: least work is lost. One request always
    stays; raises OutOfPagesError when even that one does not fit alone.
    """
    order = sorted(range(len(reqs)), key=lambda i: (-reqs[i].num_generated, reqs[i].prompt_len))
    retracted: list[int] = []
    while not fits(pools, [reqs[i] for i in order], reserve):
        if len(order) == 1:
            alone, free = reqs[order[0]], pools.allocator.available_size()
            raise OutOfPagesError(f"request {alone.rid} alone does not fit: {free} tokens are free and nobody is left")
        retracted.append(order.pop())
        before_release(retracted[-1])
        release(pools, reqs[retracted[-1]], insert=False)
    return sorted(retracted)
