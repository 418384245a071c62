"""Keeps a GPU busy for a set time, inside a captured graph, so that a cheap model takes as long as a real one.

The first kernel of the graph notes the GPU's nanosecond timer, the last one spins until the set time has passed since.
So the model's own kernels count towards the time, nothing needs calibrating, and a clock change does not matter. The
timer of an H200 advances in steps of about a microsecond at worst; durations here are hundreds of them.
"""

from __future__ import annotations

import torch
import triton
import triton.language as tl
from triton.language.extra.cuda import globaltimer


@triton.jit
def _note_time_kernel(
    # outputs
    start_ptr,  # int64 [1]
):
    tl.store(start_ptr, globaltimer())


@triton.jit
def _spin_kernel(
    start_ptr,  # int64 [1]
    # outputs
    end_ptr,  # int64 [1]: keeps the loop from being seen as useless
    # scalars
    busy_ns,
):
    start = tl.load(start_ptr)
    now = globaltimer()
    while now - start < busy_ns:
        now = globaltimer()
    tl.store(end_ptr, now)


class Spin:
    """Makes everything between `begin` and `end`, on one stream, take at least a set time. One at a time."""

    def __init__(self, device: torch.device) -> None:
        self._start = torch.zeros(1, dtype=torch.int64, device=device)
        self._end = torch.zeros(1, dtype=torch.int64, device=device)

    def begin(self) -> None:
        """Note the time, on the current stream."""
        _note_time_kernel[(1,)](self._start, num_warps=1)

    def end(self, busy_us: int) -> None:
        """Occupy the current stream until `busy_us` have passed since `begin`."""
        _spin_kernel[(1,)](self._start, self._end, busy_us * 1000, num_warps=1)
