"""A rank's surroundings: the device it runs on and the process group it meets the others in."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

import torch
import torch.distributed as dist

from dflash_prep.errors import SettingError
from dflash_prep.kernels.sampler import DistributedGroup, SoloGroup, TpGroup
from dflash_prep.loop.agreement import AgreementGroup
from dflash_prep.loop.assembly import RunSpec, build
from dflash_prep.loop.decode_device import DecodeDevice

_WARM_UP_STEPS = 4
"""The first allocates, the next ones do not, and both results are processed."""


def open_devices(choice: str, local_rank: int, specs: Sequence[RunSpec]) -> list[DecodeDevice]:
    """A device per arm: ``cuda``, ``simulated``, or ``auto``: CUDA where there is one.

    The ranks of a host take its GPUs in turn, so several may share one. Arms whose devices would be alike share it:
    they never run at once. SettingError for ``cuda`` without a GPU.
    """
    if choice == "cuda" or (choice == "auto" and torch.cuda.is_available()):
        if not (num_gpus := torch.cuda.device_count()):
            raise SettingError("--device cuda, and torch sees no GPU here")
        from dflash_prep.loop.cuda_device import CudaDevice

        wanted = [(spec.arm.switches.event_ring, spec.arm.switches.step_graph) for spec in specs]
        gpu = local_rank % num_gpus
        devices = {
            (reuse, one): CudaDevice(gpu, reuse_events=reuse, one_stream=one) for reuse, one in dict.fromkeys(wanted)
        }
        return [devices[each] for each in wanted]
    from dflash_prep.loop.simulated_device import SimulatedDevice

    torch.set_num_threads(1)  # the ranks of a run share a few cores, and every tensor here is small
    return [SimulatedDevice()] * len(specs)


def warm_up(spec: RunSpec, device: DecodeDevice) -> None:
    """Decode a few steps of the same shapes on an engine of their own, before anything is emitted or agreed.

    On a GPU the first use of a kernel compiles it (0.1 s and more, in the middle of a step); a run of hundreds of steps
    with two allocations in it would show little else in its allocation ranges. The simulated device compiles nothing.
    """
    if device.kind == "cuda":
        device.resume()
        alone = replace(spec, rank=0, world=1, check=False, verify=False, fault=None, delay=None)
        engine = build(alone, device, AgreementGroup(1))
        engine.run(_WARM_UP_STEPS, lambda: False, lambda _done: None)
        engine.close()


@dataclass(frozen=True, slots=True)
class Ranks:
    """The groups in which a rank meets others. `sampler`: those that share the draft head's vocabulary with it."""

    agreement: AgreementGroup
    sampler: TpGroup


def join_ranks(rank: int, world: int, backend: str, tp: int, device: DecodeDevice) -> Ranks:
    """Meet the others, all of them together; `tp` ranks share a sampler. torchrun says where (MASTER_ADDR and _PORT).

    The default group is gloo; what runs on GPUs has NCCL groups of its own. Raises SettingError, on every rank alike,
    for a world that `tp` does not divide, and for NCCL without a GPU of its own for every rank.
    """
    if world % tp:
        raise SettingError(f"the workload samples over {tp} ranks, and {world} is no multiple of that")
    is_cuda = device.kind == "cuda"
    if backend == "nccl" and not is_cuda:
        raise SettingError("--backend nccl needs a GPU for every rank, and this device is simulated")
    if world == 1:
        return Ranks(AgreementGroup(1), SoloGroup())
    dist.init_process_group("gloo", rank=rank, world_size=world)
    if is_cuda and (backend == "nccl" or tp > 1):
        _refuse_shared_gpus(device.torch_device, world)
    if backend == "nccl":
        agreement = AgreementGroup(world, tp, device.torch_device, dist.new_group(backend="nccl"))
    else:
        agreement = AgreementGroup(world, tp)
    return Ranks(agreement, _sampler_group(rank, world, tp, "nccl" if is_cuda else "gloo"))


def _refuse_shared_gpus(device: torch.device, world: int) -> None:
    gpus: list[str | None] = [None] * world
    dist.all_gather_object(gpus, str(torch.cuda.get_device_properties(device).uuid))
    try:
        check_one_rank_per_gpu(gpus)
    except SettingError:
        dist.destroy_process_group()
        raise


def check_one_rank_per_gpu(gpus: list[str]) -> None:
    """`gpus`: which one each rank has. SettingError if NCCL would refuse them; gloo does not mind."""
    if (num_gpus := len(set(gpus))) < len(gpus):
        wants = "NCCL (--backend nccl, or a workload with sampler_tp on GPUs) needs a GPU for every rank"
        raise SettingError(f"{wants}, and {len(gpus)} ranks share {num_gpus}")


def _sampler_group(rank: int, world: int, tp: int, backend: str) -> TpGroup:
    """Every rank takes part in making every group, in the same order; this rank's own."""
    if tp == 1:
        return SoloGroup()
    groups = [dist.new_group(list(range(first, first + tp)), backend=backend) for first in range(0, world, tp)]
    return DistributedGroup(groups[rank // tp])


def leave_ranks(world: int) -> None:
    """Wait for the others and dissolve all groups."""
    if world > 1:
        dist.barrier()
        dist.destroy_process_group()
