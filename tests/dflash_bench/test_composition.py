"""Runs that consist of different kinds of steps are compared with a warning, runs that consist of the same without."""

from __future__ import annotations

import numpy as np
import pytest
from simulated_runs import KINDS, compare_both, compare_pair, metric, run

from dflash_bench.baseline.folder import find, save
from dflash_bench.gate.decision import decide
from dflash_bench.gate.policy import MetricPolicy, Policy
from dflash_bench.model import Metric, Sides, Statistic, Unit
from dflash_bench.stats.composition import composition


def made_of(name="run", *, ranks=2, **steps):
    """A run with so many steps of each kind on every rank."""
    rng = np.random.default_rng(0)
    counts = [
        Metric(f"steps@{kind}", rank, Unit.COUNT, Statistic.VALUE, np.array([float(num)]))
        for kind, num in steps.items()
        for rank in range(ranks)
    ]
    return run([metric(rng, KINDS["time"], rank=0), *counts], name)


def codes(comparison):
    return [f.code for f in comparison.findings]


def test_the_share_of_each_kind_is_over_all_ranks_and_runs():
    assert composition([made_of(decode=90, prefill=10), made_of(decode=100)]) == {"decode": 0.95, "prefill": 0.05}


@pytest.mark.parametrize(
    ("base", "candidate", "is_marked"),
    [
        ({"decode": 100}, {"decode": 100}, False),
        ({"decode": 95, "prefill": 5}, {"decode": 190, "prefill": 10}, False),
        ({"decode": 100}, {"decode": 98, "eager": 2}, False),
        ({"decode": 100}, {"decode": 90, "eager": 10}, True),
        ({"decode": 95, "prefill": 5}, {"decode": 80, "prefill": 20}, True),
        ({"decode": 100}, {}, False),
    ],
)
def test_a_comparison_of_unlike_steps_is_marked(base, candidate, is_marked):
    """The kinds may differ by two points; a run that does not tell its steps apart is not called unlike."""
    found = compare_pair(made_of(**base), made_of(**candidate))
    assert ("different_composition" in codes(found)) == is_marked
    arms, _ = compare_both([made_of(**base)] * 2, [made_of(**candidate)] * 2)
    assert ("different_composition" in codes(arms)) == is_marked


def test_the_warning_states_both_mixes():
    (found,) = compare_pair(made_of(decode=100), made_of(decode=90, eager=10)).findings
    assert "decode 100.0 % against 90.0 %, eager 0.0 % against 10.0 %" in found.text


def test_the_gate_warns_too_and_a_baseline_remembers_what_its_runs_consisted_of(tmp_path):
    save(tmp_path, [made_of(str(k), decode=100) for k in range(3)])
    new = made_of("new", decode=80, prefill=20)
    base = find(tmp_path, new.info).run_metrics()
    assert composition(base) == {"decode": 1.0}
    sides = Sides(base, (new,), is_baseline=True)
    found = decide(sides, Policy(metrics={"step.period": MetricPolicy()}), 0.05)
    assert "different_composition" in [f.code for f in found.findings]
