"""Families of p-values: by hand, and against the definitions."""

from __future__ import annotations

import itertools

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.stats import false_discovery_control

from dflash_bench.stats.families import benjamini_hochberg, hommel, simes

p_values = st.lists(st.floats(1e-9, 1), min_size=1, max_size=7)


def test_simes_by_hand():
    """Of 4 p-values the smallest counts four times, the second twice, the third 4/3 times."""
    assert simes([0.01, 0.02, 0.03, 0.9]) == pytest.approx(0.04)
    assert simes([0.04]) == 0.04
    assert simes([]) == 1.0


@given(p_values)
@settings(deadline=None)
def test_hommel_is_the_closed_test_of_simes(p):
    """An adjusted p-value is the largest of Simes' over all families that hold it: so is the procedure defined."""
    wanted = [
        max(
            simes([p[j] for j in chosen])
            for size in range(1, len(p) + 1)
            for chosen in itertools.combinations(range(len(p)), size)
            if k in chosen
        )
        for k in range(len(p))
    ]
    assert hommel(p) == pytest.approx(wanted)


@given(p_values)
def test_benjamini_and_hochberg_is_that_of_scipy(p):
    assert benjamini_hochberg(p) == pytest.approx(false_discovery_control(p, method="bh"), rel=1e-12)
    assert benjamini_hochberg([]) == []


def test_where_nothing_changed_any_verdict_comes_in_five_of_a_hundred():
    rng = np.random.default_rng(0)
    rare = [min(hommel(rng.random(6))) <= 0.05 for _ in range(2000)]
    assert 0.035 <= np.mean(rare) <= 0.065
