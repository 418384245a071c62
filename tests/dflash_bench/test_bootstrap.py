"""The interval inside one run: what a resample is, and long runs, which are cut into stretches instead."""

from __future__ import annotations

import numpy as np
import pytest

from dflash_bench.metrics.measurements import metric
from dflash_bench.stats import bootstrap
from dflash_bench.stats.bootstrap import difference_interval


def steps(rng, num, shift=0.0, memory=0.6):
    """Step lengths of which each remembers the one before, in ns."""
    noise, found = rng.standard_normal(num + 50), np.zeros(num + 50)
    for k in range(1, num + 50):
        found[k] = memory * found[k - 1] + noise[k]
    return 1e6 + shift + 1e4 * found[50:]


@pytest.mark.parametrize("name", ["step.period", "cost.prepare_for_decode"])
def test_it_is_as_wide_as_that_of_the_bootstrap(name, monkeypatch):
    rng = np.random.default_rng(3)
    base, candidate = (metric(name, 0, steps(rng, 6000, shift)) for shift in (0.0, 3000.0))
    found = difference_interval(base, candidate)
    monkeypatch.setattr(bootstrap, "_MANY_STEPS", 10**9)
    drawn = difference_interval(base, candidate)
    assert found.low < 3000 < found.high
    assert (found.high - found.low) / (drawn.high - drawn.low) == pytest.approx(1, abs=0.35)
    assert (found.high + found.low) / 2 == pytest.approx(
        (drawn.high + drawn.low) / 2, abs=0.2 * (drawn.high - drawn.low)
    )


def test_it_covers_the_truth_as_often_as_it_says():
    rng = np.random.default_rng(11)
    held = 0
    for _ in range(100):
        found = difference_interval(*(metric("step.period", 0, steps(rng, 5000, memory=0.4)) for _ in range(2)))
        held += found.low <= 0 <= found.high
    assert held >= 89  # of 95 that are meant: less is seen in one of a hundred such tests


def test_samples_of_a_step_stay_together_and_steps_may_lack_some():
    rng = np.random.default_rng(5)
    block = np.sort(rng.choice(20_000, 9_000))
    values = 1e6 + 1e5 * rng.standard_normal(20_000)[block]
    base, candidate = (metric("launch.lead", 0, values + shift, block=block) for shift in (0.0, 2e4))
    found = difference_interval(base, candidate)
    assert (found.low + found.high) / 2 == pytest.approx(2e4)
    assert found.high - found.low < 2e4


@pytest.mark.parametrize(
    ("name", "of"),
    [
        ("step.period", np.median),
        ("cost.prepare_for_decode", np.mean),
        ("cost.prepare_for_decode.p99", lambda values: np.percentile(values, 99)),
    ],
)
def test_a_resample_is_what_its_steps_hold_as_often_as_they_are_drawn(name, of):
    """Steps of no, one or several samples, against the samples written out."""
    rng = np.random.default_rng(8)
    block = np.repeat(np.arange(40), rng.integers(0, 4, 40))
    made = metric(name, 0, rng.integers(0, 50, len(block)).astype(float), block=block)
    blocks = bootstrap._blocks(made)
    times = rng.integers(0, 3, (30, len(blocks))).astype(np.int32)
    found = bootstrap._statistics(made, blocks, times)
    steps = np.unique(block)
    for row, value in zip(times, found, strict=True):
        written = np.concatenate([np.repeat(made.values[block == s], k) for s, k in zip(steps, row, strict=True)])
        assert value == pytest.approx(of(written))
