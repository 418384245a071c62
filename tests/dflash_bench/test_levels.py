"""One rank against the others of its run: shared noise goes, the rank's own stays, and nobody else is blamed."""

from __future__ import annotations

import numpy as np
import pytest
from simulated_runs import both, judge_both, run

from dflash_bench.gate.attribution import attribute
from dflash_bench.model import Metric, Statistic, Unit, Verdict
from dflash_bench.stats.levels import host_speed, levelled
from dflash_bench.stats.rules import Rules
from dflash_bench.stats.verdict import judge

RANGE = "cost.prepare_for_decode"


def side(rng, num, added=(0, 0, 0, 0), shared=60_000.0):
    """Runs whose ranks share most of their noise; ``added`` is what each rank takes longer, in ns."""
    found = []
    for k in range(num):
        level = 400_000 + shared * rng.standard_normal()
        metrics = [time(rng, RANGE, rank, level + own) for rank, own in enumerate(added)]
        metrics.append(time(rng, RANGE, None, level))
        found.append(run(metrics, f"r{k}"))
    return found


def time(rng, name, rank, level):
    values = level + 5_000 * rng.standard_normal() + 20_000 * rng.standard_normal(80)
    return Metric(name, rank, Unit.NS, Statistic.MEDIAN, values, block=np.arange(80))


ONLY_RANKS = Rules(primary=(RANGE,))


def found_in(base, candidate):
    return judge_both(base, candidate, ONLY_RANKS)


def verdicts(base, candidate):
    return {j.rank: j.verdict for j in found_in(base, candidate).each if j.rank is not None}


def test_a_rank_that_got_slower_stands_out_from_noise_that_all_ranks_share():
    """40 µs on one rank, where runs differ by 60 µs: by itself it cannot be told, against the others it can."""
    rng = np.random.default_rng(1)
    found = found_in(side(rng, 5), side(rng, 5, added=(0, 0, 40_000, 0)))
    (worse,) = found.of(Verdict.REGRESSED)
    assert worse.rank == 2
    assert worse.basis.is_levelled
    assert worse.shift == pytest.approx(40_000, abs=15_000)
    assert worse.reason.endswith("against the other ranks")


def test_one_bad_rank_of_32_is_found():
    rng = np.random.default_rng(10)
    added = [0.0] * 32
    added[17] = 60_000
    found = found_in(side(rng, 5, added=(0,) * 32), side(rng, 5, added=added))
    assert [j.rank for j in found.of(Verdict.REGRESSED)] == [17]


def test_the_other_ranks_are_not_worse_because_one_got_better():
    rng = np.random.default_rng(2)
    found = verdicts(side(rng, 5), side(rng, 5, added=(0, -80_000, 0, 0)))
    assert found[1] is Verdict.IMPROVED
    assert Verdict.REGRESSED not in found.values()


def test_what_hits_all_ranks_alike_is_not_pinned_on_single_ones():
    rng = np.random.default_rng(3)
    found = found_in(side(rng, 5), side(rng, 5, added=(90_000,) * 4))
    assert not any(j.basis.is_levelled for j in found.of(Verdict.REGRESSED))


def test_levels_by_hand():
    """Each rank less the median of the three others, run by run."""
    found = levelled(
        {0: np.array([1.0, 2.0]), 1: np.array([2.0, 2.0]), 2: np.array([4.0, 2.0]), 3: np.array([9.0, 8.0])}
    )
    assert {rank: values.tolist() for rank, values in found.items()} == {
        0: [-3.0, 0.0], 1: [-2.0, 0.0], 2: [2.0, 0.0], 3: [7.0, 6.0],
    }  # fmt: skip


@pytest.mark.parametrize("num_ranks", [1, 2, 3])
def test_few_ranks_are_not_held_against_each_other(num_ranks):
    """Of two, nobody can say which one moved; of three, one that moves takes the median of the others along."""
    assert levelled({rank: np.ones(5) for rank in range(num_ranks)}) == {}


def test_the_hosts_speed_is_the_median_of_what_all_costs_took():
    costs = [np.array([10_000.0, 10_000, 15_000, 10_000]) * k for k in range(1, 6)]
    assert host_speed(costs).tolist() == [1.0, 1.0, 1.5, 1.0]
    assert host_speed(costs[:4]) is None, "four costs say too little"
    assert host_speed([c / 10_000 for c in costs]) is None, (
        "costs of a microsecond are mostly what measuring them costs"
    )


def test_hardly_ever_is_a_rank_blamed_for_nothing():
    rng = np.random.default_rng(4)
    blamed = sum(Verdict.REGRESSED in verdicts(side(rng, 5), side(rng, 5)).values() for _ in range(40))
    assert blamed <= 2


def test_the_culprit_is_named_even_where_runs_differ_by_more_than_it_adds():
    rng = np.random.default_rng(7)
    sides = both(side(rng, 5), side(rng, 5, added=(0, 0, 40_000, 0)))
    (culprit,) = attribute(judge(sides, ONLY_RANKS), sides, ("decode_step", "dp_agreement"))
    assert (culprit.range, culprit.ranks, culprit.num_ranks) == ("prepare_for_decode", (2,), 4)
    assert culprit.added_ns == pytest.approx(40_000, abs=15_000)


def test_a_range_that_only_contains_the_cause_is_not_blamed():
    rng = np.random.default_rng(8)
    sides = both(side(rng, 5), side(rng, 5, added=(0, 0, 40_000, 0)))
    assert attribute(judge(sides, ONLY_RANKS), sides, ("prepare_for_decode",)) == ()


def test_what_the_gate_saw_regress_is_a_culprit_whatever_else_was_judged():
    rng = np.random.default_rng(9)
    sides = both(side(rng, 5, added=(0,)), side(rng, 5, added=(150_000,)))
    seen = judge(sides, ONLY_RANKS).of(Verdict.REGRESSED)
    nothing = judge(sides, Rules(rate=1e-9))
    assert attribute(nothing, sides, ()) == ()
    (culprit,) = attribute(nothing, sides, (), seen)
    assert culprit.ranks == (0,)
