"""The loop of the arm `floor`: pages on the host, one graph a step, results by array operations.

The order of a step is the engine's (`engine.py`) and so is what happens when somebody joins, finishes or is sent back;
what runs on every step is written anew, without an object a request.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from dflash_prep.loop.agreement import Agreement
from dflash_prep.loop.counters import PoolTokens, StepRow
from dflash_prep.loop.engine import Engine
from dflash_prep.loop.oracle import StepResult
from dflash_prep.loop.running import EngineParts, RunningBatch
from dflash_prep.loop.sequences import Sequence
from dflash_prep.loop.step_graph import GraphResult
from dflash_prep.ranges import Range, span
from dflash_prep.state.lifetime import release
from dflash_prep.state.topup import TopUpDecision


class Outputs:
    """Tokens of who runs, by row: what `Sequence.tokens` gets when it leaves.

    tokens    [rows, longest output + block] int32; behind `lengths` lies what a step had beyond its commit
    lengths   [rows]: tokens so far, those of earlier lives included
    missing   [rows]: tokens until the request has its full length
    lives     [rows]: counts who came and who left, so that a result can be told from an earlier life's
    """

    def __init__(self, rows: int, longest: int, block: int) -> None:
        self.tokens = np.zeros((rows, longest + block), dtype=np.int32)
        self.lengths, self.missing, self.lives = np.zeros((3, rows), dtype=np.int64)
        self._columns = np.arange(block)

    def open(self, each: Sequence) -> None:
        """A sequence got its row."""
        row, known = each.req.kv.req_pool_idx, len(each.tokens)
        self.tokens[row, :known] = each.tokens
        self.lengths[row], self.missing[row] = known, each.shape.output_len - known
        self.lives[row] += 1

    def close(self, each: Sequence) -> None:
        """A sequence is about to lose its row."""
        row = each.req.kv.req_pool_idx
        each.tokens = self.tokens[row, : self.lengths[row]].tolist()
        self.lives[row] += 1

    def extend(self, rows: np.ndarray, results: np.ndarray) -> np.ndarray:
        """Take the results int [bs, 2 + block] of `rows`; how many tokens of each belong to its request, int64 [bs]."""
        lengths = self.lengths[rows]
        if not lengths.all():  # the first result of a request brings the token that its prefill sampled
            new = rows[lengths == 0]
            self.tokens[new, 0] = results[lengths == 0, 0]
            self.lengths[new] = 1
            self.missing[new] -= 1
            lengths = self.lengths[rows]
        missing = self.missing[rows]
        counts = np.minimum(results[:, 1], missing)
        self.tokens[rows[:, None], lengths[:, None] + self._columns] = results[:, 2:]
        self.lengths[rows] = lengths + counts
        self.missing[rows] = missing - counts
        return counts


class HostRunning(RunningBatch):
    """The running batch, looked at only where something can have changed."""

    def __init__(self, parts: EngineParts, outputs: Outputs) -> None:
        super().__init__(parts)
        self.outputs = outputs
        self.has_finished = False
        self.lives = np.empty(0, dtype=np.int64)
        page_size = parts.pools.allocator.page_size
        self._most_new = -(-parts.reserve // page_size) * page_size  # tokens that one request can need in one step
        self._of: object = None

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
        if self.batch is not None and self.batch.req_pool_indices_cpu is not self._of:
            self._of = self.batch.req_pool_indices_cpu
            self.lives = self.outputs.lives[self._of.numpy()]
        return retracted

    def _admit(self, step: int) -> None:
        before = len(self.sequences)
        super()._admit(step)
        for each in self.sequences[before:]:
            self.outputs.open(each)
        if self.batch is not None:
            self.batch.spec_info = None  # everything that a draft input would carry lies in the arrays and in the graph

    def _send_back(self, index: int) -> None:
        self.outputs.close(self.sequences[index])


@dataclass(slots=True)
class GraphInFlight:
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
        self.outputs = Outputs(self.worker.shape.rows, longest, self.worker.shape.block)
        self.running = HostRunning(self.parts, self.outputs)
        self._nobody = np.empty(0, dtype=np.int64)
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
            padded = self._padded(agreed.max_num_tokens)
            of_rows, sequences = (self._nobody, []) if batch is None else (self.prep.batch_rows, running.sequences)
            result = self.worker.launch(of_rows, self._dp_counts(agreed), rows.unwritten(), padded)
            launched = GraphInFlight(step, sequences, of_rows, running.lives, result)
            self.prep.examine_device()
        committed, processed = self._process(self.in_flight)
        self.in_flight = launched
        allocated = 0 if reservation is None else reservation.watermark.num_needed
        free = PoolTokens.free(self.parts.pools.allocator)
        row = StepRow(
            step,
            started,
            0,
            len(running),
            committed,
            processed,
            allocated,
            free.full,
            free.swa,
            self._pages_beyond_need() if allocated else None,
            reservation.guard.ratio if allocated else None,
            retracted,
            int(allocated > 0 and reservation.guard.decision is TopUpDecision.SHORT),
        )
        return row, agreed.stop

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

    def _process(self, done: GraphInFlight | None) -> tuple[int, int]:
        """As Engine._process, for all requests at once."""
        if done is None:
            return 0, 0
        with span(Range.PROCESS_RESULT):
            results = done.result.wait(len(done.rows), 2 + self.worker.shape.block)
            rows, sequences, outputs = done.rows, done.sequences, self.outputs
            is_here = outputs.lives[rows] == done.lives
            if not is_here.all():  # finished or sent back while this step was in flight
                rows, results = rows[is_here], results[is_here]
                sequences = [each for each, here in zip(sequences, is_here, strict=True) if here]
            if not len(rows):
                return 0, 0
            if self.keep_results:
                for each, (_, commit, *tokens) in zip(sequences, results.tolist(), strict=True):
                    each.results.append(StepResult(done.step, tuple(tokens[:commit])))
            counts = outputs.extend(rows, results)
            self.parts.pools.rows.commit(rows, counts)
            if not (missing := outputs.missing[rows]).all():
                self._finish([sequences[i] for i in np.flatnonzero(missing <= 0)])
            return int(counts.sum()), len(rows)

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
