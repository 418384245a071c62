"""The table from (request row, position) to KV slot, and the rule for how wide its rows are."""

from __future__ import annotations

import torch

from dflash_prep.errors import OutOfRowsError
from dflash_prep.state.request import KVState

_BASE_SLACK = 4
"""Columns beyond context and draft tokens that every row has, as published."""


def alloc_len_per_decode(*, draft_tokens: int, steps: int = 1, topk: int = 1, page_size: int = 1) -> int:
    """Tokens one decode step may write per request.

    `max(steps * topk, draft_tokens)` for page size 1 or top-k 1 (DFlash: steps = topk = 1, hence the block size). A
    tree draft on pages needs whole pages per branch: `floor((2 * page - 2 + steps) / page) * page * topk`.
    """
    if page_size == 1 or topk == 1:
        return max(steps * topk, draft_tokens)
    pages = (2 * page_size - 2 + steps) // page_size
    return max(pages * page_size * topk, draft_tokens)


def extra_row_width(
    *, draft_tokens: int, steps: int = 1, topk: int = 1, page_size: int = 1, dcp_size: int = 1, speculative: bool = True
) -> int:
    """Columns a row has beyond the model's context length.

    The allocator's page is `page_size * dcp_size` (decode context parallelism). Without speculation or on pages of
    one token this is `4 + draft_tokens`; otherwise the reserve of two windows plus a page less one token, when that
    is more.

    On pages of one token the published width is smaller than the reserve `2 * draft_tokens` (#33579), so a request
    next to its context limit does not fit: here that is `RowOverflowError`, never a write into the neighbour's row.
    """
    page = page_size * dcp_size
    base = _BASE_SLACK + draft_tokens
    if not speculative or page == 1:
        return base
    reserve = 2 * alloc_len_per_decode(draft_tokens=draft_tokens, steps=steps, topk=topk, page_size=page)
    return max(base, reserve + page - 1)


class ReqToTokenPool:
    """`req_to_token`, int32 [size + 1, row_width] on the device, zero at start, and the host list of free rows.

    Row 0 is the padding row: padded batch rows use pool index 0, so what they read and write harms nobody. Slot 0
    likewise means "no slot". `req_generation`, int64 [size + 1] on the CPU, counts how often each row was handed out;
    a result that remembers the generation of its row knows whether the row still is the request's own.
    """

    def __init__(self, size: int, row_width: int, device: torch.device | str = "cpu") -> None:
        self.size = size
        self.row_width = row_width
        self.device = torch.device(device)
        self.req_to_token = torch.zeros((size + 1, row_width), dtype=torch.int32, device=self.device)
        self.req_generation = torch.zeros(size + 1, dtype=torch.int64)
        self.free_rows = list(range(1, size + 1))

    def alloc(self, count: int) -> list[int]:
        """Take `count` rows. Raises OutOfRowsError when fewer are free."""
        if count > len(self.free_rows):
            raise OutOfRowsError(f"{count} rows asked for, {len(self.free_rows)} of {self.size} are free")
        rows, self.free_rows = self.free_rows[:count], self.free_rows[count:]
        self.req_generation[rows] += 1
        return rows

    def slots(self, row: int, start: int, end: int) -> torch.Tensor:
        """The slots in columns [start, end) of a row, int32 device, a view."""
        return self.req_to_token[row, start:end]

    def kv_state(self, row: int, length: int, protected: int) -> KVState:
        """The counters of a request that got this row for `length` tokens, `protected` of them lent by the cache."""
        return KVState(row, length, length, cache_protected_len=protected)

    def flush(self) -> None:
        """Nothing: here rows are written on the device at once."""

    def free(self, row: int) -> None:
        """Give a row back. Its columns keep their content; nobody reads them before they are written again."""
        self.free_rows.append(row)
