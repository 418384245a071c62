"""The draft's greedy sampler over a vocabulary split across tensor-parallel ranks (section 7, #31468).

Every rank holds a contiguous shard of the head. It takes the maximum of its shard and exchanges maxima and ids, never
logits. Ranks hold ascending shards and both argmaxes return the first maximum, so the result is that of an argmax over
the full vocabulary, ties included. Ids stay int64 and are never derived from floats.

- eager (legacy): per chunk of rows, after the draft graph, two collectives launched from the host for each chunk.
- folded: with static buffers, captured as the tail of the draft graph; nothing is launched for it in a step.
"""

import os
from dataclasses import dataclass
from enum import StrEnum
from typing import Protocol

import torch
import torch.distributed as dist

# torch 2.13 renamed it and warns about the old name; 2.11 knows only the old one.
all_gather = getattr(dist, "all_gather_single", None) or dist.all_gather_into_tensor

_EAGER_VARIABLE = "SGLANG_DFLASH_EAGER_DRAFT_SAMPLER"
_CHUNK_ROWS = 256
"""Rows of one eager chunk: bounds the logits to 256 x vocabulary."""
_CHUNK_ROWS_SOLO = 1024
"""The same without collectives and added vocabulary, where a chunk costs one matmul and one argmax."""
_MIN_FREE_BYTES = 1 << 30
"""Less free device memory than this on any rank, and nothing more is captured."""


class TpGroup(Protocol):
    """The tensor-parallel group as far as the sampler needs it."""

    @property
    def rank(self) -> int: ...

    @property
    def size(self) -> int: ...

    def all_gather(self, tensor: torch.Tensor, out: torch.Tensor) -> None:
        """out[r * n : (r + 1) * n] = rank r's `tensor` [n]; out is [size * n], same dtype."""


class SoloGroup:
    """A group of one."""

    rank = 0
    size = 1

    def all_gather(self, tensor: torch.Tensor, out: torch.Tensor) -> None:
        out.copy_(tensor)


class DistributedGroup:
    """A `torch.distributed` process group; with NCCL its collectives can be captured."""

    def __init__(self, group: dist.ProcessGroup | None = None) -> None:
        self._group = group
        self.rank = dist.get_rank(group)
        self.size = dist.get_world_size(group)

    def all_gather(self, tensor: torch.Tensor, out: torch.Tensor) -> None:
        all_gather(out, tensor, group=self._group)


@dataclass(frozen=True, slots=True)
class VocabShard:
    """Which ids one rank's head rows stand for.

    Rows [0, num_org) are ids org_start + row. Rows up to `added_row` are padding. Rows [added_row, added_row +
    num_added) are ids added_start + row; every added id is above every base id.
    """

    org_start: int
    num_org: int
    added_row: int = 0
    added_start: int = 0
    num_added: int = 0
    has_added: bool = False
    """Whether any rank has added vocabulary; the same on all ranks, unlike `num_added`."""

    @classmethod
    def split(cls, vocab: int, rank: int, size: int) -> "VocabShard":
        """Rank `rank`'s part of `vocab` ids: ascending shards of ceil(vocab / size), the last maybe empty."""
        width = -(-vocab // size)
        start = min(rank * width, vocab)
        return cls(start, min(start + width, vocab) - start)


@dataclass(frozen=True, slots=True)
class DraftHead:
    """One rank's part of the lm_head."""

    weight: torch.Tensor  # floating [rows, H]
    shard: VocabShard

    def logits(self, hidden: torch.Tensor, first: int, count: int) -> torch.Tensor:
        """hidden [N, H] times head rows [first, first + count): [N, count] in the head's dtype."""
        return hidden.to(self.weight.dtype) @ self.weight[first : first + count].T


class EagerReason(StrEnum):
    """Why the sampler is not folded into the draft graph (section 7.2)."""

    ENVIRONMENT = "the environment asks for the eager sampler"
    BLOCK = "a block of one token has no drafts"
    NO_HEAD = "the draft has no lm_head"
    HEAD_NOT_DENSE = "the head is quantised or not dense"
    NO_SHARDS = "the head is split over ranks without shard metadata"
    ADDED_VOCABULARY = "the vocabulary has added tokens"
    MEMORY = "capture is disabled: less than 1 GiB free on some rank"


@dataclass(frozen=True, slots=True)
class SamplerSetup:
    """What decides at start-up whether the sampler can be folded."""

    B: int
    weight: torch.Tensor | None
    shard: VocabShard | None
    group: TpGroup
    free_bytes: int  # the minimum over the ranks, see agree_free_bytes


def eager_reason(setup: SamplerSetup) -> EagerReason | None:
    """None if the sampler may be folded. The order of the reasons is that of section 7.2."""
    if _eager_by_environment():
        return EagerReason.ENVIRONMENT
    if setup.B <= 1:
        return EagerReason.BLOCK
    if setup.weight is None:
        return EagerReason.NO_HEAD
    if not setup.weight.is_floating_point() or setup.weight.layout is not torch.strided or setup.weight.dim() != 2:
        return EagerReason.HEAD_NOT_DENSE
    if setup.shard is None and setup.group.size > 1:
        return EagerReason.NO_SHARDS
    if setup.shard is not None and setup.shard.has_added:
        return EagerReason.ADDED_VOCABULARY
    if setup.free_bytes < _MIN_FREE_BYTES:
        return EagerReason.MEMORY
    return None


def _eager_by_environment() -> bool:
    """`SGLANG_DFLASH_EAGER_DRAFT_SAMPLER`: unset or 0 is off, 1 is on. ValueError for anything else."""
    value = os.environ.get(_EAGER_VARIABLE, "0")
    if value not in ("0", "1"):
        raise ValueError(f"{_EAGER_VARIABLE} must be 0 or 1, not {value!r}")
    return value == "1"


def agree_free_bytes(free_bytes: int, group: TpGroup, device: torch.device | str) -> int:
    """The least free memory of all ranks, so that all fold or none does. Once, at start-up; synchronises."""
    own = torch.tensor([free_bytes], dtype=torch.int64, device=device)
    everyone = torch.empty(group.size, dtype=torch.int64, device=device)
    group.all_gather(own, everyone)
    return int(everyone.min().item())


def _draft_rows(hidden: torch.Tensor, B: int) -> torch.Tensor:
    """hidden [bs * B, H] without the anchors' rows: [bs * (B-1), H]."""
    return hidden.view(-1, B, hidden.shape[-1])[:, 1:].reshape(-1, hidden.shape[-1])


class FoldedSampler:
    """The sampler as the tail of a captured draft graph.

    All its results live in static buffers for the largest captured batch and are used from the front, so each captured
    size sees fixed addresses. Calling it captures or runs it; `drafts` reads the result after a replay.
    """

    def __init__(self, head: DraftHead, group: TpGroup, max_bs: int, B: int) -> None:
        """`max_bs`: the largest captured batch. ValueError if `eager_reason` forbids folding by block or vocabulary."""
        if B <= 1 or head.shard.has_added:
            raise ValueError("a block of one token or an added vocabulary cannot be folded; see eager_reason")
        device, dtype = head.weight.device, head.weight.dtype
        n, size = max_bs * (B - 1), group.size
        self.out = torch.zeros(n, dtype=torch.int64, device=device)
        self._head, self._group, self._B = head, group, B
        self._local_max = torch.zeros(n, dtype=dtype, device=device)
        self._local_ids = torch.zeros(n, dtype=torch.int64, device=device)
        if size > 1:
            self._all_max = torch.zeros(size * n, dtype=dtype, device=device)
            self._all_ids = torch.zeros(size * n, dtype=torch.int64, device=device)
            self._best_rank = torch.zeros(n, dtype=torch.int64, device=device)
            self._selected = torch.zeros(n, dtype=torch.int64, device=device)

    def __call__(self, hidden: torch.Tensor) -> None:
        """hidden [bs * B, H] -> out[: bs * (B-1)], int64. Capturable: no host read, static outputs."""
        rows = _draft_rows(hidden, self._B)
        n = rows.shape[0]
        if n > self.out.numel():
            raise ValueError(f"{n} draft rows exceed the sampler's static buffers for {self.out.numel()}")
        if n == 0:
            return
        self._local(rows, n)
        if self._group.size == 1:
            self.out[:n].copy_(self._local_ids[:n])
        else:
            self._combine(n)

    def _local(self, rows: torch.Tensor, n: int) -> None:
        shard = self._head.shard
        if shard.num_org == 0:
            self._local_max[:n].fill_(torch.finfo(self._local_max.dtype).min)
            self._local_ids[:n].fill_(shard.org_start)
            return
        logits = self._head.logits(rows, 0, shard.num_org)
        torch.max(logits, dim=-1, out=(self._local_max[:n], self._local_ids[:n]))
        self._local_ids[:n].add_(shard.org_start)

    def _combine(self, n: int) -> None:
        size = self._group.size
        all_max, all_ids = self._all_max[: size * n], self._all_ids[: size * n]
        self._group.all_gather(self._local_max[:n], all_max)
        self._group.all_gather(self._local_ids[:n], all_ids)
        torch.argmax(all_max.view(size, n), dim=0, out=self._best_rank[:n])
        torch.gather(all_ids.view(size, n), 0, self._best_rank[None, :n], out=self._selected[None, :n])
        self.out[:n].copy_(self._selected[:n])

    def drafts(self, bs: int) -> torch.Tensor:
        """The drafts of the last run, a view int64 [bs, B-1]."""
        return self.out[: bs * (self._B - 1)].view(bs, self._B - 1)


def sample_greedy_eager(hidden: torch.Tensor, head: DraftHead, group: TpGroup) -> torch.Tensor:
    """Greedy ids int64 [N] of hidden [N, H], chunk by chunk (section 7.2); every rank gets the same ids.

    Handles added vocabulary and ranks without base vocabulary. An added token wins only over strictly smaller base
    logits, as if it stood behind the base vocabulary in one full argmax.
    """
    solo = group.size == 1 and not head.shard.has_added
    chunk = _CHUNK_ROWS_SOLO if solo else _CHUNK_ROWS
    out = torch.empty(hidden.shape[0], dtype=torch.int64, device=hidden.device)
    for first in range(0, hidden.shape[0], chunk):
        rows = hidden[first : first + chunk]
        out[first : first + chunk] = _sample_chunk(rows, head, group)
    return out


def _sample_chunk(rows: torch.Tensor, head: DraftHead, group: TpGroup) -> torch.Tensor:
    best, ids = _local_best(rows, head)
    if group.size == 1:
        return ids
    n, size = rows.shape[0], group.size
    all_best, all_ids = best.new_empty(size * n), ids.new_empty(size * n)
    group.all_gather(best, all_best)
    group.all_gather(ids, all_ids)
    all_best, all_ids = all_best.view(size, n), all_ids.view(size, n)
    if not head.shard.has_added:
        return all_ids.gather(0, all_best.argmax(dim=0, keepdim=True))[0]
    # A rank's best may be an added token that ties with a later rank's base token: on equal logits the smaller id wins.
    is_best = (all_best == all_best.amax(dim=0)) | all_best.isnan()
    return torch.where(is_best, all_ids, torch.iinfo(torch.int64).max).amin(dim=0)


def _local_best(rows: torch.Tensor, head: DraftHead) -> tuple[torch.Tensor, torch.Tensor]:
    """Best logit (head dtype) and its id (int64) of this rank's shard, each [N]."""
    shard, n = head.shard, rows.shape[0]
    if shard.num_org:
        best, ids = head.logits(rows, 0, shard.num_org).max(dim=-1)
        ids = ids + shard.org_start
    else:
        best = head.weight.new_full((n,), torch.finfo(head.weight.dtype).min)
        ids = torch.full((n,), shard.org_start, dtype=torch.int64, device=rows.device)
    if shard.num_added:
        added_best, added_ids = head.logits(rows, shard.added_row, shard.num_added).max(dim=-1)
        wins = added_best > best
        best = torch.where(wins, added_best, best)
        ids = torch.where(wins, added_ids + shard.added_start, ids)
    return best, ids


def sample_drafts(
    hidden: torch.Tensor, head: DraftHead, group: TpGroup, B: int, *, folded: FoldedSampler | None
) -> torch.Tensor:
    """Drafts int64 [bs, B-1] of one draft forward with hidden [bs * B, H].

    `folded` is the sampler whose graph just ran for this batch; None where it is not folded, or where the batch did
    not run as a graph: then the eager path samples now.
    """
    bs = hidden.shape[0] // B
    if folded is not None:
        return folded.drafts(bs)
    return sample_greedy_eager(_draft_rows(hidden, B), head, group).view(bs, B - 1)
