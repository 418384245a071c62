"""The loop of the arm `floor`: pages on the host, one graph a step, results by array operations.

The order of a step is the engine's (`engine.py`) and so is what happens when somebody joins, finishes or is sent back;
what runs on every step is written anew, without an object a request.
"""

from __future__ import annotations

from collections.abc import Sequence as Many
from contextlib import nullcontext
from dataclasses import dataclass

import numpy as np
import torch

from dflash_prep.loop.agreement import Agreement
from dflash_prep.loop.counters import StepRow
from dflash_prep.loop.engine import Engine
from dflash_prep.loop.oracle import StepResult
from dflash_prep.loop.running import EngineParts, RunningBatch
from dflash_prep.loop.sequences import Sequence
from dflash_prep.loop.step_graph import GraphResult
from dflash_prep.ranges import Range, span
from dflash_prep.state.batch import DecodeBatch
from dflash_prep.state.host_pages import is_any, total
from dflash_prep.state.lifetime import release
from dflash_prep.state.request import Request


@dataclass(slots=True, eq=False)
class _HostBatch:
    """A decode batch without a device tensor: its rows travel in the packed block, its lengths lie in the graph."""

    reqs: list[Request]
    req_pool_indices_cpu: torch.Tensor
    seq_lens_cpu: torch.Tensor | None = None
    seq_lens_sum: int | None = None
    spec_info: None = None

    @classmethod
    def of(cls, reqs: Many[Request]) -> _HostBatch:
        """These requests, each with a row."""
        return cls(list(reqs), torch.tensor([req.kv.req_pool_idx for req in reqs], dtype=torch.int64))

    def filter_batch(self, keep: Many[int], *, host_list: bool = True) -> None:
        """As DecodeBatch.filter_batch."""
        self.reqs = [self.reqs[i] for i in keep]
        self.req_pool_indices_cpu = self.req_pool_indices_cpu[torch.tensor(keep, dtype=torch.int64)]

    def merge_batch(self, other: DecodeBatch | _HostBatch) -> None:
        """As DecodeBatch.merge_batch."""
        self.reqs = self.reqs + other.reqs
        self.req_pool_indices_cpu = torch.cat([self.req_pool_indices_cpu, other.req_pool_indices_cpu])


class _Outputs:
    """Tokens of who runs, by row: what `Sequence.tokens` gets when it leaves.

    Nothing here counts: a request has got `committed - prompt + 1` tokens, the last of them the next step's anchor.

    tokens   [rows, longest output + block] int32; behind the last one lies what a step had beyond its commit
    anchor   [rows]: place of the anchor in all of `tokens`, less the committed length
    final    [rows]: the committed length at which the request is done
    lives    [rows]: counts who came and who left, so that a result can be told from an earlier life's
    """

    def __init__(self, rows: int, longest: int, block: int) -> None:
        self.tokens = np.zeros((rows, longest + block), dtype=np.int32)
        self._flat = self.tokens.reshape(-1)
        self.anchor, self.final, self.lives = np.zeros((3, rows), dtype=np.int64)
        self._seen = np.zeros(rows, dtype=np.int64)
        self._columns = np.arange(block + 1)

    def open(self, each: Sequence) -> None:
        """A sequence got its row."""
        row = each.req.kv.req_pool_idx
        self.tokens[row, : len(each.tokens)] = each.tokens
        self.anchor[row] = row * self.tokens.shape[1] - each.req.prompt_len
        self.final[row] = each.req.prompt_len + each.shape.output_len - 1
        self._seen[row] = each.req.spec_verify_ct
        self.lives[row] += 1

    def close(self, each: Sequence) -> None:
        """A sequence is about to lose its row."""
        row = each.req.kv.req_pool_idx
        if each.req.spec_verify_ct > self._seen[row]:  # else nothing came since, the first anchor neither
            each.tokens = self.tokens[row, : each.req.num_generated + 1].tolist()
        self.lives[row] += 1

    def put(self, rows: np.ndarray, committed: np.ndarray, results: np.ndarray) -> np.ndarray:
        """Take the results int32 [bs, 2 + block] of `rows` at these lengths; how many tokens each commits."""
        self._flat[(self.anchor[rows] + committed)[:, None] + self._columns] = results[:, 1:]
        return np.minimum(results[:, 0], self.final[rows] - committed)


class _HostRunning(RunningBatch):
    """The running batch, looked at only where something can have changed."""

    def __init__(self, parts: EngineParts, outputs: _Outputs) -> None:
        super().__init__(parts)
        self.outputs = outputs
        self.has_finished = False
        self.lives = np.empty(0, dtype=np.int64)
        page_size = parts.pools.allocator.page_size
        self._most_new = -(-parts.reserve // page_size) * page_size  # tokens that one request can need in one step
        self._of: torch.Tensor | None = None

    def update(self, step: int) -> int:
        """As RunningBatch.update."""
        if self.has_finished:
            self.has_finished = False
            with span(Range.FILTER_FINISHED):
                self._keep([i for i, each in enumerate(self.sequences) if not each.is_finished])
        if len(self.sequences) < self.parts.concurrency:
            with span(Range.ADMIT):
                self._admit(step)
        retracted = 0
        if self.parts.pools.allocator.available_size() < len(self.sequences) * self._most_new:
            with span(Range.CHECK_MEMORY):
                retracted = self._retract()
        of = None if self.batch is None else self.batch.req_pool_indices_cpu
        if of is not self._of:
            self._of, nobody = of, np.empty(0, dtype=np.int64)
            self.lives = nobody if of is None else self.outputs.lives[of.numpy()]
        return retracted

    def _join(self, admitted: list[Sequence], fresh: DecodeBatch) -> None:
        super()._join(admitted, _HostBatch.of(fresh.reqs))
        for each in admitted:
            self.outputs.open(each)

    def _send_back(self, index: int) -> None:
        self.outputs.close(self.sequences[index])


@dataclass(slots=True)
class _GraphInFlight:
    """A launched step: its requests, the lives and rows they had, and its result to come."""

    step: int
    sequences: list[Sequence]
    rows: np.ndarray
    lives: np.ndarray
    result: GraphResult


class FloorEngine(Engine):
    """One rank of the arm `floor`."""

    def __init__(self, *parts: object, keep_results: bool) -> None:
        super().__init__(*parts, keep_results=keep_results)
        longest = self.parts.arrivals.longest_output
        self.outputs = _Outputs(self.worker.shape.rows, longest, self.worker.shape.block)
        self.running = _HostRunning(self.parts, self.outputs)
        self._nobody = np.empty(0, dtype=np.int64)
        is_over_nccl = self.agreement.world > 1 and self.agreement.is_on_gpu
        self._beside = torch.cuda.stream(torch.cuda.Stream()) if is_over_nccl else nullcontext()
        self._agreed: tuple[int, ...] | None = None
        self._counts = np.zeros(2 * self.agreement.dp + 1, dtype=np.int32)

    def _step(self, step: int, started: int, wants_stop: bool) -> tuple[StepRow, bool]:
        running, rows = self.running, self.parts.pools.rows
        retracted = running.update(step)
        batch = running.batch
        reservation = None if batch is None else self.prep.prepare(batch)
        agreed = self._agree(wants_stop)
        launched = None
        if not agreed.is_idle:
            if self.worker.fault is not None and batch is not None:
                rows.flush()
                self.worker.damage(step, self.parts.pools, batch.reqs)
            of_rows, sequences = (self._nobody, []) if batch is None else (self.prep.batch_rows, running.sequences)
            padded = self._padded(agreed.max_num_tokens)
            result = self.worker.launch(of_rows, self._dp_counts(agreed), rows.unwritten(), padded)
            launched = _GraphInFlight(step, sequences, of_rows, running.lives, result)
            self.prep.examine_device()
        processed = self._process(self.in_flight)
        self.in_flight = launched
        return self._row(step, started, reservation, processed, retracted), agreed.stop

    def _agree(self, wants_stop: bool) -> Agreement:
        """As Engine._agree; over NCCL beside the one stream, or the host would wait there for the step in flight."""
        with self._beside:
            return super()._agree(wants_stop)

    def _pages_beyond_need(self) -> int:
        rows = self.running.batch.req_pool_indices_cpu.numpy()
        return self.prep.pages_beyond_need(rows[self.outputs.lives[rows] == self.running.lives])

    def _dp_counts(self, agreed: Agreement) -> np.ndarray:
        """Token counts for the packed block; the same array while they stay the same."""
        if agreed.num_tokens != self._agreed:
            self._agreed, block = agreed.num_tokens, self.worker.shape.block
            scaled = [count * block for count in agreed.num_tokens]
            own = scaled[self.parts.dp_rank]
            self._counts = np.array([*scaled, *agreed.num_tokens_for_logprob, own], dtype=np.int32)
        return self._counts

    def _process(self, done: _GraphInFlight | None) -> tuple[int, int]:
        """As Engine._process, for all requests at once."""
        if done is None:
            return 0, 0
        with span(Range.PROCESS_RESULT):
            results = done.result.wait(len(done.rows), 2 + self.worker.shape.block)
            rows, sequences, outputs, arrays = done.rows, done.sequences, self.outputs, self.parts.pools.rows
            if done.lives is not self.running.lives or self.running.has_finished:
                # somebody may have finished or been sent back while this step was in flight: whose tokens are nobody's
                is_here = outputs.lives[rows] == done.lives
                rows, results = rows[is_here], results[is_here]
                sequences = [each for each, here in zip(sequences, is_here, strict=True) if here]
            if not len(rows):
                return 0, 0
            if self.keep_results:
                for each, (commit, _, *tokens) in zip(sequences, results.tolist(), strict=True):
                    each.results.append(StepResult(done.step, tuple(tokens[:commit])))
            committed = arrays.committed[rows]
            counts = outputs.put(rows, committed, results)
            committed += counts
            arrays.commit(rows, committed)
            is_done = committed >= outputs.final[rows]
            if is_any(is_done):
                self._finish([sequences[i] for i in np.flatnonzero(is_done)])
            return int(total(counts)), len(rows)

    def _finish(self, sequences: list[Sequence]) -> None:
        allocator = self.parts.pools.allocator
        allocator.free_group_begin()
        for each in sequences:
            self.outputs.close(each)
            each.is_finished = True
            release(self.parts.pools, each.req)
        allocator.free_group_end()
        self.running.has_finished = True

    def close(self) -> None:
        """As Engine.close."""
        self.pause()
        for each in self.running.sequences:
            if each.req.kv is not None:
                self.outputs.close(each)
        super().close()
