"""By how much the candidate lies off the base, and how sure that is: one function for each way to have measured it.

Runs (`of_runs`)
    The run is what is repeated. Student's t of the runs' figures with the spread of both sides together. One run that
    lies far outside all others of both sides is left out; with enough runs, the exact permutation test of the figures
    has to agree, so that a machine with a fast and a slow mode is not taken for a change.
Duets (`of_duets`)
    Base and candidate took turns in one process (or in two that ran side by side), pair of blocks by pair: what the
    host does to both falls out of the difference. Process after process, the mean of the pairs' differences (the
    outer tenths trimmed, correlation between neighbours allowed for); then over processes, each of which has its own
    luck. Two processes cannot say how large that luck is, so it starts from what was measured
    (`LUCK`) and is learned from the processes as they become more.
Sessions (`of_sessions`)
    The candidate was measured in another session (machine, day, job) than the base: its median is one draw of what
    sessions do, held against the medians of at least `MIN_SESSIONS` earlier ones (a prediction interval).
One run a side (`of_pair`)
    How far runs stray is not measured. With a learned or stated drift, what lies beyond the drift of both sides counts.
"""

from __future__ import annotations

import functools
import itertools
import math
from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np

from dflash_bench.model import Design, FloatArray, IntArray, Interval

CONFIDENCE = 0.95
MIN_SESSIONS = 10
LUCK = 1.0
"""How much a process strays by its own luck, as a multiple of the error of a mean of 30 pairs; docs/verdicts.md tells
what it was measured on."""
_LUCK_DEGREES = 6
"""As many processes that belief is worth."""
_LUCK_PAIRS = 30
_TRIM = 0.1
_MIN_PAIRS = 8
_OUTLIER_LEVEL = 0.002
_MAX_ARRANGEMENTS, _MIN_ARRANGEMENTS, _PERMUTATION_LEVEL = 20_000, 100, 0.025
_FEW = 9
_ALONE = 0.05
"""A p-value above this decides nothing, however exactly it is known."""
_KNOWN = 1e6


@dataclass(frozen=True, slots=True)
class Shift:
    """Candidate − base, in the metric's unit.

    ``error`` is the standard error of ``estimate``, with ``degrees`` of freedom; ``allowance`` is what drift is allowed
    on top. ``spread`` is the standard deviation of one run (one process of a duet, one session). ``p`` is two-sided.
    ``left_out``: runs that lie far off all others. ``pairs``: pairs of blocks behind a duet.
    """

    estimate: float
    error: float
    degrees: float
    p: float
    design: Design
    spread: float
    allowance: float = 0.0
    left_out: int = 0
    pairs: int | None = None

    def interval(self, confidence: float = CONFIDENCE) -> Interval:
        """Two-sided."""
        half = self.allowance + t_quantile((1 + confidence) / 2, self.degrees) * self.error
        return Interval(self.estimate - half, self.estimate + half, confidence)


def t_quantile(level: float, degrees: float) -> float:
    """The t distribution's quantile."""
    from scipy.special import stdtrit  # type: ignore[import-untyped]

    return float(stdtrit(min(degrees, _KNOWN), level))


def _made(estimate: float, error: float, degrees: float, design: Design, spread: float, **more: float) -> Shift:
    from scipy.special import stdtr

    beyond = max(0.0, abs(estimate) - more.get("allowance", 0.0))
    p = 2 * float(stdtr(min(degrees, _KNOWN), -beyond / error)) if error > 0 else float(beyond == 0)
    pairs = int(more.pop("pairs")) if "pairs" in more else None
    left_out = int(more.pop("left_out", 0))
    return Shift(estimate, error, degrees, min(1.0, p), design, spread, more.get("allowance", 0.0), left_out, pairs)


# ── several runs a side ──────────────────────────────────────────────────────────────────────────────────────────────


def of_runs(
    base: Sequence[float] | FloatArray, candidate: Sequence[float] | FloatArray, least_spread: float = 0.0
) -> Shift | None:
    """From the runs' figures; None where they leave fewer than two degrees of freedom.

    ``least_spread``: runs are never taken to be more alike than that. Swapping the sides turns the sign and nothing
    else; the order of runs changes nothing.
    """
    # lists: for a handful of runs they are ten times as fast as arrays
    old, new = sorted(map(float, base)), sorted(map(float, candidate))
    if len(old) + len(new) < 4 or not old or not new:
        return None
    whole = len(old) + len(new)
    old, new = _without_outlier(old, new)
    degrees = len(old) + len(new) - 2
    spread = max(math.sqrt((_squares(old) + _squares(new)) / degrees), least_spread)
    error = spread * math.sqrt(1 / len(old) + 1 / len(new))
    left_out = whole - len(old) - len(new)
    found = _made(_mean(new) - _mean(old), error, degrees, Design.RUNS, spread, left_out=left_out)
    found = replace(found, estimate=_hodges_lehmann(old, new))
    if found.p > _ALONE:
        return found
    exact = permutation_p(np.array(old), np.array(new))
    return found if exact is None or exact <= _PERMUTATION_LEVEL else replace(found, p=max(found.p, exact))


def _hodges_lehmann(old: Sequence[float], new: Sequence[float]) -> float:
    """The median of all differences between a run of one side and a run of the other."""
    return float(np.median(np.subtract.outer(new, old)))


def _mean(values: Sequence[float]) -> float:
    return sum(values) / len(values)


def _squares(values: Sequence[float]) -> float:
    mean = _mean(values)
    return sum((v - mean) ** 2 for v in values)


def _without_outlier(old: list[float], new: list[float]) -> tuple[list[float], list[float]]:
    """Both sides without the one run, if any, that lies far outside all others: of its own side and of the other.

    With fewer than nine runs none is left out: who looks at many ranks would find one too often. A run at the other
    side's level is none: where a machine has two modes, those are the other mode. Lies far: by an
    externally studentized residual at 0.2 % among all runs, and by more than half of the others' range.
    """
    from scipy.special import stdtr

    num = len(old) + len(new)
    for side, other in ((old, new), (new, old)):
        for k in (0, -1):
            if len(side) < 3 or num < _FEW:
                continue
            far, rest = side[k], side[1:] if k == 0 else side[:-1]
            low, high = min(rest[0], other[0]), max(rest[-1], other[-1])
            if (low - far if k == 0 else far - high) <= 0.5 * (high - low):
                continue
            error = math.sqrt((_squares(rest) + _squares(other)) / (num - 3) * (1 + 1 / len(rest)))
            if error == 0 or 2 * num * stdtr(num - 3, -abs(far - _mean(rest)) / error) < _OUTLIER_LEVEL:
                return (rest, new) if side is old else (old, rest)
    return old, new


def permutation_p(old: FloatArray, new: FloatArray) -> float | None:
    """Two-sided exact permutation test of the difference of means of the runs' figures.

    None where there are too few arrangements for 5 %, or more than need it: with many runs, Student's t knows enough.
    """
    num = math.comb(len(old) + len(new), len(old))
    if not _MIN_ARRANGEMENTS <= num <= _MAX_ARRANGEMENTS:
        return None
    every = np.concatenate([old, new])
    every = every - every.mean()
    means, seen = every[_arrangements(len(every), len(old))].mean(axis=1), every[: len(old)].mean()
    # equal up to rounding counts as at least as extreme
    slack = 1e-9 * max(1.0, float(np.abs(every).max()))
    tail = min(float((means >= seen - slack).mean()), float((means <= seen + slack).mean()))
    return min(1.0, 2 * tail)


@functools.cache
def _arrangements(num: int, num_base: int) -> IntArray:
    """int64 [arrangements, num_base]: every choice of the base's runs among all."""
    return np.array(list(itertools.combinations(range(num), num_base)))


# ── duets ────────────────────────────────────────────────────────────────────────────────────────────────────────────


def of_duets(processes: Sequence[FloatArray], least_spread: float = 0.0) -> Shift | None:
    """From the differences candidate − base of each process's pairs, in the order in which they were made.

    ``processes``: float64 [pairs] each. None where no process has enough pairs.
    """
    means = [_pairs_mean(d, least_spread) for d in processes if len(d) >= _MIN_PAIRS]
    if not means:
        return None
    num = len(means)
    values, errors, scatters, inner = (np.array(column) for column in zip(*means, strict=True))
    within = float((errors**2).mean())
    belief = within + LUCK * float((scatters**2).mean()) / _LUCK_PAIRS
    between = float(values.var(ddof=1)) if num > 1 else 0.0
    degrees = _LUCK_DEGREES + num - 1
    variance = max((_LUCK_DEGREES * belief + (num - 1) * between) / degrees, within)
    spread = max(math.sqrt(variance), least_spread)
    total = min(degrees, float(inner.sum())) if num == 1 else degrees
    pairs = sum(len(d) for d in processes if len(d) >= _MIN_PAIRS)
    return _made(float(values.mean()), spread / math.sqrt(num), total, Design.DUET, spread, pairs=pairs)


def _pairs_mean(differences: FloatArray, least_spread: float) -> tuple[float, float, float, float]:
    """The trimmed mean of a process's pairs, its error, the scatter of a single pair, and the degrees of freedom.

    Tukey and McLaughlin (1963) for the trimming; the error allows for correlation between neighbouring pairs (Bartlett
    weights), and never takes them to be better than independent.
    """
    num = len(differences)
    cut = int(_TRIM * num)
    ordered = np.sort(differences)
    mean = float(ordered[cut : num - cut].mean())
    drawn_in = np.clip(differences, ordered[cut], ordered[num - cut - 1]) if num > 2 * cut else differences
    centred = drawn_in - drawn_in.mean()
    variance = float((centred**2).sum()) / (num - 1)
    lags = max(1, round(num ** (1 / 3)))
    covariance = [float((centred[:-k] * centred[k:]).sum()) / num for k in range(1, lags + 1)]
    memory = 2 * sum((1 - k / (lags + 1)) * c for k, c in enumerate(covariance, 1))
    # what trimming takes off a normal distribution's spread is put back
    factor = num / (num - 2 * cut)
    long_run = variance + max(0.0, memory)
    scatter = max(math.sqrt(long_run) * factor, least_spread)
    return mean, scatter / math.sqrt(num), scatter, num - 2 * cut - 1


# ── other sessions, single runs ──────────────────────────────────────────────────────────────────────────────────────


def of_sessions(medians: Sequence[float], candidate: Sequence[float], least_spread: float = 0.0) -> Shift | None:
    """The median of a new session against those of earlier ones; None where they are fewer than `MIN_SESSIONS`."""
    if len(medians) < MIN_SESSIONS or not len(candidate):
        return None
    earlier = np.asarray(medians, float)
    spread = max(float(earlier.std(ddof=1)), least_spread)
    error = spread * math.sqrt(1 + 1 / len(earlier))
    estimate = float(np.median(candidate) - earlier.mean())
    return _made(estimate, error, len(earlier) - 1, Design.SESSIONS, spread)


def of_pair(base: float, candidate: float, drift: float, within: float) -> Shift:
    """One run a side: each may stray from its arm's level by ``drift``; ``within``: the error from inside the runs."""
    spread = math.hypot(drift / t_quantile((1 + CONFIDENCE) / 2, _KNOWN), within)
    return _made(candidate - base, max(within, 1e-12), _KNOWN, Design.SINGLE, spread, allowance=2 * drift)
