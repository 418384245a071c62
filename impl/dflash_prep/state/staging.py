"""Where the lengths of a step wait on the host until the device has them, and how they get there.

Three vectors per step: committed (int64, host planning), cur and nxt (int32, what the allocation kernels read). The
views that a step hands out stay in use until its draft and verify are done: they must not be refilled before.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from enum import StrEnum
from typing import Protocol

import torch

from dflash_prep.errors import StagingOverwriteError
from dflash_prep.state.request import Request
from dflash_prep.state.reservation import Watermark

_MIN_CAPACITY = 32
_RING_DEPTH = 2
"""Enough: before step N + 1 is prepared the host has waited for step N - 1's result copy, which fences its H2D."""


class Fill(StrEnum):
    """How the lengths are staged."""

    LOOP = "loop"  # an element write per length, buffers of the step's own: before #47678
    BULK = "bulk"  # one write per buffer through its numpy view: #47678
    RING = "ring"  # bulk writes into two slots kept for the process, copied only when the device's are stale: #39154


@dataclass(frozen=True, slots=True)
class StagedLens:
    """Host views of one step: committed [bs] int64; cur, nxt [bs] int32, pinned where the device is a GPU."""

    committed: torch.Tensor
    cur: torch.Tensor
    nxt: torch.Tensor


@dataclass(frozen=True, slots=True)
class FillFigures:
    """What one pass over the requests yields besides the buffers. uniform_top_k_value: the common top_k or None."""

    committed_sum: int
    nxt_sum: int
    max_top_k: int
    uniform_top_k_value: int | None


def fill_loop(lens: StagedLens, reqs: Sequence[Request], watermark: Watermark) -> FillFigures:
    """One tensor element per write: about 3 * bs small torch calls (0.4 ms of a step at 40 requests, #47678)."""
    committed_sum = nxt_sum = 0
    max_top_k = 1
    first_top_k = reqs[0].sampling_params.top_k
    is_uniform = True
    for i, req in enumerate(reqs):
        lens.committed[i] = req.kv.kv_committed_len
        lens.cur[i] = watermark.cur[i]
        lens.nxt[i] = watermark.nxt[i]
        committed_sum += req.kv.kv_committed_len
        nxt_sum += watermark.nxt[i]
        max_top_k = max(max_top_k, req.sampling_params.top_k)
        is_uniform = is_uniform and req.sampling_params.top_k == first_top_k
    return FillFigures(committed_sum, nxt_sum, max_top_k, first_top_k if is_uniform else None)


def fill_bulk(lens: StagedLens, reqs: Sequence[Request], watermark: Watermark) -> FillFigures:
    """The same in three buffer writes (#47678)."""
    committed = [req.kv.kv_committed_len for req in reqs]
    top_ks = [req.sampling_params.top_k for req in reqs]
    lens.committed.numpy()[:] = committed
    lens.cur.numpy()[:] = watermark.cur
    lens.nxt.numpy()[:] = watermark.nxt
    is_uniform = top_ks.count(top_ks[0]) == len(top_ks)
    return FillFigures(sum(committed), sum(watermark.nxt), max(1, max(top_ks)), top_ks[0] if is_uniform else None)


FILLS: dict[Fill, Callable[[StagedLens, Sequence[Request], Watermark], FillFigures]] = {
    Fill.LOOP: fill_loop,
    Fill.BULK: fill_bulk,
    Fill.RING: fill_bulk,
}


class Staging(Protocol):
    """Hands out host views and brings their int32 half to the device."""

    def acquire(self, bs: int) -> StagedLens: ...

    def ship(self, lens: StagedLens, num_needed: int, rids: tuple[int, ...]) -> tuple[torch.Tensor, torch.Tensor]:
        """cur and nxt on the device, int32 [bs] each; `lens` is what the last `acquire` gave."""


def _grown(bs: int, capacity: int) -> int:
    """The capacity to grow to."""
    return max(bs, _MIN_CAPACITY, 2 * capacity)


class LengthBuffers:
    """Buffers of one draft input. Every step has a new draft input, so these are allocated anew each step."""

    def __init__(self, device: torch.device) -> None:
        self.device = device
        self._committed = torch.empty(0, dtype=torch.int64)
        self._device_cur = torch.empty(0, dtype=torch.int32, device=device)

    def acquire(self, bs: int) -> StagedLens:
        """Host and device buffers of at least `bs`, and the host's first `bs` elements."""
        if bs > self._committed.shape[0]:
            capacity, pinned = _grown(bs, self._committed.shape[0]), self.device.type == "cuda"
            self._committed = torch.empty(capacity, dtype=torch.int64)
            self._cur = torch.empty(capacity, dtype=torch.int32, pin_memory=pinned)
            self._nxt = torch.empty(capacity, dtype=torch.int32, pin_memory=pinned)
        if bs > self._device_cur.shape[0]:
            capacity = _grown(bs, self._device_cur.shape[0])
            self._device_cur = torch.empty(capacity, dtype=torch.int32, device=self.device)
            self._device_nxt = torch.empty(capacity, dtype=torch.int32, device=self.device)
        return StagedLens(self._committed[:bs], self._cur[:bs], self._nxt[:bs])

    def ship(self, lens: StagedLens, num_needed: int, rids: tuple[int, ...]) -> tuple[torch.Tensor, torch.Tensor]:
        """Two copies every step, also when nothing is allocated and nobody will read them."""
        bs = lens.cur.shape[0]
        cur, nxt = self._device_cur[:bs], self._device_nxt[:bs]
        return cur.copy_(lens.cur, non_blocking=True), nxt.copy_(lens.nxt, non_blocking=True)


class _Slot:
    def __init__(self, capacity: int, *, pinned: bool) -> None:
        self.committed = torch.empty(capacity, dtype=torch.int64)
        self.lens = torch.empty((2, capacity), dtype=torch.int32, pin_memory=pinned)
        self.copied: torch.cuda.Event | None = None


class StagingRing:
    """Two host slots used in turn and one device block, kept for the process (#39154).

    cur and nxt are the two rows of one int32 block, so they travel in one copy, and only when somebody will read
    them: when the step allocates, when the batch's requests changed, or when the device block is new.

    make_event   checking mode: copy always, record an event per slot, and refuse to refill a slot whose copy is not
                 done
    """

    def __init__(self, device: torch.device, make_event: Callable[[], torch.cuda.Event] | None = None) -> None:
        self.device = device
        self.make_event = make_event
        self.num_copies = self.num_skipped = 0
        self._slots: list[_Slot] = []
        self._at = -1
        self._capacity = 0
        self._shipped_rids: tuple[int, ...] | None = None

    def acquire(self, bs: int) -> StagedLens:
        """The next slot's first `bs` elements. In checking mode StagingOverwriteError if its last copy is not done."""
        if bs > self._capacity:
            self._grow(_grown(bs, self._capacity))
        self._at = (self._at + 1) % _RING_DEPTH
        slot = self._slots[self._at]
        if slot.copied is not None and not slot.copied.query():
            raise StagingOverwriteError(
                f"staging slot {self._at} is refilled while its copy to {self.device} is under way"
            )
        return StagedLens(slot.committed[:bs], slot.lens[0, :bs], slot.lens[1, :bs])

    def _grow(self, capacity: int) -> None:
        self._capacity = capacity
        self._slots = [_Slot(capacity, pinned=self.device.type == "cuda") for _ in range(_RING_DEPTH)]
        self._device_lens = torch.empty((2, capacity), dtype=torch.int32, device=self.device)
        self._shipped_rids = None

    def ship(self, lens: StagedLens, num_needed: int, rids: tuple[int, ...]) -> tuple[torch.Tensor, torch.Tensor]:
        """Device views. Without a copy they hold an earlier step's values, which nobody reads as num_needed is 0."""
        bs, slot = lens.cur.shape[0], self._slots[self._at]
        if num_needed > 0 or rids != self._shipped_rids or self.make_event:
            self._device_lens.copy_(slot.lens, non_blocking=True)
            self._shipped_rids = rids
            self.num_copies += 1
            self._record(slot)
        else:
            self.num_skipped += 1
        return self._device_lens[0, :bs], self._device_lens[1, :bs]

    def _record(self, slot: _Slot) -> None:
        if self.make_event is not None:
            slot.copied = self.make_event()
            slot.copied.record()
