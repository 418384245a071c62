"""Without a GPU the Triton kernels are tested in Triton's interpreter.

The switch must be set before anything imports triton, because `triton.jit` reads it when it decorates a kernel. Tests
call the kernel launchers directly, so nothing else has to be set for them to run the kernel and not its torch oracle.
"""

import os

import pytest
import torch

HAS_CUDA = torch.cuda.is_available()

if not HAS_CUDA:
    os.environ["TRITON_INTERPRET"] = "1"


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Skip what is marked `gpu` on a machine without a CUDA device."""
    if HAS_CUDA:
        return
    for item in items:
        if item.get_closest_marker("gpu"):
            item.add_marker(pytest.mark.skip(reason="needs a CUDA device"))


@pytest.fixture
def device() -> torch.device:
    """Where kernel launchers run: the GPU where there is one, otherwise the CPU under the interpreter."""
    return torch.device("cuda" if HAS_CUDA else "cpu")
