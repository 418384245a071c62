"""The engine of one rank on the simulated device: every arm decodes the oracle's tokens and loses no page."""

from __future__ import annotations

import pytest
from decoding import assert_right, decode, given, simulated_device

from dflash_prep import workload as workloads
from dflash_prep.arms import ARMS, parse_arm
from dflash_prep.loop.agreement import AgreementGroup
from dflash_prep.loop.assembly import RunSpec, _padded_sizes, build
from dflash_prep.loop.engine import Engine
from dflash_prep.loop.faults import Fault, FaultError, FaultKind

TINY = """
description = "a few short requests"
[requests]
concurrency = 7
prompt = { low = 9, high = 60 }
output = { low = 1, high = 90 }
[kv]
page_size = 16
pool_pages = 200
context_len = 160
[speculation]
block = 8
window = 32
accept_mean = 3.5
[device]
draft_us = 100
verify_us = 400
"""


def tiny(tmp_path, *changes: tuple[str, str]) -> workloads.Workload:
    text = TINY
    for old, new in changes:
        assert old in text
        text = text.replace(old, new)
    path = tmp_path / "tiny.toml"
    path.write_text(text)
    return workloads.load(str(path))


@pytest.fixture(scope="module")
def legacy_run(tmp_path_factory) -> Engine:
    return decode(tiny(tmp_path_factory.mktemp("legacy")), "legacy", 30)


OTHERS = ["control,topup_pages=8", "topup,staging_ring=on", "legacy,bulk_fill=on"]


@pytest.mark.parametrize("arm", [*(name for name in ARMS if name not in ("legacy", "counts")), *OTHERS])
def test_every_arm_gives_the_tokens_of_the_oracle_as_many_in_each_step_as_legacy(tmp_path, legacy_run, arm) -> None:
    engine = decode(tiny(tmp_path), arm, 30)
    assert_right(legacy_run)
    assert_right(engine)
    assert given(engine) == given(legacy_run)
    assert [row.committed_tokens for row in engine.rows] == [row.committed_tokens for row in legacy_run.rows]


@pytest.mark.parametrize(
    ("old", "new"),
    [
        pytest.param("page_size = 16\npool_pages = 200", "page_size = 1\npool_pages = 1200", id="pages of one token"),
        pytest.param("window = 32", "", id="draft sees the whole context"),
        pytest.param("context_len", "swa_pool_pages = 120\nswa_window = 32\ncontext_len", id="hybrid pool"),
        pytest.param("context_len", "prefix_cache = true\ncontext_len", id="prefix cache"),
        pytest.param("block = 8\nwindow = 32\naccept_mean = 3.5", "block = 2\naccept_mean = 1.5", id="block of two"),
    ],
)
def test_other_shapes_decode_right_with_topup_and_without_anything(tmp_path, old, new) -> None:
    for arm in ("legacy", "topup"):
        assert_right(decode(tiny(tmp_path, (old, new)), arm, 30))


@pytest.mark.parametrize("arm", ["legacy", "control", "topup"])
def test_under_memory_pressure_requests_are_retracted_and_still_get_their_tokens(tmp_path, arm) -> None:
    engine = decode(tiny(tmp_path, ("pool_pages = 200", "pool_pages = 26")), arm, 70)
    assert_right(engine)
    assert sum(row.retracted for row in engine.rows) > 0
    assert any(each.life > 1 and each.is_finished for each in engine.parts.arrivals.all)


def test_requests_that_come_one_by_one_leave_the_rank_idle_in_between(tmp_path) -> None:
    sparse = tiny(
        tmp_path,
        ("concurrency = 7", 'concurrency = 1\narrivals = "poisson"\narrivals_per_step = 0.05'),
        ("low = 1, high = 90", "low = 1, high = 20"),
    )
    engine = decode(sparse, "topup", 200)
    assert_right(engine)
    assert 0 < sum(row.running == 0 for row in engine.rows) < 200


def test_topup_brings_the_share_of_allocation_steps_from_a_third_to_almost_none() -> None:
    smoke = workloads.load("smoke")
    shares = {}
    for arm in ("control", "topup"):
        engine = decode(smoke, arm, 72, seed=3)
        assert_right(engine)
        shares[arm] = sum(row.allocated_tokens > 0 for row in engine.rows[1:]) / 71
    assert 0.25 < shares["control"] < 0.5
    assert shares["topup"] < 0.02


def test_a_stop_is_agreed_in_the_step_that_asks_for_it_and_that_step_is_finished(tmp_path) -> None:
    spec = RunSpec(parse_arm("control"), tiny(tmp_path), 0, rank=0, world=1, check=False, verify=True)
    engine = build(spec, simulated_device(), AgreementGroup(1))
    asked = iter([False, False, True])
    assert engine.run(100, lambda: next(asked), lambda _done: None) is True
    engine.close()
    assert len(engine.rows) == 3
    assert engine.first_mismatch()[0] is None
    assert engine.leaked_tokens == 0


@pytest.mark.parametrize("kind", [kind for kind in FaultKind if kind is not FaultKind.RING])
@pytest.mark.parametrize("arm", ["legacy", "topup"])
def test_a_planted_fault_is_named_by_request_and_by_the_step_in_which_it_first_showed(tmp_path, kind, arm) -> None:
    """A wrong slot or page shows at the latest when the draft should next have been right; a length at once."""
    long_enough = tiny(tmp_path, ("low = 1, high = 90", "low = 80, high = 90"))
    engine = decode(long_enough, arm, 14, fault=Fault(kind, step=6))
    mismatch, _ = engine.first_mismatch()
    assert mismatch.rid in ((0, 1) if kind is FaultKind.PAGE else (0,))
    assert 6 <= mismatch.step <= 9
    shape = long_enough.request(0, 0, mismatch.rid)
    assert shape.prompt_len < mismatch.position < shape.prompt_len + 8 * 10


def test_a_fault_is_stated_as_kind_and_step() -> None:
    assert Fault.parse("page@40") == Fault(FaultKind.PAGE, 40)
    for bad in ("page", "page@", "page@-1", "pages@4", ""):
        with pytest.raises(FaultError, match="the kinds are slot, page, length, rebuild, ring"):
            Fault.parse(bad)


def test_graphs_are_captured_for_small_sizes_multiples_of_eight_and_the_largest() -> None:
    assert _padded_sizes(36) == [1, 2, 4, 8, 16, 24, 32, 36]
    assert _padded_sizes(1) == [1]
    assert _padded_sizes(192)[-2:] == [184, 192]
