"""How often a duet's verdicts, and the gate at its defaults, are right: long duets cut into short ones.

    python tests/benchmarks/duet_windows.py                                  # the tables of docs/verdicts.md
    python tests/benchmarks/duet_windows.py PROFILE… --base A --candidate B  # the same of duets of your own

Each window of so many pairs of blocks, of so many processes together, is judged as a duet of its own. Without profiles
these are the four duets on an H200 in ``tests/data/h200-duets``.
"""

from __future__ import annotations

import argparse
import itertools
import sys
from collections import Counter
from collections.abc import Sequence
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[1]))

from benchmarks.verdicts import upper
from h200_duets import PROCESSES, arm_of, made_worse, windows

from dflash_bench.gate.decision import decide
from dflash_bench.gate.policy import Policy
from dflash_bench.metrics.measure import measure
from dflash_bench.model import Family, Judgement, RunMetrics, Sides, Verdict
from dflash_bench.profile import open_profile
from dflash_bench.stats.verdict import judge


def duets(
    base: Sequence[RunMetrics], candidate: Sequence[RunMetrics], pairs: int, processes: int, *, is_crossed: bool
) -> list[Sides]:
    """Windows of the same pairs of each process, so many processes together.

    ``is_crossed``: every choice of processes and every combination of their windows, which share data; otherwise
    processes one after the other and windows of one place: none holds what another holds.
    """
    cut = [list(zip(windows(a, pairs), windows(b, pairs), strict=True)) for a, b in zip(base, candidate, strict=True)]
    if is_crossed:
        chosen = [c for own in itertools.combinations(cut, processes) for c in itertools.product(*own)]
    else:
        groups = [cut[k : k + processes] for k in range(0, len(cut) + 1 - processes, processes)]
        chosen = [c for own in groups for c in zip(*own, strict=True)]
    return [Sides(*zip(*each, strict=True)) for each in chosen]


SAYS_MOST = (
    Verdict.REGRESSED, Verdict.IMPROVED, Verdict.INCONCLUSIVE, Verdict.UNCHANGED,
    Verdict.DESCRIBED, Verdict.NEW, Verdict.REMOVED,
)  # fmt: skip


def ranks(judged: Judgement) -> str:
    """Which rank a verdict that moved is about, where it is one."""
    moved = judged.verdict in (Verdict.REGRESSED, Verdict.IMPROVED)
    return f" on rank {judged.rank}" if moved and judged.rank is not None else ""


def table(title: str, sides: Sequence[Sides]) -> None:
    """Print how often anything was called improved or regressed, each primary verdict, and what the gate says."""
    alarms, verdicts, gate = 0, Counter[tuple[str, str]](), Counter[str]()
    for each in sides:
        found = judge(each).each
        alarms += any(j.verdict in (Verdict.IMPROVED, Verdict.REGRESSED) for j in found)
        # of several ranks the one that says most
        said: dict[str, Judgement] = {}
        for j in sorted((j for j in found if j.family is Family.PRIMARY), key=lambda j: SAYS_MOST.index(j.verdict)):
            said.setdefault(j.metric, j)
        verdicts.update((j.metric, str(j.verdict) + ranks(j)) for j in said.values())
        gate[str(decide(each, Policy(), Policy().error_rate).outcome)] += 1
    n = len(sides)
    # duets that share data are no independent trials
    runs = [run.info.run for each in sides for run in each.base]
    bound = f" (upper 95 % bound {upper(alarms, n):.1%})" if len(set(runs)) == len(runs) else ", which share data"
    print(f"\n{title}: {n} duets; {alarms} with anything improved or regressed{bound}")
    print("  gate at its defaults:", ", ".join(f"{num} {answer}" for answer, num in gate.most_common()))
    for (metric, verdict), num in sorted(verdicts.items()):
        print(f"  {metric:28}{verdict:20}{num:4}")


def of_the_h200() -> None:
    """The tables of docs/verdicts.md."""
    arms = {name: [arm_of(p, name) for p in PROCESSES] for name in ("control", "again", "topup", "plus55us")}
    worse, longer = (
        [made_worse(run, name, share) for run in arms["again"]]
        for name, share in (("cost.prepare_for_decode", 0.15), ("step.period", 0.06))
    )
    base = arms["control"]
    disjoint, crossed = {"is_crossed": False}, {"is_crossed": True}
    table("the same code, 1 × 10 pairs", duets(base, arms["again"], 10, 1, **disjoint))
    table("the same code, 2 × 30 pairs, windows that share data", duets(base, arms["again"], 30, 2, **crossed))
    table("control → topup, 2 × 20 pairs", duets(base, arms["topup"], 20, 2, **disjoint))
    table("55 µs planted, measured, 2 × 30 pairs", duets(base, arms["plus55us"], 30, 2, **crossed))
    table("15 % of preparation added to the samples, 2 × 30 pairs", duets(base, worse, 30, 2, **crossed))
    table("6 % of the period added to the samples, 2 × 30 pairs", duets(base, longer, 30, 2, **crossed))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("profiles", type=Path, nargs="*")
    parser.add_argument("--base", default="control")
    parser.add_argument("--candidate", default="topup")
    parser.add_argument("--pairs", type=int, default=20)
    parser.add_argument("--processes", type=int, default=2)
    parser.add_argument("--crossed", action="store_true", help="every choice of processes and of their windows")
    asked = parser.parse_args()
    if not asked.profiles:
        of_the_h200()
        return
    opened = [open_profile(path) for path in asked.profiles]
    base, candidate = ([measure(p.of_arm(arm)) for p in opened] for arm in (asked.base, asked.candidate))
    sides = duets(base, candidate, asked.pairs, asked.processes, is_crossed=asked.crossed)
    table(f"{asked.base} → {asked.candidate}, {asked.processes} × {asked.pairs} pairs", sides)


if __name__ == "__main__":
    main()
