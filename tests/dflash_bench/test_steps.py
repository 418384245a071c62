"""Steps, and what belongs to them."""

from __future__ import annotations

import numpy as np
import pytest
from handmade import Range, events, ints
from hypothesis import given
from hypothesis import strategies as st

from dflash_bench.errors import UsageError
from dflash_bench.metrics.events.arrays import Names
from dflash_bench.metrics.events.host import Ranges, ranges_in_order
from dflash_bench.metrics.reading import Reading
from dflash_bench.metrics.events.intervals import NONE, intervals
from dflash_bench.metrics.rank import _steps_touched
from dflash_bench.metrics.shelf import FLUSH_BYTES, Shelf
from dflash_bench.metrics.steps import Paths, PerStep, find_steps, steps_among, thread_ranges


def steps_of(*ranges, step="decode_step"):
    found, findings = find_steps(events(ranges), Reading(step=step))
    return found, {f.code: f.count for f in findings}


def test_an_event_belongs_to_the_step_that_holds_its_start():
    steps, _ = steps_of(Range("decode_step", 0, 10), Range("decode_step", 10, 20), Range("decode_step", 30, 40))
    assert steps.of(ints([-1, 0, 9, 10, 19, 20, 30, 40])).tolist() == [-1, 0, 0, 1, 1, -1, 2, -1]


def test_a_step_inside_a_step_is_left_out_and_counted():
    """Two scopes of one name per iteration would double the steps and halve their period."""
    steps, codes = steps_of(Range("decode_step", 0, 10), Range("decode_step", 2, 8), Range("decode_step", 20, 30))
    assert steps.start.tolist() == [0, 20]
    assert codes == {"step_inside_step": 1}


def test_steps_that_touch_are_both_steps():
    steps, codes = steps_of(Range("decode_step", 0, 10), Range("decode_step", 10, 20))
    assert len(steps) == 2
    assert codes == {}


def test_a_name_in_two_domains_counts_where_it_is_more_frequent():
    ranges = [Range("decode_step", k * 10, k * 10 + 5) for k in range(3)]
    steps, codes = steps_of(*ranges, Range("decode_step", 1, 4, domain="library"))
    assert steps.domain == "dflash"
    assert len(steps) == 3
    assert codes == {"step_name_in_two_domains": 1}


def test_the_step_name_is_a_pattern_for_the_whole_name():
    """Engines that write counts into their step names have another name every step."""
    ranges = [Range(f"step {k} (bs={k + 1})", k * 10, k * 10 + 5) for k in range(3)]
    assert len(steps_of(*ranges, step=r"step \d+ \(bs=\d+\)")[0]) == 3
    assert len(steps_of(*ranges, step=r"step \d+")[0]) == 0


def test_a_pattern_that_is_none_is_a_usage_error():
    with pytest.raises(UsageError, match=r"--step-range 'step\(' is no regular expression"):
        steps_of(Range("decode_step", 0, 1), step="step(")


def test_a_step_that_was_open_at_the_end_is_no_step():
    steps, _ = steps_of(Range("decode_step", 0, 10), Range("decode_step", 20, None))
    assert len(steps) == 1


def test_sums_count_only_what_lies_in_steps():
    steps, _ = steps_of(Range("decode_step", 0, 10), Range("decode_step", 20, 30))
    assert steps.sum_of(ints([1, 5, 15, 25]), ints([1, 2, 4, 8])).tolist() == [3, 8]
    assert steps.holding_any(ints([15, 25])).tolist() == [False, True]


@pytest.mark.parametrize(
    ("overhead", "touched"),
    [
        ([], 0),
        ([(5, 6)], 1),
        ([(9, 21)], 2),  # from one step over the gap into the next
        ([(10, 20)], 0),  # just between them
        ([(0, 100)], 3),
        ([(5, 6), (7, 8)], 1),  # one step touched twice is one step
        ([(-50, 0)], 0),
        ([(100, 200)], 0),
    ],
)
def test_steps_touched_by_profiler_overhead(overhead, touched):
    steps, _ = steps_of(*(Range("decode_step", k * 20, k * 20 + 10) for k in range(3)))
    assert _steps_touched(steps, ints(a for a, _ in overhead), ints(b for _, b in overhead)) == touched


def ranges_of(*ranges, domain="dflash"):
    return thread_ranges(events(ranges).ranges, domain)


def test_the_innermost_range_is_of_the_same_thread_and_domain():
    own = ranges_of(
        Range("outer", 0, 100),
        Range("inner", 10, 20),
        Range("elsewhere", 10, 20, tid=7),
        Range("cub::sort", 12, 14, domain="library"),
    )
    names = own.ranges.name
    held = own.innermost(ints([4242, 4242, 7, 7, 8]), ints([13, 50, 13, 50, 13]))
    assert [None if k == -1 else names.values[names.codes[k]] for k in held] == [
        "inner", "outer", "elsewhere", None, None,
    ]  # fmt: skip


def test_the_path_of_a_range_names_all_that_hold_it():
    own = ranges_of(Range("step", 0, 100), Range("prepare", 10, 50), Range("fill", 20, 30), Range("fill", 60, 70))
    paths = Paths()
    code = paths.codes(own, np.arange(4), np.zeros(4, bool))
    by_start = {int(s): paths.values[c] for s, c in zip(own.ranges.start, code, strict=True)}
    assert by_start == {
        0: "step", 10: "step > prepare", 20: "step > prepare > fill", 60: "step > fill",
    }  # fmt: skip


def test_a_path_goes_on_in_the_next_window_although_its_outer_range_is_closed():
    """`late` was begun inside `outer` and lasts longer: what begins inside it later still has `outer` in its path."""
    paths = Paths()
    paths.codes(ranges_of(Range("outer", 0, 50), Range("late", 10, 90)), ints([]), np.array([False, True]))
    code = paths.codes(ranges_of(Range("late", 10, 90), Range("fill", 60, 70)), ints([1, 0, 1]), np.zeros(2, bool))
    fill, late = "outer > late > fill", "outer > late"
    assert [paths.values[c] for c in code] == [fill, late, fill]


def test_only_ranges_that_are_asked_for_and_those_around_them_get_a_path():
    own = ranges_of(Range("step", 0, 100), Range("prepare", 10, 50), Range("fill", 20, 30), Range("draft", 60, 70))
    paths = Paths()
    code = paths.codes(own, ints([1, -1]), np.zeros(4, bool))
    assert [paths.values[code[0]], code[1]] == ["step > prepare", -1]
    assert paths.values == ["step", "step > prepare"]


def test_without_ranges_nothing_is_innermost_and_there_are_no_paths():
    own = ranges_of()
    assert own.innermost(ints([1]), ints([5])).tolist() == [-1]
    assert Paths().codes(own, ints([-1]), np.zeros(0, bool)).tolist() == [-1]


# ── steps by their edges ────────────────────────────────────────────────────────────────────────────────────────────


@given(
    st.lists(st.tuples(st.integers(0, 60), st.integers(-3, 20)), max_size=12),
    st.lists(st.integers(-5, 90), max_size=30),
)
def test_instants_in_order_find_the_same_steps_as_one_by_one(spans, instants):
    """Steps of no length, of a negative one and inside another occur too: captures hold them."""
    start = ints([begin for begin, _ in spans])
    end = ints([begin + length for begin, length in spans])
    none = np.zeros(len(spans), np.int64)
    ranges = Ranges(none, Names(none, ("dflash",)), Names(none, ("decode_step",)), start, end)
    steps, _ = steps_among(ranges_in_order(ranges), 0, Reading())
    t = np.sort(ints(instants))
    looked_up = intervals(steps.start, steps.end)
    assert steps.of(t).tolist() == np.append(looked_up.source, NONE)[looked_up.holding(t)].tolist()
    assert steps.of_ascending(t).tolist() == steps.of(t).tolist()


# ── sums of each step ───────────────────────────────────────────────────────────────────────────────────────────────


@given(st.lists(st.tuples(st.integers(0, 9), st.integers(-(10**12), 10**12)), max_size=40), st.integers(1, 7))
def test_sums_of_steps_that_end_one_by_one_are_those_of_all_at_once(found, num_at_a_time):
    """However the values come in parts; a step may get some in several, and some steps get none."""
    step, value = ints(k for k, _ in sorted(found)), ints(v for _, v in sorted(found))
    sums, counts = PerStep(10, None), PerStep(10, None)
    for at in range(0, len(step), num_at_a_time):
        sums.add(step[at : at + num_at_a_time], value[at : at + num_at_a_time])
        counts.add(step[at : at + num_at_a_time])
    assert sums.array().tolist() == [sum(v for k, v in found if k == own) for own in range(10)]
    assert counts.array().tolist() == [sum(k == own for k, _ in found) for own in range(10)]


def test_no_steps_have_no_sums():
    assert PerStep(0, None).array().tolist() == []


def test_steps_that_are_over_lie_on_the_shelf(tmp_path):
    """What is held in memory is a bounded part of the numbers, and reading them back gives all of them."""
    sums = PerStep(100_000, Shelf(tmp_path / "shelf"))
    for first in range(0, 100_000, 1000):
        sums.add(np.arange(first, first + 1000), np.arange(first, first + 1000))
        assert sums.over.near_bytes <= FLUSH_BYTES
    assert (sums.array() == np.arange(100_000)).all()
    assert not sums.array().flags.writeable
