"""Which steps take pages: the allocator's own arithmetic, without running it.

A request grows by what a step commits and must hold two blocks beyond it, in whole pages (#35265, #35382). A step
allocates when any request must grow; with a top-up of K pages (#47685) such a step raises every request to K pages
beyond its need, so the next steps need none.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from dflash_bench.errors import UsageError
from dflash_bench.model import BoolArray, IntArray

_MAX_TOPUP_PAGES = 8


@dataclass(frozen=True, slots=True)
class Allocator:
    """What decides about pages.

    page_size, block  tokens; two blocks are reserved
    accept_length     mean tokens that a request commits a step, at least 1 and at most ``block``
    requests          running requests of a rank
    topup_pages       K, 0 to 8
    arrivals          new requests a step and rank: a request's first step always allocates
    """

    page_size: int
    block: int
    accept_length: float
    requests: int
    topup_pages: int = 0
    arrivals: float = 0.0

    def __post_init__(self) -> None:
        if self.page_size < 1 or self.block < 1 or self.requests < 1:
            raise UsageError("page size, block and requests are at least 1")
        if not 1 <= self.accept_length <= self.block:
            raise UsageError(f"accept length is {self.accept_length:g}; it lies between 1 and the block, {self.block}")
        if not 0 <= self.topup_pages <= _MAX_TOPUP_PAGES:
            raise UsageError(f"top-up pages is {self.topup_pages}; 0 to {_MAX_TOPUP_PAGES} are allowed")
        if not 0 <= self.arrivals <= self.requests:
            raise UsageError(f"arrivals is {self.arrivals:g}; it lies between 0 and the requests, {self.requests}")


def draw_allocations(allocator: Allocator, num_steps: int, num_ranks: int, random: np.random.Generator) -> BoolArray:
    """Whether each step of each rank allocates, bool [num_steps, num_ranks], from a settled state."""
    page, reserve = allocator.page_size, 2 * allocator.block
    chance = hit_rate(allocator.accept_length, allocator.block)
    settle = _steps_to_settle(allocator)
    committed = random.integers(0, page * 64, size=(num_ranks, allocator.requests))
    allocated = _up(committed + reserve, page)
    allocates = np.empty((settle + num_steps, num_ranks), dtype=bool)
    for step in range(settle + num_steps):
        committed += _accepted(chance, allocator.block, committed.shape, random)
        if allocator.arrivals:
            is_new = random.random(committed.shape) < allocator.arrivals / allocator.requests
            committed = np.where(is_new, random.integers(0, page * 64, size=committed.shape), committed)
            # a prefilled request holds exactly what it has, so its first step takes pages
            allocated = np.where(is_new, committed, allocated)
        need = _up(committed + reserve, page)
        must = np.any(need > allocated, axis=1)
        allocates[step] = must
        wanted = need + allocator.topup_pages * page
        allocated = np.where(must[:, None], np.maximum(allocated, wanted), allocated)
    return allocates[settle:]


def hit_rate(accept_length: float, block: int) -> float:
    """Chance q that a drafted token is right, where 1 + q + … + q^(block−1) is the accept length."""
    low, high = 0.0, 1.0
    for _ in range(60):
        middle = (low + high) / 2
        if sum(middle**power for power in range(block)) < accept_length:
            low = middle
        else:
            high = middle
    return high


def _accepted(chance: float, block: int, shape: tuple[int, ...], random: np.random.Generator) -> IntArray:
    """Committed tokens: the leading run of right drafts and one more, at most the block."""
    if chance <= 0:
        return np.ones(shape, dtype=np.int64)
    if chance >= 1:
        return np.full(shape, block, dtype=np.int64)
    return np.minimum(random.geometric(1 - chance, size=shape), block)


def _up(tokens: IntArray, page: int) -> IntArray:
    return -(-tokens // page) * page


def _steps_to_settle(allocator: Allocator) -> int:
    # three rounds of refilling: by then the phases of the requests no longer show how they began
    pages = 1 + allocator.topup_pages
    return min(3000, int(3 * pages * allocator.page_size / allocator.accept_length))
