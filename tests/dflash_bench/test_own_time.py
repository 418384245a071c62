"""Time before the agreement goes to the innermost range, whichever way it is counted."""

from __future__ import annotations

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from dflash_bench.metrics.events.arrays import compact
from dflash_bench.metrics.events.intervals import Intervals, intervals, own_time, own_time_of_overlapping

Spans = list[tuple[int, int]]


@st.composite
def nested(draw: st.DrawFn) -> Spans:
    """Intervals on [0, 200) of which each ends within the one it begins in."""
    found: Spans = []

    def fill(begin: int, end: int, depth: int) -> None:
        at = begin
        while depth and at < end and draw(st.booleans()):
            start = draw(st.integers(at, end - 1))
            stop = draw(st.integers(start + 1, end))
            found.append((start, stop))
            fill(start, stop, depth - 1)
            at = stop

    fill(0, 200, 4)
    return found


def brute(index: Intervals, name: list[int], num_names: int, windows: Spans) -> np.ndarray:
    """Instant by instant: the interval with the latest start that holds it."""
    total = np.zeros((num_names + 1, len(windows)))
    for k, (begin, stop) in enumerate(windows):
        for t in range(begin, stop):
            holding = [i for i in range(len(index)) if index.start[i] <= t < index.end[i]]
            total[name[holding[-1]] if holding else num_names, k] += 1
    return total


def windows_of(cuts: list[int]) -> Spans:
    edges = sorted(set(cuts))
    return [(a, b) for a, b in zip(edges[::2], edges[1::2], strict=False)]


def arrays(spans: Spans) -> tuple[np.ndarray, np.ndarray]:
    pairs = np.asarray(spans, np.int64).reshape(-1, 2)
    return pairs[:, 0], pairs[:, 1]


@given(nested(), st.lists(st.integers(0, 200), max_size=12))
def test_of_nested_ranges_both_ways_count_what_instants_show(spans: Spans, cuts: list[int]) -> None:
    index = intervals(*arrays(spans))
    assert index.is_nested
    name = [k % 3 for k in range(len(spans))]
    windows = windows_of(cuts)
    begin, stop = arrays(windows)
    wanted = brute(index, name, 3, windows)
    code = np.asarray(name, np.int64)
    assert np.array_equal(own_time(index, code, 3, begin, stop), wanted)
    assert np.array_equal(own_time_of_overlapping(index, code, 3, begin, stop), wanted)


@given(
    st.lists(st.tuples(st.integers(0, 60), st.integers(1, 40)).map(lambda p: (p[0], p[0] + p[1])), max_size=8),
    st.lists(st.integers(0, 100), max_size=8),
)
def test_of_overlapping_ranges_pieces_count_what_instants_show(spans: Spans, cuts: list[int]) -> None:
    index = intervals(*arrays(spans))
    name = [k % 3 for k in range(len(spans))]
    windows = windows_of(cuts)
    found = own_time_of_overlapping(index, np.asarray(name, np.int64), 3, *arrays(windows))
    assert np.array_equal(found, brute(index, name, 3, windows))


@given(nested(), st.lists(st.tuples(st.integers(0, 100), st.integers(1, 50), st.integers(1, 50)), max_size=4))
def test_of_a_step_that_agrees_twice_both_windows_count(spans: Spans, steps: list[tuple[int, int, int]]) -> None:
    """Both begin where the step begins, the second ends later: what lies in both counts for both."""
    index = intervals(*arrays(spans))
    name = [k % 3 for k in range(len(spans))]
    begins = np.cumsum([b for b, _, _ in steps])
    windows = [
        (b, b + extent) for b, (_, one, two) in zip(begins.tolist(), steps, strict=True) for extent in (one, one + two)
    ]
    windows = [w for k, w in enumerate(windows) if all(w[1] >= earlier[1] for earlier in windows[:k])]
    wanted = brute(index, name, 3, windows)
    for count in (own_time, own_time_of_overlapping):
        assert np.array_equal(count(index, np.asarray(name, np.int64), 3, *arrays(windows)), wanted)


def test_ranges_that_end_outside_the_one_they_begin_in_do_not_nest() -> None:
    assert not intervals(*arrays([(0, 10), (5, 15)])).is_nested
    assert intervals(*arrays([(0, 10), (10, 15), (11, 15)])).is_nested
    assert intervals(*arrays([])).is_nested


@given(st.lists(st.integers(0, 9)))
def test_compact_is_unique_with_its_inverse(codes: list[int]) -> None:
    values = np.asarray(codes, np.int64)
    used, place = compact(values)
    wanted, inverse = np.unique(values, return_inverse=True)
    assert used.tolist() == wanted.tolist()
    assert place.tolist() == inverse.tolist()


@given(st.lists(st.tuples(st.integers(0, 60), st.integers(0, 40)).map(lambda p: (p[0], p[0] + p[1])), max_size=12))
def test_outer_is_the_nearest_earlier_interval_that_ends_later(spans: Spans) -> None:
    index = intervals(*arrays(spans))
    for k in range(len(index)):
        earlier = [i for i in range(k) if index.end[i] > index.end[k]]
        assert index.outer[k] == (earlier[-1] if earlier else -1)
