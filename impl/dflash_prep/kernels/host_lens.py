"""What the host knows of sequence lengths, and whether any attention backend asks for it (section 8.1, #31468).

Under overlap the exact lengths live on the device. Copying them back costs a host block every step, before anything is
launched, so it is done only if a backend says that it reads host lengths; planning otherwise uses upper bounds.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from enum import StrEnum

import torch


class HybridDelegation(StrEnum):
    """How the wrapper of a prefill and a decode backend answers for them."""

    ABSENT = "absent"
    """Before #31468: no attribute at all, hence True: a device-to-host copy every step although nobody reads it."""
    UNION = "union"
    """#31468 as merged: prefill or decode."""
    BY_MODE = "by_mode"
    """Later refinement: decode, or prefill if speculation runs on the prefill backend."""


class SpeculativeMode(StrEnum):
    """Which sub-backend runs the target verify."""

    PREFILL = "prefill"
    DECODE = "decode"


@dataclass(frozen=True, slots=True)
class HybridBackend:
    """A prefill and a decode backend behind one face."""

    prefill: object
    decode: object
    delegation: HybridDelegation
    mode: SpeculativeMode = SpeculativeMode.DECODE

    @property
    def needs_cpu_seq_lens(self) -> bool:
        match self.delegation:
            case HybridDelegation.ABSENT:
                return True
            case HybridDelegation.UNION:
                return _backend_needs_cpu(self.prefill) or _backend_needs_cpu(self.decode)
            case HybridDelegation.BY_MODE:
                asks_prefill = self.mode is SpeculativeMode.PREFILL and _backend_needs_cpu(self.prefill)
                return _backend_needs_cpu(self.decode) or asks_prefill


def _backend_needs_cpu(backend: object) -> bool:
    """The backend's attribute `needs_cpu_seq_lens`; one without it is assumed to read host lengths."""
    return bool(getattr(backend, "needs_cpu_seq_lens", True))


def decide_needs_cpu_seq_lens(
    backends: Sequence[object | None], *, two_batch_overlap: bool = False, ngram: bool = False
) -> bool:
    """Whether the exact lengths must be copied to the host every step.

    `backends`: for DFlash the target's and the draft's; None stands for one that does not exist. Two-batch overlap
    splits the batch on the host and ngram drafts on the host, so both need lengths whatever the backends say.
    """
    return two_batch_overlap or ngram or any(_backend_needs_cpu(each) for each in backends if each is not None)


class _HostLensSource(StrEnum):
    """Where host lengths came from."""

    EXACT = "exact"
    RESERVED = "reserved"
    BLOCKING = "blocking"


@dataclass(frozen=True, slots=True)
class HostLens:
    """Lengths for planning on the host: int [bs] on the CPU, and what they are worth."""

    lens: torch.Tensor
    source: _HostLensSource

    @property
    def total(self) -> int:
        return int(self.lens.sum())


def committed_host_lens(
    seq_lens_cpu: torch.Tensor | None, nxt_kv_lens_cpu: torch.Tensor | None, seq_lens: torch.Tensor
) -> HostLens:
    """The best known host lengths that are not below the device's `seq_lens` (section 5.2).

    Exact ones if FutureMap copied them, else the reservation (an over-estimate), else a blocking copy (legacy). SGLang
    0.5.23 takes what the rows hold in place of the copy; that is what the reservation says, which a prepared step has.
    """
    if seq_lens_cpu is not None:
        return HostLens(seq_lens_cpu, _HostLensSource.EXACT)
    if nxt_kv_lens_cpu is not None:
        return HostLens(nxt_kv_lens_cpu, _HostLensSource.RESERVED)
    return HostLens(seq_lens.cpu(), _HostLensSource.BLOCKING)


def verify_host_lens(
    seq_lens_cpu: torch.Tensor | None, nxt_kv_lens_cpu: torch.Tensor | None, seq_lens: torch.Tensor, B: int
) -> HostLens:
    """Host lengths that include the verify block (section 6 steps 3 and 6): exact + B, or the reservation as it is.

    The reservation already holds committed + 2B >= true length + B, so nothing is added to it.
    """
    known = committed_host_lens(seq_lens_cpu, nxt_kv_lens_cpu, seq_lens)
    if known.source is _HostLensSource.RESERVED:
        return known
    return HostLens(known.lens + B, known.source)
