"""The check that every allocation step can be run under, and the whole-pool audit that tests use.

Both read device memory and so make the host wait: they prove, they do not measure.
"""

from __future__ import annotations

import logging
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

import numpy as np
import torch

from dflash_prep.errors import PageAccountingError
from dflash_prep.state.host_pages import HostPagedAllocator
from dflash_prep.state.paged_allocator import PagedAllocator
from dflash_prep.state.pools import KVPools
from dflash_prep.state.request import Request
from dflash_prep.state.reservation import Watermark

_logger = logging.getLogger(__name__)


@dataclass(slots=True)
class ConsistencyCheck:
    """Counts of allocation steps checked and found bad (#47685 reports 870 and 0)."""

    checks: int = 0
    bad: int = 0

    def examine(self, pools: KVPools, reqs: Sequence[Request], watermark: Watermark) -> bool:
        """Check one step after its allocation; steps that needed nothing are not counted.

        Good means: every new column [cur, nxt) holds a slot other than 0, no slot is in two of them, and every
        `kv_allocated_len` equals its nxt.
        """
        if watermark.num_needed == 0:
            return True
        rows = pools.rows.req_to_token
        new = [
            rows[req.kv.req_pool_idx, start:end]
            for req, start, end in zip(reqs, watermark.cur, watermark.nxt, strict=True)
            if end > start
        ]
        slots = torch.cat(new).cpu()
        is_good = (
            bool((slots != 0).all())
            and len(slots.unique()) == len(slots)
            and [req.kv.kv_allocated_len for req in reqs] == watermark.nxt
        )
        self.count(is_good, len(reqs), len(slots))
        return is_good

    def count(self, is_good: bool, bs: int, num_new: int) -> None:
        """One more step was looked at, of `bs` requests and `num_new` new slots or pages."""
        self.checks += 1
        if not is_good:
            self.bad += 1
            _logger.error("allocation check %d failed: %d requests, %d new", self.checks, bs, num_new)

    def blame(self, row: int) -> None:
        """The device's row differs from the host's after the step checked last."""
        self.bad += 1
        _logger.error("after allocation check %d row %d differs on the device", self.checks, row)


def audit_pages(allocator: PagedAllocator, held: Iterable[torch.Tensor]) -> None:
    """Raise PageAccountingError unless every page is either free or held exactly once.

    held   runs of row columns or cache runs, each starting on a page boundary; runs of different holders share no page
    """
    if isinstance(allocator, HostPagedAllocator):
        known = [allocator.free_pages, *allocator.staged_pages, *(run.pages for run in held)]
        known = torch.from_numpy(np.concatenate(known, dtype=np.int64))
    else:
        pages = [run[:: allocator.page_size].to(torch.int64) // allocator.page_size for run in held]
        known = torch.cat([allocator.free_pages, *allocator.staged_pages, *pages])
    counts = torch.bincount(known, minlength=allocator.num_pages + 1)
    if len(counts) > allocator.num_pages + 1 or int(counts[0]) or not bool((counts[1:] == 1).all()):
        lost = (counts[1:] == 0).nonzero().flatten() + 1
        shared = (counts[1:] > 1).nonzero().flatten() + 1
        raise PageAccountingError(
            f"lost pages {lost.tolist()}, pages held twice {shared.tolist()}, page 0 held {int(counts[0])} times"
        )
