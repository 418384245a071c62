"""Faults planted on purpose, to show that a run that decodes wrongly does not pass for a fast one.

Each damages what one published change could damage if it were implemented wrongly, once, at one step, for the first
request of the batch (`page`: also the second). The oracle must then name the request and the step.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum
from typing import TYPE_CHECKING

from dflash_prep.request import Request, floor_to

if TYPE_CHECKING:
    import torch

    from dflash_prep.pools import KVPools


class FaultKind(StrEnum):
    SLOT = "slot"  # a column of the row names the slot next to its own
    PAGE = "page"  # a page of the second request is given to the first one as well
    LENGTH = "length"  # the step runs with the length that the host has committed, one step behind the device
    REBUILD = "rebuild"  # the rebuild of the draft row leaves out its last column


class FaultError(ValueError):
    """The text is no fault; the message is one sentence."""


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
