"""One `prepare_for_decode` of SGLang's DFlash draft input: bulk fill (#47678), staging ring (#39154), top-up (#47685).

The engine's own objects are read and written where its own function reads and writes them: lengths and counters of
requests, `seq_lens_cpu` and its sum, the draft input's upper bounds. Pages are taken by the engine's own
`alloc_for_spec_decode`, and only on steps that need some: on the others it would do nothing but write counters back as
they are.
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractContextManager
from dataclasses import dataclass
from enum import StrEnum
from typing import Any, Protocol

import torch

from dflash_prep.state.reservation import Watermark, page_aligned_decode_alloc_lens
from dflash_prep.state.staging import FillFigures, LengthBuffers, StagedLens, Staging, StagingRing, fill_bulk
from dflash_prep.state.topup import TopUp, TopUpGuard, topup_from_environment


class PlugArm(StrEnum):
    """What the engine's preparation is replaced by."""

    OFF = "off"  # nothing
    BULK = "bulk"  # lengths written in bulk (#47678)
    RING = "ring"  # and staged in buffers kept for the process, copied when pages are needed (#39154)
    TOPUP = "topup"  # and pages taken in advance (#47685), as many as SGLANG_OPT_DFLASH_DECODE_TOPUP_PAGES says


class Upstream(Protocol):
    """What is called of the engine's module: looked up at every step, so that whoever wraps it is heard."""

    alloc_for_spec_decode: Callable[..., None]
    get_spec: Callable[[], Any]
    _get_overlap_plan_stream: Callable[[Any], tuple[Any, AbstractContextManager[Any]]]


@dataclass(frozen=True, slots=True)
class Plan:
    """A step before anything of it is written.

    watermark  of every request, pages in advance included; guard: why they are or are not
    lens       host views of the lengths, filled, and the staging that they are of
    figures    their sums, and what the requests' top_k have in common
    """

    watermark: Watermark
    guard: TopUpGuard
    lens: StagedLens
    staging: Staging
    figures: FillFigures

    def ship(self) -> tuple[torch.Tensor, torch.Tensor]:
        """The old and new lengths on the device, int32 [bs] each."""
        return self.staging.ship(self.lens, self.watermark.num_needed, ())


class Preparation:
    """What an arm keeps between steps. ``topup_pages`` is K; None asks the environment, as a server does."""

    def __init__(self, arm: PlugArm, upstream: Upstream, topup_pages: int | None = None) -> None:
        self.arm, self.upstream = arm, upstream
        if topup_pages is None:
            topup_pages = topup_from_environment().pages
        self.topup_pages = topup_pages if arm is PlugArm.TOPUP else 0
        self._rings: dict[torch.device, StagingRing] = {}

    def plan(self, batch: Any) -> Plan:
        """Work out a step of a `ScheduleBatch` with at least one request. Writes nothing but staging buffers."""
        reqs, reserve = batch.reqs, 2 * int(self.upstream.get_spec().speculative_num_draft_tokens)
        allocator, rows = batch.token_to_kv_pool_allocator, batch.req_to_token_pool.req_to_token
        rule = TopUp(
            self.topup_pages,
            allocator.page_size,
            reserve,
            row_width=rows.shape[1],
            is_hisparse=batch.hisparse_coordinator is not None,
        )
        base = page_aligned_decode_alloc_lens(reqs, reserve, allocator.page_size)
        # what is free is asked for only where somebody looks at it: a hybrid pool adds up for it
        free = allocator.available_size() if base.num_needed and self.topup_pages else 0
        watermark, guard = rule.apply(reqs, base, free)
        staging = self._staging(torch.device(batch.device))
        lens = staging.acquire(len(reqs))
        return Plan(watermark, guard, lens, staging, fill_bulk(lens, reqs, watermark))

    def carry_out(self, draft: Any, batch: Any, plan: Plan) -> None:
        """Take the pages, write the rows, and leave batch and draft input as the engine's own function would."""
        if plan.watermark.num_needed or self.arm is PlugArm.BULK:
            self._take_pages(batch, plan)
        for req in batch.reqs:
            req.decode_batch_idx += 1
        batch.seq_lens_cpu, batch.seq_lens_sum = plan.lens.committed, plan.figures.committed_sum
        draft.nxt_kv_lens_cpu, draft.nxt_kv_lens_sum = plan.lens.nxt, plan.figures.nxt_sum
        draft.max_top_k, draft.uniform_top_k_value = plan.figures.max_top_k, plan.figures.uniform_top_k_value

    def _take_pages(self, batch: Any, plan: Plan) -> None:
        stream, context = self.upstream._get_overlap_plan_stream(batch.device)
        caller = None if stream is None else torch.get_device_module(batch.device).current_stream()
        with context:
            if stream is not None:
                stream.wait_stream(caller)  # filter and merge may just have rebuilt the row indices there
            cur, nxt = plan.ship()
            self.upstream.alloc_for_spec_decode(
                batch.tree_cache,
                batch.req_to_token_pool,
                reqs=batch.reqs,
                req_pool_indices=batch.req_pool_indices,
                cur_kv_lens=cur,
                cur_kv_lens_cpu=plan.lens.cur,
                nxt_kv_lens=nxt,
                nxt_kv_lens_cpu=plan.lens.nxt,
                num_needed_tokens=plan.watermark.num_needed,
                batch=batch,
            )
        if caller is not None:
            caller.wait_stream(stream)  # nothing behind us may see half-written rows

    def _staging(self, device: torch.device) -> Staging:
        if self.arm is PlugArm.BULK:
            return LengthBuffers(device)  # new every step, as the engine's own
        if device not in self._rings:
            self._rings[device] = StagingRing(device)
        return self._rings[device]
