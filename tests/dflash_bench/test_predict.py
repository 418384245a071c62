"""Prediction: the allocator's arithmetic against the allocator, the replay against hand-made steps, the whole against
profiles whose answer is known."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pandas as pd
import pytest

from dflash_bench.errors import DataError, UsageError
from dflash_bench.predict.allocation import Allocator, draw_allocations, hit_rate
from dflash_bench.predict.communication import CommunicationSource, communication_for, measure_communication
from dflash_bench.predict.paging import paging_of
from dflash_bench.predict.prediction import Redraws, Scenario, predict
from dflash_bench.predict.replay import StepWork, replay
from dflash_bench.predict.trace import Roles, StepTrace, _in_blocks, read_traces
from dflash_bench.profile import open_profile
from dflash_prep.state.reservation import page_aligned_decode_alloc_lens
from dflash_prep.state.topup import TopUp

REFERENCE = Path(__file__).parents[2] / "profiles" / "reference"


@pytest.fixture(scope="module")
def control():
    return read_traces(open_profile(REFERENCE / "h200-control-r1"))


@pytest.fixture(scope="module")
def two_ranks():
    return read_traces(open_profile(REFERENCE / "h200x2-control-r1"))


def trace(rank=0, n=200, **terms):
    """Steps that all take the same: 100 µs of host work in each part, 50 µs of agreement, 1 ms of GPU work."""
    each = {
        "before": 100e3, "prepare": 60e3, "agreement": 50e3, "leave_skew": 0, "loops": 10e3, "to_first": 100e3,
        "to_last": 100e3, "to_wait": 100e3, "after": 100e3, "first_gpu": 200e3, "rest_gpu": 800e3, "first_small": 0,
        "rest_small": 0, "start": 0, "period": 1e6, "other_waits": 0,
    }  # fmt: skip
    samples = {name: np.broadcast_to(np.float64(value), (n,)) for name, value in {**each, **terms}.items()}
    return StepTrace(rank=rank, allocates=np.arange(n) % 2 == 0, lag=1, **samples)


def work(steps, *, communication=0.0, lag=1, **terms):
    """StepWork of one replicate; each term is [steps][ranks]."""
    names = ("before", "leave_skew", "to_first", "to_last", "to_wait", "after", "first_gpu", "rest_gpu")
    ranks = np.shape(next(iter(terms.values())))[-1]
    arrays = {n: np.broadcast_to(np.asarray(terms.get(n, 0.0), float), (steps, ranks))[:, None] for n in names}
    return StepWork(**arrays, communication=np.full((steps, 1), communication), lag=lag)


# ── the loop, replayed ───────────────────────────────────────────────────────────────────────────────────────────────


def test_a_host_that_is_slower_than_its_gpu_sets_the_period_and_leads_negatively():
    found = replay(work(50, before=[[30.0]], to_first=[[10.0]], after=[[60.0]], first_gpu=[[5.0]], rest_gpu=[[15.0]]))
    assert found.period[-1, 0] == 100
    assert found.lead[-1, 0, 0] == -80, "the GPU was free 20 after the launch, 80 before the next one"
    assert not found.host_waits[5:].any()


def test_a_gpu_that_is_slower_than_its_host_sets_the_period_and_the_host_waits():
    found = replay(work(50, before=[[30.0]], to_first=[[10.0]], after=[[60.0]], first_gpu=[[50.0]], rest_gpu=[[250.0]]))
    assert found.period[-1, 0] == 300
    assert found.lead[-1, 0, 0] > 0
    assert found.host_waits[5:].all()


def test_all_wait_for_the_last_to_arrive_and_the_tax_is_what_it_is_behind_the_median():
    found = replay(work(20, communication=7.0, before=[[10.0, 20.0, 50.0]], after=[[5.0, 5.0, 5.0]]))
    assert found.period[-1, 0] == 50 + 7 + 5
    assert found.tax[-1, 0] == 30
    assert (found.last_rank == 2).all()


def test_ranks_that_share_a_gpu_take_turns_on_it():
    terms = {"before": [[10.0, 10.0]], "first_gpu": [[40.0, 40.0]], "rest_gpu": [[60.0, 60.0]]}
    alone, shared = replay(work(40, **terms)), replay(work(40, **terms), ranks_per_gpu=2)
    assert alone.period[-1, 0] == 100
    assert shared.period[-1, 0] == 200


def test_a_host_that_needs_the_result_of_the_same_step_cannot_run_ahead():
    ahead = replay(work(40, before=[[50.0]], rest_gpu=[[100.0]], lag=1))
    behind = replay(work(40, before=[[50.0]], rest_gpu=[[100.0]], lag=0))
    assert (ahead.period[-1, 0], behind.period[-1, 0]) == (100, 150)


# ── which steps take pages ───────────────────────────────────────────────────────────────────────────────────────────


@pytest.mark.parametrize(("requests", "topup_pages"), [(36, 0), (36, 1), (36, 2), (36, 8), (192, 0), (192, 4)])
def test_steps_allocate_as_often_as_the_reference_rule_makes_them(requests, topup_pages):
    """`dflash_prep`'s own reservation and top-up, request by request."""
    allocator = Allocator(256, 8, 3.5, requests, topup_pages)
    steps = 800 if topup_pages == 0 else 1500 * (1 + topup_pages) * 36 // requests
    ours = draw_allocations(allocator, steps, 16, np.random.default_rng(1)).mean()
    theirs = _share_by_the_reference(allocator, steps, np.random.default_rng(2))
    assert ours == pytest.approx(theirs, rel=0.10)


def _share_by_the_reference(allocator, steps, random):
    page, reserve = allocator.page_size, 2 * allocator.block
    q = hit_rate(allocator.accept_length, allocator.block)
    rule = TopUp(allocator.topup_pages, page, reserve, row_width=1 << 40)
    reqs = [SimpleNamespace(kv=SimpleNamespace(kv_committed_len=int(c), kv_allocated_len=0)) for c in
            random.integers(2000, 2000 + 64 * page, allocator.requests)]  # fmt: skip
    settle, hits = steps // 2, 0
    accepted = np.minimum(random.geometric(1 - q, (settle + steps, len(reqs))), allocator.block).tolist()
    for step, row in enumerate(accepted):
        for req, tokens in zip(reqs, row, strict=True):
            req.kv.kv_committed_len += tokens
        base = page_aligned_decode_alloc_lens(reqs, reserve, page)
        mark, _ = rule.apply(reqs, base, free=1 << 60)
        hits += step >= settle and base.num_needed > 0
        for req, length in zip(reqs, mark.nxt, strict=True):
            req.kv.kv_allocated_len = length
    return hits / steps


def test_the_published_share_of_allocation_steps_comes_out():
    """About 35 % without and 0.7 % with two pages in advance, 36 running, page 256, accept 3.5 (#47685)."""
    shares = [draw_allocations(Allocator(256, 8, 3.5, 36, k), 4000, 8, np.random.default_rng(3)).mean() for k in (0, 2)]
    assert shares[0] == pytest.approx(0.38, abs=0.04)
    assert shares[1] == pytest.approx(0.007, abs=0.001)


def test_new_requests_allocate_in_their_first_step():
    quiet, busy = (
        draw_allocations(Allocator(256, 8, 3.5, 36, 2, arrivals), 4000, 4, np.random.default_rng(4)).mean()
        for arrivals in (0.0, 0.25)
    )
    assert busy > quiet + 0.1


@pytest.mark.parametrize("run", ["h200-floor-short", "h200-floor-short-bs192"])
def test_arrivals_are_counted_as_often_as_the_loop_went_to_admit_somebody(run):
    profile = open_profile(REFERENCE / run)
    admits = int((profile.frame("ranges")["name"] == "admit").sum()) - 1  # that arm enters it only where a row is free
    steps = profile.frame("steps")
    assert admits > 0
    assert paging_of(profile).arrivals * (steps["processed"] > 0).sum() == pytest.approx(admits)


@pytest.mark.parametrize(
    "wrong",
    [{"page_size": 0}, {"accept_length": 9}, {"accept_length": 0.5}, {"topup_pages": 9}, {"arrivals": 40}],
)
def test_an_allocator_that_cannot_be_is_refused(wrong):
    with pytest.raises(UsageError):
        Allocator(**{"page_size": 256, "block": 8, "accept_length": 3.5, "requests": 36, **wrong})


# ── what an agreement costs ──────────────────────────────────────────────────────────────────────────────────────────


def test_the_time_of_an_agreement_is_the_stay_of_the_rank_that_came_last():
    assert measure_communication([trace(0, agreement=900e3), trace(1, agreement=40e3)]).tolist() == [40e3] * 200


def test_a_rank_that_leaves_late_makes_no_agreement_longer():
    late = trace(1, agreement=70e3, leave_skew=30e3)
    assert measure_communication([trace(0, agreement=900e3), late]).tolist() == [40e3] * 200


def test_agreements_are_measured_fitted_given_or_said_to_be_unchanged():
    two, four, eight = ([trace(r, agreement=t) for r in range(n)] for n, t in ((2, 100e3), (4, 200e3), (8, 300e3)))
    assert communication_for(2, [two]).source is CommunicationSource.MEASURED
    assert communication_for(8, [two]).source is CommunicationSource.UNCHANGED
    given = communication_for(32, [two], {32: 900.0})
    assert (given.source, given.mean_ns) == (CommunicationSource.GIVEN, pytest.approx(900e3))
    fitted = communication_for(32, [two, four, eight])
    assert fitted.source is CommunicationSource.FITTED
    assert fitted.mean_ns == pytest.approx(500e3), "100 µs a doubling, as measured"
    assert "log2" in fitted.law


# ── the whole ────────────────────────────────────────────────────────────────────────────────────────────────────────


def test_a_run_predicted_as_it_was_is_what_it_was(control, two_ranks):
    for traces in (control, two_ranks):
        period = np.median(np.concatenate([t.period for t in traces]))
        found = predict([traces], Scenario(len(traces))).figure("step.period")
        assert found.value == pytest.approx(period, rel=0.01)


def test_topup_foretold_from_control_is_as_rare_as_topup_was(control):
    allocator = Allocator(256, 8, 3.5, 36, 2)
    found = predict([control], Scenario(1, allocator=allocator)).figure("alloc.step_share")
    ran = read_traces(open_profile(REFERENCE / "h200-topup-r1"))[0].allocates.mean()
    assert abs(found.value - ran) < 0.003


def test_more_ranks_make_the_last_one_later_and_its_allocation_nearly_certain(two_ranks):
    two, many = (predict([two_ranks], Scenario(n, given_us={n: 500.0})) for n in (2, 32))
    assert many.figure("dp.agreement_tax").value > 2 * two.figure("dp.agreement_tax").value
    assert many.figure("dp.alloc_on_critical_path").value > 0.95


def test_a_gpu_of_half_the_work_leaves_twice_the_room(control):
    whole, half = (predict([control], Scenario(1, gpu_work=factor)) for factor in (1.0, 0.5))
    ratio = whole.figure("GPU may be faster by").value / half.figure("GPU may be faster by").value
    assert ratio == pytest.approx(2, rel=0.05)


def test_the_same_seed_gives_the_same_figures(control):
    found = [predict([control], Scenario(4), redraws=Redraws(40, 100, seed=7)).figures for _ in range(2)]
    assert found[0] == found[1]


def test_what_is_assumed_is_said(two_ranks):
    codes = {f.code for f in predict([two_ranks], Scenario(16)).findings}
    assert codes == {"communication_unchanged"}
    waiting = [replace(t, other_waits=t.period * 0.5) for t in two_ranks]
    assert "waits_taken_as_work" in {f.code for f in predict([waiting], Scenario(2)).findings}


def test_an_arm_that_always_allocates_cannot_say_what_a_step_without_costs():
    always = replace(trace(), allocates=np.ones(200, dtype=bool))
    with pytest.raises(UsageError, match="did without pages"):
        predict([[always]], Scenario(1, allocator=Allocator(256, 8, 3.5, 36, 2)))


def test_more_requests_need_a_range_that_grows_with_them():
    without = replace(trace(), loops=np.zeros(200))
    with pytest.raises(UsageError, match="one more request"):
        predict([[without]], Scenario(1, allocator=Allocator(256, 8, 3.5, 192)), requests=36)


def test_a_capture_without_the_step_is_no_loop_to_predict():
    with pytest.raises(DataError, match="no range nothing"):
        read_traces(open_profile(REFERENCE / "h200-control-r1"), Roles(step="nothing"))


def test_of_a_duet_only_the_blocks_of_the_arm_are_replayed():
    """Blocks of 20 steps of two arms, in turns; the last step of a block ends where the other arm's block begins."""
    start = np.arange(100) * 1e6
    at, text = [], []
    for pair, begin in enumerate(range(0, 100, 20)):
        arm = ("control", "topup")[pair % 2]
        at += [start[begin] - 1, start[begin] + 20e6 - 2]
        text += [f"dflash_bench duet pair={pair} arm={arm} {what}" for what in ("open", "close")]
    marks = pd.DataFrame({"rank": 0, "start_ns": at, "text": text})
    inside = _in_blocks(replace(trace(n=100), start=start), marks, "topup")
    assert np.flatnonzero(inside).tolist() == [*range(20, 39), *range(60, 79)]


def test_the_page_shows_every_prediction_over_the_ranks_and_holds_the_json(cli, tmp_path):
    page = tmp_path / "predict.html"
    done = cli("predict", "h200x2-control-r1", "--profiles", REFERENCE, "--ranks", "2", "8", "-o", page)
    assert done.exit_code == 0
    text = page.read_text(encoding="utf-8")
    assert text.count('<circle class="at"') == 2 * 2, "period and tax, at two and at eight ranks"
    held = json.loads(text.split('id="document">')[1].split("</script>")[0])
    assert [p["ranks"] for p in held["predictions"]] == [2, 8]
    assert "http" not in text.replace("http-equiv", "").replace("www.w3.org", "")


# ── the command ──────────────────────────────────────────────────────────────────────────────────────────────────────


def test_the_command_says_the_answer_first_and_takes_ranks_in_three_spellings(cli):
    run = "h200x2-control-r1", "--profiles", REFERENCE
    spelled = [("--ranks", "2", "8"), ("--ranks", "2,8"), ("--ranks", "2", "--ranks", "8")]
    found = [cli("predict", *run, *words) for words in spelled]
    assert [f.exit_code for f in found] == [0, 0, 0]
    assert found[0].stdout == found[1].stdout == found[2].stdout
    lines = found[0].stdout.splitlines()
    assert lines[1].startswith("2 ranks: step 9.5")
    assert "the GPU may get" in lines[1]


def test_json_holds_the_figures_of_every_scenario(cli):
    done = cli(
        "predict", "h200-control-r1", "--profiles", REFERENCE, "--topup-pages", "0-2", "--requests", "36", "--json"
    )
    found = json.loads(done.stdout)["predictions"]
    assert [p["topup_pages"] for p in found] == [0, 1, 2]
    shares = [p["figures"]["alloc.step_share"]["value"] for p in found]
    assert shares == sorted(shares, reverse=True)
    assert all(f["low"] <= f["value"] <= f["high"] for p in found for f in p["figures"].values())


@pytest.mark.parametrize(
    ("words", "says"),
    [
        (["--ranks", "many"], "--ranks takes whole numbers"),
        (["--gpu-work", "-1"], "--gpu-work must be above 0"),
        (["--agreement-us", "900"], "--agreement-us takes RANKS:µs"),
        (["--arm", "legacy"], "only a run can tell"),
        (["--arm", "nosuch"], "unknown arm"),
        (["--topup-pages", "9"], "0 to 8"),
        (["--ranks", "3", "--ranks-per-gpu", "2"], "cannot share"),
    ],
)
def test_a_wrong_option_is_one_sentence_and_exit_2(cli, words, says):
    done = cli("predict", "h200-control-r1", "--profiles", REFERENCE, *words)
    assert done.exit_code == 2
    assert says in " ".join(done.stderr.split())
