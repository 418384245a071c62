"""KV pages kept on the host (arm `floor`): who holds which page is known in NumPy arrays, and the device is told.

Elsewhere in this package the free list and the rows live on the device and the host computes with lengths alone. Here
both live on the host, page by page, and the device has a copy of the rows that only kernels read. Every rule is the one
of the device allocators (`paged_allocator.py`, `swa_allocator.py`, `hisparse_allocator.py`), the order in which pages
are taken and given back included, so a request gets the same slots either way.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch

from dflash_prep.errors import MisalignedSegmentError, OutOfPagesError, PageAccountingError
from dflash_prep.kernels.page_rows import PageEntries, write_pages
from dflash_prep.state.hisparse_allocator import HiSparseAllocator
from dflash_prep.state.paged_allocator import PagedAllocator
from dflash_prep.state.pools import KVPools
from dflash_prep.state.req_to_token import ReqToTokenPool
from dflash_prep.state.request import KVState, Request
from dflash_prep.state.swa_allocator import SWAAllocator

# As the methods sum, max and any, without their way through Python.
total, maximum, minimum, is_any = np.add.reduce, np.maximum.reduce, np.minimum.reduce, np.logical_or.reduce


@dataclass(frozen=True, slots=True)
class PageRun:
    """Columns of a row, or of a cached prefix, that begin on a page boundary: the pages they lie in.

    Has the length in tokens and is sliced by tokens, as the slot tensors are that it stands in for.
    """

    pages: np.ndarray
    length: int
    page_size: int

    def __len__(self) -> int:
        return self.length

    def __getitem__(self, columns: slice) -> PageRun:
        start, end, _ = columns.indices(self.length)
        if start % self.page_size:
            raise MisalignedSegmentError(f"a run of pages is cut at {start}, inside a page of {self.page_size}")
        return PageRun(self.pages[start // self.page_size : -(-end // self.page_size)], end - start, self.page_size)

    def clone(self) -> PageRun:
        """The same with memory of its own: the row it came from will be rewritten by its next owner."""
        return PageRun(self.pages.copy(), self.length, self.page_size)

    def tolist(self) -> list[int]:
        """The slots, one a token."""
        slots = self.pages[:, None].astype(np.int64) * self.page_size + np.arange(self.page_size)
        return slots.ravel()[: self.length].tolist()


class HostPagedAllocator(PagedAllocator):
    """`PagedAllocator` with its free list on the host; pages are taken with `take` instead of `alloc`.

    The list lies at the end of a buffer as large as the pool: taking from the front moves its start forward, giving
    back in front moves it back, and nothing else moves.
    """

    def __init__(self, size: int, page_size: int, *, need_sort: bool = False, debug: bool = False) -> None:
        self.page_size = page_size
        self.num_pages = size // page_size
        self.need_sort, self.debug = need_sort, debug
        self._buffer = np.arange(1, self.num_pages + 1, dtype=np.int64)
        self._start = 0
        self.staged_pages, self.num_staged, self._group = [], 0, None

    @property
    def free_pages(self) -> np.ndarray:
        """A view of the free list, the next page first."""
        return self._buffer[self._start :]

    @property
    def num_free(self) -> int:
        return self.num_pages - self._start

    def available_size(self) -> int:
        """As PagedAllocator.available_size."""
        return (self.num_pages - self._start + self.num_staged) * self.page_size

    def take(self, count: int, margin: int = 0) -> np.ndarray | None:
        """`count` pages from the front; None when short. Parked pages are sorted in where `count + margin` is short.

        A view: it holds until pages are given back.
        """
        num_free = self.num_pages - self._start
        if self.staged_pages and count + margin > num_free:
            merged = np.sort(np.concatenate([self.free_pages, *self.staged_pages]))
            self._start = self.num_pages - len(merged)
            self._buffer[self._start :] = merged
            self.staged_pages, self.num_staged = [], 0
            num_free = len(merged)
        if count > num_free:
            return None
        self._start += count
        return self._buffer[self._start - count : self._start]

    def take_for_rows(self, count: int, num_tokens: int, bs: int) -> np.ndarray | None:
        """`count` pages that extend `bs` rows by `num_tokens` in all; sorts as early as PagedAllocator does."""
        if self.page_size == 1:
            return self.take(count)
        return self.take(count, num_tokens // self.page_size + bs + 1 - count)

    def free_segment(self, run: PageRun, start_pos: int, *, has_window: bool = True) -> None:
        """As PagedAllocator.free_segment."""
        if start_pos % self.page_size:
            raise MisalignedSegmentError(f"a freed run starts at {start_pos}, inside a page of {self.page_size}")
        if len(run):
            self.release(run.pages.astype(np.int64))

    _concatenate = staticmethod(np.concatenate)

    def _put_in_front(self, pages: np.ndarray) -> None:
        if len(pages) > self._start:
            raise PageAccountingError(f"{len(pages)} pages are given back, and only {self._start} were taken")
        self._start -= len(pages)
        self._buffer[self._start : self._start + len(pages)] = pages

    @staticmethod
    def join(runs: Sequence[PageRun]) -> PageRun:
        """One run of several, whole pages each."""
        return PageRun(np.concatenate([run.pages for run in runs]), sum(map(len, runs)), runs[0].page_size)


class HostSWAAllocator(SWAAllocator):
    """`SWAAllocator` by pages: `swa_pages[page]` is the partner of a full-pool page, 0 if it has none.

    The loop's model has no window layers, so nobody reads this map on the device and nothing copies it there.
    """

    def __init__(self, full_size: int, swa_size: int, page_size: int, *, need_sort: bool = False, debug: bool = False):
        self.page_size = page_size
        self.full = HostPagedAllocator(full_size, page_size, need_sort=need_sort, debug=debug)
        self.swa = HostPagedAllocator(swa_size, page_size, need_sort=need_sort, debug=debug)
        self.swa_pages = np.zeros(self.full.num_pages + 1, dtype=np.int32)

    def take_for_rows(self, count: int, num_tokens: int, bs: int) -> np.ndarray | None:
        """As HostPagedAllocator.take_for_rows, in both pools; None, with neither touched, when either is short."""
        if count * self.page_size > self.available_size():
            return None
        pages = self.full.take_for_rows(count, num_tokens, bs)
        self.swa_pages[pages] = self.swa.take_for_rows(count, num_tokens, bs)
        return pages

    def free_swa(self, run: PageRun, start_pos: int) -> None:
        """As SWAAllocator.free_swa."""
        if start_pos % self.page_size:
            raise MisalignedSegmentError(f"a freed window run starts at {start_pos}, inside a page of {self.page_size}")
        if len(run):
            self.swa.release(self.swa_pages[run.pages].astype(np.int64))
            self.swa_pages[run.pages] = 0

    join = staticmethod(HostPagedAllocator.join)


class HostHiSparseAllocator(HiSparseAllocator):
    """`HiSparseAllocator` by pages: `device_pages[page]` is a logical page's place on the device, 0 if it has none."""

    def __init__(self, size: int, ratio: int, page_size: int, *, debug: bool = False) -> None:
        self.page_size = page_size
        self.logical = HostPagedAllocator(ratio * size, page_size, debug=debug)
        self.device = HostPagedAllocator(size, page_size, debug=debug)
        self.device_pages = np.zeros(self.logical.num_pages + 1, dtype=np.int32)

    def take_for_rows(self, count: int, num_tokens: int, bs: int) -> np.ndarray | None:
        """Logical pages only."""
        return self.logical.take_for_rows(count, num_tokens, bs)

    def swap_in(self, run: PageRun) -> None:
        """As HiSparseAllocator.swap_in."""
        pages = self.device.take(len(run.pages))
        if pages is None:
            raise OutOfPagesError(f"{len(run.pages)} device pages asked for, {self.device.num_free} are free")
        self.device_pages[run.pages] = pages

    def swap_out(self, run: PageRun, start_pos: int) -> None:
        """As HiSparseAllocator.swap_out."""
        if start_pos % self.page_size:
            raise MisalignedSegmentError(
                f"a run on the device starts at {start_pos}, inside a page of {self.page_size}"
            )
        self.device.release(self.device_pages[run.pages].astype(np.int64))
        self.device_pages[run.pages] = 0

    join = staticmethod(HostPagedAllocator.join)


class HostRows(ReqToTokenPool):
    """Rows whose truth is on the host; `req_to_token` on the device is written from it when `flush` is called.

    pages       [rows, most pages of a row] int32: the page table
    committed, allocated, evicted   [rows] int64 tokens: the counters of the request that has the row
    joined      [rows]: `steps` when its request had been prepared 0 times, so that nobody counts per request and step
    verified    [rows]: results processed
    top_k       [rows]: that of its request's sampling parameters
    steps       decode preparations so far

    A *place* is an element of `pages` by its flat index, row times columns plus column.
    """

    def __init__(self, size: int, row_width: int, page_size: int, device: torch.device | str = "cpu") -> None:
        super().__init__(size, row_width, device)
        self.page_size = page_size
        self.pages = np.zeros((size + 1, -(-row_width // page_size)), dtype=np.int32)
        self._flat_pages = self.pages.reshape(-1)
        counters = np.zeros((6, size + 1), dtype=np.int64)
        self.committed, self.allocated, self.evicted, self.joined, self.verified, self.top_k = counters
        self.steps = 0
        self._unwritten, self._num_unwritten = np.empty((2, 4 * size), dtype=np.int32), 0

    def slots(self, row: int, start: int, end: int) -> PageRun:
        """As ReqToTokenPool.slots, `start` on a page boundary."""
        return PageRun(self.pages[row], self.row_width, self.page_size)[start:end]

    def kv_state(self, row: int, length: int, protected: int) -> KVState:
        """As ReqToTokenPool.kv_state; its counters are elements of this object's arrays."""
        return _HostKVState(self, row, length, protected)

    def put(self, places: np.ndarray, pages: np.ndarray) -> None:
        """The page at `places[i]` becomes `pages[i]`, here now and on the device with the next flush."""
        self._flat_pages[places] = pages
        start, end = self._num_unwritten, self._num_unwritten + len(pages)
        if end > self._unwritten.shape[1]:
            self._unwritten = np.concatenate([self._unwritten, np.empty((2, 2 * end), dtype=np.int32)], axis=1)
        self._unwritten[0, start:end], self._unwritten[1, start:end] = places, pages
        self._num_unwritten = end

    def unwritten(self) -> np.ndarray | None:
        """What `put` has got since the last call, int32 [2, n]: places, pages; a view. None: nothing."""
        count, self._num_unwritten = self._num_unwritten, 0
        return self._unwritten[:, :count] if count else None

    def flush(self) -> None:
        """Write what is unwritten into the device's rows, on the current stream: one copy, one kernel.

        The stream must be the one that reads the rows, so that the step in flight has read them before.
        """
        entries = self.unwritten()
        if entries is not None:
            write_pages(self.req_to_token, PageEntries.of(entries, self.device), self.page_size)

    def commit(self, rows: np.ndarray, committed: np.ndarray) -> None:
        """The result processor's write: the new lengths of `rows`, of one verified step each. As `commit_accepted`."""
        if is_any(committed > self.allocated[rows]):
            raise PageAccountingError(f"more tokens are committed than allocated in rows {rows.tolist()}")
        self.committed[rows] = committed
        self.verified[rows] += 1


class _HostKVState(KVState):
    """A request's view of its row: reading a counter reads the array, so both are one truth."""

    __slots__ = ("rows",)

    def __init__(self, rows: HostRows, row: int, length: int, protected: int) -> None:
        self.rows = rows
        super().__init__(row, length, length, cache_protected_len=protected)

    @property
    def kv_allocated_len(self) -> int:
        return int(self.rows.allocated[self.req_pool_idx])

    @kv_allocated_len.setter
    def kv_allocated_len(self, length: int) -> None:
        self.rows.allocated[self.req_pool_idx] = length

    @property
    def kv_committed_len(self) -> int:
        return int(self.rows.committed[self.req_pool_idx])

    @kv_committed_len.setter
    def kv_committed_len(self, length: int) -> None:
        self.rows.committed[self.req_pool_idx] = length

    @property
    def swa_evicted_seqlen(self) -> int:
        return int(self.rows.evicted[self.req_pool_idx])

    @swa_evicted_seqlen.setter
    def swa_evicted_seqlen(self, length: int) -> None:
        self.rows.evicted[self.req_pool_idx] = length


_OWN = {name: getattr(Request, name) for name in ("kv", "num_generated", "decode_batch_idx", "spec_verify_ct")}


class HostRequest(Request):
    """A request whose counters lie in the arrays while it has a row, and in itself before and after."""

    __slots__ = ()

    @property
    def kv(self) -> _HostKVState | None:
        return _OWN["kv"].__get__(self)

    @kv.setter
    def kv(self, state: _HostKVState | None) -> None:
        try:
            before = self.kv
        except AttributeError:  # in the making
            before = None
        if before is not None:
            counters = self.num_generated, self.decode_batch_idx, self.spec_verify_ct
            for name, value in zip(("num_generated", "decode_batch_idx", "spec_verify_ct"), counters, strict=True):
                _OWN[name].__set__(self, value)
        _OWN["kv"].__set__(self, state)
        if state is not None:
            rows, row = state.rows, state.req_pool_idx
            rows.joined[row] = rows.steps - _OWN["decode_batch_idx"].__get__(self)
            rows.verified[row] = _OWN["spec_verify_ct"].__get__(self)
            rows.top_k[row] = self.sampling_params.top_k

    @property
    def num_generated(self) -> int:
        return _OWN["num_generated"].__get__(self) if self.kv is None else self.kv.kv_committed_len - self.prompt_len

    @num_generated.setter
    def num_generated(self, count: int) -> None:
        if self.kv is None:
            _OWN["num_generated"].__set__(self, count)

    @property
    def decode_batch_idx(self) -> int:
        if self.kv is None:
            return _OWN["decode_batch_idx"].__get__(self)
        return self.kv.rows.steps - int(self.kv.rows.joined[self.kv.req_pool_idx])

    @decode_batch_idx.setter
    def decode_batch_idx(self, count: int) -> None:
        if self.kv is None:
            _OWN["decode_batch_idx"].__set__(self, count)
        else:
            self.kv.rows.joined[self.kv.req_pool_idx] = self.kv.rows.steps - count

    @property
    def spec_verify_ct(self) -> int:
        if self.kv is None:
            return _OWN["spec_verify_ct"].__get__(self)
        return int(self.kv.rows.verified[self.kv.req_pool_idx])

    @spec_verify_ct.setter
    def spec_verify_ct(self, count: int) -> None:
        if self.kv is None:
            _OWN["spec_verify_ct"].__set__(self, count)
        else:
            self.kv.rows.verified[self.kv.req_pool_idx] = count


def extend_rows(pools: KVPools, places: np.ndarray, counts: np.ndarray, num_pages: int, num_tokens: int) -> None:
    """Give each row `counts` pages from its next free place on. The caller has made room for them.

    places, counts  int64 [bs]; num_pages: all counts; num_tokens: by how much the rows grow, for early sorting
    `take_slots` and the row write in one, for rows that hold whole pages. Raises OutOfPagesError, nothing written.
    """
    allocator = pools.allocator
    pages = allocator.take_for_rows(num_pages, num_tokens, len(places))
    if pages is None:
        raise OutOfPagesError(
            f"{num_tokens} tokens asked for, {allocator.available_size()} free in pages of {allocator.page_size},"
            " nothing left to evict"
        )
    before = counts.cumsum() - counts
    pools.rows.put((places - before).repeat(counts) + np.arange(num_pages), pages)


def fill_host_rows(
    pools: KVPools, rows: Sequence[int], prefixes: Sequence[PageRun | None], starts: Sequence[int], ends: Sequence[int]
) -> None:
    """New rows: what the cache lends in front, pages of their own behind. Raises OutOfPagesError, nothing written."""
    page_size, num_tokens = pools.allocator.page_size, sum(ends) - sum(starts)
    pools.make_room(num_tokens if page_size == 1 else num_tokens + len(rows) * page_size)
    held, wanted = (-(-np.array(lengths, dtype=np.int64) // page_size) for lengths in (starts, ends))
    first = np.array(rows, dtype=np.int64) * pools.rows.pages.shape[1]
    counts = wanted - held
    extend_rows(pools, first + held, counts, int(counts.sum()), num_tokens)
    for place, prefix in zip(first.tolist(), prefixes, strict=True):
        if prefix is not None:
            pools.rows.put(np.arange(place, place + len(prefix.pages)), prefix.pages)
