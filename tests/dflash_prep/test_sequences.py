"""RequestQueue: who is due when, and who waits in front."""

from __future__ import annotations

from dflash_prep import workload
from dflash_prep.loop.sequences import RequestQueue


def test_closed_arrivals_always_have_as_many_due_as_there_is_room() -> None:
    arrivals = RequestQueue(workload.load("smoke"), seed=0, rank=0)
    first = arrivals.due(0, room=36)
    assert [each.shape.index for each in first] == list(range(36))
    arrivals.take(36)
    assert [each.shape.index for each in arrivals.due(1, room=2)] == [36, 37]


def test_who_was_not_admitted_stays_due_and_a_retracted_one_comes_first() -> None:
    arrivals = RequestQueue(workload.load("smoke"), seed=0, rank=0)
    first = arrivals.due(0, room=3)
    arrivals.take(2)
    arrivals.put_back(first[0])
    assert [each.shape.index for each in arrivals.due(5, room=2)] == [0, 2]


def test_poisson_arrivals_are_not_due_before_their_step() -> None:
    churn = workload.load("churn")
    arrivals = RequestQueue(churn, seed=0, rank=0)
    arrivals.due(0, room=36)
    arrivals.take(36)
    step = churn.request(0, 0, 36).arrival_step
    assert arrivals.due(step - 1, room=36) == []
    assert arrivals.due(step, room=36)[0].shape.index == 36


def test_the_same_seed_and_rank_give_the_same_prompts() -> None:
    smoke = workload.load("smoke")
    keys = [[each.key for each in RequestQueue(smoke, seed, rank).due(0, 5)] for seed, rank in ((0, 0), (0, 0), (0, 1))]
    assert keys[0] == keys[1]
    assert not set(keys[0]) & set(keys[2])
