"""The DP agreement: what every rank tells the others before a step, one small all-gather (decode-prep, section 10).

Ranks of data-parallel attention share the experts, so all must run a forward when any does, of one kind, and padded
to one size. Each rank fills eight int64; this loop adds its wish to stop, so that all stop at the same step, and the
time that a simulated device stood still.
The all-gather is a gloo collective on CPU tensors: the slowest rank's preparation delays everybody here. With NCCL it
runs on the schedule stream, behind the write-after-read barrier, and the host waits for that stream as well.
"""

from __future__ import annotations

from collections.abc import Sequence
from enum import IntEnum
from typing import NamedTuple

import torch
import torch.distributed as dist

from dflash_prep.kernels.sampler import all_gather


class ForwardMode(IntEnum):
    IDLE = 0
    EXTEND = 1
    TARGET_VERIFY = 2


class Proposal(NamedTuple):
    """One rank's row, in wire order; counts in requests for a decode batch (one token each), tokens for an extend."""

    num_tokens: int = 0
    num_tokens_for_logprob: int = 0
    can_run_decode_graph: bool = True
    is_extend: bool = False
    can_run_two_batch_overlap: bool = False
    forward_mode: ForwardMode = ForwardMode.IDLE
    can_run_prefill_graph: bool = False
    prefill_graph_max_prefix: int = 0
    stop: bool = False
    still_ns: int = 0


_FIELDS = len(Proposal._fields)


class Agreement(NamedTuple):
    """What all ranks know after the collective. Token counts are per DP rank; flags are reduced over all ranks."""

    num_tokens: tuple[int, ...]
    num_tokens_for_logprob: tuple[int, ...]
    can_run_decode_graph: bool
    is_extend: bool
    can_run_prefill_graph: bool
    stop: bool
    still_ns: int

    @property
    def max_num_tokens(self) -> int:
        """The size every rank's graph batch is padded to."""
        return max(self.num_tokens)

    @property
    def is_idle(self) -> bool:
        """No rank has anything to run."""
        return self.max_num_tokens == 0


def reduce(rows: Sequence[Sequence[int]], tp: int = 1) -> Agreement:
    """The agreement of all ranks' rows: graph flags by minimum, the rest by maximum, counts kept per DP rank.

    `tp` neighbouring ranks are one DP rank: they run the same requests, so the first one's counts are taken.
    """
    of_all = Proposal(*zip(*rows, strict=True))  # each field a tuple of all ranks' values
    return Agreement(
        of_all.num_tokens[::tp],
        of_all.num_tokens_for_logprob[::tp],
        all(of_all.can_run_decode_graph),
        any(of_all.is_extend),
        all(of_all.can_run_prefill_graph),
        any(of_all.stop),
        max(of_all.still_ns),
    )


class AgreementGroup:
    """The ranks that meet. With one rank there is no collective.

    tp      neighbouring ranks that run the same requests
    device  where the collective runs: the CPU for gloo, this rank's GPU for NCCL
    group   the process group; None for the default one
    """

    def __init__(
        self, world: int, tp: int = 1, device: torch.device | str = "cpu", group: dist.ProcessGroup | None = None
    ) -> None:
        self.world, self.tp, self._group = world, tp, group
        pinned = torch.device(device).type == "cuda"
        self._staged = torch.zeros(_FIELDS, dtype=torch.int64, pin_memory=pinned)
        self._words = self._staged.numpy()
        self._own = self._staged.to(device)  # where the collective runs on the CPU, the same tensor
        self._all = torch.zeros(world * _FIELDS, dtype=torch.int64, device=device)

    @property
    def is_on_gpu(self) -> bool:
        """Whether the collective runs on the current stream of a GPU."""
        return self._own.is_cuda

    @property
    def dp(self) -> int:
        """Ranks that run requests of their own."""
        return self.world // self.tp

    def agree(self, proposal: Proposal) -> Agreement:
        """Block until every rank has called this; the same answer on every rank."""
        if self.world == 1:
            return reduce([proposal])
        self._words[:] = proposal
        if self.is_on_gpu:
            self._own.copy_(self._staged, non_blocking=True)  # staged again only after the read below, which waits
        all_gather(self._all, self._own, group=self._group)
        return reduce(self._all.view(self.world, _FIELDS).tolist(), self.tp)
