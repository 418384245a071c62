"""What other drafts hand from step to step, as far as the scheduler's filter touches it (#31468).

The scheduler filters whatever draft input a batch carries with one call, so all of them take its host keep list by the
same keyword. EAGLE keeps device tensors only and has no use for the list; an n-gram draft looks up the host's own token
history, and without the list would have to fetch the indices from the device.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch


@dataclass(slots=True, eq=False)
class EagleDraftInput:
    """The tree that EAGLE extends next.

    topk_p, topk_index   [bs, topk] f32 and int64 device: candidates of the first level
    verified_ids         [bs] int64 device: last verified token of each row
    hidden_states        [bs, hidden] device: the target's, at that token
    """

    topk_p: torch.Tensor
    topk_index: torch.Tensor
    verified_ids: torch.Tensor
    hidden_states: torch.Tensor

    def filter_batch(self, new_indices: torch.Tensor, new_indices_cpu: list[int] | None = None) -> None:
        """As DraftInput.filter_batch. The list is taken and not needed: nothing here lies on the host."""
        for name in ("topk_p", "topk_index", "verified_ids", "hidden_states"):
            setattr(self, name, getattr(self, name)[new_indices])


@dataclass(slots=True, eq=False)
class NgramDraftInput:
    """Token histories that an n-gram draft looks its continuation up in, one host list a row."""

    histories: list[list[int]]

    def filter_batch(self, new_indices: torch.Tensor, new_indices_cpu: list[int] | None = None) -> None:
        """As DraftInput.filter_batch. Without the host list the indices come from the device, and the host waits."""
        keep = new_indices.tolist() if new_indices_cpu is None else new_indices_cpu
        self.histories = [self.histories[row] for row in keep]
