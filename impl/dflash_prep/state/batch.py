"""The running batch as decode preparation sees it: data, with filter and merge."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch

from dflash_prep.device import to_device
from dflash_prep.state.draft_input import DraftInput
from dflash_prep.state.request import Request


@dataclass(slots=True, eq=False)
class DecodeBatch:
    """Requests that decode together, rows in the same order everywhere.

    req_pool_indices      [bs] int64 device, req_pool_indices_cpu the same on the host
    seq_lens              [bs] int64 device: exact lengths, replaced when they are resolved
    orig_seq_lens         [bs] int32 device
    seq_lens_cpu, _sum    [bs] int64 CPU; None where only the device knows them
    """

    reqs: list[Request]
    req_pool_indices: torch.Tensor
    req_pool_indices_cpu: torch.Tensor
    seq_lens: torch.Tensor
    orig_seq_lens: torch.Tensor
    seq_lens_cpu: torch.Tensor | None
    seq_lens_sum: int | None
    spec_info: DraftInput | None = None

    @classmethod
    def of(cls, reqs: Sequence[Request], device: torch.device, spec_info: DraftInput | None = None) -> DecodeBatch:
        """A batch of prefilled requests; lengths are the committed ones."""
        lens = [req.kv.kv_committed_len for req in reqs]
        rows = [req.kv.req_pool_idx for req in reqs]
        return cls(
            reqs=list(reqs),
            req_pool_indices=to_device(rows, device),
            req_pool_indices_cpu=torch.tensor(rows, dtype=torch.int64),
            seq_lens=to_device(lens, device),
            orig_seq_lens=to_device(lens, device, torch.int32),
            seq_lens_cpu=torch.tensor(lens, dtype=torch.int64),
            seq_lens_sum=sum(lens),
            spec_info=spec_info,
        )

    def filter_batch(self, keep: Sequence[int], *, host_list: bool = True) -> None:
        """Keep these rows, ascending. host_list False is the legacy way: the draft input asks the device (#31468)."""
        keep = list(keep)
        if len(keep) == len(self.reqs):
            return
        keep_cpu = torch.tensor(keep, dtype=torch.int64)
        keep_device = to_device(keep, self.seq_lens.device)
        self.reqs = [self.reqs[i] for i in keep]
        self.req_pool_indices = self.req_pool_indices[keep_device]
        self.req_pool_indices_cpu = self.req_pool_indices_cpu[keep_cpu]
        self.seq_lens = self.seq_lens[keep_device]
        self.orig_seq_lens = self.orig_seq_lens[keep_device]
        if self.seq_lens_cpu is not None:
            self.seq_lens_cpu = self.seq_lens_cpu[keep_cpu]
            self.seq_lens_sum = int(self.seq_lens_cpu.sum())
        if self.spec_info is not None:
            self.spec_info.filter_batch(keep_device, keep if host_list else None)

    def merge_batch(self, other: DecodeBatch) -> None:
        """Append the other's rows. Host lengths stay known only if both know them."""
        self.reqs = self.reqs + other.reqs
        self.req_pool_indices = torch.cat([self.req_pool_indices, other.req_pool_indices])
        self.req_pool_indices_cpu = torch.cat([self.req_pool_indices_cpu, other.req_pool_indices_cpu])
        self.seq_lens = torch.cat([self.seq_lens, other.seq_lens])
        self.orig_seq_lens = torch.cat([self.orig_seq_lens, other.orig_seq_lens])
        if self.seq_lens_cpu is not None and other.seq_lens_cpu is not None:
            self.seq_lens_cpu = torch.cat([self.seq_lens_cpu, other.seq_lens_cpu])
            self.seq_lens_sum += other.seq_lens_sum
        else:
            self.seq_lens_cpu = self.seq_lens_sum = None
        if self.spec_info is not None and other.spec_info is not None:
            self.spec_info.merge_batch(other.spec_info)
