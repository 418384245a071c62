"""Charts: curves keep their ends, intervals lie where their numbers say, images hold the cells they are made of."""

from __future__ import annotations

import base64
import re
import struct
import zlib

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from dflash_bench.model import Better, Change, Interval, Statistic, Unit
from dflash_bench.report.changes import Tone
from dflash_bench.report.charts import (
    Curve,
    axis_chart,
    axis_window,
    distribution,
    distribution_chart,
    interval_chart,
    map_image,
)


def change(base, candidate, low=None, high=None, unit=Unit.NS):
    span = None if low is None else Interval(low, high, 0.95)
    difference = candidate - base
    return Change("m", None, unit, Better.LOWER, Statistic.MEDIAN, base, candidate, 9, 9, difference, None, span)


@given(st.lists(st.integers(-(10**9), 10**9), min_size=1, max_size=200))
def test_few_samples_give_their_exact_distribution(values):
    x, y = distribution(np.array(values, float))
    assert x.tolist() == sorted(values)
    for value in values:
        assert y[np.flatnonzero(x == value)[-1]] == pytest.approx(sum(v <= value for v in values) / len(values))


def test_many_samples_are_read_at_quantiles_and_keep_both_ends():
    values = np.random.default_rng(1).lognormal(size=640_000)
    x, y = distribution(values)
    assert len(x) <= 200
    assert (x[0], x[-1], y[0], y[-1]) == (values.min(), values.max(), 0, 1)
    assert (np.diff(x) >= 0).all()
    assert x[np.abs(y - 0.5).argmin()] == pytest.approx(np.median(values))


def test_the_axis_is_logarithmic_only_over_decades_and_holds_the_bulk_of_the_samples():
    """One sample of a thousand far below the others must not squeeze them against the edge."""
    close = np.concatenate([[1e3], np.linspace(8e6, 9e6, 999)])
    ticks = re.findall(r'text-anchor="middle">([\d,]+)<', distribution_chart([Curve("a", "base", close)], Unit.NS, "m"))
    assert {t.replace(",", "") for t in ticks} <= {"8000", "8200", "8400", "8600", "8800", "9000"}
    both = [Curve("a", "base", close), Curve("b", "candidate", 100 * close)]
    assert "100,000<" in distribution_chart(both, Unit.NS, "m")


def test_a_name_on_an_axis_is_plain_text():
    assert "<img" not in distribution_chart([Curve("a", "base", np.arange(9.0))], Unit.COUNT, "<img src=x>")


def test_the_axis_holds_the_whole_interval_of_what_the_comparison_is_about():
    assert axis_window([change(100.0, 91.0, -15.0, -2.0), change(1.0, 900.0)]) == 0.25
    assert axis_window([change(-5.0, 5.0), change(100.0, 99.0, -1.5, -0.5)]) == 0.02
    assert "−25\u2009%" in axis_chart(0.25)


@pytest.mark.parametrize(("difference", "at"), [(0.0, 130.0), (25.0, 260.0), (-12.5, 65.0)])
def test_a_change_in_percent_lies_at_its_place_on_the_common_axis(difference, at):
    chart = interval_chart(change(100.0, 100.0 + difference, difference - 1, difference + 1), Tone.BETTER, 0.25)
    assert f'<circle cx="{at}"' in chart
    assert chart.startswith('<svg class="interval better"')


def test_what_lies_beyond_the_axis_is_an_arrow_to_that_side():
    assert '<path d="M260 ' in interval_chart(change(1.0, 9.0), Tone.OPEN, 0.25)
    assert '<path d="M0 ' in interval_chart(change(9.0, 1.0), Tone.OPEN, 0.25)


def test_a_lead_has_an_axis_of_its_own_and_an_exact_count_a_hollow_dot():
    assert 'class="interval worse own"' in interval_chart(change(-5.0, 5.0, 8.0, 12.0), Tone.WORSE, 0.25)
    assert 'class="hollow"' in interval_chart(change(100.0, 101.0), Tone.BETTER, 0.25)


def test_an_image_has_a_pixel_a_cell_pale_at_zero():
    address = map_image(np.array([[0.0, 5.0], [-5.0, 0.0]]), 5.0)
    data = base64.b64decode(address.removeprefix("data:image/png;base64,"))
    assert struct.unpack(">II", data[16:24]) == (2, 2)
    length = struct.unpack(">I", data[33:37])[0]
    rows = zlib.decompress(data[41 : 41 + length])
    pixels = np.frombuffer(rows, np.uint8).reshape(2, 7)[:, 1:].reshape(2, 2, 3)
    assert pixels.tolist() == [[[236, 238, 241], [184, 84, 20]], [[31, 99, 168], [236, 238, 241]]]
