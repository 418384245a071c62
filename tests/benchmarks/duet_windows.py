"""How often a duet's verdicts are right: long duets cut into short ones, each judged by itself.

    python tests/benchmarks/duet_windows.py PROFILE… --base control --candidate topup --pairs 20 --processes 2

Each window of so many pairs of blocks, of so many processes together, is judged as a duet of its own. Printed is how
often each primary metric got which verdict, and in how many windows anything at all was called improved or regressed:
between two arms of the same switches that is the rate of false alarms. docs/runs.md holds what came of it on an H200.
"""

from __future__ import annotations

import argparse
from collections import Counter
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

from dflash_bench.metrics.measure import measure
from dflash_bench.model import Family, RunMetrics, Sides, Verdict
from dflash_bench.profile import open_profile
from dflash_bench.stats.verdict import judge


def windows(run: RunMetrics, num: int) -> Iterator[RunMetrics]:
    """A run's metrics, so many pairs at a time; figures that no pair can be told of are left out."""
    paired = [metric for metric in run.metrics if metric.pair is not None and len(metric.pair)]
    last = max(int(metric.pair.max()) for metric in paired)
    for low in range(0, last + 2 - num, num):
        cut = []
        for metric in paired:
            own = (metric.pair >= low) & (metric.pair < low + num)
            parts = {n: a[own] for n in ("values", "group", "block", "pair") if (a := getattr(metric, n)) is not None}
            if own.any():
                cut.append(replace(metric, num_samples=None, **parts))
        # the processes had seeds of their own: windows of several are compared in turns all the same
        info = replace(run.info, run=f"{run.info.run}-{low}", settings={**run.info.settings, "seed": 0})
        yield replace(run, info=info, metrics=tuple(cut), tables=(), findings=())


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("profiles", type=Path, nargs="+")
    parser.add_argument("--base", required=True)
    parser.add_argument("--candidate", required=True)
    parser.add_argument("--pairs", type=int, default=20)
    parser.add_argument("--processes", type=int, default=2)
    asked = parser.parse_args()
    cut = [
        [list(windows(measure(open_profile(path).of_arm(arm)), asked.pairs)) for arm in (asked.base, asked.candidate)]
        for path in asked.profiles
    ]
    verdicts: Counter[tuple[str, str]] = Counter()
    alarms = judged = 0
    for k in range(0, len(cut) + 1 - asked.processes, asked.processes):
        group = cut[k : k + asked.processes]
        for runs in zip(*(zip(*arms, strict=True) for arms in group), strict=True):
            base, candidate = zip(*runs, strict=True)
            found = judge(Sides(base, candidate)).each
            judged += 1
            alarms += any(each.verdict in (Verdict.IMPROVED, Verdict.REGRESSED) for each in found)
            primary = (each for each in found if each.family is Family.PRIMARY and each.rank in (None, 0))
            verdicts.update((each.metric, str(each.verdict)) for each in primary)
    print(f"{judged} duets of {asked.processes} × {asked.pairs} pairs; {alarms} with anything improved or regressed")
    for (metric, verdict), num in sorted(verdicts.items()):
        print(f"{metric:28}{verdict:14}{num:4}")


if __name__ == "__main__":
    main()
