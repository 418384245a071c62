"""Random walks of a whole scheduler, one step ahead of its results: no page is ever leaked, shared or lost.

`Walk` is the smallest scheduler that meets everything preparation meets: arrivals, prefix sharing, finishes,
retraction, a step in flight, results one step late. Properties look at every step of short walks in every shape; long
walks add the numbers.
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from random import Random

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from dflash_prep.state.batch import DecodeBatch
from dflash_prep.state.consistency import audit_pages
from dflash_prep.state.decode_memory import retract_until_it_fits
from dflash_prep.state.decode_prep import DecodePrep, PrepOptions, Reservation
from dflash_prep.state.draft_input import DraftInput
from dflash_prep.state.host_pages import HostPagedAllocator, HostRequest, HostRows, HostSWAAllocator, PageRun
from dflash_prep.state.host_prep import HostPrep
from dflash_prep.state.lifetime import alloc_for_extend, commit_accepted, release, row_slots
from dflash_prep.state.paged_allocator import PagedAllocator
from dflash_prep.state.pools import KVPools
from dflash_prep.state.prefix_cache import ChunkCache, PrefixCache
from dflash_prep.state.req_to_token import ReqToTokenPool
from dflash_prep.state.request import Request, SamplingParams, ceil_to
from dflash_prep.state.staging import Fill
from dflash_prep.state.swa_allocator import SWAAllocator
from dflash_prep.state.swa_eviction import SWAEviction
from dflash_prep.state.topup import TopUpDecision

CPU = torch.device("cpu")


@dataclass(frozen=True)
class Shape:
    """spare_pages is what the pool has beyond the one request that must always fit."""

    page_size: int = 8
    block: int = 2
    concurrency: int = 3
    longest_prompt: int = 20
    longest_output: int = 60
    spare_pages: int = 20
    topup_pages: int = 2
    fill: Fill = Fill.BULK
    aligned: bool = True
    need_sort: bool = False
    has_tree: bool = False
    has_window: bool = False
    host_list: bool = True
    debug: bool = False
    host_pages: bool = False

    @property
    def longest(self) -> int:
        return self.longest_prompt + self.longest_output

    @property
    def num_pages(self) -> int:
        return -(-(self.longest + 2 * self.block) // self.page_size) + 1 + self.spare_pages

    @property
    def row_width(self) -> int:
        return self.longest + 2 * self.block + self.page_size - 1


@dataclass
class Walk:
    shape: Shape
    seed: int = 0
    steps: int = 0
    finished: int = 0
    retracted: int = 0
    allocating: int = 0
    taken: int = 0
    pending: list[Request] = field(default_factory=list)
    in_flight: list[tuple[Request, int, int]] = field(default_factory=list)

    def __post_init__(self) -> None:
        shape, size = self.shape, self.shape.num_pages * self.shape.page_size
        kind = {"need_sort": shape.need_sort, "debug": shape.debug}
        paged, hybrid = (HostPagedAllocator, HostSWAAllocator) if shape.host_pages else (PagedAllocator, SWAAllocator)
        if shape.has_window:
            allocator = hybrid(size, size, shape.page_size, **kind)
        else:
            allocator = paged(size, shape.page_size, **kind)
        tree = PrefixCache(allocator) if shape.has_tree else ChunkCache(allocator)
        if shape.host_pages:
            rows = HostRows(shape.concurrency, shape.row_width, shape.page_size)
        else:
            rows = ReqToTokenPool(shape.concurrency, shape.row_width)
        self.pools = KVPools(rows, allocator, tree)
        swa = SWAEviction(shape.page_size, 3, has_tree=shape.has_tree, by_batches=not shape.has_tree)
        options = PrepOptions(
            shape.block,
            aligned=shape.aligned,
            fill=shape.fill,
            topup_pages=shape.topup_pages if shape.aligned else 0,
            swa=swa if shape.has_window else None,
        )
        self.prep = (HostPrep if shape.host_pages else DecodePrep)(self.pools, options)
        self.random = Random(self.seed)
        self.batch = DecodeBatch.of([], CPU, DraftInput.create_idle_input(CPU))
        self.output_len: dict[int, int] = {}

    # -- one step

    def step(self) -> Reservation | None:
        self._keep([i for i, req in enumerate(self.batch.reqs) if req.kv is not None])
        while len(self.batch.reqs) < self.shape.concurrency and self.random.random() < 0.5 and self._admit():
            pass
        gone = retract_until_it_fits(self.pools, self.batch.reqs, self.prep.options.reserve)
        self.retracted += len(gone)
        self.pending += [self.batch.reqs[i] for i in gone]
        self._keep([i for i, req in enumerate(self.batch.reqs) if req.kv is not None])
        reservation = self.prep.prepare(self.batch)
        self.pools.rows.flush()
        if reservation is not None:
            self.allocating += reservation.watermark.num_needed > 0
            self.taken += reservation.guard.decision is TopUpDecision.TAKEN
        return reservation

    def run_and_process(self) -> None:
        """Launch the prepared step, then process the result of the one before."""
        generation = self.pools.rows.req_generation.tolist()
        done = self.in_flight
        self.in_flight = [
            (req, generation[req.kv.req_pool_idx], self.random.randint(1, self.shape.block)) for req in self.batch.reqs
        ]
        if self.batch.reqs:
            rows = self.batch.req_pool_indices
            self.batch.spec_info = DraftInput.for_next_step(rows, self.batch.seq_lens, rows)
        self.pools.allocator.free_group_begin()
        for req, row_generation, accepted in done:
            if req.kv is None or generation[req.kv.req_pool_idx] != row_generation:
                continue  # finished or retracted while its step was in flight
            missing = self.output_len[req.rid] - req.num_generated
            commit_accepted(req, min(accepted, missing))
            if accepted >= missing:
                self.finished += 1
                release(self.pools, req)
        self.pools.allocator.free_group_end()
        self.steps += 1

    def _keep(self, keep: list[int]) -> None:
        self.batch.filter_batch(keep, host_list=self.shape.host_list)

    def _admit(self) -> bool:
        shape, pools = self.shape, self.pools
        if not self.pending:
            rid = len(self.output_len)
            self.output_len[rid] = self.random.randint(1, shape.longest_output)
            stream = self.random.choice([None, 1, 2, 3]) if shape.has_tree else None
            top_k = SamplingParams(self.random.choice([1, 40]))
            request = HostRequest if self.shape.host_pages else Request
            self.pending.append(request(rid, self.random.randint(1, shape.longest_prompt), top_k, stream))
        req = self.pending[0]
        room = pools.allocator.available_size() + (0 if shape.has_window else pools.tree.evictable_size())
        if ceil_to(req.seq_len + 2 * shape.block, shape.page_size) + shape.page_size > room and self.batch.reqs:
            return False
        if not self.batch.reqs:
            pools.tree.evict(shape.longest, shape.longest)
        alloc_for_extend(pools, [self.pending.pop(0)])
        fresh = DecodeBatch.of([req], CPU)
        fresh.spec_info = DraftInput.for_next_step(fresh.req_pool_indices, fresh.seq_lens, fresh.req_pool_indices)
        if self.batch.reqs:
            self.batch.merge_batch(fresh)
        else:
            self.batch = fresh
        return True

    # -- what must hold

    def holders(self) -> list[Request]:
        return [req for req in self.batch.reqs if req.kv is not None]

    def check_counts(self) -> None:
        """Free plus held pages are all pages, by host arithmetic only."""
        size = self.shape.page_size
        held = sum(ceil_to(req.kv.kv_allocated_len, size) - req.kv.cache_protected_len for req in self.holders())
        cached = sum(chain.length for chain in self.pools.tree.chains.values()) if self.shape.has_tree else 0
        full = self.pools.allocator.full if self.shape.has_window else self.pools.allocator
        assert full.available_size() + held + cached == self.shape.num_pages * size

    def check_pages(self) -> None:
        """Every page of every pool is free or held once, page by page."""
        rows = [row_slots(self.pools, r, r.kv.cache_protected_len, r.kv.kv_allocated_len) for r in self.holders()]
        runs = [run for chain in self.pools.tree.chains.values() for run in chain.runs] if self.shape.has_tree else []
        if not self.shape.has_window:
            audit_pages(self.pools.allocator, rows + [run.slots for run in runs])
            return
        allocator = self.pools.allocator
        audit_pages(allocator.full, rows + [run.slots for run in runs])
        windows = [run.slots for run in runs if run.has_window]
        for req in self.holders():
            own = req.kv.window_runs(req.kv.cache_protected_len, req.kv.kv_allocated_len, self.shape.page_size)
            windows += [row_slots(self.pools, req, start, end) for start, end, has_window in own if has_window]
        if self.shape.host_pages:
            audit_pages(
                allocator.swa, [PageRun(allocator.swa_pages[run.pages], len(run), run.page_size) for run in windows]
            )
        else:
            audit_pages(allocator.swa, [allocator.full_to_swa_index_mapping[slots.long()] for slots in windows])

    def close(self) -> None:
        for req in self.holders():
            release(self.pools, req, insert=False)
        self.pools.tree.evict(self.pools.tree.evictable_size())
        allocator = self.pools.allocator
        assert allocator.available_size() == self.shape.num_pages * self.shape.page_size
        if self.shape.has_window:
            assert allocator.swa.available_size() == allocator.full.available_size()
            has_partner = allocator.swa_pages if self.shape.host_pages else allocator.full_to_swa_index_mapping[:-1]
            assert not has_partner.any()
        assert len(self.pools.rows.free_rows) == self.shape.concurrency


def check_reservation(walk: Walk, reservation: Reservation, before: dict) -> None:
    """Invariants 1 to 7 of one prepared step."""
    cur, nxt, needed = reservation.watermark
    cur, nxt = [int(length) for length in cur], [int(length) for length in nxt]
    size, reserve = walk.shape.page_size, walk.prep.options.reserve
    reqs, rows = walk.batch.reqs, walk.pools.rows.req_to_token
    assert needed == sum(nxt) - sum(cur)
    for req, old, new in zip(reqs, cur, nxt, strict=True):
        assert req.kv.kv_committed_len + reserve <= new <= walk.shape.row_width
        assert new >= old
        assert new % size == 0 or not walk.shape.aligned
        assert req.kv.kv_allocated_len == new
    for req, accepted in before["ahead"]:
        # the true length at the step's start, and the window the step will verify
        assert req.kv.kv_committed_len + accepted + walk.shape.block <= req.kv.kv_allocated_len
    whole = [row_slots(walk.pools, req, 0, length).tolist() for req, length in zip(reqs, nxt, strict=True)]
    assert whole == [rows[req.kv.req_pool_idx, :length].tolist() for req, length in zip(reqs, nxt, strict=True)]
    live = [slots[:old] for slots, old in zip(whole, cur, strict=True)]
    new = [slots[old:] for slots, old in zip(whole, cur, strict=True)]
    fresh = [slot for slots in new for slot in slots]
    assert 0 not in fresh
    assert len(set(fresh)) == len(fresh)
    assert not set(fresh) & {slot for slots in live for slot in slots}
    if needed == 0:
        assert rows._version == before["version"]
        assert walk.pools.allocator.available_size() == before["free"]
    assert walk.batch.seq_lens_cpu.tolist() == [req.kv.kv_committed_len for req in reqs]
    assert walk.batch.seq_lens_sum == int(walk.batch.seq_lens_cpu.sum())
    assert walk.batch.spec_info.nxt_kv_lens_cpu.tolist() == nxt
    assert walk.batch.spec_info.nxt_kv_lens_sum == sum(nxt)
    top_ks = [req.sampling_params.top_k for req in reqs]
    assert walk.batch.spec_info.max_top_k == max(top_ks)
    assert walk.batch.spec_info.uniform_top_k_value == (top_ks[0] if len(set(top_ks)) == 1 else None)


class Watched(Walk):
    """A walk that looks at everything before and after every preparation."""

    def step(self) -> Reservation | None:
        prepare = type(self.prep).prepare
        seen: dict = {}

        def watched(prep: DecodePrep, batch: DecodeBatch) -> Reservation | None:
            in_flight = {id(req): n for req, gen, n in self.in_flight if req.kv is not None}
            seen.update(version=self.pools.rows.req_to_token._version, free=self.pools.allocator.available_size())
            seen["ahead"] = [(req, in_flight.get(id(req), 0)) for req in batch.reqs]
            return prepare(prep, batch)

        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(type(self.prep), "prepare", watched)
            reservation = super().step()
        if reservation is not None and not self.shape.has_window:
            check_reservation(self, reservation, seen)
        self.check_counts()
        self.check_pages()
        return reservation


@st.composite
def shapes(draw) -> Shape:
    page_size = draw(st.sampled_from([1, 2, 4, 64, 256]))
    return Shape(
        page_size=page_size,
        block=draw(st.integers(1, 17)),
        concurrency=draw(st.integers(1, 7)),
        longest_prompt=draw(st.integers(1, 2 * page_size + 20)),
        longest_output=draw(st.integers(1, page_size + 60)),
        spare_pages=draw(st.sampled_from([0, 1, 2, 5, 40])) * (1 if page_size > 4 else 12),
        topup_pages=draw(st.integers(0, 8)),
        fill=draw(st.sampled_from(list(Fill))),
        aligned=draw(st.sampled_from([True, True, False])),
        need_sort=draw(st.booleans()),
        has_tree=draw(st.booleans()),
        host_list=draw(st.booleans()),
        debug=True,
    )


@settings(max_examples=80, deadline=None)
@given(shapes(), st.integers(0, 2**32))
def test_in_every_shape_every_step_keeps_the_invariants(shape, seed):
    walk = Watched(shape, seed)
    for _ in range(30):
        walk.step()
        walk.run_and_process()
        walk.check_pages()
    walk.close()


@settings(max_examples=40, deadline=None)
@given(shapes().filter(lambda shape: shape.aligned), st.integers(0, 2**32))
def test_with_a_sliding_window_both_pools_keep_every_page(shape, seed):
    walk = Watched(Shape(**{**vars(shape), "has_window": True}), seed)
    for _ in range(30):
        walk.step()
        walk.run_and_process()
        walk.check_pages()
    walk.close()


@settings(max_examples=20, deadline=None)
@given(shapes(), st.integers(0, 2**32), st.sampled_from([Fill.BULK, Fill.RING]))
def test_whichever_way_lengths_are_staged_a_walk_ends_in_the_same_rows_and_free_list(shape, seed, fill):
    def end(fill: Fill) -> tuple[torch.Tensor, torch.Tensor]:
        walk = Walk(Shape(**{**vars(shape), "fill": fill}), seed)
        for _ in range(30):
            walk.step()
            walk.run_and_process()
        return walk.pools.rows.req_to_token, walk.pools.allocator.free_pages

    assert all(torch.equal(one, other) for one, other in zip(end(Fill.LOOP), end(fill), strict=True))


host_shapes = shapes().filter(lambda shape: shape.aligned).map(lambda shape: replace(shape, host_pages=True))


@settings(max_examples=60, deadline=None)
@given(host_shapes, st.booleans(), st.integers(0, 2**32))
def test_with_pages_on_the_host_every_step_keeps_the_invariants_on_both_sides(shape, has_window, seed):
    walk = Watched(replace(shape, has_window=has_window), seed)
    for _ in range(30):
        walk.step()
        walk.run_and_process()
        walk.check_pages()
    walk.close()


@settings(max_examples=60, deadline=None)
@given(host_shapes, st.booleans(), st.integers(0, 2**32))
def test_with_pages_on_the_host_every_request_has_the_slots_that_it_would_have_on_the_device(shape, has_window, seed):
    def state(walk: Walk) -> tuple:
        full = walk.pools.allocator.full if has_window else walk.pools.allocator
        holders = walk.holders()
        counters = [
            (req.rid, req.kv.kv_committed_len, req.kv.kv_allocated_len, req.kv.swa_evicted_seqlen, req.num_generated)
            for req in holders
        ]
        clocks = [(req.decode_batch_idx, req.extend_batch_idx, req.spec_verify_ct) for req in holders]
        slots = [row_slots(walk.pools, req, 0, req.kv.kv_allocated_len).tolist() for req in holders]
        return counters, clocks, slots, full.free_pages.tolist(), walk.finished, walk.retracted

    on_device, on_host = (Walk(replace(shape, has_window=has_window, host_pages=each), seed) for each in (False, True))
    for _ in range(30):
        for walk in (on_device, on_host):
            walk.step()
        assert state(on_device) == state(on_host)
        for walk in (on_device, on_host):
            walk.run_and_process()
    assert state(on_device) == state(on_host)


class ArrayWalk(Walk):
    """A walk without an object a request where nothing happens: a million steps in minutes."""

    def __post_init__(self) -> None:
        super().__post_init__()
        self.numbers = np.random.default_rng(self.seed)
        self.final = np.zeros(self.shape.concurrency + 1, dtype=np.int64)
        self.bad = 0

    def step(self) -> None:
        if any(req.kv is None for req in self.ended):
            self._keep([i for i, req in enumerate(self.batch.reqs) if req.kv is not None])
        self.ended = []
        while len(self.batch.reqs) < self.shape.concurrency and self.random.random() < 0.5 and self._admit():
            req = self.batch.reqs[-1]
            self.final[req.kv.req_pool_idx] = req.prompt_len + self.output_len[req.rid]
        reserve, size = self.prep.options.reserve, self.shape.page_size
        if self.pools.allocator.available_size() < len(self.batch.reqs) * -(-reserve // size) * size:
            gone = retract_until_it_fits(self.pools, self.batch.reqs, reserve)
            self.retracted += len(gone)
            self.pending += [self.batch.reqs[i] for i in gone]
            if gone:
                self._keep([i for i, req in enumerate(self.batch.reqs) if req.kv is not None])
        self.batch.spec_info = None
        self.pools.rows.unwritten()  # what prefills wrote, pages that the cache lends among it
        reservation = self.prep.prepare(self.batch)
        if reservation is not None and reservation.watermark.num_needed:
            self.allocating += 1
            entries = self.pools.rows.unwritten()
            taken = [] if entries is None else entries[1]  # none where the rest of a page was enough
            rows = self.batch.req_pool_indices_cpu.numpy()
            held = self.pools.rows.pages[rows].copy()
            held[np.arange(held.shape[1]) * size >= self.pools.rows.allocated[rows][:, None]] = 0
            counts = np.bincount(held.ravel(), minlength=self.shape.num_pages + 1)
            self.bad += int((counts[1:] > 1).any() and not self.shape.has_tree) + int((counts[taken] != 1).any())

    ended: list[Request] = []  # noqa: RUF012 - replaced in every step

    def run_and_process(self) -> None:
        """The result of the step before, one step late, by arrays."""
        arrays, done = self.pools.rows, self.flying
        now = self.batch.req_pool_indices_cpu.numpy()
        self.flying = (
            now,
            arrays.req_generation.numpy()[now],
            self.numbers.integers(1, self.shape.block + 1, len(now)),
        )
        if done is None:
            return
        rows, generation, accepted = done
        here = (arrays.req_generation.numpy()[rows] == generation) & np.isin(rows, now)
        rows, accepted = rows[here], accepted[here]
        committed = np.minimum(arrays.committed[rows] + accepted, self.final[rows])
        arrays.commit(rows, committed)
        over = set(rows[committed >= self.final[rows]].tolist())
        if over:
            self.ended = [req for req in self.batch.reqs if req.kv.req_pool_idx in over]
            self.pools.allocator.free_group_begin()
            for req in self.ended:
                release(self.pools, req)
            self.pools.allocator.free_group_end()
            self.finished += len(self.ended)
        self.steps += 1

    flying: tuple | None = None


def walk_by_arrays(requests: int, has_tree: bool, steps: int, seed: int) -> ArrayWalk:
    shape = Shape(256, 8, requests, 2000, 3000, 6 * requests, has_tree=has_tree, host_pages=True)
    walk = ArrayWalk(shape, seed)
    for step in range(steps):
        walk.step()
        walk.run_and_process()
        if step % 1009 == 0:
            walk.check_counts()
            walk.check_pages()
    return walk


A_MILLION_IN_TEN = [pytest.param(100_000, seed, marks=pytest.mark.soak, id=f"walk{seed}") for seed in range(10)]


@pytest.mark.timeout(0)
@pytest.mark.parametrize(("steps", "seed"), [pytest.param(3000, 0, id="short"), *A_MILLION_IN_TEN])
@pytest.mark.parametrize(("requests", "has_tree"), [(36, True), (192, False)])
def test_with_pages_on_the_host_a_long_walk_leaks_shares_and_loses_no_page(requests, has_tree, steps, seed):
    """`-m soak -s -k long_walk` prints the counts of a million steps at each size."""
    walk = walk_by_arrays(requests, has_tree, steps, requests + seed)
    counts = f"{steps} steps, {walk.allocating} allocating, {walk.finished} finished, {walk.retracted} retracted"
    walk.check_pages()
    walk.close()  # nothing is lost, or this raises
    print(f"{requests} requests, seed {requests + seed}: {counts}, {walk.bad} bad, 0 lost")
    assert walk.bad == 0
    assert walk.finished > steps * requests // 2000


def test_a_walk_whose_guard_never_passes_is_the_walk_without_a_top_up():
    # A pool of three pages: the quarter that the guard wants is never free.
    def end(topup_pages: int) -> tuple[torch.Tensor, torch.Tensor, int]:
        walk = Walk(Shape(page_size=64, concurrency=3, longest_prompt=90, spare_pages=0, topup_pages=topup_pages), 7)
        for _ in range(300):
            walk.step()
            walk.run_and_process()
        return walk.pools.rows.req_to_token, walk.pools.allocator.free_pages, walk.taken

    (rows, free, taken), (base_rows, base_free, _) = end(8), end(0)
    assert taken == 0
    assert torch.equal(rows, base_rows)
    assert torch.equal(free, base_free)


LONG_WALKS = {
    "topup": (30_000, Shape(spare_pages=60, fill=Fill.RING), "taken"),
    "pressure": (25_000, Shape(spare_pages=3, topup_pages=4, fill=Fill.RING), "retracted"),
    "cache": (20_000, Shape(spare_pages=12, has_tree=True, need_sort=True), "taken"),
    "window": (15_000, Shape(spare_pages=6, has_window=True, has_tree=True), "retracted"),
    "legacy": (10_000, Shape(spare_pages=5, aligned=False, fill=Fill.LOOP), "retracted"),
}
"""Steps, shape, and what each is there to meet often; the dear ones (an allocation in nearly every step) are short."""


@pytest.mark.parametrize("share", [10, pytest.param(1, marks=pytest.mark.soak)], ids=["a tenth", "whole"])
@pytest.mark.parametrize("name", LONG_WALKS)
def test_over_100000_steps_in_all_no_page_is_leaked_shared_or_lost(name, share):
    num_steps, shape, met = LONG_WALKS[name]
    walk = Walk(shape, seed=20)
    for step in range(num_steps // share):
        walk.step()
        walk.check_counts()
        walk.run_and_process()
        if step % 199 == 0:
            walk.check_pages()
    assert walk.finished > 500 // share
    assert getattr(walk, met) > 30 // share
    walk.close()


@pytest.mark.soak
@pytest.mark.timeout(0)
@pytest.mark.parametrize(("requests", "has_tree"), [(36, True), (192, False)])
def test_over_a_million_steps_no_page_is_leaked_shared_or_lost(requests, has_tree):
    shape = Shape(
        page_size=256,
        block=8,
        concurrency=requests,
        longest_prompt=2000,
        longest_output=3000,
        spare_pages=6 * requests,
        has_tree=has_tree,
    )
    walk = Walk(shape, seed=requests)
    for step in range(1_000_000):
        walk.step()
        walk.check_counts()
        walk.run_and_process()
        if step % 1009 == 0:
            walk.check_pages()
    assert walk.finished > 500 * requests
    assert walk.retracted > 0
    walk.close()
