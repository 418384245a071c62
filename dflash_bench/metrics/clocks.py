"""The clocks of several captures: which share one, and what others differ by, read from the agreements of the ranks."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from dflash_bench.findings import finding
from dflash_bench.metrics.events.arrays import NONE
from dflash_bench.model import CaptureInfo, Finding, FloatArray, IntArray

_MAX_SHIFT = 32
"""How many agreements a capture may begin before another, where no wall time tells more."""
_MAX_DRIFT = 2e-3
"""Clocks of computers differ by some 100 ppm; what differs by more is no drift."""
_LEAST = 7
"""Agreements from which their order alone can tell a drift from chance."""
_TREND = 3.0
"""Standard deviations by which the offsets must rise or fall with time, more often than by chance, to be a drift."""
_LINE_POINTS = 600


def first_on_clock(captures: Sequence[CaptureInfo]) -> list[int]:
    """For each capture, the first one on the same clock.

    Captures whose time 0 is the same nanosecond share theirs: the built-in recorder gives all ranks of a run one
    origin, while every session of nsys has its own.
    """
    origin = [c.session_start_utc_ns for c in captures]
    return [k if start is None else origin.index(start) for k, start in enumerate(origin)]


@dataclass(frozen=True, slots=True)
class Clock:
    """One clock against the first rank's: ``offset`` (median) at ``at``, ns, and how far it drifts from there, ns/ns.

    ``spread``: the interquartile range of the offsets of single agreements, without the drift. ``num``: of how many.
    """

    offset: float = 0.0
    spread: float = 0.0
    drift: float = 0.0
    at: float = 0.0
    num: int = 0

    def on_first(self, t: IntArray) -> FloatArray:
        """Instants of this clock on the first one."""
        found: FloatArray = t - (self.offset + self.drift * (t - self.at))
        return found


@dataclass(frozen=True, slots=True)
class LinedUp:
    """Which agreements of the ranks belong together: ``row`` int64 [ranks, n]; and their clocks."""

    row: IntArray
    clocks: tuple[Clock, ...]
    findings: tuple[Finding, ...]


RankTimes = tuple[int, IntArray, IntArray, int | None]
"""A rank's clock, the starts and ends of its agreements, and wall time at its time 0."""


def line_up(ranks: Sequence[RankTimes]) -> LinedUp:
    """Pair each rank's agreements with those of the first rank; what some rank lacks is left out."""
    clock, start, end, utc_ns = ranks[0]
    row = np.full((len(ranks), len(start)), NONE, np.int64)
    row[0] = np.arange(len(start))
    findings = []
    for k, (own_clock, own_start, own_end, own_utc) in enumerate(ranks[1:], 1):
        if own_clock == clock:
            row[k] = overlapping(start, end, own_start, own_end)
            continue
        told = None if utc_ns is None or own_utc is None else float(utc_ns - own_utc)
        shift, is_sure = best_shift(end, own_end, told)
        row[k] = _shifted(len(start), len(own_end), shift)
        if not is_sure:
            findings.append(finding("agreements_pairing_unsure", None, len(own_end), shift=shift))
    row = row[:, (row != NONE).all(axis=0)]
    clocks = [
        Clock(num=row.shape[1]) if own_clock == clock else clock_of(end[row[0]], own_end[row[k]])
        for k, (own_clock, _, own_end, _) in enumerate(ranks)
    ]
    for each in clocks:
        if each.drift:
            findings.append(finding("clock_drift", None, each.num, ppm=each.drift * 1e6))
        elif each.num < _LEAST and each.spread:
            findings.append(finding("clock_drift_unknown", None, each.num, spread_us=each.spread / 1000))
    return LinedUp(row, tuple(clocks), tuple(findings))


def overlapping(start: IntArray, end: IntArray, own_start: IntArray, own_end: IntArray) -> IntArray:
    """For each interval of the first, the one of the second that overlaps it most, or NONE; each is taken once."""
    low = np.searchsorted(own_end, start, side="right")
    high = np.searchsorted(own_start, end, side="left")
    found, most = np.full(len(start), NONE, np.int64), np.zeros(len(start), np.int64)
    for step in range(int((high - low).max(initial=0))):
        at = np.minimum(low + step, len(own_start) - 1)
        shared = np.minimum(end, own_end[at]) - np.maximum(start, own_start[at])
        better = (low + step < high) & (shared > most)
        found[better], most[better] = at[better], shared[better]
    order = np.lexsort((-most, found))
    again = order[1:][(np.diff(found[order]) == 0)]
    found[again] = NONE
    return found


def _shifted(n: int, own: int, shift: int) -> IntArray:
    found = np.arange(n) + shift
    return np.where((found >= 0) & (found < own), found, NONE)


def best_shift(end: IntArray, own_end: IntArray, told: float | None) -> tuple[int, bool]:
    """By how many agreements the second capture is behind, and whether no other shift would do as well.

    ``told``: what wall times say that the second clock is ahead by. Among the shifts whose offsets are about as steady
    as the steadiest, the nearest to that is taken; without wall times the smallest.
    """
    candidates = set(range(-_MAX_SHIFT, _MAX_SHIFT + 1))
    if told is not None and len(own_end):
        guess = int(np.median(np.searchsorted(own_end, end + told) - np.arange(len(end))))
        candidates |= set(range(guess - _MAX_SHIFT, guess + _MAX_SHIFT + 1))
    scores = []
    least = max(1, min(len(end), len(own_end)) // 2)
    for shift in sorted(candidates, key=lambda s: (abs(s), s)):
        low, high = max(0, -shift), min(len(end), len(own_end) - shift)
        if high - low >= least:
            offset = (own_end[low + shift : high + shift] - end[low:high]).astype(np.float64)
            clock = clock_of(end[low:high], own_end[low + shift : high + shift])
            scores.append((shift, clock.spread, float(np.median(offset))))
    if not scores:
        return 0, False
    steadiest = min(spread for _, spread, _ in scores)
    good = [each for each in scores if each[1] <= 2 * steadiest + 1000]
    if told is not None:
        return min(good, key=lambda each: abs(each[2] - told))[0], True
    return good[0][0], len(good) == 1 or len(scores) == 1 or good[0][0] == 0


def clock_of(end: IntArray, own_end: IntArray) -> Clock:
    """The second clock against the first, from ends of the same agreements."""
    n = len(end)
    if not n:
        return Clock()
    offset = (own_end - end).astype(np.float64)
    middle = float(np.median(offset))
    plain = Clock(middle, _spread(offset), num=n)
    if n < _LEAST or not plain.spread:
        return plain
    at = float(np.median(own_end))
    drift, trend = _slope(own_end.astype(np.float64), offset)
    rest = offset - drift * (own_end - at)
    followed = Clock(float(np.median(rest)), _spread(rest), drift, at, n)
    is_drift = abs(drift) <= _MAX_DRIFT and trend > _TREND and 2 * followed.spread < plain.spread
    return followed if is_drift else plain


def _slope(x: FloatArray, y: FloatArray) -> tuple[float, float]:
    """The median of the slopes between any two of the points (Theil-Sen), and by how many standard deviations more of
    them point one way than do by chance (Mann-Kendall). Of at most `_LINE_POINTS` of the points."""
    chosen = np.unique(np.linspace(0, len(x) - 1, min(len(x), _LINE_POINTS)).astype(np.int64))
    x, y, n = x[chosen], y[chosen], len(chosen)
    a, b = np.triu_indices(n, 1)
    apart, rise = x[b] - x[a], y[b] - y[a]
    chance = np.sqrt(n * (n - 1) * (2 * n + 5) / 18)
    return float(np.median(rise[apart > 0] / apart[apart > 0])), float(abs(np.sign(rise).sum()) / chance)


def _spread(values: FloatArray) -> float:
    high, low = np.percentile(values, [75, 25])
    return float(high - low)
