"""The EAGLE caller of the shared watermark arithmetic (#35382): the same four calls, another reserve, no top-up.

It is here to show what is shared. Its preparation has no state of its own: no buffers kept, no draft input filled.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch

from dflash_prep.device import to_device
from dflash_prep.kernels.kv_alloc import RowSpans
from dflash_prep.state.pools import KVPools
from dflash_prep.state.req_to_token import alloc_len_per_decode
from dflash_prep.state.request import Request
from dflash_prep.state.reservation import Watermark, check_row_width, page_aligned_decode_alloc_lens
from dflash_prep.state.spec_alloc import alloc_for_spec_decode


@dataclass(frozen=True, slots=True)
class EagleShape:
    """A draft tree: steps deep, topk wide, draft_tokens verified."""

    steps: int
    topk: int
    draft_tokens: int

    def reserve(self, page_size: int) -> int:
        """Twice what one step may write; for a chain no longer than its block that is DFlash's 2 * B."""
        return 2 * alloc_len_per_decode(
            draft_tokens=self.draft_tokens, steps=self.steps, topk=self.topk, page_size=page_size
        )


def prepare_for_decode_eagle(
    pools: KVPools, reqs: Sequence[Request], pool_idx: torch.Tensor, shape: EagleShape
) -> Watermark:
    """Reserve the next step of `reqs`; pool_idx [bs] int64 device. Raises RowOverflowError or OutOfPagesError,
    nothing written.

    The engine asserts the row width only for trees on pages (page_size > 1 and topk > 1); here every shape is checked.
    """
    if not reqs:
        return Watermark([], [], 0)
    page_size = pools.allocator.page_size
    watermark = page_aligned_decode_alloc_lens(reqs, shape.reserve(page_size), page_size)
    check_row_width(watermark.nxt, pools.rows.row_width)
    cur_cpu, nxt_cpu = (torch.tensor(lens, dtype=torch.int32) for lens in watermark[:2])
    cur, nxt = (to_device(lens, pools.rows.device, torch.int32) for lens in watermark[:2])
    alloc_for_spec_decode(pools, reqs, pool_idx, RowSpans(cur, nxt, cur_cpu, nxt_cpu), watermark.num_needed)
    for req in reqs:
        req.decode_batch_idx += 1
    return watermark
