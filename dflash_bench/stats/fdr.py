"""Many metrics on many ranks are many chances to be wrong: how large a share of the verdicts may be false."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

FALSE_DISCOVERY_RATE = 0.05


def adjusted(p: Sequence[float]) -> list[float]:
    """Benjamini and Hochberg's adjusted p-values (1995): of the verdicts with q ≤ 5 %, at most 5 % are false.

    As `scipy.stats.false_discovery_control`, which the tests hold it against; to import that takes over a second.
    """
    if not len(p):
        return []
    clipped = np.clip(p, 0.0, 1.0)
    order = np.argsort(clipped)
    scaled = clipped[order] * len(p) / np.arange(1, len(p) + 1)
    found = np.empty(len(p))
    found[order] = np.minimum(np.minimum.accumulate(scaled[::-1])[::-1], 1.0)
    return [float(q) for q in found]


def level(p: Sequence[float], rate: float = FALSE_DISCOVERY_RATE) -> float:
    """The p-value that one more verdict in this family would have to reach."""
    found = sum(q <= rate for q in adjusted(p))
    return rate * min(found + 1, len(p)) / len(p) if p else rate
