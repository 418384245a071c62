"""One worker step on the device: block, draft, verify, accept, publish (decode-prep, section 6).

Everything works on static buffers, rows [0, padded), so that draft and verify can be captured graphs. The model is the
checksum language model; all that surrounds it is the real thing, in the variant that the arm's switches ask for.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch

from dflash_prep.arms import Switches
from dflash_prep.kernels.accept import AcceptBuffers, Accepted, greedy_accept
from dflash_prep.kernels.attention_metadata import MetadataInputs, VerifyMetadata, max_seq_len, prepare_verify_metadata
from dflash_prep.kernels.block_prep import BlockBuffers, BlockInputs, assemble_draft_tokens, prepare_block
from dflash_prep.kernels.compact import CompactWindow, RebuildInputs, rebuild_compact, rebuild_legacy
from dflash_prep.kernels.future_map import FutureMap
from dflash_prep.kernels.glue_graph import WARM_UPS, GlueGraphs, GlueInputs, GlueKey, GlueMode
from dflash_prep.kernels.host_lens import committed_host_lens
from dflash_prep.kernels.sampler import DraftHead, FoldedSampler, TpGroup, VocabShard, sample_drafts
from dflash_prep.loop.checksum import VOCAB
from dflash_prep.loop.checksum_lm import MASK_ID, ChecksumHead, ChecksumModel, PageTableView, TableView
from dflash_prep.loop.decode_device import DecodeDevice, Graph, PendingResult
from dflash_prep.loop.faults import Fault
from dflash_prep.ranges import Range, span
from dflash_prep.state.req_to_token import ReqToTokenPool

_LEGACY_REBUILD_READS = 3
"""item(), the mask's nonzero, cpu(): see `compact.rebuild_legacy`."""


@dataclass(frozen=True, slots=True)
class WorkerShape:
    """What the static buffers are sized for; lengths in tokens, `rows` those of req_to_token."""

    max_bs: int
    block: int
    page_size: int
    rows: int
    row_width: int
    window: int | None
    draft_us: int
    verify_us: int


@dataclass(frozen=True, slots=True)
class StepInputs:
    """The batch of step `number`, resolved; all int [bs].

    `seq_lens` (device) is exact. `seq_lens_cpu` is the same on the host where a backend asked for it; otherwise the
    host has the upper bound `nxt_kv_lens_cpu`.
    """

    number: int
    pool_indices: torch.Tensor
    seq_lens: torch.Tensor
    seq_lens_cpu: torch.Tensor | None
    nxt_kv_lens_cpu: torch.Tensor | None


@dataclass(frozen=True, slots=True)
class _GlueMetadata:
    """The metadata's host value; the rest of it lives in static buffers."""

    max_seq_len: int


class Worker:
    """Static buffers, graphs and models of one rank."""

    def __init__(
        self,
        shape: WorkerShape,
        model: ChecksumModel,
        rows: ReqToTokenPool,
        future_map: FutureMap,
        device: DecodeDevice,
        switches: Switches,
        group: TpGroup,
        fault: Fault | None = None,
    ) -> None:
        self.fault = fault
        self.shape, self.model, self.device, self.switches = shape, model, device, switches
        self.rows, self.req_to_token, self.future_map = rows, rows.req_to_token, future_map
        torch_device, B, n = device.torch_device, shape.block, shape.max_bs
        self.inputs = GlueInputs(n, torch_device)
        self.bonus = torch.zeros(n, dtype=torch.int64, device=torch_device)
        self.block = BlockBuffers.allocate(n, B, torch_device)
        for buffer in (self.block.block_ids, self.block.positions, self.block.draft_tokens, self.block.verify_slots):
            buffer.zero_()  # graphs are warmed up on them: arbitrary slots would be read and written
        self.draft_prefix = torch.ones(n, dtype=torch.int32, device=torch_device)
        self.hidden = torch.zeros((n, B, 2), dtype=torch.float32, device=torch_device)
        self.metadata = VerifyMetadata.allocate(n, shape.row_width, shape.page_size, torch_device)
        self.target_tokens = torch.zeros((n, B), dtype=torch.int64, device=torch_device)
        self.accepts = AcceptBuffers(n, B, torch_device)
        self.results = torch.zeros((2, n, 2 + B), dtype=torch.int64, device=torch_device)
        self._turn = 0
        self.window = None if shape.window is None else CompactWindow(shape.window, shape.page_size)
        self.draft_table = self.req_to_token
        if self.window is not None:
            width = self.window.min_draft_width(B)
            self.draft_table = torch.zeros((shape.rows, width), dtype=torch.int32, device=torch_device)
        self.checksum_head = ChecksumHead(torch_device)
        shard = VocabShard.split(VOCAB, group.rank, group.size)
        own_rows = self.checksum_head.weight[shard.org_start : shard.org_start + shard.num_org]
        self.head, self.group = DraftHead(own_rows, shard), group
        self.folded = FoldedSampler(self.head, self.group, n, B) if switches.folded_sampler else None
        self._draft_graphs: dict[int, Graph] = {}
        self._verify_graphs: dict[int, Graph] = {}
        self._glue: GlueGraphs[_GlueMetadata] = GlueGraphs(device.capture)

    def capture(self, sizes: Sequence[int]) -> None:
        """Capture the draft, verify and metadata graphs of each padded batch size, so that no step has to."""
        for n in sizes:
            self._draft_graphs[n] = self.device.graph(f"draft bs={n}", lambda n=n: self._draft(n), self.shape.draft_us)
            self._verify_graphs[n] = self.device.graph(
                f"verify bs={n}", lambda n=n: self._verify(n), self.shape.verify_us
            )
            if self.switches.glue_graph:
                with self.device.forward_stream():
                    for _ in range(WARM_UPS + 1):
                        self._run_glue(n)

    def drop_graphs(self) -> None:
        """Let go of all graphs; no step after this. NCCL dissolves no group that a graph could still use."""
        self._draft_graphs.clear()
        self._verify_graphs.clear()
        self._glue.reset()

    @property
    def sizes(self) -> list[int]:
        """Captured padded batch sizes, ascending."""
        return sorted(self._draft_graphs)

    def step(self, step: StepInputs, padded: int) -> PendingResult:
        """Launch one decode step for bs <= padded requests (bs may be 0: an idle rank joins with padding only).

        The result is int64 [bs, 2 + B]: anchor, number of committed tokens, and the verified tokens.
        """
        bs = step.pool_indices.numel()
        with self.device.forward_stream(step.pool_indices, step.seq_lens):
            self._stage(step, bs, padded)
            self._rebuild(step, bs)
            with span(Range.DRAFT):
                self._draft_graphs[padded].replay()
            drafts = self._sample(padded)
            draft_tokens = assemble_draft_tokens(self.bonus[:padded], drafts, self.block)
            self._prepare_metadata(step, padded)
            self.device.tables_read()
            with span(Range.VERIFY):
                self._verify_graphs[padded].replay()
            accepted = self._accept(bs, draft_tokens)
            self._publish(step, accepted, draft_tokens[:bs])
            result = self._pack(accepted, draft_tokens)
        with span(Range.RESULT_COPY):
            return self.device.copy_result(result)

    def _stage(self, step: StepInputs, bs: int, padded: int) -> None:
        with span(Range.BLOCK_PREP):
            self.rows.flush()
            self.inputs.stage(step.seq_lens, step.pool_indices, padded)
            self.bonus[:bs].copy_(self.future_map.resolve_bonus_tokens(step.pool_indices))
            self.bonus[bs:padded].zero_()
            inputs = BlockInputs(
                self.bonus[:padded], self.inputs.seq_lens[:padded], self.inputs.pool_indices[:padded], self.req_to_token
            )
            prepare_block(inputs, MASK_ID, self.block)

    def _rebuild(self, step: StepInputs, bs: int) -> None:
        """Bring the draft's lengths, and with a window its table, up to date: for the real rows, not the padding."""
        if self.window is None:
            self.draft_prefix.copy_(self.inputs.seq_lens)
            return
        inputs = RebuildInputs(
            self.draft_table, self.req_to_token, step.pool_indices, step.seq_lens, self.block.verify_slots[:bs]
        )
        if self.switches.fused_rebuild:
            reserved = step.nxt_kv_lens_cpu if self.switches.host_bound else None
            host = committed_host_lens(step.seq_lens_cpu, reserved, step.seq_lens)
            prefix_lens = rebuild_compact(self.window, inputs, host, fused=True).prefix_lens
        else:
            with span(Range.REBUILD_COMPACT):
                prefix_lens = self.window.device_lens(step.seq_lens)
                rebuild_legacy(inputs, prefix_lens)
                self.device.blocking_reads(_LEGACY_REBUILD_READS if bs else 1)
        self.draft_prefix[:bs].copy_(prefix_lens)
        self.draft_prefix[bs:].fill_(1)
        if self.fault is not None:
            last = self.draft_prefix[:bs] + self.shape.block - 1
            self.fault.in_draft_rows(step.number, self.draft_table, step.pool_indices, last)

    def _draft(self, n: int) -> None:
        view = TableView(self.draft_table, self.inputs.pool_indices[:n], self.draft_prefix[:n])
        block = self.block
        drafts = self.model.draft(view, block.block_ids[:n], block.positions[:n], block.verify_slots[:n])
        self.checksum_head.hidden(drafts, out=self.hidden[:n])
        if self.folded is not None:
            self.folded(self.hidden[:n].view(n * self.shape.block, 2))

    def _sample(self, n: int) -> torch.Tensor:
        with span(Range.DRAFT_SAMPLER):
            hidden = self.hidden[:n].view(n * self.shape.block, 2)
            return sample_drafts(hidden, self.head, self.group, self.shape.block, folded=self.folded)

    def _prepare_metadata(self, step: StepInputs, padded: int) -> None:
        with span(Range.METADATA):
            if self.switches.glue_graph:
                self._run_glue(padded)
                return
            self._metadata(step.seq_lens_cpu, padded)
            if step.seq_lens_cpu is None and not self.switches.static_bounds:
                self.device.blocking_reads(1)

    def _run_glue(self, padded: int) -> None:
        key = GlueKey(padded, GlueMode.TARGET_VERIFY, GlueMode.TARGET_VERIFY)
        self._glue.run(key, lambda: self._metadata(None, padded))

    def _metadata(self, seq_lens_cpu: torch.Tensor | None, padded: int) -> _GlueMetadata:
        seq_lens = self.inputs.seq_lens[:padded]
        inputs = MetadataInputs(seq_lens, self.inputs.pool_indices[:padded], self.req_to_token)
        prepare_verify_metadata(inputs, self.shape.block, self.metadata, fused=self.switches.static_bounds)
        return _GlueMetadata(
            max_seq_len(
                seq_lens_cpu,
                seq_lens,
                self.shape.row_width - self.shape.block,
                self.shape.block,
                static=self.switches.static_bounds,
            )
        )

    def _verify(self, n: int) -> None:
        view = PageTableView(self.metadata.block_table[:n], self.metadata.seq_lens_k[:n], self.shape.page_size)
        self.target_tokens[:n] = self.model.verify(view, self.block.draft_tokens[:n], self.block.positions[:n])

    def _accept(self, bs: int, draft_tokens: torch.Tensor) -> Accepted:
        with span(Range.ACCEPT):
            accepted = self.accepts.take(bs)
            greedy_accept(draft_tokens[:bs], self.target_tokens[:bs], self.inputs.seq_lens[:bs], accepted)
            return accepted

    def _publish(self, step: StepInputs, accepted: Accepted, draft_tokens: torch.Tensor) -> None:
        """Lengths first, so that the next step can plan while this one still writes KV."""
        with span(Range.PUBLISH):
            self.future_map.publish(step.pool_indices, accepted.new_seq_lens)
            bs = draft_tokens.shape[0]
            self.model.keep_committed(draft_tokens, self.block.verify_slots[:bs], accepted.commit_lens)
            self.future_map.stash(step.pool_indices, accepted.bonus_tokens)

    def _pack(self, accepted: Accepted, draft_tokens: torch.Tensor) -> torch.Tensor:
        """Everything the host will ask for in one block, so that it travels in one copy; two blocks take turns."""
        self._turn = (self._turn + 1) % len(self.results)
        result = self.results[self._turn, : accepted.commit_lens.numel()]
        result[:, 0] = draft_tokens[: len(result), 0]
        result[:, 1] = accepted.commit_lens
        result[:, 2:] = accepted.out_tokens
        return result
