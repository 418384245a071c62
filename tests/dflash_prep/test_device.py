"""Kernel or oracle: who decides, and what happens without triton."""

import subprocess
import sys

import pytest
import torch

from dflash_prep.device import use_triton


@pytest.mark.parametrize(
    ("interpret", "force", "expected"), [("1", "1", True), ("1", "0", False), ("0", "1", False), ("0", "0", False)]
)
def test_cpu_tensors_take_a_kernel_only_if_both_variables_ask_for_it(
    interpret: str, force: str, expected: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("TRITON_INTERPRET", interpret)
    monkeypatch.setenv("DFLASH_PREP_FORCE_TRITON", force)
    assert use_triton(torch.zeros(1)) is expected


@pytest.mark.gpu
def test_cuda_tensors_take_the_kernel() -> None:
    assert use_triton(torch.zeros(1, device="cuda"))


WITHOUT_TRITON = """
import sys
sys.modules["triton"] = None  # what an import of a missing module amounts to
import torch
from dflash_prep.kernels import accept, attention_metadata, block_prep, compact
from dflash_prep import device
assert not device.HAS_TRITON
window = compact.CompactWindow(4, 2)
target = torch.arange(18, dtype=torch.int32).view(2, 9)
draft = torch.full((2, 8), -1, dtype=torch.int32)
inputs = compact.RebuildInputs(draft, target, torch.tensor([1]), torch.tensor([7]), torch.tensor([[90, 91]]))
compact.rebuild_compact(window, inputs, None, fused=True)
assert draft[1].tolist() == [11, 12, 13, 14, 15, 90, 91, -1], draft
"""


def test_without_triton_every_module_imports_and_runs_its_oracle() -> None:
    done = subprocess.run([sys.executable, "-c", WITHOUT_TRITON], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr


def test_the_forced_interpreter_runs_whole_operations_by_kernel(monkeypatch: pytest.MonkeyPatch) -> None:
    """The public functions, not the launchers: what a CPU loop does when it is told to go through the kernels."""
    from dflash_prep.kernels import accept

    if torch.cuda.is_available():
        pytest.skip("kernels run natively here, the interpreter is off")
    launched = []
    monkeypatch.setattr(accept, "greedy_accept_triton", lambda *args: launched.append(args))
    out = accept.AcceptBuffers(1, 2, "cpu").take(1)
    block = torch.zeros((1, 2), dtype=torch.int64)
    accept.greedy_accept(block, block, torch.zeros(1, dtype=torch.int64), out)
    assert launched == []
    monkeypatch.setenv("DFLASH_PREP_FORCE_TRITON", "1")
    accept.greedy_accept(block, block, torch.zeros(1, dtype=torch.int64), out)
    assert len(launched) == 1
