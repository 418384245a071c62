"""The checksum language model: a target and a draft whose tokens depend on every KV slot they should have read.

There are no weights and no attention. The "KV" of a token is the token itself, stored in the slot that the page table
names. The target's next token is an integer hash of the last `CONTEXT` tokens *as read back through the page table*;
the draft proposes a block from what it reads through *its* table and is right with a set probability per position. A
slot off by one, a page given to two requests, a stale length or a row rebuilt one column short therefore changes tokens
or the accept length, and `oracle.py` knows both in advance.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple

import torch

from dflash_prep.loop.checksum import CONTEXT, VOCAB, WEIGHTS, ModelKind, hash_of, hit_threshold, proposal_of, token_of

MASK_ID = VOCAB
"""The KV of a mask token at position p is MASK_ID + p: never a token, and different at every position."""


class _Layout(NamedTuple):
    """How a view finds slots: entry `column // page_size` of a row is a page. `rows` None: request i has row i."""

    table: torch.Tensor
    rows: torch.Tensor | None
    page_size: int


@dataclass(frozen=True, slots=True)
class TableView:
    """How one forward reads KV: row `pool_indices[i]` of `table`, columns below `lens[i]`. All on the device.

    table         int32 [rows, width]: position (or local column) to slot
    pool_indices  int64 [bs]
    lens          int [bs]: columns from here on do not exist for this forward
    """

    table: torch.Tensor
    pool_indices: torch.Tensor
    lens: torch.Tensor

    @property
    def layout(self) -> _Layout:
        return _Layout(self.table, self.pool_indices, 1)

    def slots(self, columns: torch.Tensor) -> torch.Tensor:
        """Slots int64 [bs, n] of `columns` int64 [bs, n]; the dummy slot 0 for columns outside [0, lens)."""
        inside = (columns >= 0) & (columns < self.lens[:, None])
        found = self.table[self.pool_indices[:, None], columns.clamp(0, self.table.shape[1] - 1)]
        return torch.where(inside, found, 0).to(torch.int64)


@dataclass(frozen=True, slots=True)
class PageTableView:
    """The same through a block table, as paged attention reads. Row i of the table belongs to request i.

    block_table  int32 [bs, width]: page numbers
    lens         int [bs]: columns from here on do not exist for this forward
    """

    block_table: torch.Tensor
    lens: torch.Tensor
    page_size: int

    @property
    def layout(self) -> _Layout:
        return _Layout(self.block_table, None, self.page_size)

    def slots(self, columns: torch.Tensor) -> torch.Tensor:
        """As `TableView.slots`."""
        inside = (columns >= 0) & (columns < self.lens[:, None])
        last_page = self.block_table.shape[1] - 1
        pages = self.block_table.gather(1, (columns // self.page_size).clamp(0, last_page))
        return torch.where(inside, pages * self.page_size + columns % self.page_size, 0)


class ChecksumModel:
    """Target and draft over one slot space, in torch. KV: int32 [num_slots] each; slot 0 always reads as token 0."""

    kind = ModelKind.TORCH

    def __init__(self, num_slots: int, block: int, hit_rate: float, device: torch.device | str) -> None:
        self.target_kv = torch.zeros(num_slots, dtype=torch.int32, device=device)
        self.draft_kv = torch.zeros(num_slots, dtype=torch.int32, device=device)
        self.block = block
        self._threshold = hit_threshold(hit_rate)
        self._weights = torch.tensor(WEIGHTS, dtype=torch.int64, device=device)
        self._back = torch.arange(-CONTEXT + 1, block, dtype=torch.int64, device=device)
        self._columns = torch.arange(block, dtype=torch.int64, device=device)

    def prefill(self, slots: torch.Tensor, tokens: torch.Tensor) -> None:
        """Store int32 `tokens` [n] at int64 `slots` [n], for the target and for the draft."""
        self._write(self.target_kv, slots, tokens)
        self._write(self.draft_kv, slots, tokens)

    def next_tokens(self, view: TableView) -> torch.Tensor:
        """The token int64 [bs] that follows each request's last position, `lens - 1`: what a prefill samples."""
        return self.target_tokens(view, view.lens.to(torch.int64)[:, None] - 1)[:, 0]

    def target_tokens(self, view: TableView | PageTableView, positions: torch.Tensor) -> torch.Tensor:
        """The token int64 [bs, n] that follows each of `positions` int64 [bs, n], consecutive in a row, n <= block."""
        columns = positions[:, :1] + self._back[: CONTEXT - 1 + positions.shape[1]]
        context = self._read(self.target_kv, view, columns).unfold(1, CONTEXT, 1)
        return token_of(hash_of((context * self._weights).sum(2), positions))

    def draft(
        self, view: TableView, block_ids: torch.Tensor, positions: torch.Tensor, verify_slots: torch.Tensor
    ) -> torch.Tensor:
        """Propose block - 1 tokens int64 [bs, block - 1] after the anchor.

        `view` is the draft's own table, `lens` the prefix in it; the block's columns follow. `block_ids`, `positions`
        and `verify_slots` int64 [bs, block]: anchor and masks, global positions, and where their KV goes. Like the
        attention of a block-diffusion draft, every proposal sees the context and all columns of the block.
        """
        prefix = view.lens.to(torch.int64)[:, None]
        is_mask = self._columns > 0
        self._write(self.draft_kv, verify_slots, torch.where(is_mask, MASK_ID + positions, block_ids))
        whole = TableView(view.table, view.pool_indices, view.lens + self.block)
        seen = self._read(self.draft_kv, whole, prefix + self._columns)
        damage = ((seen - MASK_ID - positions).abs() * is_mask).sum(1)
        history = self._read(self.draft_kv, view, prefix + self._back[: CONTEXT - 1])
        tokens = torch.empty((len(prefix), CONTEXT - 1 + self.block), dtype=torch.int64, device=prefix.device)
        tokens[:, : CONTEXT - 1] = history
        tokens[:, CONTEXT - 1] = seen[:, 0]
        self._propose(tokens, positions, damage)
        return tokens[:, CONTEXT:]

    def _propose(self, tokens: torch.Tensor, positions: torch.Tensor, damage: torch.Tensor) -> None:
        """Fill the columns of `tokens` behind the anchor, one after the other: each sees those before it."""
        weights = self._weights
        if not tokens.is_cuda:  # dozens of tiny operations: NumPy's cost a third of torch's, on the same memory
            tokens, positions, damage, weights = (each.numpy() for each in (tokens, positions, damage, weights))
        for column in range(self.block - 1):
            weighted = (tokens[:, column : column + CONTEXT] * weights).sum(1)
            hashed = hash_of(weighted + damage, positions[:, column])
            tokens[:, CONTEXT + column] = proposal_of(hashed, self._threshold)

    def verify(
        self, view: TableView | PageTableView, draft_tokens: torch.Tensor, positions: torch.Tensor
    ) -> torch.Tensor:
        """Write the block's KV, read the context of every position back, and return the next tokens int64 [bs, block].

        `view` is the target's table with `lens` = prefix + block; `draft_tokens` int64 [bs, block] starts with the
        anchor.
        """
        self._write_target(view, draft_tokens, positions)
        return self.target_tokens(view, positions)

    def _write_target(self, view: TableView | PageTableView, tokens: torch.Tensor, positions: torch.Tensor) -> None:
        self._write(self.target_kv, view.slots(positions), tokens)

    def keep_committed(self, draft_tokens: torch.Tensor, verify_slots: torch.Tensor, commit_lens: torch.Tensor) -> None:
        """Write the draft's KV of the committed prefix of each block; the rest goes to the dummy slot.

        The draft's forward left mask KV there; the target's states replace it (section 6, step 9). No packing, hence no
        shape that depends on data.
        """
        slots = torch.where(self._columns < commit_lens[:, None], verify_slots, 0)
        self._write(self.draft_kv, slots, draft_tokens)

    def _read(self, kv: torch.Tensor, view: TableView | PageTableView, columns: torch.Tensor) -> torch.Tensor:
        return kv[view.slots(columns)].to(torch.int64)

    @staticmethod
    def _write(kv: torch.Tensor, slots: torch.Tensor, tokens: torch.Tensor) -> None:
        kv[slots] = tokens.to(torch.int32)
        kv[:1].zero_()


class ChecksumHead:
    """A head whose argmax over the vocabulary is the token itself, exactly, so that the real sampler can be used.

    hidden(t) = (2 t, -1) and weight(v) = (v, v * v) give the logit 2 t v - v * v = t * t - (t - v) ** 2, largest at v =
    t only. All terms are integers below 2^24, so float32 holds them exactly.
    """

    def __init__(self, device: torch.device | str) -> None:
        token = torch.arange(VOCAB, dtype=torch.float32, device=device)
        self.weight = torch.stack([token, token * token], dim=1)

    def hidden(self, drafts: torch.Tensor, out: torch.Tensor | None = None) -> torch.Tensor:
        """Hidden states float32 [bs, block, 2] for drafts int64 [bs, block - 1]; column 0, the anchor's, is zero."""
        if out is None:
            out = torch.zeros((drafts.shape[0], drafts.shape[1] + 1, 2), dtype=torch.float32, device=drafts.device)
        out[:, 1:, 0] = 2 * drafts
        out[:, 1:, 1] = -1
        return out
