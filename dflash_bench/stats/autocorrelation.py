"""How many consecutive steps belong together: the block length of the block bootstrap, from the data."""

from __future__ import annotations

import numpy as np

from dflash_bench.model import FloatArray


def block_length(series: FloatArray) -> int:
    """Steps to draw in a row (Politis and White 2004, corrected 2009, circular blocks).

    ``series``: float64 [steps], what each step does to the statistic. The correlation is followed until it is lost in
    the noise; the longer it reaches, the longer the blocks, up to a third of the run.
    """
    n = len(series)
    limit = max(1, min(round(3 * n**0.5), n // 3))
    covariance = _autocovariance(series, min(limit * 2, n - 1))
    if covariance[0] <= 0:
        return 1
    reach = _reach(covariance / covariance[0], n)
    lag = np.arange(1, min(2 * reach, len(covariance) - 1) + 1)
    # a flat top, then a straight way down: the window that keeps the bias small
    weight = np.clip(2 * (1 - lag / (2 * reach)), 0, 1) * covariance[lag]
    spread = covariance[0] + 2 * weight.sum()
    if spread <= 0:
        return 1
    length = ((2 * (2 * (weight * lag).sum()) ** 2) / (4 / 3 * spread**2)) ** (1 / 3) * n ** (1 / 3)
    return int(np.clip(np.ceil(length), 1, limit))


def _autocovariance(series: FloatArray, lags: int) -> FloatArray:
    """float64 [lags + 1], by the fast Fourier transform."""
    centred = series - series.mean()
    size = 1 << (2 * len(centred) - 1).bit_length()
    spectrum = np.fft.rfft(centred, size)
    found: FloatArray = np.fft.irfft(np.abs(spectrum) ** 2, size)[: lags + 1] / len(centred)
    return found


def _reach(correlation: FloatArray, n: int) -> int:
    """The last lag before a stretch of lags that are all lost in the noise; at least 1."""
    noise = 2 * np.sqrt(np.log10(n) / n)
    stretch = max(5, round(np.sqrt(np.log10(n))))
    loud = np.flatnonzero(np.abs(correlation[1:]) >= noise) + 1
    last = 0
    for lag in loud:
        if lag - last > stretch:
            break
        last = int(lag)
    return max(1, last)
