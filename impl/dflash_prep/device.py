"""Where a kernel runs: native Triton, Triton's interpreter, or plain torch.

Every operation of this package that has a Triton kernel has its torch oracle beside it. The public function asks
`use_triton` once and takes one of the two; tests call the kernel launchers directly and compare them with the oracle.
"""

import importlib.util
import os
from collections.abc import Sequence

import numpy as np
import torch

HAS_TRITON = importlib.util.find_spec("triton") is not None
"""Kernels are defined under `if HAS_TRITON:`, so that every module imports where triton is missing."""


def use_triton(tensor: torch.Tensor) -> bool:
    """Say whether an operation on `tensor` should take its Triton kernel.

    True for a CUDA tensor where triton is installed. For a CPU tensor only when both `TRITON_INTERPRET=1` (triton then
    runs kernels in Python) and `DFLASH_PREP_FORCE_TRITON=1` are set: the interpreter is thousands of times slower than
    torch, so the CPU decode loop must not fall into it by accident.

    Kernels loop with `while column < total:`: in the interpreter a loaded value bounds no `range()` since NumPy 2.4.
    """
    if not HAS_TRITON:
        return False
    if tensor.is_cuda:
        return True
    return os.environ.get("TRITON_INTERPRET") == "1" and os.environ.get("DFLASH_PREP_FORCE_TRITON") == "1"


def to_device(
    values: Sequence[int] | np.ndarray, device: torch.device, dtype: torch.dtype = torch.int64
) -> torch.Tensor:
    """A host list or array as a device tensor; on CUDA through pinned memory, so the host does not wait."""
    tensor = torch.tensor(values, dtype=dtype)
    return tensor.pin_memory().to(device, non_blocking=True) if device.type == "cuda" else tensor
