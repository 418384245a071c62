"""Samples as short text, without losing anything: whole numbers as first value and differences, repeats counted.

``5 +1x3 -2`` is 5, 6, 7, 8, 6. Numbers that are not whole are written as they are, with a ``=`` before each.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import groupby

import numpy as np
import numpy.typing as npt

_WHOLE = 1 << 53


def encode(values: npt.NDArray[np.generic]) -> str:
    """The values as text. Booleans count as 0 and 1."""
    if not len(values):
        return ""
    as_float = np.asarray(values, np.float64)
    if not (np.isfinite(as_float).all() and (as_float == np.rint(as_float)).all() and (abs(as_float) < _WHOLE).all()):
        return " ".join(f"={value!r}" for value in as_float.tolist())
    whole = as_float.astype(np.int64)
    steps = [f"{step:+d}" for step in np.diff(whole).tolist()]
    return " ".join([str(int(whole[0])), *(_counted(step, len(list(same))) for step, same in groupby(steps))])


def _counted(step: str, count: int) -> str:
    return step if count == 1 else f"{step}x{count}"


def decode(text: str) -> npt.NDArray[np.float64]:
    """The values again, float64. Raises ValueError when the text is no such list."""
    if not text:
        return np.empty(0)
    words = text.split(" ")
    if words[0].startswith("="):
        return np.array([_plain(word) for word in words])
    steps, counts = _steps(words[1:])
    first = int(words[0])
    return np.cumsum(np.concatenate([[first], np.repeat(steps, counts)])).astype(np.float64)


def _plain(word: str) -> float:
    if not word.startswith("="):
        raise ValueError(f"{word!r} is not a sample")
    return float(word[1:])


def _steps(words: Sequence[str]) -> tuple[npt.NDArray[np.int64], npt.NDArray[np.int64]]:
    parts = [word.partition("x") for word in words]
    return (
        np.array([int(step) for step, _, _ in parts], np.int64),
        np.array([int(count or 1) for _, _, count in parts], np.int64),
    )
