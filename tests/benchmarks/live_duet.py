"""What a live duet of the plug-in decided, from the times that `--times FILE` wrote: ratios of the arm to upstream.

    python tests/benchmarks/live_duet.py FILE.PID.csv …

A row a figure: mean `prepare_for_decode`, mean step, tokens a second. Each pair of blocks gives one ratio; the printed
one is that of all pairs' sums, its interval by Student's t over the pairs' logarithms. A step is the time from one
preparation to the next of the same block, and its tokens are what the requests' lengths grew by; steps over which a
request came or went are left out of both.
"""

from __future__ import annotations

import csv
import sys
from collections import defaultdict
from pathlib import Path

import numpy as np
from scipy import stats

UPSTREAM = "upstream"


def read_blocks(file: Path) -> dict[str, dict[str, np.ndarray]]:
    """By pair and arm: sums of preparation ns, its steps, step ns, its steps, tokens; float [5]."""
    blocks: dict[str, dict[str, np.ndarray]] = defaultdict(dict)
    rows = list(csv.DictReader(file.open(encoding="utf-8")))
    for row, after in zip(rows, [*rows[1:], None], strict=True):
        sums = blocks[row["pair"]].setdefault(row["arm"], np.zeros(5))
        sums[:2] += int(row["prepare_ns"]), 1
        if after is None or (after["pair"], after["arm"], after["requests"]) != (
            row["pair"],
            row["arm"],
            row["requests"],
        ):
            continue
        tokens = int(after["seq_lens_sum"]) - int(row["seq_lens_sum"])
        if tokens > 0:  # else one left and another came
            sums[2:] += int(after["start_ns"]) - int(row["start_ns"]), 1, tokens
    return {pair: arms for pair, arms in blocks.items() if len(arms) == 2}


def figures(sums: np.ndarray) -> np.ndarray:
    """Mean preparation in us, mean step in us, tokens/s."""
    return np.array([sums[0] / sums[1] / 1e3, sums[2] / sums[3] / 1e3, sums[4] / sums[2] * 1e9])


def main() -> None:
    for file in map(Path, sys.argv[1:]):
        pairs = list(read_blocks(file).values())
        (arm,) = {name for arms in pairs for name in arms} - {UPSTREAM}
        steps = int(sum(arms[arm][1] for arms in pairs))
        print(f"{file.name}: {arm} against upstream, {len(pairs)} pairs, {steps} steps an arm")
        logs = np.array([np.log(figures(arms[arm]) / figures(arms[UPSTREAM])) for arms in pairs])
        half = stats.t.ppf(0.975, len(pairs) - 1) * logs.std(axis=0, ddof=1) / np.sqrt(len(pairs))
        whole = {name: figures(np.sum([arms[name] for arms in pairs], axis=0)) for name in (arm, UPSTREAM)}
        centre = logs.mean(axis=0)
        for i, name in enumerate(("prepare_for_decode, us", "step, us", "tokens/s")):
            low, high = np.exp(centre[i] - half[i]), np.exp(centre[i] + half[i])
            ratio = whole[arm][i] / whole[UPSTREAM][i]
            print(
                f"  {name:24} {whole[UPSTREAM][i]:10,.1f} -> {whole[arm][i]:10,.1f}   of the sums {ratio:.3f},"
                f" of the pairs {np.exp(centre[i]):.3f} (95 % {low:.3f} ... {high:.3f})"
            )


if __name__ == "__main__":
    main()
