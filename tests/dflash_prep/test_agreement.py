"""The DP agreement: what is reduced how, with one rank and over real processes (`tests/e2e/test_loop.py`)."""

from __future__ import annotations

from dflash_prep.loop.agreement import AgreementGroup, ForwardMode, Proposal, reduce


def _row(proposal: Proposal) -> list[int]:
    return [int(value) for value in proposal]


def test_eight_published_fields_then_stop_and_the_time_a_simulated_device_stood_still() -> None:
    assert len(Proposal._fields) == 10
    assert _row(Proposal(36, 36, True, False, False, ForwardMode.TARGET_VERIFY)) == [36, 36, 1, 0, 0, 2, 0, 0, 0, 0]


def test_counts_stay_per_rank_graph_flags_take_the_minimum_extend_and_stop_the_maximum() -> None:
    agreed = reduce(
        [
            _row(Proposal(num_tokens=36, num_tokens_for_logprob=36, can_run_prefill_graph=True)),
            _row(Proposal(num_tokens=40, num_tokens_for_logprob=4, is_extend=True, still_ns=700)),
            _row(Proposal(can_run_decode_graph=False, can_run_prefill_graph=True, stop=True)),
        ]
    )
    assert agreed.num_tokens == (36, 40, 0)
    assert agreed.num_tokens_for_logprob == (36, 4, 0)
    assert agreed.max_num_tokens == 40
    assert not agreed.can_run_decode_graph
    assert not agreed.can_run_prefill_graph
    assert agreed.is_extend
    assert agreed.stop
    assert agreed.still_ns == 700
    assert not agreed.is_idle


def test_ranks_that_run_the_same_requests_count_once_and_any_of_them_can_stop_all() -> None:
    rows = [_row(Proposal(num_tokens=n, num_tokens_for_logprob=n)) for n in (36, 36, 40, 40)]
    rows[3] = _row(Proposal(num_tokens=40, num_tokens_for_logprob=40, stop=True, still_ns=9))
    agreed = reduce(rows, tp=2)
    assert agreed.num_tokens == agreed.num_tokens_for_logprob == (36, 40)
    assert agreed.stop
    assert agreed.still_ns == 9
    assert AgreementGroup(4, tp=2).dp == 2


def test_a_world_of_one_agrees_with_itself_without_a_process_group() -> None:
    agreed = AgreementGroup(1).agree(Proposal())
    assert agreed.is_idle
    assert agreed.num_tokens == (0,)
    assert agreed.can_run_decode_graph
    assert not agreed.stop
