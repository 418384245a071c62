"""Put one rank's engine together: pools of the workload's sizes, everything else in the variants of the arm."""

from __future__ import annotations

from dataclasses import dataclass

import torch

from dflash_prep.arms import Arm
from dflash_prep.kernels.sampler import SoloGroup, TpGroup
from dflash_prep.loop.agreement import AgreementGroup
from dflash_prep.loop.checksum import ModelKind
from dflash_prep.loop.checksum_triton import checksum_model
from dflash_prep.loop.counters import PoolTokens
from dflash_prep.loop.decode_device import DecodeDevice
from dflash_prep.loop.engine import Engine
from dflash_prep.loop.faults import Delay, Fault
from dflash_prep.loop.floor import FloorEngine
from dflash_prep.loop.running import EngineParts
from dflash_prep.loop.sequences import RequestQueue
from dflash_prep.loop.step_graph import StepGraphWorker
from dflash_prep.loop.worker import Worker, WorkerShape
from dflash_prep.state.decode_prep import DecodePrep, PrepOptions
from dflash_prep.state.host_pages import HostPagedAllocator, HostRequest, HostRows, HostSWAAllocator
from dflash_prep.state.host_prep import HostPrep
from dflash_prep.state.paged_allocator import PagedAllocator
from dflash_prep.state.pools import KVPools
from dflash_prep.state.prefix_cache import ChunkCache, PrefixCache
from dflash_prep.state.req_to_token import ReqToTokenPool, extra_row_width
from dflash_prep.state.request import Request
from dflash_prep.state.staging import Fill
from dflash_prep.state.swa_allocator import SWAAllocator
from dflash_prep.state.swa_eviction import SWAEviction
from dflash_prep.workload import Workload


@dataclass(frozen=True, slots=True)
class RunSpec:
    """What one rank is to run.

    check    verify every allocation step; the host waits for it
    verify   keep results for the oracle
    fault    damage something on purpose
    delay    slow one rank's preparation down on purpose
    model    what computes the checksum language model
    """

    arm: Arm
    workload: Workload
    seed: int
    rank: int
    world: int
    check: bool
    verify: bool
    fault: Fault | None = None
    delay: Delay | None = None
    model: ModelKind = ModelKind.AUTO

    @property
    def dp_rank(self) -> int:
        """Whose requests the rank runs: ranks that share the draft head's vocabulary run the same ones."""
        return self.rank // self.workload.speculation.sampler_tp


def build(spec: RunSpec, device: DecodeDevice, agreement: AgreementGroup, sampler: TpGroup | None = None) -> Engine:
    """The engine, its graphs captured, ready for `run`. `sampler`: who shares the head's vocabulary; None: nobody."""
    workload, switches = spec.workload, spec.arm.switches
    pools = _build_pools(workload, device.torch_device, host_pages=switches.host_pages)
    options = _prep_options(spec)
    shape = _worker_shape(workload, pools)
    num_slots = (workload.kv.pool_pages + 1) * workload.kv.page_size
    hit_rate = workload.speculation.hit_rate
    model = checksum_model(spec.model, num_slots, shape.block, hit_rate, device.torch_device)
    future_map = device.future_map(shape.rows)
    of_worker = (shape, model, pools.rows, future_map, device, switches, sampler or SoloGroup(), spec.fault)
    worker = StepGraphWorker(*of_worker, dp=agreement.dp) if switches.step_graph else Worker(*of_worker)
    worker.capture(_padded_sizes(shape.max_bs))
    parts = EngineParts(
        dp_rank=spec.dp_rank,
        concurrency=shape.max_bs,
        reserve=options.reserve,
        pool_size=PoolTokens.free(pools.allocator),
        hit_rate=hit_rate,
        switches=switches,
        pools=pools,
        model=model,
        future_map=future_map,
        device=device,
        arrivals=RequestQueue(workload, spec.seed, spec.dp_rank, HostRequest if switches.host_pages else Request),
    )
    prep = HostPrep(pools, options) if switches.host_pages else DecodePrep(pools, options)
    engine = FloorEngine if switches.step_graph else Engine
    return engine(parts, prep, worker, agreement, keep_results=spec.verify)


def is_out_of_memory(error: RuntimeError) -> bool:
    """Whether torch found no memory, on a GPU or on the CPU."""
    return isinstance(error, torch.OutOfMemoryError) or "can't allocate memory" in str(error)


def _build_pools(workload: Workload, device: torch.device, *, host_pages: bool = False) -> KVPools:
    """Rows for every running request, pages as the workload says, a prefix cache if it wants one."""
    kv = workload.kv
    width = kv.context_len + extra_row_width(draft_tokens=workload.speculation.block, page_size=kv.page_size)
    size = kv.pool_pages * kv.page_size
    if host_pages:
        rows = HostRows(workload.requests.concurrency, width, kv.page_size, device)
        if kv.swa_pool_pages is None:
            allocator = HostPagedAllocator(size, kv.page_size)
        else:
            allocator = HostSWAAllocator(size, kv.swa_pool_pages * kv.page_size, kv.page_size)
        return KVPools(rows, allocator, PrefixCache(allocator) if kv.prefix_cache else ChunkCache(allocator))
    rows = ReqToTokenPool(workload.requests.concurrency, width, device)
    if kv.swa_pool_pages is None:
        allocator = PagedAllocator(size, kv.page_size, device)
    else:
        allocator = SWAAllocator(size, kv.swa_pool_pages * kv.page_size, kv.page_size, device)
    tree = PrefixCache(allocator) if kv.prefix_cache else ChunkCache(allocator)
    return KVPools(rows, allocator, tree)


def _prep_options(spec: RunSpec) -> PrepOptions:
    """The arm's switches as decode preparation takes them."""
    workload, switches = spec.workload, spec.arm.switches
    fill = Fill.RING if switches.staging_ring else Fill.BULK if switches.bulk_fill else Fill.LOOP
    window = workload.kv.swa_window
    return PrepOptions(
        num_draft_tokens=workload.speculation.block,
        aligned=switches.page_aligned,
        fill=fill,
        topup_pages=switches.topup_pages,
        is_topup_explicit=True,
        plan_stream=switches.plan_stream,
        swa=None if window is None else SWAEviction(window, has_tree=workload.kv.prefix_cache),
        check=spec.check,
        host_delay_us=0 if spec.delay is None else spec.delay.us_on(spec.rank, spec.arm.name),
    )


def _worker_shape(workload: Workload, pools: KVPools) -> WorkerShape:
    """Sizes of the worker's static buffers."""
    return WorkerShape(
        max_bs=workload.requests.concurrency,
        block=workload.speculation.block,
        page_size=workload.kv.page_size,
        rows=pools.rows.size + 1,
        row_width=pools.rows.row_width,
        window=workload.speculation.window,
        draft_us=workload.device.draft_us,
        verify_us=workload.device.verify_us,
    )


def _padded_sizes(max_bs: int) -> list[int]:
    """Batch sizes that graphs are captured for: 1, 2, 4, multiples of 8, and the largest."""
    return sorted({size for size in (1, 2, 4, *range(8, max_bs, 8)) if size < max_bs} | {max_bs})
