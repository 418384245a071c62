"""A real SGLang on a CPU, captured with the product's own annotation: what page size and lengths say must be there."""

from __future__ import annotations

import shutil

import pytest
from engines.capturing import EngineRun, capture
from engines.environments import SGLANG

pytestmark = pytest.mark.engines
HAS_NSYS = shutil.which("nsys") is not None
HOLDERS = {
    "decode_step": {None},
    "schedule": {"decode_step"},
    "prepare_for_extend": {"schedule"},
    "prepare_for_decode": {"schedule"},
    "kv_alloc": {"prepare_for_extend", "prepare_for_decode"},
    **{name: {"kv_alloc"} for name in ("get_last_loc", "alloc_extend", "assign_req_to_token")},
    # a rank without requests agrees, and runs idle batches, in no step of its own; the last result comes after the last
    **{name: {"decode_step", None} for name in ("run_batch", "process_result")},
    "dp_agreement": {"schedule", None},
    **{name: {"run_batch"} for name in ("prefill", "draft", "verify", "sample_tokens")},
}
"""Range → where it may lie."""


def check_nesting(run: EngineRun) -> None:
    for process in run.profile.info.processes:
        for holder, name in run.nesting(process) if process.num_ranges else ():
            assert holder in HOLDERS[name], name


def check(run: EngineRun) -> None:
    """Every count equal to what is expected and to the engine's own log."""
    check_nesting(run)
    (count,) = run.processes
    expected, engine = run.said["expected"], run.said["engine"]
    assert count["decode_step"] == expected["steps"]
    assert count["prepare_for_decode"] == expected["prepare_for_decode"] == engine["decode_batches"]
    assert count["prepare_for_extend"] == engine["prefill_batches"]
    assert count["schedule"] == count["run_batch"] == count["process_result"] == expected["steps"]
    assert run.allocating_share() == pytest.approx(expected["allocating_steps"] / expected["steps"])
    (process,) = [each for each in run.profile.info.processes if each.num_ranges]
    assert (process.rank, process.world, process.arm) == (0, 1, "sglang")


@pytest.mark.shortest
def test_page_16(tmp_path):
    run = capture(SGLANG, tmp_path)
    check(run)
    (count,) = run.processes
    assert count["kv_alloc"] == run.said["expected"]["allocating_steps"] == 71
    assert count["verify"] == 102
    assert count["prefill"] == 2


@pytest.mark.nsys
@pytest.mark.skipif(not HAS_NSYS, reason="no nsys here")
def test_page_16_under_nsys(tmp_path):
    run = capture(SGLANG, tmp_path, recorder=None)
    check(run)
    assert run.processes[0]["kv_alloc"] == 71


@pytest.mark.parametrize(
    ("words", "num_alloc"),
    [
        (["--page-size", "1"], 104),
        (["--page-size", "16", "--no-overlap"], 71),
        (["--page-size", "64", "--rounds", "2"], 53),
        (["--page-size", "256", "--tokens", "300"], 16),
        (["--spec", "dflash", "--page-size", "16"], 72),
        (["--spec", "dflash", "--page-size", "32"], 47),
        (["--spec", "dflash", "--page-size", "1"], 102),
    ],
    ids=lambda value: " ".join(value) if isinstance(value, list) else str(value),
)
def test_counts_follow_from_page_size_and_lengths(tmp_path, words, num_alloc):
    run = capture(SGLANG, tmp_path, *words)
    check(run)
    (count,) = run.processes
    assert count["kv_alloc"] == num_alloc


def test_ngram_drafts_change_no_token_and_are_accepted(tmp_path):
    plain = capture(SGLANG, tmp_path / "plain")
    run = capture(SGLANG, tmp_path / "ngram", "--spec", "ngram")
    assert run.said["output"] == plain.said["output"]
    assert run.said["engine"]["accept_len_mean"] > 3
    (count,) = run.processes
    assert count["prepare_for_decode"] == run.said["engine"]["decode_batches"] == count["draft"]
    assert run.allocating_share() == 1.0


def test_dflash_with_forced_acceptance_takes_fewer_steps(tmp_path):
    run = capture(SGLANG, tmp_path, "--spec", "dflash", "--accept", "3")
    (count,) = run.processes
    assert count["prepare_for_decode"] == run.said["engine"]["decode_batches"] < 102
    assert count["draft"] == count["verify"] == count["prepare_for_decode"]


@pytest.mark.parametrize(
    ("words", "agreements_in_a_step"),
    [(["--warm-up", "2"], 1), ([], 1), (["--warm-up", "2", "--spec", "dflash"], 2)],
    ids=["both ranks busy", "one idles through the warm-up", "dflash"],
)
def test_two_ranks_with_dp_attention_agree_in_every_iteration(tmp_path, words, agreements_in_a_step):
    run = capture(SGLANG, tmp_path, "--dp", "2", *words)
    counts = {p.rank: run.ranges(p) for p in run.profile.info.processes if p.num_ranges}
    assert sorted(counts) == [0, 1]
    check_nesting(run)
    assert counts[0]["dp_agreement"] == counts[1]["dp_agreement"] > 0
    for count in counts.values():
        in_steps = count["decode_step"] * agreements_in_a_step
        assert count["dp_agreement"] >= in_steps - 8  # a step of prefill alone agrees once
    decode = sum(count["prepare_for_decode"] for count in counts.values())
    assert decode == run.said["engine"]["decode_batches"]
