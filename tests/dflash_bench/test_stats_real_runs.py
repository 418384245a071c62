"""False verdicts on real runs: one code, one machine, ten runs, dealt to two sides in every possible way.

The runs are those of ``tests/data/gate-demo``: four ranks of the decode loop on a busy 2-core machine, so they are
noisy, and nobody chose how. Every *improved* and *regressed* between them is false. The runs with 150 µs planted on
rank 2 are the other way round: every deal in which it is not found is a miss.
"""

from __future__ import annotations

from itertools import combinations
from pathlib import Path

import numpy as np
import pytest
from simulated_runs import judge_both

from dflash_bench.metrics.measure import measure
from dflash_bench.metrics.registry import spec
from dflash_bench.metrics.summary import figure
from dflash_bench.model import Verdict
from dflash_bench.profile import open_profile
from dflash_bench.stats.shift import of_runs

PROFILES = Path(__file__).parents[1] / "data" / "gate-demo" / "profiles"
NAMES = [f"{arm}-r{k}" for arm in ("base", "same") for k in range(1, 6)]
FALSE = (Verdict.IMPROVED, Verdict.REGRESSED)


@pytest.fixture(scope="module")
def runs():
    return [measure(open_profile(PROFILES / name)) for name in NAMES]


@pytest.fixture(scope="module")
def slow():
    return [measure(open_profile(PROFILES / f"slow-r{k}")) for k in (1, 2, 3)]


@pytest.mark.soak
def test_at_most_5_percent_of_all_252_ways_to_deal_ten_runs_reach_5_percent(runs):
    """Each judged metric and rank for itself, without any tolerance: nothing but the statistics stands in the way."""
    shares = []
    for key in dict.fromkeys((m.name, m.rank) for m in runs[0].metrics if spec(m.name).is_judged):
        found = [m for run in runs if (m := run.find(*key)) is not None]
        figures = [figure(m) for m in found]
        if len(figures) < 10 or len(set(figures)) == 1:
            continue
        deals = [set(base) for base in combinations(range(10), 5)]
        rare = [
            of_runs([figures[k] for k in base], [figures[k] for k in range(10) if k not in base]).p <= 0.05
            for base in deals
        ]
        shares.append(np.mean(rare))
    assert len(shares) > 40
    assert np.mean(shares) <= 0.05


@pytest.mark.parametrize("deals", [5, pytest.param(200, marks=pytest.mark.soak)])
def test_hardly_a_comparison_of_one_code_holds_a_false_verdict(runs, deals):
    """As `compare` judges: all metrics and ranks at once. Three runs a side of a machine that interrupts its runs all
    the time: costs differ by half from run to run, in two modes, and three runs cannot know that."""
    rng, wrong = np.random.default_rng(0), 0
    for _ in range(deals):
        order = rng.permutation(10)
        found = judge_both([runs[k] for k in order[:3]], [runs[k] for k in order[3:6]])
        wrong += any(j.verdict in FALSE for j in found.each)
    assert wrong <= max(1, 0.15 * deals)


def test_exact_counts_are_the_same_in_all_ten_runs(runs):
    """The same seed and steps: not one of them may differ, however busy the machine was."""
    for name in ("alloc.step_share", "launch.calls_per_step", "tokens.committed", "accept.length", "retracted"):
        counts = {tuple(run.find(name, rank).values.tolist()) for run in runs for rank in (0,)}
        assert len(counts) == 1, name


@pytest.mark.parametrize("every", [20, pytest.param(1, marks=pytest.mark.soak)])
def test_150_us_on_one_rank_of_four_are_found_by_three_runs_a_side(runs, slow, every):
    """Of the 120 ways to choose three of the ten runs without the delay."""
    found = []
    for chosen in [*combinations(range(10), 3)][::every]:
        judged = judge_both([runs[k] for k in chosen], slow)
        worse = {j.rank for j in judged.of(Verdict.REGRESSED) if j.metric == "cost.prepare_for_decode"}
        found.append(worse == {2})
    assert np.mean(found) >= 0.95
