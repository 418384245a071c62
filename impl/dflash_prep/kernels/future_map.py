"""FutureMap: what one step knows only on the device, kept there for the next step to pick up (section 8.2).

Two pool-indexed buffers, one row per `req_to_token` row. The forward stream publishes new lengths in mid-step and
stashes bonus tokens; the next step's schedule stream gathers the lengths, its forward stream the tokens. The host sees
the lengths only if a backend needs them, at the price of one stream synchronisation a step.
"""

from dataclasses import dataclass

import torch

from dflash_prep.ranges import Range, span

POISON = -1


class _StaleFutureError(RuntimeError):
    """A row was gathered that nobody published since it was last consumed (poison mode only)."""


@dataclass(frozen=True, slots=True)
class _ResolvedLens:
    """Lengths at the start of a step."""

    seq_lens: torch.Tensor  # int64 [bs], device, exact
    seq_lens_cpu: torch.Tensor | None  # int64 [bs], CPU; None in GPU-only mode
    seq_lens_sum: int | None


class FutureMap:
    """Device buffers of `rows` rows (the pool's, padding row 0 included), all int64.

    With `poison` every consumed row is set to -1 and every gathered value is checked, which synchronises: a test mode.
    """

    def __init__(self, rows: int, device: torch.device | str, *, poison: bool = False) -> None:
        device = torch.device(device)
        fill = POISON if poison else 0
        self.output_tokens = torch.full((rows,), fill, dtype=torch.int64, device=device)
        self.new_seq_lens = torch.full((rows,), fill, dtype=torch.int64, device=device)
        self._poison = poison
        self._is_cuda = device.type == "cuda"
        self._seq_lens_cpu = torch.zeros(rows, dtype=torch.int64, pin_memory=self._is_cuda)
        if self._is_cuda:
            self._copy_stream = torch.cuda.Stream(device)
            self._publish_ready = torch.cuda.Event()

    def publish(self, indices: torch.Tensor, new_seq_lens: torch.Tensor) -> None:
        """Scatter int64 lengths [bs] to rows `indices` and mark them ready, on the current (forward) stream.

        Called in mid-step, before the KV is written, so that the next step can start planning. No-op when empty.
        """
        if indices.numel() == 0:
            return
        if self._is_cuda:
            # Re-recording forgets the previous record: wait for it first, or a publish from another stream is lost.
            torch.cuda.current_stream().wait_event(self._publish_ready)
        self.new_seq_lens[indices] = new_seq_lens
        if self._is_cuda:
            self._publish_ready.record()

    def stash(self, indices: torch.Tensor, bonus_tokens: torch.Tensor) -> None:
        """Keep int64 bonus tokens [bs] of rows `indices` for the next step's anchor column."""
        if indices.numel():
            self.output_tokens[indices] = bonus_tokens

    def resolve_seq_lens(
        self, future_indices: torch.Tensor | None, pool_indices_cpu: torch.Tensor, *, needs_cpu: bool
    ) -> _ResolvedLens | None:
        """The exact lengths of this batch, on the current (schedule) stream; None when there is no future to resolve.

        `future_indices` int64 [bs] device, `pool_indices_cpu` the same rows as int64 [bs] CPU. Without `needs_cpu` the
        host is not involved (#31468); with it, the host blocks once until everything published has been copied.
        """
        if future_indices is None:
            return None
        with span(Range.RESOLVE_SEQ_LENS):
            if self._is_cuda:
                torch.cuda.current_stream().wait_event(self._publish_ready)
            seq_lens = self.new_seq_lens[future_indices]
            host = self._copy_to_host()[pool_indices_cpu] if needs_cpu else None
            self._consume(self.new_seq_lens, future_indices, seq_lens)
            return _ResolvedLens(seq_lens, host, None if host is None else int(host.sum()))

    def resolve_bonus_tokens(self, future_indices: torch.Tensor) -> torch.Tensor:
        """The anchors int64 [bs] of this step, on the current (forward) stream."""
        tokens = self.output_tokens[future_indices]
        self._consume(self.output_tokens, future_indices, tokens)
        return tokens

    def _copy_to_host(self) -> torch.Tensor:
        """The whole buffer in pinned memory: one contiguous copy is cheaper than a gather and then a copy."""
        if not self._is_cuda:
            return self._seq_lens_cpu.copy_(self.new_seq_lens)
        self._copy_stream.wait_event(self._publish_ready)
        with torch.cuda.stream(self._copy_stream):
            self._seq_lens_cpu.copy_(self.new_seq_lens, non_blocking=True)
        self._copy_stream.synchronize()  # the per-step host block of section 8.2
        return self._seq_lens_cpu

    def _consume(self, buffer: torch.Tensor, indices: torch.Tensor, gathered: torch.Tensor) -> None:
        if not self._poison:
            return
        stale = gathered < 0
        if bool(stale.any()):
            raise _StaleFutureError(
                f"rows {indices[stale].tolist()} were gathered before anything was published for them"
            )
        buffer[indices] = POISON
