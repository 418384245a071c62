"""A request and the counters that say how far its KV row reaches.

Three regions of a request's `req_to_token` row:

    [0, cache_protected_len)                  owned by the prefix cache, shareable
    [cache_protected_len, kv_committed_len)   the request's own confirmed KV
    [kv_committed_len, kv_allocated_len)      reserved: verify windows in flight and to come, rejected drafts, page
                                              tails, top-up pages

`kv_committed_len <= kv_allocated_len` always holds. Who writes them is closed, and a test walks the package to see it:
`kv_committed_len` is advanced by prefill, by PD pre-allocation and by `lifetime.commit_accepted` (the result
processor); `kv_allocated_len` by prefill, PD pre-allocation and the allocation functions. Workers never touch either.
"""

from __future__ import annotations

from dataclasses import dataclass, field

UNLIMITED_TOP_K = 1 << 30
"""What "no top-k limit" becomes after normalisation; greedy is 1."""


@dataclass(frozen=True, slots=True)
class SamplingParams:
    """What decode preparation reads of a request's sampling settings."""

    top_k: int = 1


@dataclass(slots=True)
class KVState:
    """What a request holds of the KV pool (#36982). All lengths are in tokens.

    kv_committed_len    tokens whose KV is known committed and whose result the host has processed; under overlap it
                        lags the device by one step
    kv_allocated_len    columns [0, kv_allocated_len) of the row hold valid slots
    cache_protected_len page aligned; columns below belong to the prefix cache
    swa_evicted_seqlen  page aligned; own columns below have no sliding-window slot any more
    swa_shield_len      columns below must keep their sliding-window slot (rounded up to a page where it is read)
    device_len          HiSparse: own columns below are on the device (in prefill); 0 once the host holds them
    """

    req_pool_idx: int
    kv_allocated_len: int = 0
    kv_committed_len: int = 0
    cache_protected_len: int = 0
    swa_evicted_seqlen: int = 0
    swa_shield_len: int = 0
    device_len: int = 0

    def window_runs(self, start: int, end: int, page_size: int) -> list[tuple[int, int, bool]]:
        """Own columns [start, end) cut into runs that all have, or all lack, their sliding-window slot.

        The host knows where the hole is, [max(cache_protected_len, shield), swa_evicted_seqlen), so that freeing
        needs no mask over device memory. Each run: its start, its end, whether it has window slots.
        """
        hole = max(self.cache_protected_len, ceil_to(self.swa_shield_len, page_size))
        low, high = min(max(hole, start), end), min(max(self.swa_evicted_seqlen, hole, start), end)
        runs = [(start, low, True), (low, high, False), (high, end, True)]
        return [run for run in runs if run[0] < run[1]]


@dataclass(slots=True, eq=False)
class Request:
    """One request; `kv` is None before the first allocation and after release.

    stream          names the token sequence: two requests of one stream have the same tokens at the same positions,
                    which is all that the prefix cache's stand-in knows about content; None shares with nobody
    num_generated   tokens committed since the first prefill, kept over retraction
    decode_batch_idx, extend_batch_idx   preparations of each kind; spec_verify_ct: verified steps
    """

    rid: int
    prompt_len: int
    sampling_params: SamplingParams = field(default_factory=SamplingParams)
    stream: int | None = None
    kv: KVState | None = None
    num_generated: int = 0
    decode_batch_idx: int = 0
    extend_batch_idx: int = 0
    spec_verify_ct: int = 0

    @property
    def seq_len(self) -> int:
        """Tokens that a prefill of this request has to cover: the prompt and, after a retraction, what it generated."""
        return self.prompt_len + self.num_generated


def ceil_to(length: int, page_size: int) -> int:
    """`length` rounded up to whole pages, in tokens."""
    return (length + page_size - 1) // page_size * page_size


def floor_to(length: int, page_size: int) -> int:
    """`length` rounded down to whole pages, in tokens."""
    return length // page_size * page_size
