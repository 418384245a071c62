"""By how much the candidate's runs lie off the base's, and how sure that is. The unit of replication is the run.

With repeats
    The estimate is the Hodges-Lehmann shift: the median of all differences between a run of one side and a run of the
    other. Its error comes from a hierarchical bootstrap: runs are drawn with replacement, and in each run blocks of
    steps. The plain form of that counts the spread inside a run twice (it is in the runs' figures already) and takes
    too little spread between few runs; so the effects of the drawn runs are shrunk or stretched until the two levels
    together have the variance that the runs' figures showed (Davison and Hinkley 1997, section 3.8). The interval is
    estimate ± t · error, with Welch's degrees of freedom.

With one run a side, or too few to measure a spread
    Each side may stray from its arm's level by the stated drift, in whatever direction hurts: the interval from inside
    the runs is widened by the drifts of both sides, and only what lies beyond them counts against chance.
"""

from __future__ import annotations

import functools
import itertools
import math
from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np

from dflash_bench.model import FloatArray, IntArray, Interval
from dflash_bench.stats.bootstrap import CONFIDENCE
from dflash_bench.stats.repeats import Repeat

MIN_DEGREES = 4
"""With fewer degrees of freedom between the runs than this, their spread is not known better than the stated drift."""
MIN_OWN_RUNS = 4
"""Where a side has fewer runs, both sides' runs together say how far runs spread."""
MAX_ARRANGEMENTS = 20_000
RESAMPLES = 2000
"""The draws of a metric are the same in every comparison, so what few of them get wrong would be wrong for good."""
_KNOWN = 1e6


@dataclass(frozen=True, slots=True)
class Shift:
    """Candidate − base, in the metric's unit.

    ``error`` is the standard error of ``estimate``, with ``degrees`` of freedom; ``allowance`` is what drift is
    allowed on top (0 where repeats measured the spread). ``run_spread`` is the standard deviation between runs of one
    arm. ``p`` is two-sided. ``p_exact`` is the exact permutation test on the runs' figures; None where the fewest
    permutations allow no verdict at 5 %. ``is_known`` is False where a run has too few events for an error.
    """

    estimate: float
    error: float
    degrees: float
    allowance: float
    run_spread: float
    p: float
    p_exact: float | None
    interval: Interval
    is_known: bool = True

    @property
    def is_widened(self) -> bool:
        """Whether the interval rests on the stated drift, not on a measured spread."""
        return self.allowance > 0


def shift(
    base: Sequence[Repeat], candidate: Sequence[Repeat], drift: float, seed: int = 0, confidence: float = CONFIDENCE
) -> Shift:
    """Both sides have at least one run, ordered by figure. ``drift`` is in the metric's unit.

    Swapping the sides turns the sign and changes nothing else.
    """
    if len(base) + len(candidate) - 2 < MIN_DEGREES:
        return _with_drift(base, candidate, drift, confidence)
    spreads = _spreads(base, candidate)
    error = _bootstrap_error(base, candidate, spreads, seed)
    degrees = _degrees(spreads)
    estimate = hodges_lehmann(base, candidate)
    spread = math.sqrt(sum(s.variance for s in spreads) / 2)
    return _made(estimate, error, degrees, 0.0, spread, permutation_p(base, candidate), confidence)


def hodges_lehmann(base: Sequence[Repeat], candidate: Sequence[Repeat]) -> float:
    """The median of all differences candidate − base between single runs."""
    old, new = (np.array([r.figure for r in side]) for side in (base, candidate))
    return float(np.median(new[:, None] - old[None, :]))


def permutation_p(base: Sequence[Repeat], candidate: Sequence[Repeat]) -> float | None:
    """Two-sided exact permutation test of the difference of means of the runs' figures; Mann-Whitney's test where there
    are more than `MAX_ARRANGEMENTS` arrangements.

    None where even the most extreme arrangement is no rarer than 5 %.
    """
    num = math.comb(len(base) + len(candidate), len(base))
    if 2 / num > 1 - CONFIDENCE:
        return None
    old, new = (np.array([r.figure for r in side]) for side in (base, candidate))
    if num > MAX_ARRANGEMENTS:
        from scipy.stats import mannwhitneyu  # type: ignore[import-untyped]

        return float(mannwhitneyu(old, new, alternative="two-sided").pvalue)
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


def t_quantile(level: float, degrees: float) -> float:
    """The t distribution's quantile."""
    from scipy.special import stdtrit  # type: ignore[import-untyped]

    return float(stdtrit(min(degrees, _KNOWN), level))


def _t_tail(value: float, degrees: float) -> float:
    from scipy.special import stdtr

    return float(stdtr(min(degrees, _KNOWN), -value))


def _with_drift(base: Sequence[Repeat], candidate: Sequence[Repeat], drift: float, confidence: float) -> Shift:
    sides = (base, candidate)
    seen = max(side[-1].figure - side[0].figure for side in sides) / 2
    own = max(drift, seen)
    allowance = sum(own / math.sqrt(len(side)) for side in sides)
    error = math.sqrt(sum(np.mean([r.variance for r in side]) / len(side) for side in sides))
    # a drift that holds for 95 % of all runs, and what their steps leave open
    within = float(np.mean([r.variance for side in sides for r in side]))
    spread = math.sqrt((own / t_quantile((1 + CONFIDENCE) / 2, _KNOWN)) ** 2 + within)
    found = _made(hodges_lehmann(base, candidate), error, _KNOWN, allowance, spread, None, confidence)
    # too few events to say how far they scatter: the interval is at least this wide, and nothing is told from chance
    return found if all(r.is_noise_known for side in sides for r in side) else replace(found, p=1.0, is_known=False)


def _made(
    estimate: float,
    error: float,
    degrees: float,
    allowance: float,
    spread: float,
    p_exact: float | None,
    confidence: float,
) -> Shift:
    beyond = max(0.0, abs(estimate) - allowance)
    p = 2 * _t_tail(beyond / error, degrees) if error > 0 else float(beyond == 0)
    half = allowance + t_quantile((1 + confidence) / 2, degrees) * error
    interval = Interval(estimate - half, estimate + half, confidence)
    return Shift(estimate, error, degrees, allowance, spread, min(1.0, p), p_exact, interval)


@dataclass(frozen=True, slots=True)
class _Spread:
    """How one run's figure varies on one side: ``variance`` between runs, ``degrees`` of freedom behind it, the
    ``effects`` to draw runs from, and the factor for the noise from inside a run."""

    num_runs: int
    variance: float
    degrees: int
    effects: FloatArray
    noise_factor: float


def _spreads(base: Sequence[Repeat], candidate: Sequence[Repeat]) -> tuple[_Spread, _Spread]:
    """Each side's own spread; where a side has too few runs, the spread of both together."""
    sides = (base, candidate)
    effects = [np.array([r.figure for r in side]) - np.mean([r.figure for r in side]) for side in sides]
    degrees = [len(side) - 1 for side in sides]
    if min(len(side) for side in sides) < MIN_OWN_RUNS:
        effects = [np.sort(np.concatenate(effects))] * 2
        degrees = [sum(degrees)] * 2
    first, second = (_spread(*each) for each in zip(sides, effects, degrees, strict=True))
    return first, second


def _spread(side: Sequence[Repeat], effects: FloatArray, degrees: int) -> _Spread:
    within = float(np.mean([r.variance for r in side]))
    total, mean_square = float((effects**2).sum()) / degrees, float((effects**2).mean())
    inside = min(within, total)
    stretch = math.sqrt((total - inside) / mean_square) if mean_square > 0 else 0.0
    # a trend that all runs share spreads their steps, but not their figures
    return _Spread(len(side), total, degrees, effects * stretch, math.sqrt(inside / within) if within > 0 else 0.0)


def _degrees(spreads: tuple[_Spread, _Spread]) -> float:
    """Degrees of freedom of the difference (Welch 1947, Satterthwaite 1946)."""
    if min(s.num_runs for s in spreads) < MIN_OWN_RUNS:
        return spreads[0].degrees
    parts = [s.variance / s.num_runs for s in spreads]
    below = sum(part**2 / s.degrees for part, s in zip(parts, spreads, strict=True))
    return sum(parts) ** 2 / below if below > 0 else _KNOWN


def _bootstrap_error(
    base: Sequence[Repeat], candidate: Sequence[Repeat], spreads: tuple[_Spread, _Spread], seed: int
) -> float:
    """The standard deviation of the shift over hierarchical resamples.

    That of the difference of means: for normal runs the Hodges-Lehmann shift's is the same within 2 %, with heavy tails
    it is smaller, and resampled from few runs it would come out too large.
    """
    sides = list(zip((base, candidate), spreads, strict=True))
    # the lower side always draws first: the same draws, whichever side is called base
    is_swapped = [r.figure for r in base] > [r.figure for r in candidate]
    rng = np.random.default_rng(seed)
    low, high = (_resampled(runs, spread, rng) for runs, spread in (reversed(sides) if is_swapped else sides))
    return float((high.mean(axis=1) - low.mean(axis=1)).std())


def _resampled(side: Sequence[Repeat], spread: _Spread, rng: np.random.Generator) -> FloatArray:
    """float64 [resamples, runs]: figures of drawn runs, off their side's level."""
    shape = (RESAMPLES, len(side))
    effects = spread.effects[rng.integers(0, len(spread.effects), shape)]
    width = min(len(r.noise) for r in side)
    noise = np.stack([r.noise[:width] for r in side])
    drawn = noise[rng.integers(0, len(side), shape), rng.integers(0, width, shape)]
    return effects + drawn * spread.noise_factor
