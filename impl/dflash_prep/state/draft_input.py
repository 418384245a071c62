"""What one decode step hands to the next: the draft's input."""

from __future__ import annotations

from dataclasses import dataclass

import torch

_DEVICE_FIELDS = ("topk_p", "topk_index", "bonus_tokens", "new_seq_lens", "hidden_states")


@dataclass(slots=True, eq=False)
class DraftInput:
    """Made anew by the worker in every step, adjusted by filter and merge, prepared, consumed.

    bonus_tokens, new_seq_lens   [bs] int64 device: each row's anchor token and exact length
    topk_p, topk_index, hidden_states   [bs, 0] f32, i64, f16: DFlash leaves them empty, other drafts do not
    future_indices               [bs] int64 device: rows of the FutureMap that will refill the fields above; None
                                 without overlap
    nxt_kv_lens_cpu, _sum        [bs] int32 CPU and its sum: a bound on every length of this step; None before
                                 `prepare_for_decode`
    max_top_k, uniform_top_k_value   for the sampling verify; an unlimited top_k is UNLIMITED_TOP_K in both
    """

    topk_p: torch.Tensor
    topk_index: torch.Tensor
    bonus_tokens: torch.Tensor
    new_seq_lens: torch.Tensor
    hidden_states: torch.Tensor
    future_indices: torch.Tensor | None = None
    nxt_kv_lens_cpu: torch.Tensor | None = None
    nxt_kv_lens_sum: int | None = None
    max_top_k: int = 1
    uniform_top_k_value: int | None = None

    @classmethod
    def for_next_step(
        cls, bonus_tokens: torch.Tensor, new_seq_lens: torch.Tensor, future_indices: torch.Tensor | None = None
    ) -> DraftInput:
        """The worker's output for the next step; all [bs] int64 on the device."""
        bs, device = len(bonus_tokens), bonus_tokens.device
        return cls(
            topk_p=torch.empty((bs, 0), dtype=torch.float32, device=device),
            topk_index=torch.empty((bs, 0), dtype=torch.int64, device=device),
            bonus_tokens=bonus_tokens,
            new_seq_lens=new_seq_lens,
            hidden_states=torch.empty((bs, 0), dtype=torch.float16, device=device),
            future_indices=future_indices,
        )

    @classmethod
    def create_idle_input(cls, device: torch.device | str) -> DraftInput:
        """The input of a rank that has no request but joins the step's collectives."""
        nothing = torch.empty(0, dtype=torch.int64, device=device)
        return cls.for_next_step(nothing, nothing.clone())

    def filter_batch(self, new_indices: torch.Tensor, new_indices_cpu: list[int] | None = None) -> None:
        """Keep these rows, ascending; [kept] int64 device, and the same as a host list when the scheduler has it
        (#31468).

        Without the host list the indices are fetched from the device, and the host waits. The top-k figures are left
        alone: the next preparation computes them anew.
        """
        if self.nxt_kv_lens_cpu is not None:
            keep = new_indices.cpu() if new_indices_cpu is None else torch.tensor(new_indices_cpu, dtype=torch.int64)
            self.nxt_kv_lens_cpu = self.nxt_kv_lens_cpu[keep]
            self.nxt_kv_lens_sum = int(self.nxt_kv_lens_cpu.sum())
        if self.future_indices is not None:
            # The FutureMap will refill the other fields from these rows, so slicing them would be for nothing.
            self.future_indices = self.future_indices[new_indices]
            return
        for name in _DEVICE_FIELDS:
            setattr(self, name, getattr(self, name)[new_indices])

    def merge_batch(self, other: DraftInput) -> None:
        """Append the other's rows."""
        if other.nxt_kv_lens_cpu is None:
            assert self.nxt_kv_lens_cpu is None, "a prepared draft input cannot take in an unprepared one"
        elif self.nxt_kv_lens_cpu is None:
            self.nxt_kv_lens_cpu, self.nxt_kv_lens_sum = other.nxt_kv_lens_cpu, other.nxt_kv_lens_sum
        else:
            self.nxt_kv_lens_cpu = torch.cat([self.nxt_kv_lens_cpu, other.nxt_kv_lens_cpu])
            self.nxt_kv_lens_sum = int(self.nxt_kv_lens_cpu.sum())
        assert (self.future_indices is None) == (other.future_indices is None), "either both overlap or neither"
        if self.future_indices is not None:
            self.future_indices = torch.cat([self.future_indices, other.future_indices])
            return
        for name in _DEVICE_FIELDS:
            setattr(self, name, torch.cat([getattr(self, name), getattr(other, name)]))
