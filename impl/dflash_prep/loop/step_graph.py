"""The device work of a whole step as one captured graph (switch step_graph): what the host launches, once a step.

host                       device, one stream
───────────────────────    ──────────────────────────────────────────────────────────────────────────────────
fill block, if changed ──▶ copy of the packed block
launch ──────────────────▶ graph: pages into rows, stage batch and lengths, block, rebuild, draft, sampling,
                           metadata, verify, acceptance, publish, results into pinned memory
record ──────────────────▶ event
wait for the event of the step before, read its slot of the results
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import torch

from dflash_prep.errors import ResultOverrunError
from dflash_prep.kernels.accept import greedy_accept
from dflash_prep.kernels.attention_metadata import MetadataInputs, prepare_verify_metadata
from dflash_prep.kernels.block_prep import BlockInputs, assemble_draft_tokens, prepare_block
from dflash_prep.kernels.compact import RebuildInputs, rebuild_rows
from dflash_prep.kernels.page_rows import write_pages
from dflash_prep.kernels.step_block import (
    HEADER,
    RESULT_SLOTS,
    BlockShape,
    DeviceBlock,
    HostBlocks,
    StagedBatch,
    StepOutcome,
    pack_results,
    stage_batch,
)
from dflash_prep.loop.checksum_lm import MASK_ID
from dflash_prep.loop.decode_device import Fence, Graph
from dflash_prep.loop.faults import FaultKind
from dflash_prep.loop.worker import Worker
from dflash_prep.ranges import Range, span
from dflash_prep.state.pools import KVPools
from dflash_prep.state.request import Request


class GraphResult:
    """One step's results, in the slot of its turn once the fence is passed."""

    __slots__ = ("_fence", "_number", "_serial", "_slot")

    def __init__(self, fence: Fence, slot: np.ndarray, number: int, serial: int) -> None:
        self._fence, self._slot, self._number, self._serial = fence, slot, number, serial

    def wait(self, bs: int, words: int) -> np.ndarray:
        """Commit, anchor and tokens of each request, int32 [bs, words], a view that the step after next overwrites.

        Raises ResultOverrunError when the slot holds another step's results, or the step read another block.
        """
        self._fence.synchronize()
        slot = self._slot
        if slot[0] != self._number or slot[1] != self._serial:
            raise ResultOverrunError(
                f"the result of step {self._number} with block {self._serial} was due,"
                f" and its slot holds step {slot[0]} with block {slot[1]}"
            )
        return slot[HEADER : HEADER + bs * words].reshape(bs, words)


class StepGraphWorker(Worker):
    """A worker whose step is one graph per padded batch size. `dp`: ranks whose token counts a step is told."""

    def __init__(self, *parts: object, dp: int) -> None:
        super().__init__(*parts)
        self.dp = dp
        self._graphs: dict[int, Graph] = {}

    @property
    def sizes(self) -> list[int]:
        """Captured padded batch sizes, ascending."""
        return sorted(self._graphs)

    def drop_graphs(self) -> None:
        """Let go of all graphs; no step after this."""
        self._graphs.clear()

    def capture(self, sizes: Sequence[int]) -> None:
        """Capture the step of each padded batch size. A first run on padding warms everything up."""
        shape, device = self.shape, self.device.torch_device
        pages_a_step = -(-(2 * shape.block + shape.page_size - 1) // shape.page_size) + self.switches.topup_pages
        self.block_shape = BlockShape(shape.max_bs, self.dp, shape.max_bs * pages_a_step)
        self.device_block = DeviceBlock.allocate(self.block_shape, device)
        self.host_blocks = HostBlocks(self.block_shape, device)
        self.staged = StagedBatch(self.inputs.pool_indices, self.inputs.seq_lens, self.bonus)
        self.step_number = torch.zeros(1, dtype=torch.int32, device=device)
        words = HEADER + shape.max_bs * (2 + shape.block)
        self.answers = torch.zeros((RESULT_SLOTS, words), dtype=torch.int32, pin_memory=device.type == "cuda")
        self._slots = list(self.answers.numpy())
        self.accepted = self.accepts.take(shape.max_bs)
        busy_us = shape.draft_us + shape.verify_us
        for n in sizes:
            self._graphs[n] = self.device.graph(f"step bs={n}", lambda n=n: self._whole_step(n), busy_us, spins=False)
        self.device.drain()
        self.step_number.zero_()
        self.num_launched = 0
        self._told: tuple[np.ndarray | None, np.ndarray | None] = None, None  # rows and counts that the device has

    def launch(self, rows: np.ndarray, counts: np.ndarray, entries: np.ndarray | None, padded: int) -> GraphResult:
        """One step of the requests in `rows`, int [bs], whose arrays' identity says whether anything changed.

        counts   dp counts int32 [2 * dp + 1]; entries   pages to write into rows, None if there are none
        """
        device = self.device
        with device.forward_stream():
            told_rows, told_counts = self._told
            if entries is not None or rows is not told_rows or counts is not told_counts:
                with span(Range.H2D):
                    self.device_block.words.copy_(self.host_blocks.fill(rows, counts, entries), non_blocking=True)
                self._told = rows, counts
            with span(Range.STEP_GRAPH):
                self._graphs[padded].replay()
                fence = device.fence()
        number, self.num_launched = self.num_launched, self.num_launched + 1
        return GraphResult(fence, self._slots[number % RESULT_SLOTS], number, self.host_blocks.serial)

    def damage(self, step: int, pools: KVPools, reqs: list[Request]) -> None:
        """The planted fault, between what the step before wrote and what this one reads."""
        fault = self.fault
        fault.in_tables(step, pools, reqs)
        row = reqs[0].kv.req_pool_idx
        fault.in_lengths(step, reqs, self.future_map.new_seq_lens[row : row + 1])
        if step == fault.step and fault.kind is FaultKind.RING:
            self.step_number += 1

    def _whole_step(self, n: int) -> None:
        """Everything on the device, top to bottom, on static buffers and rows [0, n) of them; captured."""
        shape, staged, block, future = self.shape, self.staged, self.block, self.future_map
        write_pages(self.req_to_token, self.device_block.entries, shape.page_size)
        stage_batch(self.device_block.rows, future.new_seq_lens, future.output_tokens, staged, n)
        rows, seq_lens, bonus = staged.pool_indices[:n], staged.seq_lens[:n], staged.bonus[:n]
        prepare_block(BlockInputs(bonus, seq_lens, rows, self.req_to_token), MASK_ID, block)
        self._rebuild_rows(rows, seq_lens, n)
        with self.device.busy(shape.draft_us):
            self._draft(n)
        draft_tokens = assemble_draft_tokens(bonus, self.folded.drafts(n), block)
        metadata = MetadataInputs(seq_lens, rows, self.req_to_token)
        prepare_verify_metadata(metadata, shape.block, self.metadata, fused=True)
        with self.device.busy(shape.verify_us):
            self._verify(n)
        accepted = self.accepted[:n]
        greedy_accept(draft_tokens, self.target_tokens[:n], seq_lens, accepted)
        future.new_seq_lens[rows] = accepted.new_seq_lens
        future.output_tokens[rows] = accepted.bonus_tokens
        self.model.keep_committed(draft_tokens, block.verify_slots[:n], accepted.commit_lens)
        outcome = StepOutcome(draft_tokens[:, 0], accepted.commit_lens, accepted.out_tokens)
        pack_results(outcome, self.device_block, self.step_number, self.answers, n)

    def _rebuild_rows(self, rows: torch.Tensor, seq_lens: torch.Tensor, n: int) -> None:
        if self.window is None:
            self.draft_prefix[:n].copy_(seq_lens)
            return
        inputs = RebuildInputs(self.draft_table, self.req_to_token, rows, seq_lens, self.block.verify_slots[:n])
        self.draft_prefix[:n].copy_(rebuild_rows(self.window, inputs))
