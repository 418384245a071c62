"""Without a GPU the Triton kernels are tested in Triton's interpreter.

The switch must be set before anything imports triton, because `triton.jit` reads it when it decorates a kernel. Tests
call the kernel launchers directly, so nothing else has to be set for them to run the kernel and not its torch oracle.
In the interpreter a loaded value bounds no `range()` (NumPy >= 2.4): kernels loop with `while column < total:`.
"""

import os
import warnings
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager

import pytest
import torch
from hypothesis import HealthCheck, settings

# Wall time is no property of the code: a busy machine must not fail a test.
settings.register_profile("dflash_prep", deadline=None, suppress_health_check=[HealthCheck.too_slow])
settings.load_profile("dflash_prep")

# Tensors are tiny here: a pool of threads only makes them wait for each other.
torch.set_num_threads(1)

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


@pytest.fixture(
    params=[pytest.param("cpu", id="interpreter"), pytest.param("cuda", id="native", marks=pytest.mark.gpu)],
)
def device(request: pytest.FixtureRequest) -> torch.device:
    """Where kernel launchers run: the CPU under the interpreter, and natively on a GPU where there is one."""
    if request.param == "cpu" and HAS_CUDA:
        pytest.skip("kernels run natively here, the interpreter is off")
    return torch.device(request.param)


def _sync_debug_mode(mode: str) -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # the mode announces once that it is a prototype
        torch.cuda.set_sync_debug_mode(mode)


@pytest.fixture
def count_syncs() -> Callable[[Callable[[], object]], int]:
    """Call a function and say how often the host waited for the device in it, as torch's sync debug mode sees it."""

    def count(function: Callable[[], object]) -> int:
        with warnings.catch_warnings(record=True) as caught:
            warnings.simplefilter("always")
            _sync_debug_mode("warn")
            try:
                function()
            finally:
                _sync_debug_mode("default")
        return sum("synchronizing CUDA operation" in str(each.message) for each in caught)

    return count


@pytest.fixture
def forbid_syncs() -> Callable[[], AbstractContextManager[None]]:
    """A context manager in which a host synchronisation raises RuntimeError."""

    @contextmanager
    def forbid() -> Iterator[None]:
        _sync_debug_mode("error")
        try:
            yield
        finally:
            _sync_debug_mode("default")

    return forbid
