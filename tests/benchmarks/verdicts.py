"""What verdicts are worth, on figures with known truth: the simulated tables of docs/verdicts.md.

``python tests/benchmarks/verdicts.py [--trials N] [--only WORD]`` prints them as Markdown. Every trial is a comparison
of all metrics through `judge`, as `compare` makes it; seeds are fixed.
"""

from __future__ import annotations

import argparse
import itertools
from collections.abc import Callable, Iterator
from dataclasses import replace

import numpy as np

from dflash_bench.metrics.registry import spec
from dflash_bench.model import Metric, RunInfo, RunMetrics, Sides, Statistic, Verdict
from dflash_bench.stats.noise import Allowance
from dflash_bench.stats.rules import MetricRule, Rules
from dflash_bench.stats.verdict import judge

PRIMARY = ("step.period", "step.lead", "cost.prepare_for_decode", "host.busy_per_step", "dp.agreement_tax")
OTHERS = tuple(f"cost.part{k}" for k in range(13))
SPREAD = 0.05
"""Standard deviation between runs, as a share of a figure."""
STRICT = Rules({name: MetricRule(Allowance(0.0)) for name in ("step.*", "cost.*", "host.*", "dp.*")})
"""No tolerance: nothing but the statistics stands against a false verdict."""

Noise = Callable[[np.random.Generator], float]
NOISES: dict[str, Noise] = {
    "normal": lambda rng: rng.standard_normal(),
    "heavy tails (t, 5 degrees)": lambda rng: rng.standard_t(5) / np.sqrt(5 / 3),
    "two modes of a run": lambda rng: 4.0 * (rng.random() < 0.5) + 0.3 * rng.standard_normal(),
    "5 % outliers (× 10)": lambda rng: rng.standard_normal() * (10 if rng.random() < 0.05 else 1),
}

RANKS = ((1, 1.0), (4, 1.0), (32, 0.5))
"""Ranks, and which share of the trials they get."""


def run(name: str, figures: dict[tuple[str, int | None], float]) -> RunMetrics:
    """A run that has these figures."""
    made = []
    for (metric, rank), value in figures.items():
        known = spec(metric)
        statistic = Statistic.MEDIAN if known.statistic is not Statistic.VALUE else known.statistic
        made.append(Metric(metric, rank, known.unit, statistic, np.array([value])))
    info = RunInfo(name, "control", "made-up", "simulated", (), 1, "2026-12-01", "0", (), (), ())
    return RunMetrics(info, tuple(made), (), ())


def runs(
    rng: np.random.Generator, num: int, ranks: int, noise: Noise, drift: float = 0.0, shift: dict | None = None
) -> tuple[RunMetrics, ...]:
    """Runs whose metrics share half of their noise, and whose ranks share most of it."""
    made = []
    for k in range(num):
        host, figures = noise(rng), {}
        for name in (*PRIMARY, *OTHERS) if ranks < 32 else (*PRIMARY, *OTHERS[:1]):
            own = 0.7 * host + 0.7 * rng.standard_normal() + drift * k
            for rank, apart in _apart(rng, ranks):
                z = own + apart
                moved = (shift or {}).get((name, rank), 0.0)
                figures[name, rank] = 1e6 * (1 + SPREAD * (z + moved))
        made.append(run(f"r{k}", figures))
    return tuple(made)


def _apart(rng: np.random.Generator, ranks: int) -> Iterator[tuple[int | None, float]]:
    """The pooled figure and each rank's, with what a rank has of its own; the only rank has nothing."""
    if ranks == 1:
        yield 0, 0.0
        return
    yield None, 0.0
    for rank in range(ranks):
        yield rank, 0.3 * rng.standard_normal()


def is_false(sides: Sides, rules: Rules = STRICT) -> bool:
    """Whether a comparison of one code with itself calls anything improved or regressed."""
    found = judge(sides, rules)
    return bool(found.of(Verdict.IMPROVED) or found.of(Verdict.REGRESSED))


def upper(count: int, trials: int) -> float:
    """The exact upper 95 % bound of a share."""
    from scipy.stats import beta

    return float(beta.ppf(0.95, count + 1, trials - count)) if count < trials else 1.0


def row(name: str, count: int, trials: int) -> str:
    """A line of a table of shares."""
    return f"| {name} | {trials} | {100 * count / trials:.1f} % | {100 * upper(count, trials):.1f} % |"


def false_alarms(trials: int) -> Iterator[str]:
    """Same code on both sides, several runs a side."""
    yield "| runs a side, noise, ranks | comparisons | any false verdict | upper 95 % |\n|---|--:|--:|--:|"
    for num in (3, 5):
        for name, noise in NOISES.items():
            for ranks, share in RANKS:
                rng, count = np.random.default_rng([num, ranks]), max(20, int(trials * share))
                bad = _alarms(rng, num, ranks, noise, count)
                yield row(f"{num} + {num}, {name}, {_ranks(ranks)}", bad, count)
    for ranks, share in RANKS:
        rng, bad, count = np.random.default_rng([7, ranks]), 0, max(20, int(trials * share))
        for _ in range(count):
            turns = runs(rng, 10, ranks, NOISES["normal"], drift=0.3)
            bad += is_false(Sides(turns[0::2], turns[1::2]))
        yield row(f"5 + 5 in turns, a drift of 0.3 spreads a run, {_ranks(ranks)}", bad, count)


def _ranks(count: int) -> str:
    return f"{count} rank{'s' * (count > 1)}"


def _alarms(rng: np.random.Generator, num: int, ranks: int, noise: Noise, count: int) -> int:
    return sum(is_false(Sides(runs(rng, num, ranks, noise), runs(rng, num, ranks, noise))) for _ in range(count))


def sessions(trials: int) -> Iterator[str]:
    """A candidate of another session against ten sessions of the baseline. Ranks stray together, and a little apart."""
    yield "| sessions stray, as a multiple of runs | comparisons | any false verdict | upper 95 % |\n|---|--:|--:|--:|"
    for (ranks, share), times in itertools.product(RANKS, (0, 1, 2)):
        rng, bad, count = np.random.default_rng([times, ranks]), 0, max(20, int(trials * share))
        for _ in range(count):
            earlier = [_session(rng, ranks, times) for _ in range(10)]
            keys = [(m.name, m.rank) for m in earlier[0][0].metrics]
            history = {
                key: [float(np.median([r.find(*key).values[0] for r in own])) for own in earlier]  # type: ignore[union-attr]
                for key in keys
            }
            candidate = _session(rng, ranks, times)
            bad += is_false(Sides(earlier[-1], candidate, history, is_baseline=True, is_other_session=True))
        yield row(f"× {times}, {_ranks(ranks)}", bad, count)


def _session(rng: np.random.Generator, ranks: int, times: float) -> tuple[RunMetrics, ...]:
    """Three runs of one session, which strays by so many spreads of a run."""
    level = {}
    for name in (*PRIMARY, *OTHERS):
        together = rng.standard_normal()
        for rank, apart in _apart(rng, ranks):
            level[name, rank] = times * (together + apart)
    return runs(rng, 3, ranks, NOISES["normal"], shift=level)


def power(trials: int) -> Iterator[str]:
    """What is found."""
    yield "| planted | comparisons | found |\n|---|--:|--:|"
    for name, num, size, ranks, rank in (
        ("one primary metric of 90 comparisons, 3 spreads, 5 + 5 runs", 5, 3.0, 4, None),
        ("the same on a single rank's run, 18 comparisons", 5, 3.0, 1, 0),
        ("one bad rank of 32, 3 spreads, 5 + 5 runs", 5, 3.0, 32, 17),
        ("one primary metric, 6 spreads, 3 + 3 runs", 3, 6.0, 1, 0),
    ):
        rng, found, count = np.random.default_rng(3), 0, trials if ranks < 32 else max(20, trials // 8)
        where = [None, *range(ranks)] if rank is None else [rank]
        for _ in range(count):
            shift = {("cost.prepare_for_decode", own): size for own in where}
            base, worse = runs(rng, num, ranks, NOISES["normal"]), runs(rng, num, ranks, NOISES["normal"], shift=shift)
            judged = judge(Sides(base, worse), STRICT).of(Verdict.REGRESSED)
            found += any(j.metric == "cost.prepare_for_decode" and j.rank in where for j in judged)
        yield f"| {name} | {count} | {found / count:.1%} |".replace("%", " %")
    rng, found = np.random.default_rng(4), 0
    for _ in range(trials):
        base = runs(rng, 5, 1, NOISES["normal"])
        worse = runs(rng, 5, 1, NOISES["normal"], shift={("step.period", 0): 6.0})
        wild = {("step.period", 0): 30.0 * rng.choice([-1, 1])}
        worse = (*worse[:4], replace(runs(rng, 1, 1, NOISES["normal"], shift=wild)[0], info=worse[4].info))
        found += any(j.metric == "step.period" for j in judge(Sides(base, worse), STRICT).of(Verdict.REGRESSED))
    name = "6 spreads with 5 + 5 runs, one candidate run 30 spreads off"
    yield f"| {name} | {trials} | {found / trials:.1%} |".replace("%", " %")
    yield from tail(trials)


def tail(trials: int) -> Iterator[str]:
    """5 % of steps twenty times as long, and nothing else: by duets of two processes, 30 pairs of 20 steps."""
    rng, found, count = np.random.default_rng(5), 0, max(20, trials // 8)
    for _ in range(count):
        sides = ([], [])
        for process in range(2):
            for slow, side in enumerate(sides):
                steps = 4e5 * (1 + 0.1 * rng.standard_normal(600)) * np.where(rng.random(600) < 0.05 * slow, 20, 1)
                pair, made = np.repeat(np.arange(30), 20), []
                for name in ("cost.prepare_for_decode", "cost.prepare_for_decode.p99"):
                    made.append(Metric(name, 0, spec(name).unit, spec(name).statistic, steps, pair=pair))
                side.append(replace(run(f"p{process}", {}), metrics=tuple(made)))
        judged = judge(Sides(*map(tuple, sides))).of(Verdict.REGRESSED)
        found += any(j.metric == "cost.prepare_for_decode.p99" for j in judged)
    name = "the tail alone: 5 % of steps × 20, a duet of 2 × 30 pairs"
    yield f"| {name} | {count} | {found / count:.1%} |"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--trials", type=int, default=400)
    parser.add_argument("--only", choices=("alarms", "sessions", "power"))
    asked = parser.parse_args()
    for name, table in (("alarms", false_alarms), ("sessions", sessions), ("power", power)):
        if asked.only in (None, name):
            print(*table(asked.trials), "", sep="\n", flush=True)


if __name__ == "__main__":
    main()
