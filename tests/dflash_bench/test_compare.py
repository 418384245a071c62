"""Two runs side by side: figures, differences, intervals."""

from __future__ import annotations

import json

import numpy as np
import pytest
from handmade import Range, mark, write

from dflash_bench.compare import change
from dflash_bench.metrics.measurements import metric
from dflash_bench.model import Better
from dflash_bench.stats.bootstrap import difference_interval


def samples(values, name="step.period", rank=0):
    values = np.asarray(values, float)
    return metric(name, rank, values, block=np.arange(len(values)))


# ── one metric ──────────────────────────────────────────────────────────────────────────────────────────────────────


def test_a_change_is_candidate_minus_base_and_candidate_over_base():
    found = change(samples([10, 20, 30]), samples([40, 50, 60]))
    assert (found.base, found.candidate, found.difference, found.ratio) == (20, 50, 30, 2.5)
    assert (found.base_n, found.candidate_n) == (3, 3)
    assert found.better is Better.LOWER


def test_what_one_side_lacks_has_no_difference():
    found = change(samples([10]), None)
    assert (found.base, found.candidate, found.difference, found.ratio, found.interval) == (10, None, None, None, None)
    assert change(None, samples([10])).base_n == 0


@pytest.mark.parametrize(("old", "new", "ratio"), [(-500, 6000, None), (0, 5, None), (-100, -50, 0.5), (10, 0, 0)])
def test_a_ratio_across_zero_means_nothing(old, new, ratio):
    found = change(samples([old], "step.lead"), samples([new], "step.lead"))
    assert found.ratio == ratio
    assert found.difference == new - old


# ── intervals ───────────────────────────────────────────────────────────────────────────────────────────────────────


def noise(seed, n=120, correlation=0.0):
    """AR(1) noise with standard deviation 1 around 100."""
    rng = np.random.default_rng(seed)
    found, last = [], rng.standard_normal()
    for step in rng.standard_normal(n):
        last = correlation * last + np.sqrt(1 - correlation**2) * step
        found.append(100 + last)
    return np.array(found)


def test_the_interval_is_the_same_for_the_same_samples():
    first = difference_interval(samples(noise(1)), samples(noise(2)))
    assert first == difference_interval(samples(noise(1)), samples(noise(2)))
    assert first.low < first.high
    assert first.confidence == 0.95


def test_equal_sides_hold_zero_and_a_far_side_does_not():
    same = difference_interval(samples(noise(1)), samples(noise(2)))
    assert same.low < 0 < same.high
    far = difference_interval(samples(noise(1)), samples(noise(2) + 5))
    assert 4 < far.low < 5.5 < far.high + 1


def test_swapping_the_sides_flips_the_sign():
    there = difference_interval(samples(noise(1)), samples(noise(2) + 5))
    back = difference_interval(samples(noise(2) + 5), samples(noise(1)))
    assert back.low == pytest.approx(-there.high, abs=0.1)
    assert back.high == pytest.approx(-there.low, abs=0.1)


def test_single_values_and_a_handful_of_steps_have_no_interval():
    value = metric("retracted", 0, np.array([5.0]))
    assert difference_interval(value, value) is None
    assert difference_interval(samples([1, 2, 3, 4]), samples(noise(1))) is None


def test_many_launches_of_few_steps_are_few_steps():
    """Launches of one step come and go together: 4 steps of 50 launches are no 200 samples."""
    values = noise(1, 200)
    few = metric("launch.lead", 0, values, block=np.arange(200) // 50)
    assert difference_interval(few, few) is None


@pytest.mark.parametrize(("correlation", "at_least"), [(0.0, 0.88), (0.6, 0.80)])
def test_nine_in_ten_intervals_hold_the_truth_also_when_steps_are_correlated(correlation, at_least):
    """50 pairs of runs without a difference; drawn step by step, correlated ones would be held two in three times."""
    pairs = [(noise(k, 150, correlation), noise(1000 + k, 150, correlation)) for k in range(50)]
    found = [difference_interval(samples(a), samples(b)) for a, b in pairs]
    held = np.mean([i.low <= 0 <= i.high for i in found])
    assert at_least <= held <= 1.0


def test_a_difference_of_medians_has_an_interval():
    rng = np.random.default_rng(5)
    group = np.arange(100) % 3 == 0
    cost = [np.where(group, 600 + extra, 100) + rng.standard_normal(100) for extra in (0, 50)]
    base, candidate = (metric("alloc.step_cost", 0, c, group=group, block=np.arange(100)) for c in cost)
    found = difference_interval(base, candidate)
    assert 45 < found.low <= found.high < 55


# ── two runs, through the command line ──────────────────────────────────────────────────────────────────────────────


@pytest.fixture
def arms(tmp_path, cli):
    """Two profiles of one workload: arm `slow` and arm `fast`, 20 steps each."""
    for arm, length in (("slow", 80), ("fast", 50)):
        steps = [Range("decode_step", 1000 * k, 1000 * k + length + k % 3) for k in range(20)]
        path = write(tmp_path / f"{arm}.sqlite", [mark(0, 1, arm), *steps])
        found = cli("ingest", path, "--workload", "w", "--profiles", tmp_path / "profiles")
        assert found.exit_code == 0, found.output
    return tmp_path / "profiles"


def changes(found):
    assert found.exit_code == 0, found.output
    return {(c["rank"], c["metric"]): c for c in json.loads(found.stdout)["comparison"]}


def test_without_names_the_two_newest_arms_are_compared_and_named_aloud(cli, arms):
    found = cli("compare", "--json", "--profiles", arms)
    assert found.stderr.splitlines()[0].startswith("base slow, candidate fast (by arm, else by time of capture")
    row = changes(found)[0, "range.decode_step"]
    assert (row["base"], row["candidate"], row["difference"]) == (81, 51, -30)
    assert row["low"] <= -30 <= row["high"]
    assert row["better"] == "lower"


def test_a_folder_with_both_arms_is_enough(cli, arms, tmp_path):
    found = cli("compare", tmp_path / "slow.sqlite", tmp_path / "fast.sqlite", "--json", "--profiles", arms)
    assert changes(found)[0, "range.decode_step"]["difference"] == -30


def test_a_run_against_itself_differs_in_nothing(cli, arms):
    for row in changes(cli("compare", "slow", "slow", "--json", "--profiles", arms)).values():
        assert row["difference"] == 0


def test_one_run_alone_is_a_usage_error(cli, arms):
    found = cli("compare", "slow", "--profiles", arms)
    assert found.exit_code == 2
    assert "compare it with what?" in found.stderr


def test_runs_under_other_circumstances_are_compared_with_a_warning(cli, arms, tmp_path):
    path = write(tmp_path / "other.sqlite", [mark(0, 2, "other"), Range("decode_step", 0, 50)])
    assert cli("ingest", path, "--workload", "v", "--profiles", arms).exit_code == 0
    found = cli("compare", "slow", "other", "--json", "--profiles", arms)
    codes = {w["code"] for w in json.loads(found.stdout)["warnings"]}
    assert {"different_workload", "different_world"} <= codes


def test_markdown_is_written_whole_and_said(cli, arms, tmp_path):
    target = tmp_path / "deep" / "report.md"
    found = cli("compare", "slow", "fast", "--markdown", target, "--profiles", arms)
    assert found.exit_code == 0
    assert f"written: {target}" in found.stderr
    text = target.read_text()
    assert "decode\\_step" in text
    assert [p.name for p in target.parent.iterdir()] == ["report.md"]


def test_markdown_that_cannot_be_written_is_an_error(cli, arms, tmp_path):
    (tmp_path / "file").write_text("")
    found = cli("compare", "slow", "fast", "--markdown", tmp_path / "file" / "x.md", "--profiles", arms)
    assert found.exit_code == 5
    assert "could not be written" in found.stderr
