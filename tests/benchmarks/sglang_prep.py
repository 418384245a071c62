"""SGLang's own `prepare_for_decode` beside this project's, on one workload in one process.

    PYTHONPATH=impl:tests/engines:WHEEL python tests/benchmarks/sglang_prep.py --device cuda upstream plug:topup

`upstream` is the engine's function on the engine's objects (ScheduleBatch, Req, ReqToTokenPool, paged allocator, real
kernels on a GPU); `plug:ARM` that of `dflash_prep.sglang` on the same kind of objects; `ours:ARM` an arm of the
reference implementation on its own. The loop around them is ours: a step prepares, every request commits 1 to `--block`
tokens, and whoever reaches the context's end is replaced by a new request. `--compare` holds every step of all of them
against the first: lengths, tokens needed, the slots in the rows, sums, top_k, and how far windows were given back.
`--window`, `--hisparse`, `--pool` (little memory: requests are sent back) and `--prefix-cache` (what finished requests
leave is evicted) change the pools. The last line on stdout is JSON.

It runs in an engine's environment (`tests/engines/environments.py sglang`); what that lacks of SGLang's imports is made
up (`tests/engines/stubs.py`), and none of that is called in a measured line but the row writes of the CPU.
"""

from __future__ import annotations

import argparse
import hashlib
import importlib.machinery
import importlib.util
import itertools
import json
import os
import platform
import random
import sys
import time
import types
from array import array
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, fields
from pathlib import Path
from typing import Any

import numpy as np
import torch


@dataclass(frozen=True)
class Workload:
    """Shapes of a run; requests are drawn from the seed alone, so all engines meet the same ones."""

    bs: int
    page_size: int
    block: int
    context: int
    steps: int
    warm_up: int
    seed: int
    device: str
    need_sort: bool
    pool: int | None = None
    window: int = 0
    swa_interval: int = 128
    hisparse: bool = False
    prefix_cache: bool = False

    @property
    def pool_tokens(self) -> int:
        """Room for every request at the context's end, its reserve and pages in advance, if no number is given."""
        if self.pool is not None:
            return self.pool
        return self.bs * (-(-self.context // self.page_size) + 12) * self.page_size + 64 * self.page_size


@dataclass(frozen=True)
class Prompt:
    """A request that comes, or one that was sent back and comes again behind what it has generated."""

    rid: int
    length: int
    top_k: int
    generated: int = 0


class Requests:
    """Who comes, and how much each commits: a function of the seed and of what was committed."""

    def __init__(self, workload: Workload) -> None:
        self.workload, self.random, self.next_rid = workload, random.Random(workload.seed), 0

    def draw(self, *, is_first: bool) -> Prompt:
        # the first ones are anywhere in their life, so that pages run out at all phases from the start
        high = self.workload.context - 2 * self.workload.block - 1 if is_first else self.workload.context // 4
        self.next_rid += 1
        length = self.random.randint(min(200, high // 2), high)
        return Prompt(self.next_rid, length, self.random.choice((1, 1, 1, 50)))

    def commits(self, count: int) -> list[int]:
        return [self.random.randint(1, self.workload.block) for _ in range(count)]

    def is_over(self, committed: int) -> bool:
        return committed + 2 * self.workload.block > self.workload.context


class Upstream:
    """The engine's objects, and its function or one in its place."""

    def __init__(self, workload: Workload, prepare: Callable[[Any, Any], None] | None = None) -> None:
        engine = load_engine(workload)
        self.workload, self.engine = workload, engine
        self.prepare_function = prepare or engine.draft_module.DFlashDraftInputV2.prepare_for_decode
        self.guard: Any = None
        width = workload.context + engine.extra_row_width()
        self.rows = engine.ReqToTokenPool(workload.bs, width, workload.device, enable_memory_saver=False)
        self.pages = engine.allocator(workload)
        self.tree = engine.tree(self.rows, self.pages, workload)
        self.batch = engine.ScheduleBatch(
            reqs=[], req_to_token_pool=self.rows, token_to_kv_pool_allocator=self.pages, tree_cache=self.tree,
            device=workload.device, enable_overlap=True, spec_algorithm=engine.algorithm,
            model_config=types.SimpleNamespace(is_encoder_decoder=False),
            sampling_info=types.SimpleNamespace(filter_batch=lambda *_indices: None),
            hisparse_coordinator=types.SimpleNamespace() if workload.hisparse else None,
        )  # fmt: skip
        self.batch.forward_mode = engine.decode_mode

    def admit(self, prompts: Sequence[Prompt]) -> None:
        device, engine = self.workload.device, self.engine
        reqs = []
        for p in prompts:
            tokens = array("q", range(p.rid << 20, (p.rid << 20) + p.length + p.generated + 1))
            reqs.append(engine.Req(str(p.rid), "", tokens[: p.length], engine.SamplingParams(top_k=p.top_k)))
            reqs[-1].output_ids.extend(tokens[p.length :])  # the last one has no KV yet
        rows = torch.tensor(self.rows.alloc(reqs), dtype=torch.int64).to(device)
        ends = torch.tensor([p.length + p.generated for p in prompts], dtype=torch.int64)
        starts = torch.zeros_like(ends)
        on_device = starts.to(device), ends.to(device)
        if self.workload.page_size == 1:
            slots = engine.allocation.alloc_token_slots(self.tree, int(ends.sum()))
        else:
            slots = engine.allocation.alloc_paged_token_slots_extend(
                self.tree, on_device[0], starts, on_device[1], ends, torch.full_like(rows, -1), int(ends.sum()),
                req_pool_indices=rows, batch=self.batch,
            )  # fmt: skip
        engine.allocation.assign_req_to_token_pool_func(rows, self.rows.req_to_token, *on_device, slots, len(reqs))
        for req, length in zip(reqs, ends.tolist(), strict=True):
            req.kv.kv_allocated_len = req.kv.kv_committed_len = length
        if self.workload.hisparse:
            self.pages.free_hisparse(slots)  # its KV is on the host now
        self.batch.reqs = self.batch.reqs + reqs

    def room(self) -> int:
        """Tokens that are free or would be if the cache were emptied."""
        return self.pages.available_size() + self.tree.evictable_size()

    def send_back(self) -> list[Prompt]:
        """Whom the engine's scheduler would send back before this step, by its own functions."""
        self.batch.spec_info = self.batch.seq_lens_cpu = None  # of the step before
        if self.batch.check_decode_mem():
            return []
        gone, _, aborted = self.batch.retract_decode()
        assert not aborted
        return [
            Prompt(int(req.rid), len(req.origin_input_ids), req.sampling_params.top_k, len(req.output_ids) - 1)
            for req in gone
        ]

    def release(self, indices: Sequence[int]) -> None:
        keeps = self.workload.prefix_cache and not self.workload.window
        for index in indices:
            self.engine.release_kv_cache(self.batch.reqs[index], self.tree, checkpoint=keeps)
        gone = set(indices)
        self.batch.reqs = [req for i, req in enumerate(self.batch.reqs) if i not in gone]

    def settle(self) -> None:
        rows = torch.tensor([req.kv.req_pool_idx for req in self.batch.reqs], dtype=torch.int64)
        self.batch.req_pool_indices_cpu, self.batch.req_pool_indices = rows, rows.to(self.workload.device)
        self.batch.seq_lens = self.batch.orig_seq_lens = self.batch.req_pool_indices  # filtered, and read by nobody

    def begin_step(self) -> None:
        bs, device = len(self.batch.reqs), self.workload.device
        nothing, ids = torch.empty((bs, 0), device=device), torch.zeros(bs, dtype=torch.int64, device=device)
        self.draft = self.engine.draft_module.DFlashDraftInputV2(
            topk_p=nothing, topk_index=nothing, bonus_tokens=ids, new_seq_lens=ids, hidden_states=nothing
        )
        self.batch.spec_info = self.draft

    def prepare(self) -> None:
        self.prepare_function(self.draft, self.batch)

    @property
    def reqs(self) -> list[Any]:
        return self.batch.reqs

    def commit(self, counts: Sequence[int]) -> None:
        for req, count in zip(self.reqs, counts, strict=True):
            req.kv.kv_committed_len += count
            last = req.output_ids[-1]
            req.output_ids.extend(range(last + 1, last + 1 + count))

    def windows(self) -> list[int]:
        """Of each request the columns whose window slots were given back."""
        return [req.kv.get_evicted_seqlen(self.engine.swa) for req in self.reqs]

    def allocated(self) -> list[int]:
        return [req.kv.kv_allocated_len for req in self.reqs]

    def committed(self) -> list[int]:
        return [req.kv.kv_committed_len for req in self.reqs]

    def figures(self) -> dict[str, object]:
        """What a step leaves behind beside the requests' counters."""
        return {
            "windows": self.windows() if self.workload.window else None,
            "free": self.pages.available_size(),
            "seq_lens": self.batch.seq_lens_cpu.tolist(),
            "seq_lens_sum": int(self.batch.seq_lens_sum),
            "nxt": self.draft.nxt_kv_lens_cpu.tolist(),
            "nxt_sum": int(self.draft.nxt_kv_lens_sum),
            "max_top_k": self.draft.max_top_k,
            "uniform_top_k": self.draft.uniform_top_k_value,
        }

    def slots(self) -> str:
        """A hash of the slots that every request holds, in both pools."""
        rows, digest = self.rows.req_to_token, hashlib.sha256()
        for req in self.reqs:
            slots = rows[req.kv.req_pool_idx, : req.kv.kv_allocated_len]
            digest.update(slots.cpu().numpy().tobytes())
            if self.workload.window:
                digest.update(self.pages.full_to_swa_index_mapping[slots.long()].cpu().numpy().tobytes())
        return digest.hexdigest()[:16]


class Plugged(Upstream):
    """The engine's objects under the plug-in."""

    def __init__(self, workload: Workload, arm: str, shadow: int) -> None:
        from dflash_prep.sglang.install import Plug
        from dflash_prep.sglang.preparation import PlugArm, Preparation

        module = load_engine(workload).draft_module
        arm, _, pages = arm.partition("=")
        preparation = Preparation(PlugArm(arm), module, int(pages) if pages else None)
        self.plug = Plug(module.DFlashDraftInputV2.prepare_for_decode, preparation, shadow)
        super().__init__(workload, self.plug.prepare_for_decode)
        plan = preparation.plan

        def remembered(batch: Any) -> Any:
            made = plan(batch)
            self.guard = made.guard
            return made

        preparation.plan = remembered  # type: ignore[method-assign]


class Reference(Upstream):
    """An arm of the reference implementation on its own objects."""

    def __init__(self, workload: Workload, arm_text: str) -> None:
        from dflash_prep.arms import parse_arm
        from dflash_prep.state.decode_prep import DecodePrep, PrepOptions
        from dflash_prep.state.hisparse_allocator import HiSparseAllocator
        from dflash_prep.state.host_pages import HostPagedAllocator, HostRows
        from dflash_prep.state.host_prep import HostPrep
        from dflash_prep.state.paged_allocator import PagedAllocator
        from dflash_prep.state.pools import KVPools
        from dflash_prep.state.prefix_cache import ChunkCache, PrefixCache
        from dflash_prep.state.req_to_token import ReqToTokenPool, extra_row_width
        from dflash_prep.state.staging import Fill
        from dflash_prep.state.swa_allocator import SWAAllocator
        from dflash_prep.state.swa_eviction import SWAEviction

        switches = parse_arm(arm_text).switches
        fill = Fill.RING if switches.staging_ring else Fill.BULK if switches.bulk_fill else Fill.LOOP
        self.workload = workload
        width = workload.context + extra_row_width(draft_tokens=workload.block, page_size=workload.page_size)
        size, page_size, kind = workload.pool_tokens, workload.page_size, {"need_sort": workload.need_sort}
        self.switches, self.guard, swa = switches, None, None
        if switches.host_pages:
            self.rows = HostRows(workload.bs, width, page_size, workload.device)
            self.pages = HostPagedAllocator(size, page_size, **kind)
        else:
            self.rows = ReqToTokenPool(workload.bs, width, workload.device)
            if workload.window:
                swa = SWAEviction(workload.window, workload.swa_interval, has_tree=workload.prefix_cache)
                self.pages = SWAAllocator(size, size, page_size, workload.device, **kind)
            elif workload.hisparse:
                self.pages = HiSparseAllocator(size, 2, page_size, workload.device)
            else:
                self.pages = PagedAllocator(size, page_size, workload.device, **kind)
        self.tree = (PrefixCache if workload.prefix_cache else ChunkCache)(self.pages)
        self.pools = KVPools(self.rows, self.pages, self.tree)
        options = PrepOptions(
            num_draft_tokens=workload.block, aligned=switches.page_aligned, fill=fill,
            topup_pages=switches.topup_pages, swa=swa,
        )  # fmt: skip
        self.prep = (HostPrep if switches.host_pages else DecodePrep)(self.pools, options)
        self.own: list[Any] = []

    @property
    def reqs(self) -> list[Any]:
        return self.own

    def admit(self, prompts: Sequence[Prompt]) -> None:
        from dflash_prep.state.host_pages import HostRequest
        from dflash_prep.state.lifetime import alloc_for_extend, begin_decode
        from dflash_prep.state.request import Request, SamplingParams

        request = HostRequest if self.switches.host_pages else Request
        reqs = [request(p.rid, p.length, SamplingParams(p.top_k), p.rid, None, p.generated) for p in prompts]
        alloc_for_extend(self.pools, reqs)
        begin_decode(self.pools, reqs)
        self.own = self.own + reqs

    def send_back(self) -> list[Prompt]:
        from dflash_prep.state.decode_memory import retract_until_it_fits

        gone = set(retract_until_it_fits(self.pools, self.own, 2 * self.workload.block))
        if not gone:
            return []
        # the engine leaves its batch in the order in which it would keep requests; this loop's stays as it was
        order = sorted(range(len(self.own)), key=lambda i: (-self.own[i].num_generated, self.own[i].prompt_len))
        own, self.own = self.own, [self.own[i] for i in order if i not in gone]
        return [
            Prompt(own[i].rid, own[i].prompt_len, own[i].sampling_params.top_k, own[i].num_generated)
            for i in reversed(order)
            if i in gone
        ]

    def windows(self) -> list[int]:
        return [req.kv.swa_evicted_seqlen for req in self.own]

    def release(self, indices: Sequence[int]) -> None:
        from dflash_prep.state.lifetime import release

        for index in indices:
            release(self.pools, self.own[index], insert=not self.workload.window)
        gone = set(indices)
        self.own = [req for i, req in enumerate(self.own) if i not in gone]

    def settle(self) -> None:
        from dflash_prep.state.batch import DecodeBatch

        self.batch = DecodeBatch.of(self.own, torch.device(self.workload.device))
        self.host_rows = self.batch.req_pool_indices_cpu.numpy()

    def begin_step(self) -> None:
        from dflash_prep.state.draft_input import DraftInput

        ids = torch.zeros(len(self.own), dtype=torch.int64, device=self.workload.device)
        self.draft = DraftInput.for_next_step(ids, ids)
        self.batch.spec_info = self.draft

    def prepare(self) -> None:
        self.guard = self.prep.prepare(self.batch).guard
        if not self.switches.step_graph:
            self.rows.flush()  # with host_pages: the new pages into the rows; step_graph has them written by the graph

    def slots(self) -> str:
        self.rows.flush()
        return super().slots()

    def commit(self, counts: Sequence[int]) -> None:
        from dflash_prep.state.lifetime import commit_accepted

        self.rows.flush()
        if self.switches.host_pages:  # as the loop of `floor` does it: no object is touched between two preparations
            self.rows.commit(self.host_rows, self.rows.committed[self.host_rows] + np.array(counts))
            return
        for req, count in zip(self.own, counts, strict=True):
            commit_accepted(req, count)

    def allocated(self) -> list[int]:
        return self.rows.allocated[self.host_rows].tolist() if self.switches.host_pages else super().allocated()

    def committed(self) -> list[int]:
        return self.rows.committed[self.host_rows].tolist() if self.switches.host_pages else super().committed()


@dataclass
class Measured:
    """Times of the steps in ns, which of them took pages, and with ``--compare`` what each left behind.

    happened  how often a request was sent back, tokens were evicted, columns' windows given back, rows ended inside
              what a top-up wants, and what its guard decided
    """

    name: str
    ns: list[int] = field(default_factory=list)
    allocates: list[bool] = field(default_factory=list)
    states: list[dict[str, object]] = field(default_factory=list)
    happened: Counter[str] = field(default_factory=Counter)

    def summary(self) -> dict[str, object]:
        us, taken = np.array(self.ns) / 1e3, np.array(self.allocates)

        def p50(chosen: np.ndarray) -> float | None:
            return round(float(np.median(us[chosen])), 1) if chosen.any() else None

        return {
            "engine": self.name,
            "steps": len(us),
            "alloc_share": round(float(taken.mean()), 4),
            "p50_alloc_us": p50(taken),
            "p50_other_us": p50(~taken),
            "mean_us": round(float(us.mean()), 1),
        }


def play(name: str, engine: Upstream, workload: Workload, *, keeps_states: bool) -> Measured:
    """Decode the workload's steps on one engine."""
    requests, found = Requests(workload), Measured(name)
    is_gpu, is_scarce = workload.device == "cuda", workload.pool is not None
    waiting = [requests.draw(is_first=not is_scarce) for _ in range(workload.bs)]
    for step in range(workload.warm_up + workload.steps):
        came = waiting[: count_that_fit(engine, waiting) if is_scarce else None]
        if came:
            engine.admit(came)
            engine.settle()
            waiting = waiting[len(came) :]
        evictable = engine.tree.evictable_size()
        if is_scarce and (gone := engine.send_back()):
            found.happened["sent back"] += len(gone)
            engine.settle()
            waiting = gone + waiting
        engine.begin_step()
        before = engine.allocated()
        started = time.perf_counter_ns()
        engine.prepare()
        took = time.perf_counter_ns() - started
        after = engine.allocated()
        if step >= workload.warm_up:
            found.ns.append(took)
            found.allocates.append(after != before)
        if keeps_states:
            guard = engine.guard and tuple(engine.guard if engine.guard.needed else engine.guard[-1:])
            state = {"cur": before, "allocated": after, "slots": engine.slots(), "guard": guard, **engine.figures()}
            found.states.append(state)
            found.happened["evicted"] += evictable - engine.tree.evictable_size()
            found.happened["window"] = max(found.happened["window"], *(engine.windows() if workload.window else [0]))
            if guard is not None:
                found.happened[str(engine.guard.decision)] += 1
                cap = engine.rows.req_to_token.shape[1] // workload.page_size * workload.page_size
                found.happened["rows at their end"] += sum(length == cap for length in after)
        if is_gpu:
            torch.cuda.synchronize()
        engine.commit(requests.commits(len(engine.reqs)))
        over = [i for i, length in enumerate(engine.committed()) if requests.is_over(length)]
        if over:
            engine.release(over)
            waiting = waiting + [requests.draw(is_first=False) for _ in over]
    return found


def count_that_fit(engine: Upstream, waiting: Sequence[Prompt]) -> int:
    """How many of those who wait find room beside those who run, if nobody grew any more than this step."""
    workload = engine.workload
    page_size, reserve = workload.page_size, 2 * workload.block
    room = engine.room() - len(engine.reqs) * page_size
    for count, each in enumerate(waiting):
        room -= -(-(each.length + each.generated + reserve) // page_size) * page_size + page_size
        if room < 0:
            return count
    return len(waiting)


def differences(base: Measured, other: Measured) -> dict[str, int]:
    """Of each part of the state: in how many steps the two differ."""
    counts: dict[str, int] = {}
    for one, two in zip(base.states, other.states, strict=True):
        for key in one:
            has_both = key != "guard" or (one[key] is not None and two[key] is not None)
            if has_both and one[key] != two[key]:
                counts[key] = counts.get(key, 0) + 1
    return counts


ONLY_IMPORTED = (
    "PIL", "aiohttp", "cachetools", "dill", "einops", "fastapi", "huggingface_hub", "interegular", "openai",
    "packaging", "partial_json_parser", "prometheus_client", "regex", "requests", "safetensors", "sentencepiece",
    "setproctitle", "starlette", "tokenizers", "tqdm", "transformers", "uvicorn", "uvloop", "xxhash", "yaml", "zmq",
)  # fmt: skip
"""What SGLang's modules import and preparation never calls: made up where an environment lacks it."""
REGISTRIES = (
    "sglang.srt.configs", "sglang.srt.utils.hf_transformers", "sglang.srt.utils.hf_transformers_utils",
    "sglang.srt.layers.quantization", "sglang.srt.parser.reasoning_parser",
)  # fmt: skip
"""Modules of SGLang's own that list models and formats in classes of ``transformers``: made up without it."""
_ENGINE: list[types.SimpleNamespace] = []


def load_engine(workload: Workload) -> types.SimpleNamespace:
    """SGLang's classes, loaded once a process, for this workload's page size, block and device."""
    if not _ENGINE:
        _ENGINE.append(_import_engine(workload))
    engine = _ENGINE[0]
    engine.get_context().override_server_args(
        device=workload.device, page_size=workload.page_size, speculative_algorithm="DFLASH",
        speculative_num_draft_tokens=workload.block,
        attention_backend="torch_native" if workload.device == "cpu" else "triton",
    ).install()  # fmt: skip
    os.environ["SGLANG_SWA_EVICTION_INTERVAL"] = str(workload.swa_interval)
    return engine


def _import_engine(workload: Workload) -> types.SimpleNamespace:
    import stubs

    if workload.device == "cpu":
        os.environ.setdefault("SGLANG_USE_CPU_ENGINE", "1")
    spec = importlib.machinery.PathFinder.find_spec("sglang")
    if spec is None:
        sys.exit("no sglang on PYTHONPATH")
    root = Path(next(iter(spec.submodule_search_locations or [])))
    package = types.ModuleType("sglang")  # without its __init__, which loads the front end
    package.__path__ = [str(root)]
    package.__spec__ = importlib.machinery.ModuleSpec("sglang", None, is_package=True)
    sys.modules["sglang"] = package
    lacking = [name for name in ONLY_IMPORTED if importlib.util.find_spec(name) is None]
    stubs.install(workload.device)
    sys.meta_path.append(stubs.Finder(lacking, lambda _module, name: stubs.made_up(name)))
    if "transformers" in lacking:
        sys.meta_path.insert(0, stubs.Finder(REGISTRIES, lambda _module, name: stubs.made_up(name)))
    from sglang.srt.managers import schedule_batch
    from sglang.srt.mem_cache import allocation, allocation_sizing, common
    from sglang.srt.mem_cache.allocator import PagedTokenToKVPoolAllocator, TokenToKVPoolAllocator
    from sglang.srt.mem_cache.allocator.hisparse import HiSparseTokenToKVPoolAllocator
    from sglang.srt.mem_cache.allocator.swa import SWATokenToKVPoolAllocator
    from sglang.srt.mem_cache.base_swa_memory_pool import BaseSWAKVPool
    from sglang.srt.mem_cache.cache_init_params import CacheInitParams
    from sglang.srt.mem_cache.memory_pool import ReqToTokenPool
    from sglang.srt.mem_cache.pure_swa_radix_cache import PureSWARadixCache
    from sglang.srt.mem_cache.radix_cache import RadixCache
    from sglang.srt.mem_cache.unified_cache.components import ComponentType
    from sglang.srt.model_executor.forward_batch_info import ForwardMode
    from sglang.srt.runtime_context import get_context
    from sglang.srt.sampling.sampling_params import SamplingParams
    from sglang.srt.speculative import dflash_info_v2
    from sglang.srt.speculative.spec_info import SpeculativeAlgorithm

    class WindowPool(BaseSWAKVPool):
        """Keeps no KV, only the map between the slots of both pools."""

        def __init__(self) -> None:
            pass

        def register_mapping(self, full_to_swa_index_mapping: torch.Tensor) -> None:
            self.full_to_swa_index_mapping = full_to_swa_index_mapping

        def translate_loc_from_full_to_swa(self, kv_indices: torch.Tensor) -> torch.Tensor:
            return self.full_to_swa_index_mapping[kv_indices.long()]

    WindowPool.__abstractmethods__ = frozenset()

    class HostPool:
        """The same for the slots on the device of a HiSparse pool."""

        def register_mapping(self, mapping: torch.Tensor) -> None:
            self.mapping = mapping

        def _translate_loc_to_hisparse_device(self, slots: torch.Tensor) -> torch.Tensor:
            return self.mapping[slots]

    def tree(rows: Any, pages: Any, workload: Workload) -> Any:
        options = CacheInitParams(
            disable=not workload.prefix_cache, req_to_token_pool=rows, token_to_kv_pool_allocator=pages,
            page_size=workload.page_size, sliding_window_size=workload.window or None,
        )  # fmt: skip
        return (PureSWARadixCache if workload.window else RadixCache)(options)

    def allocator(workload: Workload) -> Any:
        size, page_size, kind = workload.pool_tokens, workload.page_size, (torch.bfloat16, workload.device)
        if workload.window:
            return SWATokenToKVPoolAllocator(size, size, page_size, *kind, WindowPool(), workload.need_sort)
        if workload.hisparse:
            return HiSparseTokenToKVPoolAllocator(size, page_size, *kind, HostPool(), workload.need_sort, 2)
        if page_size == 1:
            return TokenToKVPoolAllocator(size, *kind, None, workload.need_sort)
        return PagedTokenToKVPoolAllocator(size, page_size, *kind, None, workload.need_sort)

    return types.SimpleNamespace(
        root=root, draft_module=dflash_info_v2, allocation=allocation, release_kv_cache=common.release_kv_cache,
        extra_row_width=allocation_sizing.get_req_to_token_extra_context_len, allocator=allocator, tree=tree,
        ReqToTokenPool=ReqToTokenPool, ScheduleBatch=schedule_batch.ScheduleBatch, Req=schedule_batch.Req,
        SamplingParams=SamplingParams, decode_mode=ForwardMode.DECODE, get_context=get_context,
        algorithm=SpeculativeAlgorithm.from_string("DFLASH"), swa=ComponentType.SWA,
    )  # fmt: skip


def make(name: str, workload: Workload, shadow: int) -> Upstream:
    """The engine that a word of the command line names."""
    kind, _, arm = name.partition(":")
    if kind == "upstream":
        return Upstream(workload)
    if kind == "ours":
        return Reference(workload, arm)
    if kind != "plug":
        sys.exit(f"{name!r} is neither upstream nor plug:ARM nor ours:ARM")
    return Plugged(workload, arm, shadow)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("engines", nargs="+", metavar="upstream|plug:ARM|ours:ARM")
    parser.add_argument("--device", choices=("cpu", "cuda"), default="cpu")
    parser.add_argument("--bs", type=int, nargs="+", default=[36])
    parser.add_argument("--page-size", type=int, nargs="+", default=[256])
    parser.add_argument("--block", type=int, default=8)
    parser.add_argument("--context", type=int, default=16384)
    parser.add_argument("--steps", type=int, default=600)
    parser.add_argument("--warm-up", type=int, default=50)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--need-sort", action="store_true", help="sorted free lists")
    parser.add_argument("--pool", type=int, help="tokens of it; few make the scheduler send requests back")
    parser.add_argument("--window", type=int, default=0, help="tokens of a sliding window; 0: none")
    parser.add_argument("--swa-interval", type=int, default=128, help="tokens behind the window that make it worth it")
    parser.add_argument("--hisparse", action="store_true", help="a pool on the host behind a small one")
    parser.add_argument("--prefix-cache", action="store_true", help="finished requests stay until they are evicted")
    parser.add_argument("--shadow", type=int, default=0, help="steps that plug:ARM compares before it writes")
    parser.add_argument("--compare", action="store_true", help="every step against the first engine's")
    args = parser.parse_args()
    if args.device == "cpu":
        torch.set_num_threads(1)
    results = [run(args, bs, page_size) for bs, page_size in itertools.product(args.bs, args.page_size)]
    gpu = torch.cuda.get_device_name() if args.device == "cuda" else None
    about = {"torch": torch.__version__, "python": platform.python_version(), "gpu": gpu, **vars(args)}
    print(json.dumps({"about": about, "results": results}))


def run(args: argparse.Namespace, bs: int, page_size: int) -> dict[str, object]:
    """All engines on one workload. Ends the program where a plug was turned off."""
    given = {each.name: getattr(args, each.name) for each in fields(Workload) if hasattr(args, each.name)}
    workload = Workload(**{**given, "bs": bs, "page_size": page_size})
    found = []
    for name in args.engines:
        engine = make(name, workload, args.shadow)
        found.append(play(name, engine, workload, keeps_states=args.compare))
        if isinstance(engine, Plugged) and engine.plug.off is not None:
            sys.exit(f"{name} was turned off: {engine.plug.off}")
    base = float(str(found[0].summary()["mean_us"]))
    rows = []
    for each in found:
        row = each.summary()
        row["of_first"] = round(float(str(row["mean_us"])) / base, 3)
        rows.append(row)
        print(f"bs {bs} page {page_size}: {row}", file=sys.stderr)
    happened = {each.name: +each.happened for each in found}
    changed = {each.name: differences(found[0], each) for each in found[1:]} if args.compare else None
    return {"bs": bs, "page_size": page_size, "engines": rows, "differences": changed, "happened": happened}


if __name__ == "__main__":
    main()
