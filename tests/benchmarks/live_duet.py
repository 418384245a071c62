"""What a live duet of the plug-in decided, from the times that `--times FILE` wrote: ratios of the arm to upstream.

    python tests/benchmarks/live_duet.py FILE.PID.csv …

A row a figure: mean `prepare_for_decode`, mean step, tokens a second. Each pair of blocks gives one ratio; printed are
that of all pairs' sums and the pairs' mean with its interval, by Student's t over their logarithms. A step is the time
from one preparation to the next of the same block, and its tokens are what the requests' lengths grew by; steps with
fewer requests than the most, and those over which one came or went, are left out.

The last row takes the context out of the step: where the GPU decides, a step is as long as its context makes it, which
differs from block to block. What a square in the mean context explains, over both arms, is subtracted first.
"""

from __future__ import annotations

import csv
import sys
from itertools import pairwise
from pathlib import Path

import numpy as np
from scipy import stats

UPSTREAM = "upstream"


def read_steps(file: Path) -> dict[str, np.ndarray]:
    """Columns of the steps that count: pair, is_arms, prepare_ns, period_ns, tokens, context (mean length)."""
    rows = list(csv.DictReader(file.open(encoding="utf-8")))
    most = max(rows, key=lambda row: int(row["requests"]))["requests"]
    found = []
    for row, after in pairwise(rows):
        tokens = int(after["seq_lens_sum"]) - int(row["seq_lens_sum"])
        same = (
            all(row[name] == after[name] for name in ("pair", "arm")) and row["requests"] == after["requests"] == most
        )
        if same and tokens > 0:  # else one left and another came
            period = int(after["start_ns"]) - int(row["start_ns"])
            context = int(row["seq_lens_sum"]) / int(most)
            arms = row["arm"] != UPSTREAM
            found.append((int(row["pair"]), arms, int(row["prepare_ns"]), period, tokens, context))
    names = ("pair", "is_arms", "prepare_ns", "period_ns", "tokens", "context")
    return dict(zip(names, np.array(found, dtype=float).T, strict=True))


def figures(steps: dict[str, np.ndarray], chosen: np.ndarray) -> np.ndarray:
    """Mean preparation in us, mean step in us, tokens/s."""
    prepare, period, tokens = (steps[name][chosen].mean() for name in ("prepare_ns", "period_ns", "tokens"))
    return np.array([prepare / 1e3, period / 1e3, tokens / period * 1e9])


def half_width(of_pairs: np.ndarray) -> np.ndarray:
    """Of the 95 % interval of their mean."""
    n = len(of_pairs)
    return stats.t.ppf(0.975, n - 1) * of_pairs.std(axis=0, ddof=1) / np.sqrt(n)


def show(file: Path) -> None:
    steps = read_steps(file)
    is_arms = steps["is_arms"] == 1
    of_pair = [steps["pair"] == pair for pair in np.unique(steps["pair"])]
    pairs = [(here & is_arms, here & ~is_arms) for here in of_pair]
    pairs = [(mine, theirs) for mine, theirs in pairs if mine.any() and theirs.any()]
    print(
        f"{file.name}: {len(pairs)} pairs, {int(is_arms.sum())} steps of the arm, {int((~is_arms).sum())} of upstream"
    )
    logs = np.array([np.log(figures(steps, mine) / figures(steps, theirs)) for mine, theirs in pairs])
    centre, half = logs.mean(axis=0), half_width(logs)
    arm, upstream = figures(steps, is_arms), figures(steps, ~is_arms)
    for i, name in enumerate(("prepare_for_decode, us", "step, us", "tokens/s")):
        low, high = np.exp(centre[i] - half[i]), np.exp(centre[i] + half[i])
        print(
            f"  {name:24} {upstream[i]:10,.1f} -> {arm[i]:10,.1f}   of the sums {arm[i] / upstream[i]:.3f},"
            f" of the pairs {np.exp(centre[i]):.3f} (95 % {low:.3f} ... {high:.3f})"
        )
    period = steps["period_ns"] / 1e3
    rest = period - np.polyval(np.polyfit(steps["context"], period, 2), steps["context"])
    shifts = np.array([rest[mine].mean() - rest[theirs].mean() for mine, theirs in pairs]) / period.mean()
    print(
        f"  step at equal context    {100 * shifts.mean():+.2f} % +- {100 * half_width(shifts):.2f};"
        f" context explains {100 * (1 - rest.var() / period.var()):.0f} % of its variance"
    )


if __name__ == "__main__":
    for word in sys.argv[1:]:
        show(Path(word))
