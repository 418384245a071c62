"""The decode loop of one rank, one step ahead of the results it has seen (decode-prep, section 9).

Step k: update the running batch → prepare_for_decode → agree with the other ranks → launch → process the result of step
k - 1. When step k is prepared the host has processed the results up to k - 2; that is why two blocks are reserved.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Callable
from dataclasses import dataclass
from time import monotonic_ns

import torch

from dflash_prep.kernels.dp_moe_counts import DpMoeCountBuffers, RankCounts, build_counts_legacy
from dflash_prep.kernels.host_lens import HybridBackend, HybridDelegation, decide_needs_cpu_seq_lens
from dflash_prep.loop.agreement import Agreement, AgreementGroup, ForwardMode, Proposal
from dflash_prep.loop.counters import PoolTokens, StepRow
from dflash_prep.loop.decode_device import PendingResult
from dflash_prep.loop.oracle import Mismatch, StepResult
from dflash_prep.loop.running import EngineParts, RunningBatch
from dflash_prep.loop.sequences import Sequence
from dflash_prep.loop.worker import StepInputs, Worker
from dflash_prep.ranges import Range, span
from dflash_prep.state.decode_prep import DecodePrep, Reservation
from dflash_prep.state.draft_input import DraftInput
from dflash_prep.state.lifetime import commit_accepted, release
from dflash_prep.state.request import ceil_to
from dflash_prep.state.topup import TopUpDecision


@dataclass(frozen=True, slots=True)
class _InFlight:
    """A launched step: its number, its requests with the life they were in, and their result on its way."""

    step: int
    sequences: list[tuple[Sequence, int]]
    result: PendingResult


class _NoBackendReadsHostLens:
    """The attention backends of this engine plan on the device."""

    needs_cpu_seq_lens = False


class Engine:
    """One rank. `run` decodes; `close` gives everything back, graphs included, and checks that nothing is missing."""

    def __init__(
        self, parts: EngineParts, prep: DecodePrep, worker: Worker, agreement: AgreementGroup, *, keep_results: bool
    ) -> None:
        self.parts, self.prep, self.worker, self.agreement = parts, prep, worker, agreement
        self.keep_results = keep_results
        self.running = RunningBatch(parts)
        self.in_flight: _InFlight | None = None
        self.rows: list[StepRow] = []
        self.leaked_tokens = 0
        self._sizes = worker.sizes
        backend = _NoBackendReadsHostLens()
        delegation = HybridDelegation.BY_MODE if parts.switches.cpu_lens_delegation else HybridDelegation.ABSENT
        self.needs_cpu = decide_needs_cpu_seq_lens([HybridBackend(backend, backend, delegation), backend])
        self.counts = DpMoeCountBuffers(agreement.dp, parts.dp_rank, worker.shape.block, self.torch_device)

    @property
    def checks(self) -> tuple[int, int]:
        """Allocation steps checked, and found bad."""
        consistency = self.prep.consistency
        return (0, 0) if consistency is None else (consistency.checks, consistency.bad)

    @property
    def torch_device(self) -> torch.device:
        return self.parts.device.torch_device

    def run(self, num_steps: int, wants_stop: Callable[[], bool], on_step: Callable[[int], None]) -> bool:
        """Decode `num_steps` more steps, or fewer when any rank wants to stop; True if it was cut short.

        `on_step` is called with the number of steps finished since the engine was built.
        """
        started = monotonic_ns()
        end = len(self.rows) + num_steps
        for step in range(len(self.rows), end):
            with span(Range.DECODE_STEP):
                row, is_agreed_to_stop = self._step(step, started, wants_stop())
            now = monotonic_ns()
            row.period_ns = now - started
            self.rows.append(row)
            started = now
            on_step(step + 1)
            if is_agreed_to_stop:
                return step + 1 < end
        return False

    def _step(self, step: int, started: int, wants_stop: bool) -> tuple[StepRow, bool]:
        retracted = self.running.update(step)
        batch = self.running.batch
        reservation = None if batch is None else self.prep.prepare(batch)
        if batch is not None and self.worker.fault is not None:
            self.worker.fault.in_tables(step, self.parts.pools, batch.reqs)
        agreed = self._agree(wants_stop)
        launched = None
        if not agreed.is_idle:
            launched = self._launch(step, agreed)
            self.prep.examine_device()
            self.parts.device.war_barrier()
        processed = self._process(self.in_flight)
        self.in_flight = launched
        return self._row(step, started, reservation, processed, retracted), agreed.stop

    def _row(
        self, step: int, started: int, reservation: Reservation | None, processed: tuple[int, int], retracted: int
    ) -> StepRow:
        """What the step did; its period is known when it is over."""
        free = PoolTokens.free(self.parts.pools.allocator)
        row = StepRow(step, started, 0, len(self.running), *processed, 0, *free, None, None, retracted)
        if reservation is not None and reservation.watermark.num_needed:
            row.allocated_tokens = reservation.watermark.num_needed
            row.topup_pages, row.guard_ratio = self._pages_beyond_need(), reservation.guard.ratio
            row.topup_refused = int(reservation.guard.decision is TopUpDecision.SHORT)
        return row

    def _pages_beyond_need(self) -> int:
        page_size, pages = self.parts.pools.allocator.page_size, 0
        for each in self.running.sequences:
            if (kv := each.req.kv) is not None:
                need = ceil_to(kv.kv_committed_len + self.parts.reserve, page_size)
                pages += max(0, kv.kv_allocated_len - need) // page_size
        return pages

    # -- step k: agree and launch

    def _agree(self, wants_stop: bool) -> Agreement:
        bs = len(self.running)
        mode = ForwardMode.TARGET_VERIFY if bs else ForwardMode.IDLE
        device = self.parts.device
        own_still_ns = device.still_ns()
        proposal = Proposal(bs, bs, forward_mode=mode, stop=wants_stop, still_ns=own_still_ns)
        with span(Range.DP_AGREEMENT):
            arrived = monotonic_ns()
            agreed = self.agreement.agree(proposal)
            waited = monotonic_ns() - arrived
        device.stand_still(min(waited, agreed.still_ns - own_still_ns))
        return agreed

    def _launch(self, step: int, agreed: Agreement) -> _InFlight:
        self._update_counts(agreed)
        worker = self.worker
        result = worker.step(self._resolve(step), self._padded(agreed.max_num_tokens))
        if (batch := self.running.batch) is not None:
            rows = batch.req_pool_indices
            batch.spec_info = DraftInput.for_next_step(rows, batch.seq_lens, future_indices=rows)
        return _InFlight(step, [(each, each.life) for each in self.running.sequences], result)

    def _padded(self, num_requests: int) -> int:
        return self._sizes[bisect_left(self._sizes, num_requests)]

    def _update_counts(self, agreed: Agreement) -> None:
        """On the schedule stream, before anything there waits for the step in flight: the legacy copies block."""
        with span(Range.DP_MOE_COUNTS):
            counts = RankCounts(agreed.num_tokens, agreed.num_tokens_for_logprob)
            if self.parts.switches.persistent_counts:
                self.counts.update(counts)
            else:
                build_counts_legacy(counts, self.parts.dp_rank, self.worker.shape.block, self.torch_device)

    def _resolve(self, step: int) -> StepInputs:
        batch = self.running.batch
        if batch is None:
            nothing = torch.empty(0, dtype=torch.int64, device=self.torch_device)
            return StepInputs(step, nothing, nothing, None, None)
        resolved = self.parts.future_map.resolve_seq_lens(
            batch.spec_info.future_indices, batch.req_pool_indices_cpu, needs_cpu=self.needs_cpu
        )
        batch.seq_lens, batch.seq_lens_cpu = resolved.seq_lens, resolved.seq_lens_cpu
        batch.seq_lens_sum = resolved.seq_lens_sum
        if self.worker.fault is not None:
            self.worker.fault.in_lengths(step, batch.reqs, resolved.seq_lens)
        return StepInputs(
            step, batch.req_pool_indices, resolved.seq_lens, resolved.seq_lens_cpu, batch.spec_info.nxt_kv_lens_cpu
        )

    # -- step k - 1: its result

    def _process(self, done: _InFlight | None) -> tuple[int, int]:
        """Commit what step k - 1 produced; tokens committed and requests they belong to."""
        if done is None:
            return 0, 0
        with span(Range.PROCESS_RESULT):
            results = done.result.wait().tolist()
            allocator = self.parts.pools.allocator
            allocator.free_group_begin()
            committed = processed = 0
            for (each, life), (anchor, commit, *tokens) in zip(done.sequences, results, strict=True):
                if each.is_finished or each.life != life or each.req.kv is None:
                    continue  # finished or sent back while this step was in flight: its extra tokens are nobody's
                committed += self._commit(done.step, each, anchor, tokens[:commit])
                processed += 1
            allocator.free_group_end()
        return committed, processed

    def _commit(self, step: int, each: Sequence, anchor: int, tokens: list[int]) -> int:
        if not each.tokens:
            each.tokens.append(anchor)
        if self.keep_results:
            each.results.append(StepResult(step, tuple(tokens)))
        kept = tokens[: each.num_missing]
        each.tokens += kept
        commit_accepted(each.req, len(kept))
        if each.num_missing <= 0:
            each.is_finished = True
            release(self.parts.pools, each.req)
        return len(kept)

    # -- the end

    def pause(self) -> None:
        """Process the result of the step in flight and leave the device idle; `run` goes on from here."""
        self._process(self.in_flight)
        self.in_flight = None
        self.parts.device.drain()

    def close(self) -> None:
        """Pause, and give back every page and row; `leaked_tokens` says what is missing afterwards."""
        self.pause()
        self.worker.drop_graphs()
        for each in self.running.sequences:
            if each.req.kv is not None:
                release(self.parts.pools, each.req, insert=False)
        self.running = RunningBatch(self.parts)
        pools = self.parts.pools
        pools.tree.evict(pools.tree.evictable_size())
        size, free = self.parts.pool_size, PoolTokens.free(pools.allocator)
        self.leaked_tokens = size.full - free.full + (0 if size.swa is None else size.swa - free.swa)

    def first_mismatch(self) -> tuple[Mismatch | None, int]:
        """The earliest place where any sequence left the oracle, None if nowhere, and the tokens compared."""
        speculation = self.worker.shape.block, self.parts.hit_rate
        found = [each.mismatch(*speculation) for each in self.parts.arrivals.all]
        compared = sum(len(result.tokens) for each in self.parts.arrivals.all for result in each.results)
        return min((each for each in found if each is not None), key=lambda each: each.step, default=None), compared
