"""Ranks at their agreement: clocks lined up, lateness split, and what is said when they cannot be compared."""

from __future__ import annotations

import numpy as np
import pytest
from handmade import Range, events, view
from hypothesis import given
from hypothesis import strategies as st

from dflash_bench.metrics.agreement import arrivals_of, meet
from dflash_bench.metrics.lateness import lateness_rows


def rank_events(rank, capture, prepare, shift=0, allocs=(), leave_late=0):
    """A rank whose step k prepares for prepare[k] ns, arrives, and leaves with the others at 1000 k + 500."""
    ranges = []
    for k, duration in enumerate(prepare):
        t = 1000 * k + shift
        ranges += [
            Range("decode_step", t, t + 900),
            Range("prepare_for_decode", t + 10, t + 10 + duration),
            Range("dp_agreement", t + 20 + duration, t + 500 + leave_late),
        ]
        if k in allocs:
            ranges.append(Range("kv_alloc", t + 11, t + 12))
    return events(ranges, rank=rank, capture=capture)


def met(*made):
    found = [arrivals_of(view(m)) for m in made]
    meeting, findings = meet(found)
    return found, meeting, {f.code: f for f in findings}


@pytest.mark.parametrize("shift", [0, 22_164_000, -(10**12)])
def test_a_clock_that_is_off_is_found_and_taken_out(shift):
    """Rank 1 arrives 100 ns later in every step, whatever its clock says."""
    _, meeting, codes = met(rank_events(0, 0, [50] * 8), rank_events(1, 1, [150] * 8, shift))
    assert np.median(meeting.offset, axis=1).tolist() == [0, shift]
    assert meeting.wait.tolist() == [[100] * 8, [0] * 8]
    assert meeting.last.tolist() == [1] * 8
    assert meeting.tax.tolist() == [50] * 8
    assert codes == {}


def test_one_capture_has_one_clock_and_needs_no_estimate():
    _, meeting, _ = met(rank_events(0, 0, [50] * 3), rank_events(1, 0, [150] * 3, leave_late=7))
    assert meeting.is_one_clock
    assert meeting.offset.tolist() == [[0] * 3, [0] * 3]
    assert meeting.wait.tolist() == [[100] * 3, [0] * 3]


def test_a_clock_that_wanders_more_than_the_effect_is_said():
    ranges = []
    for k, late in enumerate((0, 400, 800, 1200)):
        t = 10_000 * k + late
        ranges += [Range("decode_step", t, t + 900), Range("dp_agreement", t + 70, t + 500)]
    base = []
    for k in range(4):
        t = 10_000 * k
        base += [Range("decode_step", t, t + 900), Range("dp_agreement", t + 60, t + 500)]
    _, meeting, codes = met(events(base, rank=0, capture=0), events(ranges, rank=1, capture=1))
    assert meeting.offset_spread.tolist() == [0, 600]
    assert "not to be trusted" in codes["clock_spread"].text


def test_unequal_numbers_of_agreements_are_cut_to_the_common_ones_and_said():
    _, meeting, codes = met(rank_events(0, 0, [50] * 5), rank_events(1, 1, [60] * 3))
    assert meeting.arrival.shape == (2, 3)
    assert codes["agreement_counts_differ"].count == 2


def test_of_ranks_that_arrive_together_the_lowest_counts_as_last():
    _, meeting, _ = met(rank_events(3, 0, [50] * 2), rank_events(1, 0, [50] * 2))
    assert meeting.ranks == (1, 3)
    assert meeting.last.tolist() == [0, 0]


def test_one_rank_does_not_meet():
    assert meet([arrivals_of(view(rank_events(0, 0, [50])))]) is None


def test_the_last_to_arrive_allocated_or_not():
    _, meeting, _ = met(rank_events(0, 0, [50, 50], allocs=[0, 1]), rank_events(1, 0, [20, 90]))
    assert meeting.last.tolist() == [0, 1]
    assert meeting.is_alloc[meeting.last, [0, 1]].tolist() == [True, False]


def test_lateness_is_split_by_what_made_it():
    """Rank 1 prepares 100 ns longer: ±50 around the median, all of it in prepare_for_decode."""
    found, meeting, _ = met(rank_events(0, 0, [50] * 4), rank_events(1, 0, [150] * 4))
    assert lateness_rows(found, meeting) == [
        (0, "prepare_for_decode", -50.0, -50.0),
        (1, "prepare_for_decode", 50.0, 50.0),
    ]


def test_a_late_start_is_told_from_long_work():
    found, meeting, _ = met(rank_events(0, 0, [50] * 4), rank_events(1, 0, [50] * 4, shift=30))
    assert lateness_rows(found, meeting) == [(0, "late start", -15.0, -15.0), (1, "late start", 15.0, 15.0)]


PREPARES = st.lists(st.lists(st.integers(1, 300), min_size=6, max_size=6), min_size=2, max_size=5)


@given(PREPARES, st.lists(st.integers(-(10**6), 10**6), min_size=5, max_size=5))
def test_the_parts_of_lateness_add_up_to_it(prepares, shifts):
    made = [rank_events(r, r, p, shifts[r]) for r, p in enumerate(prepares)]
    found, meeting, _ = met(*made)
    rows = lateness_rows(found, meeting)
    for k, rank in enumerate(meeting.ranks):
        total = sum(row[2] for row in rows if row[0] == rank)
        assert total == pytest.approx(meeting.lateness[k].mean(), abs=1e-6)
    assert (meeting.wait.min(axis=0) == 0).all(), "somebody is last"
    assert (meeting.tax >= 0).all()


def test_agreements_outside_steps_and_processes_without_rank_do_not_meet():
    outside = events([Range("decode_step", 0, 10), Range("dp_agreement", 20, 30)])
    assert arrivals_of(view(outside)) is None
    nobody = events([Range("decode_step", 0, 10), Range("dp_agreement", 2, 3)], rank=None)
    assert arrivals_of(view(nobody)) is None
