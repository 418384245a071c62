"""The paged KV allocator: which slots of the KV pool are free.

A slot is the place of one token's KV, a page is `page_size` consecutive slots. Pages are numbered from 1: slots
0..page_size-1 are never handed out, so slot 0 can mean "none" and padded tokens may write there.
"""

from __future__ import annotations

import torch

from dflash_prep.errors import MisalignedSegmentError, PageAccountingError
from dflash_prep.kernels.kv_alloc import RowSpans, count_new_pages, count_tokens, extend_slots


class PagedAllocator:
    """A free list of pages, int64 on the device; its length is known to the host, its content is not.

    need_sort   park freed pages aside, and merge and sort them into the free list only when an allocation might run
                short, so that pages are reused in ascending order; otherwise freed pages go to the front and are
                reused first
    debug       check on every call what costs a look at the device: alignment of lengths and `last_loc`, double frees
    """

    def __init__(
        self,
        size: int,
        page_size: int,
        device: torch.device | str = "cpu",
        *,
        need_sort: bool = False,
        debug: bool = False,
    ) -> None:
        self.page_size = page_size
        self.num_pages = size // page_size
        self.device = torch.device(device)
        self.need_sort = need_sort
        self.debug = debug
        self.free_pages = torch.arange(1, self.num_pages + 1, dtype=torch.int64, device=self.device)
        self.staged_pages: list[torch.Tensor] = []
        self.num_staged = 0
        self._group: list[torch.Tensor] | None = None

    def available_size(self) -> int:
        """Free tokens, also those parked for sorting, not those deferred by an open free group. Host arithmetic."""
        return (self.free_pages.shape[0] + self.num_staged) * self.page_size

    def shortfall(self, demand: int) -> tuple[int, int]:
        """Tokens that are short of `demand`, and none of another pool."""
        return max(0, demand - self.available_size()), 0

    def merge_and_sort_free(self) -> None:
        """Bring the parked pages into the free list, ascending."""
        if self.staged_pages:
            self.free_pages = torch.cat([self.free_pages, *self.staged_pages]).sort().values
            self.staged_pages, self.num_staged = [], 0

    def alloc(self, num_tokens: int) -> torch.Tensor | None:
        """Slots of `num_tokens // page_size` pages from the front, int64, in page order; None when short."""
        if self.debug and num_tokens % self.page_size:
            raise MisalignedSegmentError(f"{num_tokens} tokens are not whole pages of {self.page_size}")
        count = num_tokens // self.page_size
        if count > self.free_pages.shape[0]:
            self.merge_and_sort_free()
        if count > self.free_pages.shape[0]:
            return None
        pages = self._take(count)
        in_page = torch.arange(self.page_size, dtype=torch.int64, device=self.device)
        return (pages[:, None] * self.page_size + in_page).flatten()

    def alloc_extend(
        self, spans: RowSpans, last_loc: torch.Tensor, num_tokens: int, num_new_pages: int | None = None
    ) -> torch.Tensor | None:
        """Slots that extend each row over its span, int64 [num_tokens], rows in order; None when short of pages.

        last_loc   [bs] slot of each row's last token (`get_last_loc`)
        Raises PageAccountingError when num_tokens is not what the spans say. The pages are counted on the host before
        the kernel runs: 0.5.23 does so where a bound says that they may be short, engines before it read past the free
        list then (#34399).
        """
        if num_tokens != (total := count_tokens(spans)):
            raise PageAccountingError(f"num_tokens {num_tokens} differs from the {total} of the spans")
        if self.debug:
            self._check_last_loc(spans, last_loc)
        if num_tokens // self.page_size + last_loc.shape[0] + 1 > self.free_pages.shape[0]:
            self.merge_and_sort_free()
        if num_new_pages is None:
            num_new_pages = count_new_pages(spans, self.page_size)
        if num_new_pages > self.free_pages.shape[0]:
            return None
        slots = extend_slots(spans, last_loc, self.free_pages, num_tokens, self.page_size)
        self._take(num_new_pages)
        return slots

    def _take(self, count: int) -> torch.Tensor:
        """The front of the free list, by re-slicing: nothing is copied."""
        pages, self.free_pages = self.free_pages[:count], self.free_pages[count:]
        return pages

    def free(self, slots: torch.Tensor) -> None:
        """Free every page that a slot lies in: the legacy way, a sync, as only the device knows how many pages."""
        self.release(torch.unique(slots // self.page_size))

    def free_segment(self, slots: torch.Tensor, start_pos: int, *, has_window: bool = True) -> None:
        """Free the pages of a run of row columns [start_pos, start_pos + len(slots)), without asking the device.

        Every page has its first slot at a multiple of `page_size` in the run, so `slots[::page_size]` names each page
        once; a trailing partial page is freed whole. Each page must be freed by one call only. Raises
        MisalignedSegmentError when start_pos is inside a page.
        """
        if start_pos % self.page_size:
            raise MisalignedSegmentError(f"a freed run starts at {start_pos}, inside a page of {self.page_size}")
        if slots.shape[0]:
            self.free_pages_of(slots[:: self.page_size])

    def free_pages_of(self, slots: torch.Tensor) -> None:
        """Free the page of each of these slots, one slot per page."""
        self.release(slots.to(torch.int64) // self.page_size)

    join = staticmethod(torch.cat)
    """One run of several cached ones, whole pages each."""

    def free_group_begin(self) -> None:
        """Defer the frees that follow until `free_group_end`, which releases them together."""
        if self._group is not None:
            raise PageAccountingError("a free group is open already")
        self._group = []

    def free_group_end(self) -> None:
        """Release what was freed since `free_group_begin`."""
        if self._group is None:
            raise PageAccountingError("no free group is open")
        group, self._group = self._group, None
        if group:
            self.release(self._concatenate(group))

    def release(self, pages: torch.Tensor) -> None:
        """Give pages back, or defer that to the end of the open group. `pages` must own its memory."""
        if self._group is not None:
            self._group.append(pages)
            return
        if self.debug:
            self._check_not_free(pages)
        if self.need_sort:
            self.staged_pages.append(pages)
            self.num_staged += pages.shape[0]
        else:
            self._put_in_front(pages)

    _concatenate = staticmethod(torch.cat)

    def _put_in_front(self, pages: torch.Tensor) -> None:
        self.free_pages = torch.cat([pages, self.free_pages])

    def _check_last_loc(self, spans: RowSpans, last_loc: torch.Tensor) -> None:
        wrong = (last_loc + 1) % self.page_size != spans.start % self.page_size
        if bool(wrong.any()):
            raise PageAccountingError(f"last_loc and old length are at different places of a page: {wrong.tolist()}")

    def _check_not_free(self, pages: torch.Tensor) -> None:
        known = self._concatenate([self.free_pages, *self.staged_pages, pages]).tolist()
        if len(set(known)) != len(known) or int(pages.min()) < 1 or int(pages.max()) > self.num_pages:
            raise PageAccountingError(f"pages freed twice or not of this pool: {pages.tolist()}")
