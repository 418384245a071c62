"""Every arm on every named workload: the oracle's tokens, as many in each step in all arms, no allocation bad, no page
lost. The named workloads are decoded as they are; a few steps in every test run, thousands under `soak`.
"""

from __future__ import annotations

import pytest
from decoding import assert_right, decode, given

from dflash_prep import workload as workloads
from dflash_prep.arms import ARMS
from dflash_prep.loop.engine import Engine

LADDER = [name for name in ARMS if name != "counts"]  # counts is control under another name
WORLD = 4
CHECKS = 10_000
"""Allocation steps that the campaign must have checked; the report on #47685 has 870."""


def decode_ladder(name: str, rank: int, steps: int) -> dict[str, Engine]:
    """All arms on one workload and rank, each right by itself and all alike."""
    runs = {arm: decode(workloads.load(name), arm, steps, rank=rank, world=WORLD) for arm in LADDER}
    first = runs["legacy"]
    for engine in runs.values():
        assert_right(engine)
        assert given(engine) == given(first)
        assert accept_lengths(engine) == accept_lengths(first)
    return runs


def accept_lengths(engine: Engine) -> list[list[int]]:
    """Tokens committed in each step of each request."""
    return [[len(result.tokens) for result in each.results] for each in engine.parts.arrivals.all if each.tokens]


@pytest.mark.parametrize("name", workloads.names())
def test_all_arms_give_the_oracles_tokens_with_the_same_accept_lengths(name: str) -> None:
    decode_ladder(name, rank=WORLD - 1, steps=6)


def test_on_kv_tight_the_topup_guard_refuses_and_requests_are_retracted() -> None:
    engine = decode(workloads.load("kv-tight"), "topup", 60)
    assert_right(engine)
    assert sum(row.topup_refused for row in engine.rows) > 0
    assert sum(row.retracted for row in engine.rows) > 0


@pytest.mark.soak
@pytest.mark.timeout(7200)
def test_ten_thousand_allocation_steps_over_arms_workloads_and_ranks_are_all_sound(record_property) -> None:
    """Ranks are added until enough is counted; `pytest -m soak -s -k ten_thousand` prints the counts."""
    checks = steps = rank = 0
    while checks < CHECKS:
        for name in workloads.names():
            for arm, engine in decode_ladder(name, rank, steps=200).items():
                checks += engine.prep.consistency.checks
                steps += len(engine.rows)
                print(f"rank {rank} {name} {arm}: {engine.prep.consistency.checks} allocation steps, {checks} in all")
        rank += 1
    record_property("allocation steps checked", checks)
    print(f"{checks} allocation steps checked in {steps} steps of {rank} ranks, 0 bad, 0 tokens leaked")
