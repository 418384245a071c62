"""Samples as text: nothing is lost, and what is regular is short."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from dflash_bench.samples import decode, encode

WHOLE = st.lists(st.integers(-(2**52), 2**52), max_size=40)
ANY = st.lists(st.floats(allow_nan=False, allow_infinity=False), max_size=40)


@given(WHOLE | ANY)
def test_every_list_comes_back_as_it_was(values):
    found = decode(encode(np.array(values, np.float64)))
    assert found.tolist() == [float(v) for v in values]


def test_regular_steps_are_counted_by_hand():
    assert encode(np.array([5, 6, 7, 8, 6])) == "5 +1x3 -2"
    assert encode(np.arange(20_000)) == "0 +1x19999"
    assert encode(np.array([True, True, False])) == "1 +0 -1"
    assert encode(np.array([0.5, 2.0])) == "=0.5 =2.0"
    assert encode(np.array([])) == ""


@pytest.mark.parametrize("text", ["x", "1 2y", "=0.5 3", "1 +1x"[:5] + "z"])
def test_other_text_is_refused(text):
    with pytest.raises(ValueError, match=r".+"):
        decode(text)
