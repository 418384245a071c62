"""False verdicts on real runs: one code, one machine, ten runs, dealt to two arms in every possible way.

The runs are those of ``tests/data/gate-demo``: four ranks of the decode loop on a busy 2-core machine, so they are
noisy, and nobody chose how. Every verdict other than "unchanged" and "inconclusive" is false.
"""

from __future__ import annotations

from collections.abc import Iterator
from itertools import combinations
from pathlib import Path

import pytest
from simulated_runs import judge_both

from dflash_bench.metrics.measure import measure
from dflash_bench.metrics.registry import Noise
from dflash_bench.model import Better
from dflash_bench.profile import open_profile
from dflash_bench.stats.judgement import Verdict
from dflash_bench.stats.noise import noise
from dflash_bench.stats.repeats import Repeat, repeats
from dflash_bench.stats.rules import Rules
from dflash_bench.stats.shift import shift
from dflash_bench.stats.verdict import conclude

PROFILES = Path(__file__).parents[1] / "data" / "gate-demo" / "profiles"
NAMES = [f"{arm}-r{k}" for arm in ("base", "same") for k in range(1, 6)]
FALSE = (Verdict.IMPROVED, Verdict.REGRESSED)

JUDGED = {
    Noise.RELATIVE: ("step.period", "range.prepare_for_decode", "range.fill", "range.verify", "tokens.per_s"),
    Noise.LEVEL: (
        "step.lead",
        "launch.lead",
        "stall.total_per_step",
        "sync.total_per_step",
        "dp.wait",
        "alloc.step_cost",
    ),
    Noise.SHARE: ("launch.run_ahead_fraction", "graph.run_ahead_fraction", "dp.straggler_share"),
}
"""Some of each kind: times with few and many samples, what is left between two times, shares of events."""


@pytest.fixture(scope="module")
def runs():
    return [measure(open_profile(PROFILES / name)) for name in NAMES]


def figures(runs, name) -> Iterator[list[Repeat]]:
    """The ten runs as repeats, for each rank that has the metric and pooled."""
    for rank in (None, 0, 1, 2, 3):
        found = [repeats([run.find(name, rank)]) for run in runs]
        if all(found):
            yield [own for (own,) in found]


def dealt(ten: list[Repeat], num: int) -> Iterator[tuple[list[Repeat], list[Repeat]]]:
    """Two arms of ``num`` runs each, in every way there is."""
    for chosen in combinations(range(len(ten)), 2 * num):
        for base in combinations(chosen, num):
            sides = [k for k in chosen if k in base], [k for k in chosen if k not in base]
            yield tuple(sorted((ten[k] for k in side), key=lambda r: r.figure) for side in sides)


@pytest.mark.parametrize("kind", list(JUDGED))
def test_at_most_5_percent_of_all_252_ways_to_deal_ten_runs_give_a_false_verdict(runs, kind):
    """Without any tolerance, and each metric for itself: nothing but the statistics stands against a false verdict."""
    for name in JUDGED[kind]:
        assert noise(name) is kind
        every = list(figures(runs, name))
        assert every, name
        for ten in every:
            verdicts = [
                conclude(found, 0.0, Better.LOWER, found.p, 0.05)[0]
                for k, (base, candidate) in enumerate(dealt(ten, 5))
                for found in [shift(base, candidate, 0.0, seed=k)]
            ]
            assert len(verdicts) == 252
            assert sum(v in FALSE for v in verdicts) <= 0.05 * len(verdicts), name


def test_exact_counts_are_the_same_in_all_ten_runs(runs):
    """The same seed and steps: not one of them may differ, however busy the machine was."""
    for name in ("alloc.step_share", "launch.calls_per_step", "tokens.committed", "accept.length", "retracted"):
        counts = {tuple(run.find(name, rank).values.tolist()) for run in runs for rank in (0,)}
        assert len(counts) == 1, name


def test_base_against_same_gives_no_verdict_on_anything(runs):
    """As `compare` judges: all metrics and ranks at once, with the tolerances and the correction that it has."""
    found = judge_both(runs[:5], runs[5:], Rules())
    assert found.num_tests > 100
    assert [(j.metric, j.rank) for v in FALSE for j in found.of(v)] == []
