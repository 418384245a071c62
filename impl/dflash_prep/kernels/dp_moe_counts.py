"""Token counts that a DP-MoE draft reads on the device every forward (section 10.3, #47677).

Legacy builds three small tensors from Python lists before every draft forward; each is a pageable copy, for which the
host waits. Persistent buffers write pinned memory and copy without waiting, into tensors whose address never changes.
"""

from dataclasses import dataclass

import torch

_STAGING_DEPTH = 2
"""A slot is reused two steps later; by then the host has synchronised that step's result, which fences its copies."""


@dataclass(frozen=True, slots=True)
class RankCounts:
    """The agreed counts of one step, host integers: what each DP rank brings."""

    num_tokens: tuple[int, ...]  # per DP rank, in requests
    num_logprob_tokens: tuple[int, ...]  # per DP rank


@dataclass(frozen=True, slots=True)
class _DpMoeCounts:
    """The same on the device."""

    num_token_non_padded: torch.Tensor  # int32 [1], this rank's tokens without padding
    num_tokens: torch.Tensor  # int64 [dp], in draft tokens
    num_logprob_tokens: torch.Tensor  # int64 [dp]


def build_counts_legacy(counts: RankCounts, rank: int, B: int, device: torch.device | str) -> _DpMoeCounts:
    """Three new tensors from lists, three pageable copies; agreed token counts are in requests and scaled by B."""
    scaled = [n * B for n in counts.num_tokens]
    return _DpMoeCounts(
        torch.tensor([scaled[rank]], dtype=torch.int32, device=device),
        torch.tensor(scaled, dtype=torch.int64, device=device),
        torch.tensor(counts.num_logprob_tokens, dtype=torch.int64, device=device),
    )


class DpMoeCountBuffers:
    """Persistent device tensors for `dp` ranks and a ring of pinned staging slots (#47677)."""

    def __init__(self, dp: int, rank: int, B: int, device: torch.device | str) -> None:
        device = torch.device(device)
        pinned = device.type == "cuda"
        self._rank, self._dp, self._B = rank, dp, B
        self._device_counts = torch.zeros((2, dp), dtype=torch.int64, device=device)
        self._device_own = torch.zeros(1, dtype=torch.int32, device=device)
        self._staging = [
            (
                torch.zeros((2, dp), dtype=torch.int64, pin_memory=pinned),
                torch.zeros(1, dtype=torch.int32, pin_memory=pinned),
            )
            for _ in range(_STAGING_DEPTH)
        ]
        self._turn = 0
        self._shipped: RankCounts | None = None
        self._views = _DpMoeCounts(self._device_own, self._device_counts[0], self._device_counts[1])

    def update(self, counts: RankCounts) -> _DpMoeCounts:
        """The same three tensors at every call, holding `counts`; two copies that do not block, none if unchanged.

        ValueError if `counts` is not for this many ranks.
        """
        if len(counts.num_tokens) != self._dp or len(counts.num_logprob_tokens) != self._dp:
            raise ValueError(f"counts of {len(counts.num_tokens)} ranks do not fit buffers for {self._dp}")
        if counts != self._shipped:
            self._ship(counts)
        return self._views

    def _ship(self, counts: RankCounts) -> None:
        staged, own = self._staging[self._turn]
        self._turn = (self._turn + 1) % _STAGING_DEPTH
        staged.numpy()[:] = ([n * self._B for n in counts.num_tokens], counts.num_logprob_tokens)
        own.numpy()[0] = counts.num_tokens[self._rank] * self._B
        self._device_counts.copy_(staged, non_blocking=True)
        self._device_own.copy_(own, non_blocking=True)
        self._shipped = counts
