"""Which interval holds an instant: against brute force, for every way in which intervals can lie to each other."""

from __future__ import annotations

import numpy as np
from handmade import ints
from hypothesis import given
from hypothesis import strategies as st

from dflash_bench.metrics.events.intervals import NONE, intervals

# small numbers, so that equal starts, equal ends, zero lengths and nesting all come up often
INTERVALS = st.lists(st.tuples(st.integers(-20, 20), st.integers(0, 15)), max_size=25)
INSTANTS = st.lists(st.integers(-25, 40), max_size=20)


def made(found):
    return [(start, start + length) for start, length in found]


def innermost(pairs, t):
    """By the definition: of those that hold t the latest start, of equal starts the shortest."""
    held = [(start, -end) for start, end in pairs if start <= t < end]
    return max(held, default=None)


@given(INTERVALS, INSTANTS)
def test_the_innermost_interval_is_the_one_with_the_latest_start_that_holds_the_instant(found, instants):
    pairs = made(found)
    index = intervals(ints(a for a, _ in pairs), ints(b for _, b in pairs))
    held = index.holding(ints(instants))
    for t, k in zip(instants, held, strict=True):
        expected = innermost(pairs, t)
        assert (None if k == NONE else (index.start[k], -index.end[k])) == expected
        if k != NONE:
            assert pairs[index.source[k]] == (index.start[k], index.end[k])


@given(INTERVALS)
def test_the_parent_of_an_interval_is_the_innermost_earlier_one_that_holds_its_start(found):
    pairs = made(found)
    index = intervals(ints(a for a, _ in pairs), ints(b for _, b in pairs))
    ordered = sorted(pairs, key=lambda p: (p[0], -p[1]))
    for k, parent in enumerate(index.parents):
        start = ordered[k][0]
        held = [j for j in range(k) if ordered[j][0] <= start < ordered[j][1]]
        expected = max((ordered[j][0], -ordered[j][1]) for j in held) if held else None
        assert (None if parent == NONE else (index.start[parent], -index.end[parent])) == expected


@given(INTERVALS)
def test_the_order_in_which_intervals_are_given_does_not_matter(found):
    pairs = made(found)
    t = np.arange(-25, 40)
    one = intervals(ints(a for a, _ in pairs), ints(b for _, b in pairs))
    two = intervals(ints(a for a, _ in reversed(pairs)), ints(b for _, b in reversed(pairs)))
    for a, b in zip(one.holding(t), two.holding(t), strict=True):
        assert (a == NONE) == (b == NONE)
        if a != NONE:
            assert (one.start[a], one.end[a]) == (two.start[b], two.end[b])


def test_an_interval_ends_before_its_end_and_one_of_no_length_holds_nothing():
    index = intervals(ints([0, 5]), ints([10, 5]))
    assert index.holding(ints([-1, 0, 5, 9, 10])).tolist() == [NONE, 0, 0, 0, NONE]


def test_a_hundred_thousand_overlapping_intervals_take_no_loop():
    """A staircase, each begun before the last one ends: the worst case of a search that steps back one by one."""
    n = 100_000
    start = np.arange(n, dtype=np.int64)
    index = intervals(start, start + 1 + (n - start) // 2)
    assert len(index.parents) == n
    assert index.holding(ints([n + n])).tolist() == [NONE]
