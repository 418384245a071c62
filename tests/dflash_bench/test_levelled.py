"""One rank against the others of its run: shared noise goes, the rank's own stays, and nobody else is blamed."""

from __future__ import annotations

import numpy as np
import pytest
from simulated_runs import both, judge_both, run

from dflash_bench.gate.attribution import attribute
from dflash_bench.metrics.summary import figure
from dflash_bench.model import Metric, Statistic, Unit
from dflash_bench.stats.judgement import Verdict
from dflash_bench.stats.levelled import levelled
from dflash_bench.stats.rules import Rules
from dflash_bench.stats.verdict import judge

RANGE = "range.prepare_for_decode"


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


def verdicts(base, candidate):
    return {j.rank: j.verdict for j in judge(levelled(both(base, candidate), RANGE.__eq__), Rules()).each}


def test_a_rank_that_got_slower_stands_out_from_noise_that_all_ranks_share():
    """40 µs on one rank, where runs differ by 60 µs: by itself it cannot be told, against the others it can."""
    rng = np.random.default_rng(1)
    base, slow = side(rng, 5), side(rng, 5, added=(0, 0, 40_000, 0))
    plain = judge_both(base, slow, Rules(), lambda name, rank: rank is not None)
    assert not plain.of(Verdict.REGRESSED)
    assert [rank for rank, verdict in verdicts(base, slow).items() if verdict is Verdict.REGRESSED] == [2]


def test_the_other_ranks_are_not_worse_because_one_got_better():
    rng = np.random.default_rng(2)
    found = verdicts(side(rng, 5), side(rng, 5, added=(0, -80_000, 0, 0)))
    assert found[1] is Verdict.IMPROVED
    assert Verdict.REGRESSED not in found.values()


def test_what_hits_all_ranks_alike_is_not_pinned_on_any():
    rng = np.random.default_rng(3)
    assert Verdict.REGRESSED not in verdicts(side(rng, 5), side(rng, 5, added=(90_000,) * 4)).values()


def test_hardly_ever_is_a_rank_blamed_for_nothing():
    rng = np.random.default_rng(4)
    blamed = sum(Verdict.REGRESSED in verdicts(side(rng, 5), side(rng, 5)).values() for _ in range(40))
    assert blamed <= 2


def test_the_level_stays_what_it_was_so_that_shares_of_it_mean_the_same():
    rng = np.random.default_rng(5)
    base = levelled(both(side(rng, 5, shared=100_000.0), []), RANGE.__eq__).base
    assert {m.rank for own in base for m in own.metrics} == {0, 1, 2, 3}
    assert np.mean([figure(m) for own in base for m in own.metrics]) == pytest.approx(400_000, rel=0.25)


@pytest.mark.parametrize("num_ranks", [1, 2, 3])
def test_few_ranks_are_not_held_against_each_other(num_ranks):
    """Of two, nobody can say which one moved; of three, one that moves takes the median of the others along."""
    rng = np.random.default_rng(6)
    base, slow = side(rng, 5, added=(0,) * num_ranks), side(rng, 5, added=(90_000, *(0,) * (num_ranks - 1)))
    assert verdicts(base, slow) == {}


def test_the_culprit_is_named_even_where_runs_differ_by_more_than_it_adds():
    rng = np.random.default_rng(7)
    base, slow = side(rng, 5), side(rng, 5, added=(0, 0, 40_000, 0))
    (culprit,) = attribute(both(base, slow), Rules(), ("decode_step", "dp_agreement"))
    assert (culprit.range, culprit.ranks, culprit.num_ranks) == ("prepare_for_decode", (2,), 4)
    assert culprit.added_ns == pytest.approx(40_000, abs=15_000)


def test_a_range_that_only_contains_the_cause_is_not_blamed():
    rng = np.random.default_rng(8)
    base, slow = side(rng, 5), side(rng, 5, added=(0, 0, 40_000, 0))
    assert attribute(both(base, slow), Rules(), ("prepare_for_decode",)) == ()


def test_what_the_gate_saw_regress_is_a_culprit_although_it_is_lost_among_all_ranges():
    """The gate watches a few figures, attribution looks at all ranges: what passed the one test needs not pass both."""
    rng = np.random.default_rng(9)
    base, slow = side(rng, 5, added=(0,)), side(rng, 5, added=(150_000,))
    seen = judge_both(base, slow, Rules(), lambda name, rank: rank == 0).of(Verdict.REGRESSED)
    strict = Rules(rate=1e-9)
    assert attribute(both(base, slow), strict, ()) == ()
    (culprit,) = attribute(both(base, slow), strict, (), seen)
    assert culprit.ranks == (0,)
