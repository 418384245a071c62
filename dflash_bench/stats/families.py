"""Many metrics on many ranks are many chances to be wrong: p-values of one family, and of families among each other.

A *family* is everything that is asked about one metric: the pooled figure, each rank, each rank against the others. Its
p-value is Simes' (1986). Between the families of primary metrics Hommel's procedure (1988) keeps the chance of any
false verdict at its level; between those of secondary ones Benjamini and Hochberg's (1995) keeps the share of false
verdicts at theirs, and where nothing changed at all that is the chance of any. Both hold where the figures rise and
fall together, as those of one run do.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from dflash_bench.model import FloatArray

ERROR_RATE = 0.05
"""The chance that a comparison of one code with itself calls anything improved or regressed."""
PRIMARY_SHARE = 0.9
"""Of the error rate this much is spent on primary metrics, the rest on all others."""


def simes(p: Sequence[float]) -> float:
    """The p-value of "nothing in this family changed"; 1 for an empty family."""
    ordered = np.sort(np.asarray(p, float))
    return float(min(1.0, (ordered * len(ordered) / np.arange(1, len(ordered) + 1)).min(initial=1.0)))


def hommel(p: Sequence[float]) -> list[float]:
    """Adjusted p-values: with those up to a level, any of them is false with at most that probability."""
    n = len(p)
    order = np.argsort(p, kind="stable")
    ordered = np.asarray(p, float)[order]
    smallest = np.full(n, min(1.0, float((ordered * n / np.arange(1, n + 1)).min(initial=1.0))))
    found = smallest.copy()
    for m in range(n - 1, 1, -1):
        first = n - m + 1
        low = float((m * ordered[first:] / np.arange(2, m + 1)).min())
        smallest[:first] = np.minimum(m * ordered[:first], low)
        smallest[first:] = smallest[n - m]
        found = np.maximum(found, smallest)
    adjusted = np.empty(n)
    adjusted[order] = np.minimum(1.0, np.maximum(found, ordered))
    return [float(q) for q in adjusted]


def benjamini_hochberg(p: Sequence[float]) -> list[float]:
    """Adjusted p-values: of those up to a level, at most that share is expected to be false."""
    order = np.argsort(p, kind="stable")
    scaled: FloatArray = np.asarray(p, float)[order] * len(p) / np.arange(1, len(p) + 1)
    adjusted = np.empty(len(p))
    adjusted[order] = np.minimum(np.minimum.accumulate(scaled[::-1])[::-1], 1.0)
    return [float(q) for q in adjusted]
