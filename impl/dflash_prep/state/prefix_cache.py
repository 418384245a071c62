"""The prefix cache, as much of it as decode preparation meets: it takes over finished rows and gives pages back on
demand.

A stand-in, not a radix tree. It knows content only by a request's `stream`: requests of one stream have the same
tokens at the same positions, so a stream's cached prefix is one chain of pages that grows at its end and is evicted
from its end.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from itertools import takewhile

import torch

from dflash_prep.state.pools import KVAllocator
from dflash_prep.state.request import KVState, Request, ceil_to, floor_to


def _free_columns(allocator: KVAllocator, kv: KVState, row: torch.Tensor, start: int, end: int) -> None:
    """Free columns [start, end) of a row, `row` being its columns from 0 on; start on a page boundary."""
    for first, last, has_window in kv.window_runs(start, end, allocator.page_size):
        allocator.free_segment(row[first:last], first, has_window=has_window)


class ChunkCache:
    """No cache: a finished row is freed, nothing is shared, nothing can be evicted."""

    def __init__(self, allocator: KVAllocator) -> None:
        self.allocator = allocator

    def match(self, req: Request) -> torch.Tensor | None:
        return None

    def finish(self, req: Request, slots: torch.Tensor, *, insert: bool) -> None:
        _free_columns(self.allocator, req.kv, slots, 0, len(slots))

    def unlock(self, req: Request, length: int) -> None:
        pass

    def evict(self, num_tokens: int, num_swa_tokens: int = 0) -> int:
        return 0

    def evictable_size(self) -> int:
        return 0


@dataclass(frozen=True, slots=True)
class _Run:
    """Cached slots of whole pages that all have, or all lack, their slots in the sliding-window pool."""

    slots: torch.Tensor
    has_window: bool

    def split(self, length: int) -> tuple[_Run, _Run]:
        return _Run(self.slots[:length], self.has_window), _Run(self.slots[length:], self.has_window)


@dataclass(slots=True, eq=False)
class _Chain:
    """One stream's cached prefix and, for each running request that shares it, how much of it."""

    runs: list[_Run] = field(default_factory=list)
    length: int = 0
    locks: list[int] = field(default_factory=list)

    @property
    def evictable(self) -> int:
        """Tokens at the end that nobody shares."""
        return self.length - max(self.locks, default=0)

    def append(self, slots: torch.Tensor, *, has_window: bool) -> None:
        self.runs.append(_Run(slots, has_window))
        self.length += len(slots)

    def pop_end(self, num_tokens: int) -> tuple[_Run, int]:
        """Take at most `num_tokens` off the end, from one run; with them the position where they start."""
        run = self.runs.pop()
        kept, taken = run.split(max(0, len(run.slots) - num_tokens))
        if len(kept.slots):
            self.runs.append(kept)
        self.length -= len(taken.slots)
        return taken, self.length


class PrefixCache:
    """Chains by stream, least recently used first."""

    def __init__(self, allocator: KVAllocator) -> None:
        self.allocator = allocator
        self.chains: dict[int, _Chain] = {}

    def match(self, req: Request) -> torch.Tensor | None:
        """As TreeCache.match; the last token is never taken from the cache: a prefill must compute something.

        Only what still has its window slots is lent, although a sharer far enough behind the hole would not need them.
        """
        chain = None if req.stream is None else self.chains.get(req.stream)
        if chain is None:
            return None
        whole = list(takewhile(lambda run: run.has_window, chain.runs))
        length = min(sum(len(run.slots) for run in whole), floor_to(req.seq_len - 1, self.allocator.page_size))
        if length <= 0:
            return None
        chain.locks.append(length)
        self._touch(req.stream)
        return self.allocator.join([run.slots for run in whole])[:length]

    def finish(self, req: Request, slots: torch.Tensor, *, insert: bool) -> None:
        """As TreeCache.finish: whole pages join the chain, duplicates of its pages and the partial page are freed."""
        kv, page_size = req.kv, self.allocator.page_size
        shared = kv.cache_protected_len
        is_kept = insert and req.stream is not None
        aligned = floor_to(kv.kv_committed_len, page_size) if is_kept else shared
        known = self.chains[req.stream].length if is_kept and req.stream in self.chains else shared
        duplicate = min(max(known, shared), aligned)
        _free_columns(self.allocator, kv, slots, shared, duplicate)
        _free_columns(self.allocator, kv, slots, max(aligned, shared), kv.kv_committed_len)
        if aligned > duplicate:
            self._extend_chain(req, slots[duplicate:aligned], duplicate)
        self.unlock(req, shared)

    def _extend_chain(self, req: Request, slots: torch.Tensor, start: int) -> None:
        chain = self.chains.setdefault(req.stream, _Chain())
        assert chain.length == start, "a shared prefix is locked, so a chain is never shorter than what its sharers saw"
        kept = slots.clone()  # the row will be rewritten by its next owner
        for first, end, has_window in req.kv.window_runs(start, start + len(slots), self.allocator.page_size):
            chain.append(kept[first - start : end - start], has_window=has_window)
        self._touch(req.stream)

    def unlock(self, req: Request, length: int) -> None:
        if length:
            self.chains[req.stream].locks.remove(length)

    def _touch(self, stream: int) -> None:
        self.chains[stream] = self.chains.pop(stream)

    def evict(self, num_tokens: int, num_swa_tokens: int = 0) -> int:
        """As TreeCache.evict; what a running request shares stays."""
        freed = freed_swa = 0
        page_size = self.allocator.page_size
        for stream, chain in list(self.chains.items()):
            while chain.evictable and (freed < num_tokens or freed_swa < num_swa_tokens):
                short = max(num_tokens - freed, num_swa_tokens - freed_swa)
                run, start = chain.pop_end(min(ceil_to(short, page_size), chain.evictable))
                self.allocator.free_segment(run.slots, start, has_window=run.has_window)
                freed += len(run.slots)
                freed_swa += len(run.slots) if run.has_window else 0
            if not chain.length:
                del self.chains[stream]
        return freed

    def evictable_size(self) -> int:
        return sum(chain.evictable for chain in self.chains.values())
