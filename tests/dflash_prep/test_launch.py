"""Starting a rank: the warm-up on a GPU decodes alone, ranks take GPUs in turn, and who cannot meet is told so."""

from __future__ import annotations

import json
import os
import socket
import subprocess
import sys
import warnings

import pytest
import torch
import torch.distributed as dist

from dflash_prep.arms import ARMS, parse_arm
from dflash_prep.errors import SettingError
from dflash_prep.loop import cuda_device
from dflash_prep.loop.agreement import Proposal
from dflash_prep.loop.assembly import RunSpec
from dflash_prep.loop.cuda_device import CudaDevice
from dflash_prep.loop.decode_device import DecodeDevice
from dflash_prep.loop.launch import check_one_rank_per_gpu, join_ranks, leave_ranks, open_devices, warm_up
from dflash_prep.loop.simulated_device import SimulatedDevice
from dflash_prep.workload import FOLDER, load


def specs(*arms: str) -> list[RunSpec]:
    shapes = load("smoke")
    return [RunSpec(parse_arm(arm), shapes, 0, rank=0, world=1, check=False, verify=False) for arm in arms]


class SimulatedAsCuda(SimulatedDevice):
    """Works on the CPU, and says that it is a GPU, so that the warm-up takes place."""

    kind = "cuda"


@pytest.mark.parametrize("arm", ["legacy", "control", "topup"])
@pytest.mark.parametrize("rank", [0, 1, 15])
def test_a_rank_of_many_warms_up_alone(arm: str, rank: int) -> None:
    assert arm in ARMS
    spec = RunSpec(parse_arm(arm), load("smoke"), seed=0, rank=rank, world=16, check=False, verify=False, fault=None)
    warm_up(spec, SimulatedAsCuda())


@pytest.mark.parametrize(
    ("num_gpus", "local_ranks", "expected"),
    [
        pytest.param(2, range(16), [0, 1] * 8, id="16 ranks on the 2 GPUs of a host"),
        pytest.param(8, [0, 1, 2, 3, 4, 5, 6, 7, 0, 1], [0, 1, 2, 3, 4, 5, 6, 7, 0, 1], id="local ranks of two hosts"),
        pytest.param(1, [0, 1, 2], [0, 0, 0], id="each rank sees one GPU only"),
    ],
)
def test_the_ranks_of_a_host_take_its_gpus_in_turn(monkeypatch, num_gpus, local_ranks, expected) -> None:
    opened: list[int] = []
    monkeypatch.setattr(torch.cuda, "device_count", lambda: num_gpus)
    monkeypatch.setattr(cuda_device, "CudaDevice", lambda index, **_streams: opened.append(index))
    for local_rank in local_ranks:
        open_devices("cuda", local_rank, specs("topup", "control"))
    assert opened == expected


def test_cuda_asked_for_where_there_is_none_is_refused(monkeypatch) -> None:
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 0)
    with pytest.raises(SettingError, match="--device cuda, and torch sees no GPU here"):
        open_devices("cuda", 0, specs("topup"))


def test_nccl_needs_a_gpu_and_each_rank_its_own() -> None:
    with pytest.raises(SettingError, match="--backend nccl needs a GPU for every rank, and this device is simulated"):
        join_ranks(0, 2, "nccl", 1, SimulatedDevice())
    check_one_rank_per_gpu(["a", "b", "c"])
    with pytest.raises(SettingError, match="needs a GPU for every rank, and 16 ranks share 2"):
        check_one_rank_per_gpu(["a", "b"] * 8)


def test_a_sampler_over_two_ranks_needs_them() -> None:
    with pytest.raises(SettingError, match="the workload samples over 2 ranks, and 1 is no multiple of that"):
        join_ranks(0, 1, "gloo", 2, SimulatedDevice())


def agree(rank: int, device: DecodeDevice, backend: str) -> None:
    """One of two ranks that agree; on GPUs the one read of an agreement is the one wait of the host."""
    ranks = join_ranks(rank, 2, backend, 1, device)
    mine = Proposal(num_tokens=10 + rank, stop=rank == 1)
    agreed = ranks.agreement.agree(mine)
    assert agreed.num_tokens == (10, 11)
    assert agreed.stop
    if backend == "nccl":
        torch.cuda.set_sync_debug_mode("warn")
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        assert [ranks.agreement.agree(mine) for _ in range(3)] == [agreed] * 3
    if backend == "nccl":
        torch.cuda.set_sync_debug_mode("default")
    waits = sum("synchronizing CUDA operation" in str(each.message) for each in caught)
    assert waits == (3 if backend == "nccl" else 0)
    leave_ranks(2)


def share_a_gpu(rank: int) -> None:
    """One of two ranks on the same GPU: both are told, and nothing is left joined."""
    with pytest.raises(SettingError, match="needs a GPU for every rank, and 2 ranks share 1"):
        join_ranks(rank, 2, "nccl", 1, CudaDevice(0, reuse_events=True))
    assert not dist.is_initialized()


def run_two_ranks(*command: str) -> None:
    """Two processes placed as torchrun places them. `command` follows the interpreter; all must end well."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        place = {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(free.getsockname()[1]), "WORLD_SIZE": "2"}
    ranks = [
        subprocess.Popen(
            [sys.executable, *command],
            env=os.environ | place | {"RANK": str(rank), "LOCAL_RANK": str(rank), "DFLASH_PREP_SINK": "off"},
            stderr=subprocess.PIPE,
            text=True,
        )
        for rank in range(2)
    ]
    errors = [each.communicate(timeout=240)[1] for each in ranks]
    assert [each.returncode for each in ranks] == [0, 0], errors


@pytest.mark.soak
def test_two_ranks_agree_over_gloo() -> None:
    """Every run of several ranks in `tests/e2e` does; here for what the GPU tests below are made of."""
    run_two_ranks(__file__, "gloo")


@pytest.mark.gpu
@pytest.mark.skipif(torch.cuda.device_count() < 2, reason="needs two CUDA devices")
def test_two_gpus_agree_over_nccl() -> None:
    run_two_ranks(__file__, "nccl")


@pytest.mark.gpu
def test_two_ranks_on_one_gpu_cannot_agree_over_nccl() -> None:
    run_two_ranks(__file__, "shared")


@pytest.mark.gpu
@pytest.mark.skipif(torch.cuda.device_count() < 2, reason="needs two CUDA devices")
@pytest.mark.parametrize("arm", ["legacy", "topup"])
def test_two_gpus_share_the_drafts_vocabulary_over_nccl(tmp_path, arm) -> None:
    """Eager collectives, and collectives inside the draft graph, beside an agreement over NCCL: the oracle's tokens."""
    text = (FOLDER / "kv-tight.toml").read_text()
    (tmp_path / "shared.toml").write_text(text.replace("block = 8", "block = 8\nsampler_tp = 2"))
    where = ("--workload", str(tmp_path / "shared.toml"), "--out", str(tmp_path))
    options = ("--arm", arm, "--steps", "60", "--verify", "--device", "cuda", "--backend", "nccl")
    run_two_ranks("-m", "dflash_prep.loop", *where, *options)
    for rank in range(2):
        ledger = json.loads((tmp_path / f"rank{rank}.json").read_text())
        assert ledger["checks"]["verified_tokens"] > 0
        assert ledger["settings"]["sampler_vocab"] == 256


if __name__ == "__main__":
    own_rank = int(os.environ["RANK"])
    match sys.argv[1]:
        case "gloo":
            agree(own_rank, SimulatedDevice(), "gloo")
        case "nccl":
            agree(own_rank, CudaDevice(own_rank, reuse_events=True), "nccl")
        case "shared":
            share_a_gpu(own_rank)
