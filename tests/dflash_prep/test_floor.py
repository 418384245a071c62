"""The arm `floor`: the oracle's tokens and topup's slots, step by step; what it refuses; what it notices."""

from __future__ import annotations

from dataclasses import asdict

import numpy as np
import pytest
from decoding import FullPeers, assert_right, decode, given, simulated_device

from dflash_prep import workload as workloads
from dflash_prep.arms import ArmError, parse_arm
from dflash_prep.errors import ResultOverrunError
from dflash_prep.loop.agreement import AgreementGroup
from dflash_prep.loop.assembly import RunSpec, build
from dflash_prep.loop.engine import Engine
from dflash_prep.loop.faults import Fault, FaultError, FaultKind
from dflash_prep.state.lifetime import row_slots
from dflash_prep.workload import Workload

SHAPE = """
description = "arrivals and finishes on most steps"
[requests]
concurrency = 6
prompt = { low = 1, high = 90 }
output = { low = 1, high = 60 }
[kv]
page_size = 16
pool_pages = 200
context_len = 192
[speculation]
block = 8
window = 32
accept_mean = 3.5
[device]
draft_us = 100
verify_us = 200
"""
SHAPES = {
    "room for all": [],
    "retractions": [("pool_pages = 200", "pool_pages = 26")],
    "hybrid pool": [("context_len", "swa_pool_pages = 120\nswa_window = 32\ncontext_len")],
    "hybrid pool with retractions": [
        ("pool_pages = 200", "pool_pages = 26"),
        ("context_len", "swa_pool_pages = 26\nswa_window = 32\ncontext_len"),
    ],
    "prefix cache": [("context_len", "prefix_cache = true\ncontext_len")],
    "prefix cache and retractions": [("pool_pages = 200", "prefix_cache = true\npool_pages = 30")],
    "pages of one token": [("page_size = 16\npool_pages = 200", "page_size = 1\npool_pages = 1200")],
    "draft sees the whole context": [("window = 32", "")],
    "one request": [("concurrency = 6", "concurrency = 1")],
    "block of two": [("block = 8\nwindow = 32\naccept_mean = 3.5", "block = 2\naccept_mean = 1.5")],
    "requests come one by one": [
        ("concurrency = 6", 'concurrency = 3\narrivals = "poisson"\narrivals_per_step = 0.05'),
        ("low = 1, high = 60", "low = 1, high = 20"),
    ],
}


def shaped(tmp_path, name: str) -> Workload:
    text = SHAPE
    for old, new in SHAPES[name]:
        assert old in text
        text = text.replace(old, new)
    path = tmp_path / "shape.toml"
    path.write_text(text)
    return workloads.load(str(path))


def start(workload: Workload, arm: str, seed: int = 0, fault: Fault | None = None) -> Engine:
    spec = RunSpec(parse_arm(arm), workload, seed, rank=0, world=1, check=True, verify=True, fault=fault)
    return build(spec, simulated_device(), AgreementGroup(1))


def run(engine: Engine, steps: int) -> None:
    engine.run(steps, lambda: False, lambda _done: None)


def what_steps_did(engine: Engine) -> list[dict]:
    """All that a step counts but its times."""
    return [{k: v for k, v in asdict(row).items() if not k.endswith("_ns")} for row in engine.rows]


def held(engine: Engine) -> list[tuple]:
    """Requests with a row, their counters and their slots on the device."""
    pools, found = engine.parts.pools, []
    pools.rows.flush()
    for each in engine.running.sequences:
        if (kv := each.req.kv) is not None:
            row = pools.rows.req_to_token[kv.req_pool_idx, : kv.kv_allocated_len].tolist()
            counters = kv.kv_committed_len, kv.cache_protected_len, kv.swa_evicted_seqlen, each.req.num_generated
            clocks = each.req.decode_batch_idx, each.req.extend_batch_idx, each.req.spec_verify_ct
            found.append((each.req.rid, kv.req_pool_idx, counters, clocks, row))
    return found


def free_pages(engine: Engine) -> list[int]:
    allocator = engine.parts.pools.allocator
    return getattr(allocator, "full", allocator).free_pages.tolist()


@pytest.mark.parametrize("arm", ["floor", "topup,host_pages=on"])
@pytest.mark.parametrize("name", SHAPES)
def test_every_step_gives_topups_tokens_slots_counters_and_free_list(tmp_path, name, arm) -> None:
    topup, other = (start(shaped(tmp_path, name), each, seed=3) for each in ("topup", arm))
    for _ in range(45 if "retractions" in name else 25):
        run(topup, 1)
        run(other, 1)
        assert held(other) == held(topup)
        assert free_pages(other) == free_pages(topup)
    for engine in (topup, other):
        engine.close()
        assert_right(engine)
    assert given(other) == given(topup)
    assert what_steps_did(other) == what_steps_did(topup)
    if "retractions" in name:
        assert sum(row.retracted for row in other.rows) > 0


@pytest.mark.parametrize("seed", [1, 2])
@pytest.mark.parametrize("name", [name for name in workloads.names() if "192" not in name])
def test_on_the_named_workloads_it_is_topup_with_other_costs(name, seed) -> None:
    topup, floor = (decode(workloads.load(name), arm, 7, seed=seed, rank=1, world=3) for arm in ("topup", "floor"))
    assert_right(floor)
    assert given(floor) == given(topup)
    assert what_steps_did(floor) == what_steps_did(topup)


def test_a_rank_without_requests_joins_the_step_with_padding_only(tmp_path) -> None:
    workload = shaped(tmp_path, "requests come one by one")
    spec = RunSpec(parse_arm("floor"), workload, 5, rank=1, world=3, check=True, verify=True)
    engine = build(spec, simulated_device(), FullPeers(1, 3, workload.requests.concurrency))
    run(engine, 90)
    idle = [row.running == 0 for row in engine.rows]
    engine.close()
    assert_right(engine)
    assert 0 < sum(idle) < 90
    assert engine.worker.num_launched == 90


def test_a_step_that_needs_no_page_and_whose_batch_is_the_same_copies_nothing(tmp_path) -> None:
    engine = start(workloads.load("smoke"), "floor")
    run(engine, 3)
    serial, version = engine.worker.host_blocks.serial, engine.worker.device_block.rows._version
    run(engine, 10)
    assert not any(row.allocated_tokens for row in engine.rows[3:])
    assert engine.worker.host_blocks.serial == serial
    assert engine.worker.device_block.rows._version - version == 10  # the graph takes the entries out: no copy
    engine.close()


@pytest.mark.parametrize("kind", [FaultKind.SLOT, FaultKind.PAGE, FaultKind.LENGTH])
def test_a_planted_fault_is_named_by_request_and_step(tmp_path, kind) -> None:
    text = SHAPE.replace("low = 1, high = 90", "low = 80, high = 90").replace(
        "low = 1, high = 60", "low = 60, high = 60"
    )
    path = tmp_path / "long.toml"
    path.write_text(text)
    engine = start(workloads.load(str(path)), "floor", fault=Fault(kind, step=6))
    run(engine, 14)
    engine.close()
    mismatch, _ = engine.first_mismatch()
    assert mismatch.rid in ((0, 1) if kind is FaultKind.PAGE else (0,))
    assert 6 <= mismatch.step <= 9


def test_a_page_given_to_two_requests_is_found_by_the_check_of_its_step(tmp_path) -> None:
    engine = start(workloads.load("smoke"), "floor")
    run(engine, 4)
    rows = engine.running.batch.req_pool_indices_cpu.numpy()
    allocator = engine.parts.pools.allocator
    allocator.free_pages[:] = engine.parts.pools.rows.pages[rows[0], 0]  # the free list says that a page in use is free
    checks = engine.prep.consistency.checks
    while engine.prep.consistency.checks == checks:
        run(engine, 1)
    assert engine.prep.consistency.bad == 1


def test_a_row_that_the_device_has_otherwise_is_found_by_the_check(tmp_path) -> None:
    engine = start(shaped(tmp_path, "room for all"), "floor")
    write = engine.parts.pools.rows.req_to_token
    run(engine, 1)
    assert engine.prep.consistency.bad == 0
    engine.prep._is_unseen = True
    write[engine.running.batch.reqs[0].kv.req_pool_idx, 0] += 1
    engine.prep.examine_device()
    assert engine.prep.consistency.bad == 1


def test_a_result_in_the_slot_of_another_step_is_refused(tmp_path) -> None:
    engine = start(shaped(tmp_path, "room for all"), "floor", fault=Fault(FaultKind.RING, step=5))
    with pytest.raises(ResultOverrunError, match=r"the result of step 5 with block \d+ was due, and its slot holds"):
        run(engine, 9)


def test_a_block_that_was_overwritten_before_the_step_read_it_is_noticed(tmp_path) -> None:
    engine = start(shaped(tmp_path, "room for all"), "floor")
    run(engine, 3)
    engine.worker.device_block.serial.add_(1)
    with pytest.raises(ResultOverrunError, match=r"of step \d+ with block \d+ was due"):
        run(engine, 3)


@pytest.mark.parametrize(
    ("changes", "reason"),
    [
        ("topup,step_graph=on", "step_graph needs host_pages: only pages known to the host"),
        ("legacy,host_pages=on", "host_pages needs page_aligned: what the host counts and writes are whole pages"),
        ("floor,staging_ring=on", "host_pages leaves staging_ring nothing to stage"),
        ("floor,plan_stream=on", "host_pages leaves plan_stream nothing to do"),
        ("floor,fused_rebuild=off", "step_graph needs fused_rebuild"),
        ("floor,folded_sampler=off", "step_graph needs folded_sampler"),
        ("floor,cpu_lens_delegation=off", "step_graph needs cpu_lens_delegation"),
        ("floor,glue_graph=off,static_bounds=off", "step_graph needs static_bounds"),
        ("floor,event_ring=off", "step_graph needs event_ring"),
        ("floor,glue_graph=off", "step_graph needs glue_graph"),
        ("floor,persistent_counts=off", "step_graph needs persistent_counts"),
    ],
)
def test_a_combination_that_cannot_be_is_refused_with_the_reason(changes, reason) -> None:
    with pytest.raises(ArmError, match=reason):
        parse_arm(changes)


@pytest.mark.parametrize(
    ("arm", "kind", "reason"),
    [("floor", FaultKind.REBUILD, "rebuilds inside its graph"), ("topup", FaultKind.RING, "has no ring of results")],
)
def test_a_fault_that_has_no_place_in_an_arm_is_refused(arm, kind, reason) -> None:
    with pytest.raises(FaultError, match=reason):
        Fault(kind, 3).check([parse_arm(arm)])


def test_slots_of_a_run_of_pages_are_those_of_the_row(tmp_path) -> None:
    engine = start(shaped(tmp_path, "room for all"), "floor")
    run(engine, 2)
    for req in engine.running.batch.reqs:
        slots = row_slots(engine.parts.pools, req, 16, 40).tolist()
        row = engine.parts.pools.rows.req_to_token[req.kv.req_pool_idx]
        assert np.array_equal(slots, row[16 : min(40, len(slots) + 16)])
