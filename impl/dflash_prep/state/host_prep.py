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
from dflash_prep.state.draft_input import DraftInput
from dflash_prep.state.hisparse_allocator import HiSparseAllocator
from dflash_prep.state.host_pages import HostRows, extend_rows, is_any, maximum, minimum, total
from dflash_prep.state.pools import KVPools
from dflash_prep.state.reservation import Watermark, check_row_width
from dflash_prep.state.swa_allocator import SWAAllocator
from dflash_prep.state.swa_eviction import evict_swa
from dflash_prep.state.topup import GUARD_MARGIN, TopUp, TopUpDecision, TopUpGuard


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
        self.always_evicts = isinstance(pools.allocator, HiSparseAllocator)
        topup = TopUp(options.topup_pages, self.page_size, self.reserve, pools.rows.row_width, self.always_evicts)
        self.no_topup = topup.off
        more = 0 if self.no_topup else options.topup_pages * self.page_size
        # what lifts a length into the last page it takes, without and with a top-up
        self._beyond = np.array([[0], [more]]) + (options.reserve + self.page_size - 1)
        self.page_cap = pools.rows.row_width // self.page_size
        self.swa = options.swa if isinstance(pools.allocator, SWAAllocator) else None
        self._of: torch.Tensor | None = None  # the batch's row indices that the following belong to
        self._rows = self._places = self._nxt = self._held = np.empty(0, dtype=np.int64)
        self._unchanged: Reservation | None = None  # that of a step that allocates nothing
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
                prepared = arrays.steps - arrays.joined[rows]
                due = np.flatnonzero(self.swa.is_due(prepared, arrays.committed[rows], arrays.evicted[rows]))
                evict_swa(self.pools, [batch.reqs[i] for i in due], self.swa)
            committed = arrays.committed[rows]
            if is_any(committed > self._enough):
                reservation = self._allocate(rows, committed)
            else:
                reservation = self._unchanged or self._keep_as_it_is()
            arrays.steps += 1
            batch.seq_lens_cpu, batch.seq_lens_sum = torch.from_numpy(committed), int(total(committed))
            if batch.spec_info is not None:
                self._hand_out(batch.spec_info)
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
        self._of, arrays = batch.req_pool_indices_cpu, self.rows
        rows = self._rows = self._of.numpy()
        self._places = rows * arrays.pages.shape[1]
        self._raise_to(arrays.allocated[rows])
        self._held = (self._nxt + (self.page_size - 1)) // self.page_size
        self._nxt_sum, self._held_sum = int(total(self._nxt)), int(total(self._held))
        top_ks = arrays.top_k[rows]
        most = int(maximum(top_ks))
        self._top_k = max(1, most), most if minimum(top_ks) == most else None

    def _raise_to(self, nxt: np.ndarray) -> None:
        """The rows are reserved up to `nxt`, and what depends on it is not known any more."""
        self._nxt, self._enough = nxt, nxt - self.reserve
        self._bound = self._unchanged = None

    def _hand_out(self, draft: DraftInput) -> None:
        """Bounds and top-k figures, for whoever plans on the host."""
        if self._bound is None:
            self._bound = torch.from_numpy(self._nxt.astype(np.int32))
        draft.nxt_kv_lens_cpu, draft.nxt_kv_lens_sum = self._bound, self._nxt_sum
        draft.max_top_k, draft.uniform_top_k_value = self._top_k

    def _keep_as_it_is(self) -> Reservation:
        guard = TopUpGuard(0, 0, 0, len(self._rows) * self.page_size, TopUpDecision.NO_ALLOCATION)
        self._unchanged = Reservation(Watermark(self._nxt, self._nxt, 0), guard)
        return self._unchanged

    def _allocate(self, rows: np.ndarray, committed: np.ndarray) -> Reservation:
        """Raise the watermarks of `rows` for these lengths: whole pages, and perhaps some in advance.

        Counted in pages: a length that ends inside a page is that of a request that was never prepared, which needs
        the rest of its last page by all means.
        """
        with span(Range.KV_ALLOC):
            page_size, cur, free = self.page_size, self._nxt, self.pools.allocator.available_size()
            pages = (committed + self._beyond) // page_size
            if (longest := int(maximum(pages[0]))) > self.page_cap:
                check_row_width([longest * page_size], self.rows.row_width)
            pages = np.maximum(np.minimum(pages, self.page_cap), self._held)
            base, top = total(pages, axis=1).tolist()
            needed, room, extra = base * page_size - self._nxt_sum, len(rows) * page_size, (top - base) * page_size
            bound = needed + room + (1 + GUARD_MARGIN) * extra
            decision = self.no_topup or TopUp.decide(extra, free, bound)
            guard = TopUpGuard(needed, extra, free, bound, decision)
            if decision is TopUpDecision.TAKEN:
                needed, held, num_pages = needed + extra, pages[1], top - self._held_sum
            else:
                held, num_pages = pages[0], base - self._held_sum
            demand = needed if page_size == 1 else needed + room
            if free < demand or self.always_evicts:
                self.pools.make_room(demand)
            extend_rows(self.pools, self._places + self._held, held - self._held, num_pages, needed)
            nxt = held * page_size
            self.rows.allocated[rows] = nxt
            if self.consistency is not None:
                self._examine(rows, cur, nxt)
            self._held, self._held_sum, self._nxt_sum = held, self._held_sum + num_pages, self._nxt_sum + needed
            self._raise_to(nxt)
            return Reservation(Watermark(cur, nxt, needed), guard)

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
