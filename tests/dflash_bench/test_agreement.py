"""Ranks at their agreement: clocks lined up, lateness split, and what is said when they cannot be compared."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from handmade import Range, events, view
from hypothesis import given
from hypothesis import strategies as st

from dflash_bench.ingest.sources import IngestOptions, ingest
from dflash_bench.metrics.agreement import agreement_metrics, agreements_of, find_meetings
from dflash_bench.metrics.clocks import best_shift, clock_of, overlapping
from dflash_bench.metrics.lateness import lateness_rows, wait_rows
from dflash_bench.metrics.measure import measure

SGLANG = Path(__file__).parents[1] / "data" / "sglang"


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
    found = [agreements_of(view(m)) for m in made]
    meetings, findings = find_meetings(found)
    assert len(meetings) == 1
    return found, meetings[0], {f.code: f for f in findings}


@pytest.mark.parametrize("shift", [0, 22_164_000, -(10**12)])
def test_a_clock_that_is_off_is_found_and_taken_out(shift):
    """Rank 1 arrives 100 ns later in every step, whatever its clock says."""
    _, meeting, codes = met(rank_events(0, 0, [50] * 8), rank_events(1, 1, [150] * 8, shift))
    assert [clock.offset for clock in meeting.clocks] == [0, shift]
    assert meeting.wait.tolist() == [[100] * 8, [0] * 8]
    assert meeting.last.tolist() == [1] * 8
    assert meeting.tax.tolist() == [50] * 8
    assert codes == {}


def test_one_capture_has_one_clock_and_needs_no_estimate():
    _, meeting, _ = met(rank_events(0, 0, [50] * 3), rank_events(1, 0, [150] * 3, leave_late=7))
    assert [(clock.offset, clock.spread) for clock in meeting.clocks] == [(0, 0), (0, 0)]
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
    assert [clock.spread for clock in meeting.clocks] == [0, 600]
    assert "not to be trusted" in codes["clock_spread"].text


def test_agreements_that_a_rank_lacks_are_left_out_and_counted():
    _, meeting, codes = met(rank_events(0, 0, [50] * 5), rank_events(1, 1, [60] * 3))
    assert meeting.arrival.shape == (2, 3)
    assert codes["agreements_unpaired"].count == 2


def test_of_ranks_that_arrive_together_the_lowest_counts_as_last():
    _, meeting, _ = met(rank_events(3, 0, [50] * 2), rank_events(1, 0, [50] * 2))
    assert meeting.ranks == (1, 3)
    assert meeting.last.tolist() == [0, 0]


def test_one_rank_does_not_meet():
    assert find_meetings([agreements_of(view(rank_events(0, 0, [50])))]) is None


def test_the_last_to_arrive_allocated_or_not():
    _, meeting, _ = met(rank_events(0, 0, [50, 50], allocs=[0, 1]), rank_events(1, 0, [20, 90]))
    assert meeting.last.tolist() == [0, 1]
    assert meeting.is_alloc[meeting.last, [0, 1]].tolist() == [True, False]


def test_lateness_is_split_by_what_made_it():
    """Rank 1 prepares 100 ns longer: ±50 around the median, all of it in prepare_for_decode."""
    found, meeting, _ = met(rank_events(0, 0, [50] * 4), rank_events(1, 0, [150] * 4))
    assert lateness_rows(found, [meeting]) == [
        (0, "prepare_for_decode", -50.0, -50.0),
        (1, "prepare_for_decode", 50.0, 50.0),
    ]


def test_a_wait_names_the_rank_that_came_last_and_what_it_had_done():
    found, meeting, _ = met(rank_events(0, 0, [50, 150, 50]), rank_events(1, 0, [150, 50, 150]))
    assert wait_rows(found, [meeting]) == [
        (0, "waited for rank 1 · prepare_for_decode", 2, 200.0, 1.0),
        (1, "waited for rank 0 · prepare_for_decode", 1, 100.0, 1.0),
    ]


def test_a_late_start_is_told_from_long_work():
    found, meeting, _ = met(rank_events(0, 0, [50] * 4), rank_events(1, 0, [50] * 4, shift=30))
    assert lateness_rows(found, [meeting]) == [(0, "late start", -15.0, -15.0), (1, "late start", 15.0, 15.0)]


PREPARES = st.lists(st.lists(st.integers(1, 300), min_size=6, max_size=6), min_size=2, max_size=5)


@given(PREPARES, st.lists(st.integers(-(10**6), 10**6), min_size=5, max_size=5))
def test_the_parts_of_lateness_add_up_to_it(prepares, shifts):
    made = [rank_events(r, r, p, shifts[r]) for r, p in enumerate(prepares)]
    found, meeting, _ = met(*made)
    rows = lateness_rows(found, [meeting])
    for k, rank in enumerate(meeting.ranks):
        total = sum(row[2] for row in rows if row[0] == rank)
        assert total == pytest.approx(meeting.lateness[k].mean(), abs=1e-6)
    assert (meeting.wait.min(axis=0) == 0).all(), "somebody is last"
    assert (meeting.tax >= 0).all()


def test_agreements_outside_steps_and_processes_without_rank_do_not_meet():
    outside = events([Range("decode_step", 0, 10), Range("dp_agreement", 20, 30)])
    assert agreements_of(view(outside)) is None
    nobody = events([Range("decode_step", 0, 10), Range("dp_agreement", 2, 3)], rank=None)
    assert agreements_of(view(nobody)) is None


# ── which agreements belong together ─────────────────────────────────────────────────────────────────────────────────


def agreeing(rank, capture, times, shift=0, steps=None, more=()):
    """A rank that arrives and leaves at these times, in a step around each, or around those with these numbers."""
    ranges = list(more)
    for k, (arrival, leave) in enumerate(times):
        if steps is None or k in steps:
            ranges.append(Range("decode_step", arrival + shift - 100, leave + shift + 100))
        ranges.append(Range("dp_agreement", arrival + shift, leave + shift))
    return agreements_of(view(events(ranges, rank=rank, capture=capture)))


def barrier(*arrivals):
    """For each rank (arrival, leave) of each agreement: all leave 10 after the last has come."""
    leave = [max(each) + 10 for each in zip(*arrivals, strict=True)]
    return [list(zip(own, leave, strict=True)) for own in arrivals]


def test_a_rank_that_idles_agrees_outside_its_steps_and_is_not_paired_by_order():
    """Rank 1 has no request for the first three agreements: those are no agreements of its steps, nor of anybody's."""
    first, second = barrier([1000 * k for k in range(8)], [1000 * k + 50 for k in range(8)])
    ((meeting,), findings) = find_meetings([agreeing(0, 0, first), agreeing(1, 0, second, steps=range(3, 8))])
    assert meeting.wait.tolist() == [[50] * 5, [0] * 5]
    assert [(f.code, f.count) for f in findings] == [("agreements_outside_steps", 3)]


@pytest.mark.parametrize("behind", [1, 3, 7])
def test_captures_that_begin_at_different_steps_are_paired_by_the_steadiest_offset(behind):
    """Periods differ from step to step, so that only the right pairs give one and the same offset."""
    rng = np.random.default_rng(5)
    begin = np.cumsum(rng.integers(8_000_000, 9_000_000, 60))
    first, second = barrier(begin.tolist(), (begin + rng.integers(0, 300_000, 60)).tolist())
    ((meeting,), findings) = find_meetings(
        [agreeing(0, 0, first[: 60 - behind]), agreeing(1, 1, second[behind:], 7_000_000)]
    )
    assert meeting.arrival.shape[1] == 60 - 2 * behind
    assert [clock.offset for clock in meeting.clocks] == [0, 7_000_000]
    wait = (np.array(second)[behind : 60 - behind, 0] - np.array(first)[behind : 60 - behind, 0]).tolist()
    assert meeting.wait[0].tolist() == wait
    assert {f.code: f.count for f in findings}["agreements_unpaired"] == 2 * behind


def test_of_periods_that_are_all_alike_wall_time_tells_the_pairs():
    end = np.arange(50) * 1_000_000
    assert best_shift(end[3:], end[:47] + 5_000_000, 5_000_000.0) == (3, True)
    assert best_shift(end, end + 5_000_000, None) == (0, True)


def test_a_clock_that_drifts_is_followed():
    """400 ppm over two seconds is 800 µs, more than the ranks are apart."""
    rng = np.random.default_rng(6)
    end = np.cumsum(rng.integers(8_000_000, 9_000_000, 200))
    own = end + ((end - end[0]) * 0.0004).astype(np.int64) + rng.integers(-20_000, 20_000, 200)
    clock = clock_of(end, own)
    assert clock.drift == pytest.approx(0.0004, rel=0.01)
    assert np.abs(clock.on_first(own) - end).max() < 25_000
    steady = clock_of(end, end + 77_000 + rng.integers(-20_000, 20_000, 200))
    assert steady.drift == 0
    assert steady.offset == pytest.approx(77_000, abs=5_000)


def test_intervals_that_overlap_belong_together_and_each_once():
    start, end = np.array([0, 100, 200, 300]), np.array([50, 150, 250, 350])
    own_start, own_end = np.array([40, 120, 201, 245]), np.array([45, 160, 244, 310])
    assert overlapping(start, end, own_start, own_end).tolist() == [0, 1, 2, 3]
    assert overlapping(start, end, np.array([145]), np.array([400])).tolist() == [-1, -1, 0, -1]


def test_ranks_on_one_clock_whose_agreements_never_overlap_give_no_figure(tmp_path):
    first = [(1000 * k, 1000 * k + 10) for k in range(9)]
    second = [(1000 * k + 500, 1000 * k + 510) for k in range(9)]
    assert find_meetings([agreeing(0, 0, first), agreeing(1, 0, second)]) is None


def test_two_agreements_of_a_step_are_told_apart():
    """The second waits for what follows the first: each has figures of its own, and waits add up."""
    made = []
    for rank, (early, late) in enumerate(((0, 0), (10, 30))):
        ranges = []
        for k in range(4):
            t = 1000 * k
            ranges += [
                Range("decode_step", t, t + 900),
                Range("dp_agreement", t + 100 + early, t + 120),
                Range("dp_agreement", t + 500 + late, t + 540),
            ]
        made.append(agreements_of(view(events(ranges, rank=rank, capture=0))))
    meetings, findings = find_meetings(made)
    assert [meeting.place for meeting in meetings] == [1, 2]
    assert [meeting.wait.tolist() for meeting in meetings] == [[[10] * 4, [0] * 4], [[30] * 4, [0] * 4]]
    assert findings == ()
    found = {(m.name, m.rank): m.values.tolist() for m in agreement_metrics(meetings)}
    assert found["dp.agreement_tax@1", None] == [5] * 4
    assert found["dp.agreement_tax@2", None] == [15] * 4
    assert found["dp.wait", 0] == [40] * 4
    assert "dp.agreement_tax" not in {name for name, _ in found}


def test_two_step_scopes_in_an_iteration_are_said():
    more = [Range("decode_step", 1000 * k + 200, 1000 * k + 300) for k in range(6)]
    first, second = barrier([1000 * k for k in range(6)], [1000 * k + 5 for k in range(6)])
    _, findings = find_meetings([agreeing(0, 0, first, more=more), agreeing(1, 0, second)])
    assert [(f.code, f.rank, f.count) for f in findings] == [("steps_twice", 0, 5)]


@pytest.mark.parametrize(
    ("capture", "num", "wanted"),
    [
        ("cpu_dp2", 104, {"dp.agreement_tax": (121.4, 274.2), "dp.alloc_on_critical_path": (None, 0.5288)}),
        ("cpu_dp2_idle", 99, {"dp.agreement_tax": (73.0, 182.9), "dp.alloc_on_critical_path": (None, 0.5354)}),
        ("cpu_dp2_dflash", 105, {"dp.agreement_tax@1": (44.2, None)}),
        ("cpu_dp2_dflash", 102, {"dp.agreement_tax@2": (333.2, None), "dp.alloc_on_critical_path@2": (None, 0.6078)}),
    ],
)
def test_a_real_sglang_with_two_ranks(tmp_path, capture, num, wanted):
    """Two ranks with DP attention on one clock, plain, with a rank that idles, and with two agreements a step."""
    (profile,) = ingest([SGLANG / f"{capture}.sqlite"], IngestOptions(tmp_path))
    found = measure(profile)
    for name, (p50, mean) in wanted.items():
        values = found.find(name, None).values
        scale = 1000 if "tax" in name else 1
        assert len(values) == num
        assert p50 is None or np.median(values) / scale == pytest.approx(p50, abs=0.06)
        assert mean is None or values.mean() / scale == pytest.approx(mean, abs=0.06 if scale > 1 else 0.0001)
    if capture == "cpu_dp2_idle":
        shares = [100 * found.find("dp.straggler_share", rank).values.mean() for rank in (0, 1)]
        assert shares == pytest.approx([59.6, 40.4], abs=0.05)
