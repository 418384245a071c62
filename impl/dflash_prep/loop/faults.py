"""Faults and delays planted on purpose, to show that what should notice them does.

A fault damages what one published change could damage if it were implemented wrongly, once, at one step, for the first
request of the batch (`page`: also the second). The oracle must then name the request and the step. A delay makes one
rank's preparation slower by a known time and changes no token: a comparison of the two runs must find it.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from enum import StrEnum
from typing import TYPE_CHECKING

from dflash_prep.arms import Arm
from dflash_prep.state.request import Request, floor_to

if TYPE_CHECKING:
    import torch

    from dflash_prep.state.pools import KVPools


class FaultKind(StrEnum):
    SLOT = "slot"  # a column of the row names the slot next to its own
    PAGE = "page"  # a page of the second request is given to the first one as well
    LENGTH = "length"  # the step runs with the length that the host has committed, one step behind the device
    REBUILD = "rebuild"  # the rebuild of the draft row leaves out its last column
    RING = "ring"  # a result comes into the slot of the step after it


class FaultError(ValueError):
    """The text is no fault or delay; the message is one sentence."""


@dataclass(frozen=True, slots=True)
class Fault:
    """`kind` at `step`. The hooks below are called at every step and act at that one, if anybody runs."""

    kind: FaultKind
    step: int

    @classmethod
    def parse(cls, text: str) -> Fault:
        """The fault of ``KIND@STEP``. Raises FaultError."""
        kind, _, step = text.partition("@")
        if kind not in list(FaultKind) or not (step.isascii() and step.isdecimal()):
            raise FaultError(f"{text!r} is no KIND@STEP; the kinds are {', '.join(FaultKind)}")
        return cls(FaultKind(kind), int(step))

    def check(self, arms: Sequence[Arm]) -> None:
        """Raises FaultError if one of the arms has no place for it."""
        for arm in arms:
            if self.kind is FaultKind.REBUILD and arm.switches.step_graph:
                raise FaultError(f"arm {arm.name} rebuilds inside its graph, where nothing can be planted")
            if self.kind is FaultKind.RING and not arm.switches.step_graph:
                raise FaultError(f"arm {arm.name} has no ring of results")

    def in_tables(self, step: int, pools: KVPools, reqs: list[Request]) -> None:
        """After the step's reservation, on the schedule stream."""
        if step != self.step or not reqs:
            return
        table, first = pools.rows.req_to_token, reqs[0].kv
        if self.kind is FaultKind.SLOT:
            table[first.req_pool_idx, first.kv_committed_len] += 1
        elif self.kind is FaultKind.PAGE and len(reqs) > 1:
            page_size, second = pools.allocator.page_size, reqs[1].kv
            ours = floor_to(first.kv_committed_len, page_size)
            theirs = floor_to(second.kv_committed_len, page_size)
            table[first.req_pool_idx, ours : ours + page_size] = table[second.req_pool_idx, theirs : theirs + page_size]

    def in_lengths(self, step: int, reqs: list[Request], seq_lens: torch.Tensor) -> None:
        """After the step's lengths int64 [bs] were resolved, on the schedule stream."""
        if step == self.step and reqs and self.kind is FaultKind.LENGTH:
            seq_lens[0] = reqs[0].kv.kv_committed_len

    def in_draft_rows(
        self, step: int, draft_table: torch.Tensor, pool_indices: torch.Tensor, last_columns: torch.Tensor
    ) -> None:
        """After the draft rows int32 [rows, width] were rebuilt, on the forward stream; `last_columns` int [bs]."""
        if step == self.step and len(pool_indices) and self.kind is FaultKind.REBUILD:
            draft_table[pool_indices[:1], last_columns[:1].long()] = 0


@dataclass(frozen=True, slots=True)
class Delay:
    """The host of `rank` is busy for `us` microseconds more in every `prepare_for_decode`, if named of one arm only."""

    rank: int
    us: int
    arm: str | None = None

    @classmethod
    def parse(cls, text: str) -> Delay:
        """The delay of ``RANK:MICROSECONDS[:ARM]``. Raises FaultError."""
        rank, us, arm = [*text.split(":", 2), "", ""][:3]
        if not all(part.isascii() and part.isdecimal() for part in (rank, us)) or text.endswith(":"):
            raise FaultError(f"{text!r} is no RANK:MICROSECONDS, two whole numbers such as 2:150, or 2:150:ARM")
        return cls(int(rank), int(us), arm or None)

    def check(self, world: int, arms: Sequence[str]) -> None:
        """Raises FaultError if `world` ranks do not reach as far as `rank`, or nobody runs the arm."""
        if self.rank >= world:
            raise FaultError(f"--delay {self} names rank {self.rank}, and the ranks of this run are 0 to {world - 1}")
        if self.arm is not None and self.arm not in arms:
            raise FaultError(f"--delay {self} names arm {self.arm}, and the arms of this run are {' and '.join(arms)}")

    def us_on(self, rank: int, arm: str) -> int:
        """Microseconds per step of `arm` on `rank`."""
        return self.us if rank == self.rank and self.arm in (None, arm) else 0

    def __str__(self) -> str:
        return f"{self.rank}:{self.us}" + (f":{self.arm}" if self.arm else "")
