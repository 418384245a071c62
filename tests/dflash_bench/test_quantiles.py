"""Sums and quantiles of many numbers: the same as NumPy's, to the last bit, however they are counted."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from dflash_bench.metrics import quantiles, shelf
from dflash_bench.metrics.quantiles import at_places, mean, median, totals
from dflash_bench.metrics.shelf import Part, Shelf, chunks

PERCENT = (50, 90, 99)
whole = st.lists(st.integers(-(1 << 40), 1 << 40) | st.integers(0, 5), min_size=1, max_size=200)


@pytest.fixture(autouse=True)
def _small_is_large(monkeypatch):
    """What holds for a million numbers in chunks of 262,144 is tried with a few in chunks of seven."""
    monkeypatch.setattr(quantiles, "LARGE", 1)
    monkeypatch.setattr(quantiles, "CHUNK", 7)
    monkeypatch.setattr(shelf, "CHUNK", 7)


def as_numpy(values):
    return tuple(np.percentile(values, PERCENT).tolist()), float(values.mean()), float(values.sum())


def found(values):
    result = totals(values, PERCENT)
    return result.quantiles, result.mean, result.total


@given(whole)
@example([5] * 50)
@example([0, 1 << 62])
def test_whole_numbers(numbers):
    values = np.array(numbers, np.float64)
    assert found(values) == as_numpy(values)
    assert mean(values) == float(values.mean())
    parts = [Part.of(np.array(numbers[:3], np.int64)), Part.of(np.array(numbers[3:], np.int64))]
    assert median(parts) == float(np.median(np.array(numbers)))


@given(st.lists(st.floats(allow_nan=False, allow_infinity=False, width=32), min_size=1, max_size=60))
@example([0.5, 1.5])
@example([float(1 << 53), 1.0, 1.0])
def test_numbers_that_are_not_whole_or_too_large_to_be_added_in_any_order(numbers):
    values = np.array(numbers)
    assert found(values) == as_numpy(values)
    assert mean(values) == float(values.mean())


@given(whole, st.data())
def test_numbers_at_places_of_the_order(numbers, data):
    places = sorted(data.draw(st.sets(st.integers(0, len(numbers) - 1), min_size=1)))
    parts = [np.array(numbers[at : at + 4], np.int64) for at in range(0, len(numbers), 4)]
    assert at_places(lambda: parts, places) == [sorted(numbers)[place] for place in places]


@given(st.lists(st.integers(0, 20), max_size=6))
def test_parts_of_any_size_come_as_chunks_of_one_size(sizes):
    numbers = np.arange(sum(sizes))
    parts = [Part.of(part) for part in np.split(numbers, np.cumsum(sizes))]
    arrays = list(chunks(parts))
    assert [len(array) for array in arrays[:-1]] == [7] * (len(arrays) - 1)
    assert [int(number) for array in arrays for number in array] == numbers.tolist()


@pytest.mark.parametrize("largest", [(1 << 31) - 1, 1 << 31, -(1 << 31), -(1 << 31) - 1])
def test_whole_numbers_take_four_bytes_on_a_shelf_where_all_of_them_fit(tmp_path, largest):
    place = Shelf(tmp_path / "shelf")
    part = place.put_arrays([np.array([1, 2]), np.array([largest, 3])], np.float64)
    assert place.size == 4 * (4 if -(1 << 31) <= largest < 1 << 31 else 8)
    assert place.array([part]).tolist() == [1.0, 2.0, float(largest), 3.0]
    assert place.array([part]).dtype == np.float64
