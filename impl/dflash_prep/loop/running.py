"""The requests that decode: who leaves, who joins, who is sent back, before a step is prepared (section 2.14)."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import torch

from dflash_prep.arms import Switches
from dflash_prep.device import to_device
from dflash_prep.kernels.future_map import FutureMap
from dflash_prep.loop.checksum import prompt_token_of
from dflash_prep.loop.checksum_lm import ChecksumModel, TableView
from dflash_prep.loop.counters import PoolTokens
from dflash_prep.loop.decode_device import DecodeDevice
from dflash_prep.loop.sequences import RequestQueue, Sequence
from dflash_prep.ranges import Range, span
from dflash_prep.state.batch import DecodeBatch
from dflash_prep.state.decode_memory import retract_until_it_fits
from dflash_prep.state.draft_input import DraftInput
from dflash_prep.state.lifetime import alloc_for_extend, begin_decode
from dflash_prep.state.pools import KVPools
from dflash_prep.state.request import ceil_to


@dataclass(frozen=True, slots=True)
class EngineParts:
    """What one rank's loop is made of; `assembly.build` puts it together.

    dp_rank       whose requests these are: the rank, or its group's number if several ranks run the same ones
    concurrency   requests that may run at once
    reserve       tokens between committed length and watermark, R = 2 * B
    hit_rate      of the draft, per position
    """

    dp_rank: int
    concurrency: int
    reserve: int
    pool_size: PoolTokens
    hit_rate: float
    switches: Switches
    pools: KVPools
    model: ChecksumModel
    future_map: FutureMap
    device: DecodeDevice
    arrivals: RequestQueue


class RunningBatch:
    """Sequences and the batch of their rows, in the same order. `batch` is None while nobody runs."""

    def __init__(self, parts: EngineParts) -> None:
        self.parts = parts
        self.sequences: list[Sequence] = []
        self.batch: DecodeBatch | None = None

    def __len__(self) -> int:
        return len(self.sequences)

    def update(self, step: int) -> int:
        """Bring the batch up to date for `step`; the number of sequences sent back for lack of memory."""
        with span(Range.FILTER_FINISHED):
            self._keep([i for i, each in enumerate(self.sequences) if not each.is_finished])
        with span(Range.ADMIT):
            self._admit(step)
        with span(Range.CHECK_MEMORY):
            return self._retract()

    def _keep(self, keep: list[int]) -> None:
        if len(keep) == len(self.sequences):
            return
        self.sequences = [self.sequences[i] for i in keep]
        if not keep:
            self.batch = None
            return
        # The draft input is new since the last launch and has no lengths yet: the legacy way does not wait here either.
        self.batch.filter_batch(keep, host_list=self.parts.switches.host_keep_list)

    def _admit(self, step: int) -> None:
        due = self.parts.arrivals.due(step, self.parts.concurrency - len(self.sequences))
        admitted = due[: self._count_that_fit(due)]
        if not admitted:
            return
        self.parts.arrivals.take(len(admitted))
        reqs = [each.req for each in admitted]
        alloc_for_extend(self.parts.pools, reqs)
        fresh = DecodeBatch.of(reqs, self.parts.device.torch_device)
        self._prefill(admitted, fresh)
        begin_decode(self.parts.pools, reqs)
        fresh.spec_info = DraftInput.for_next_step(fresh.req_pool_indices, fresh.seq_lens, fresh.req_pool_indices)
        for each in admitted:
            each.life += 1
        self._join(admitted, fresh)

    def _join(self, admitted: list[Sequence], fresh: DecodeBatch) -> None:
        self.sequences = self.sequences + admitted
        if self.batch is None:
            self.batch = fresh
        else:
            self.batch.merge_batch(fresh)

    def _count_that_fit(self, due: list[Sequence]) -> int:
        """How many of `due` fit at once beside the next reservation of everyone who runs."""
        pools, reserve = self.parts.pools, self.parts.reserve
        page_size = pools.allocator.page_size
        room = pools.allocator.available_size() + pools.tree.evictable_size() - len(self.sequences) * page_size
        for count, each in enumerate(due):
            room -= ceil_to(each.req.seq_len + reserve, page_size) + page_size
            if room < 0:
                return count
        return len(due)

    def _prefill(self, admitted: list[Sequence], fresh: DecodeBatch) -> None:
        """Write the KV of what is known of the sequences, sample their first tokens, publish both: one batch."""
        parts = self.parts
        with parts.device.forward_stream(fresh.req_pool_indices, fresh.seq_lens):
            unwritten = np.concatenate([_unwritten(each) for each in admitted], axis=1)
            rows, columns, tokens = to_device(unwritten, parts.device.torch_device)
            parts.pools.rows.flush()
            table = parts.pools.rows.req_to_token
            parts.model.prefill(table[rows, columns].to(torch.int64), tokens)
            view = TableView(table, fresh.req_pool_indices, fresh.seq_lens)
            parts.future_map.publish(fresh.req_pool_indices, fresh.seq_lens)
            parts.future_map.stash(fresh.req_pool_indices, parts.model.next_tokens(view))

    def _send_back(self, index: int) -> None:
        """Sequence `index` is about to lose its row."""

    def _retract(self) -> int:
        """Send sequences back to wait until the next reservation fits; how many."""
        if self.batch is None:
            return 0
        gone = retract_until_it_fits(self.parts.pools, self.batch.reqs, self.parts.reserve, self._send_back)
        if gone:
            with span(Range.RETRACT):
                for index in reversed(gone):
                    self.parts.arrivals.put_back(self.sequences[index])
                self._keep([i for i in range(len(self)) if i not in set(gone)])
        return len(gone)


def _unwritten(each: Sequence) -> np.ndarray:
    """Where the KV of a sequence is missing, and what belongs there: int64 [3, n] of rows, columns and tokens.

    Known are the prompt and, after a retraction, what was committed; what the cache lends is there already.
    """
    kv, prompt_len = each.req.kv, each.shape.prompt_len
    tokens = np.array(each.tokens[: each.req.num_generated], dtype=np.int64)
    tokens = np.concatenate([prompt_token_of(each.key, np.arange(prompt_len, dtype=np.int64)), tokens])
    columns = np.arange(kv.cache_protected_len, len(tokens), dtype=np.int64)
    return np.stack([np.full_like(columns, kv.req_pool_idx), columns, tokens[columns]])
