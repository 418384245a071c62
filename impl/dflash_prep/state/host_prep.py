"""`prepare_for_decode` with pages on the host: one pass of array arithmetic, and no tensor touched.

The rules are those of `decode_prep.py`: watermark, top-up and guard, eviction and its demand, row width, the order in
which pages are taken. What differs is where the numbers lie: a step that needs no page reads one array and compares; a
step that does takes pages from the host's free list and notes them down, and they travel with the step's launch.
"""

from __future__ import annotations

import numpy as np
import torch

from dflash_prep.ranges import Range, span
from dflash_prep.state.batch import DecodeBatch
from dflash_prep.state.consistency import ConsistencyCheck
from dflash_prep.state.decode_prep import PrepOptions, Reservation, busy_wait
from dflash_prep.state.hisparse_allocator import HiSparseAllocator
from dflash_prep.state.host_pages import HostRows, extend_rows
from dflash_prep.state.pools import KVPools
from dflash_prep.state.reservation import Watermark, check_row_width
from dflash_prep.state.swa_allocator import SWAAllocator
from dflash_prep.state.swa_eviction import evict_swa
from dflash_prep.state.topup import GUARD_MARGIN, TopUpDecision, TopUpGuard


class HostPrep:
    """One per scheduler, in the place of `DecodePrep`; `pools.rows` are HostRows.

    What depends only on who runs (rows, watermarks, top-k) is kept until the batch changes: a batch that does has a new
    `req_pool_indices_cpu`.
    """

    def __init__(self, pools: KVPools, options: PrepOptions) -> None:
        self.pools, self.options = pools, options
        self.rows: HostRows = pools.rows
        self.page_size, self.reserve = pools.allocator.page_size, options.reserve
        self.consistency = ConsistencyCheck() if options.check else None
        topup_is_off = {
            TopUpDecision.OFF: options.topup_pages == 0,
            TopUpDecision.PAGE_SIZE_ONE: self.page_size == 1,
            TopUpDecision.HISPARSE: isinstance(pools.allocator, HiSparseAllocator),
        }
        self.no_topup = next((reason for reason, holds in topup_is_off.items() if holds), None)
        self.row_cap = pools.rows.row_width // self.page_size * self.page_size
        self.swa = options.swa if isinstance(pools.allocator, SWAAllocator) else None
        self._of: torch.Tensor | None = None  # the batch's row indices that the following belong to
        self._rows = self._nxt = np.empty(0, dtype=np.int64)
        self._is_unseen = False  # the device's rows of the last allocation

    def prepare(self, batch: DecodeBatch) -> Reservation | None:
        """As `DecodePrep.prepare`, with the rows on the device one flush behind: `rows.flush` or the step's own graph.

        The watermark's lengths are arrays. A batch without a draft input is not told the bounds.
        """
        if not batch.reqs:
            return None
        with span(Range.PREPARE_FOR_DECODE):
            options, arrays = self.options, self.rows
            if options.host_delay_us:
                busy_wait(options.host_delay_us)
            if batch.req_pool_indices_cpu is not self._of:
                self._follow(batch)
            rows = self._rows
            if self.swa is not None:
                due = np.flatnonzero(self.swa.is_due(arrays.steps - arrays.joined[rows]))
                evict_swa(self.pools, [batch.reqs[i] for i in due], self.swa)
            committed = arrays.committed[rows]
            enough = committed + self.reserve
            if (enough > self._nxt).any():
                reservation = self._allocate(rows, enough)
            else:
                guard = TopUpGuard(0, 0, 0, len(rows) * self.page_size, TopUpDecision.NO_ALLOCATION)
                reservation = Reservation(Watermark(self._nxt, self._nxt, 0), guard)
            arrays.steps += 1
            batch.seq_lens_cpu, batch.seq_lens_sum = torch.from_numpy(committed), int(committed.sum())
            if (draft := batch.spec_info) is not None:
                draft.nxt_kv_lens_cpu, draft.nxt_kv_lens_sum = self._bound, self._bound_sum
                draft.max_top_k, draft.uniform_top_k_value = self._top_k
        return reservation

    @property
    def batch_rows(self) -> np.ndarray:
        """Rows of the batch prepared last, int64 [bs]; the same array until the batch changes."""
        return self._rows

    def pages_beyond_need(self, rows: np.ndarray) -> int:
        """Pages that the requests in these rows hold in advance."""
        need = -(-(self.rows.committed[rows] + self.reserve) // self.page_size) * self.page_size
        return int((np.maximum(self.rows.allocated[rows] - need, 0) // self.page_size).sum())

    def _follow(self, batch: DecodeBatch) -> None:
        """Take up a batch that changed."""
        self._of = batch.req_pool_indices_cpu
        self._rows = self._of.numpy()
        self._set_watermark(self.rows.allocated[self._rows])
        top_ks = [req.sampling_params.top_k for req in batch.reqs]
        is_uniform = top_ks.count(top_ks[0]) == len(top_ks)
        self._top_k = max(1, max(top_ks)), top_ks[0] if is_uniform else None

    def _set_watermark(self, nxt: np.ndarray) -> None:
        self._nxt = nxt
        self._bound, self._bound_sum = torch.from_numpy(nxt.astype(np.int32)), int(nxt.sum())

    def _allocate(self, rows: np.ndarray, enough: np.ndarray) -> Reservation:
        """Raise the watermarks of `rows` to `enough` tokens, whole pages and perhaps some in advance."""
        with span(Range.KV_ALLOC):
            page_size, cur = self.page_size, self._nxt
            need = -(-enough // page_size) * page_size
            nxt = np.maximum(cur, need)
            needed = int((nxt - cur).sum())
            check_row_width([int(nxt.max())], self.pools.rows.row_width)
            nxt, guard = self._topped_up(nxt, need, needed)
            extend_rows(self.pools, rows, cur, nxt)
            self.rows.allocated[rows] = nxt
            self._set_watermark(nxt)
            if self.consistency is not None:
                self._examine(rows, cur, nxt)
            return Reservation(Watermark(cur, nxt, int((nxt - cur).sum())), guard)

    def _topped_up(self, base: np.ndarray, need: np.ndarray, needed: int) -> tuple[np.ndarray, TopUpGuard]:
        """`base` or `base` raised to K pages beyond the need (topup.py says when), and the guard's figures."""
        free, room = self.pools.allocator.available_size(), len(base) * self.page_size
        if self.no_topup is not None:
            return base, TopUpGuard(needed, 0, free, needed + room, self.no_topup)
        more = self.options.topup_pages * self.page_size
        top = np.maximum(base, np.minimum(need + more, self.row_cap))
        extra = int((top - base).sum())
        bound = needed + extra + room + GUARD_MARGIN * extra
        if extra == 0:
            decision = TopUpDecision.NOTHING_TO_ADD
        else:
            decision = TopUpDecision.TAKEN if free >= bound else TopUpDecision.SHORT
        guard = TopUpGuard(needed, extra, free, bound, decision)
        return (top if decision is TopUpDecision.TAKEN else base), guard

    def _examine(self, rows: np.ndarray, cur: np.ndarray, nxt: np.ndarray) -> None:
        """The check of an allocation step, on the host's table: new pages exist, and nobody else who runs has them."""
        with span(Range.CONSISTENCY):
            first, end = -(-cur // self.page_size), -(-nxt // self.page_size)
            table = self.rows.pages
            new = np.concatenate([table[row, a:b] for row, a, b in zip(rows, first, end, strict=True)])
            old = np.concatenate([table[row, :a] for row, a in zip(rows, first, strict=True)])
            is_good = bool((new > 0).all()) and len(np.unique(new)) == len(new) and not np.isin(new, old).any()
            self.consistency.count(is_good and bool((self.rows.allocated[rows] == nxt).all()), len(rows), len(new))
            self._is_unseen = True

    def examine_device(self) -> None:
        """After the launch of a step that allocated, if checks are on: its rows on the device are those of the host.

        The host waits for it.
        """
        if not self._is_unseen:
            return
        self._is_unseen = False
        with span(Range.CONSISTENCY):
            for row, length in zip(self._rows.tolist(), self._nxt.tolist(), strict=True):
                on_device = self.rows.req_to_token[row, :length].cpu()
                if on_device.tolist() != self.rows.slots(row, 0, length).tolist():
                    self.consistency.blame(row)
