"""A rank's surroundings: the device it runs on and the process group it meets the others in."""

from __future__ import annotations

from dataclasses import replace

import torch
import torch.distributed as dist

from dflash_prep.agreement import AgreementGroup
from dflash_prep.assembly import RunSpec, build
from dflash_prep.decode_device import DecodeDevice

WARM_UP_STEPS = 4
"""The first allocates, the next ones do not, and both results are processed."""


def open_device(choice: str, local_rank: int, *, reuse_events: bool) -> DecodeDevice:
    """``cuda``, ``simulated``, or ``auto``: CUDA where there is one. Several ranks may share a GPU."""
    if choice == "cuda" or (choice == "auto" and torch.cuda.is_available()):
        from dflash_prep.cuda_device import CudaDevice

        return CudaDevice(local_rank % torch.cuda.device_count(), reuse_events=reuse_events)
    from dflash_prep.simulated_device import SimulatedDevice

    torch.set_num_threads(1)  # the ranks of a run share a few cores, and every tensor here is small
    return SimulatedDevice()


def warm_up(spec: RunSpec, device: DecodeDevice) -> None:
    """Decode a few steps of the same shapes on an engine of their own, before anything is emitted or agreed.

    On a GPU the first use of a kernel compiles it (0.1 s and more, in the middle of a step); a run of hundreds of steps
    with two allocations in it would show little else in its allocation ranges. The simulated device compiles nothing.
    """
    if device.kind == "cuda":
        alone = replace(spec, rank=0, world=1, check=False, verify=False, fault=None, delay=None)
        engine = build(alone, device, AgreementGroup(1))
        engine.run(WARM_UP_STEPS, lambda: False, lambda _done: None)
        engine.close()


def join_ranks(rank: int, world: int, backend: str, device: torch.device) -> AgreementGroup:
    """The agreement of all ranks, entered together. MASTER_ADDR and MASTER_PORT come from torchrun."""
    if world == 1:
        return AgreementGroup(1)
    dist.init_process_group("gloo" if backend == "gloo" else "cpu:gloo,cuda:nccl", rank=rank, world_size=world)
    return AgreementGroup(world, "cpu" if backend == "gloo" else device)


def leave_ranks(world: int) -> None:
    """Wait for the others and dissolve the group."""
    if world > 1:
        dist.barrier()
        dist.destroy_process_group()
