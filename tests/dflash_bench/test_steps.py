"""Steps, and what belongs to them."""

from __future__ import annotations

import numpy as np
import pytest
from handmade import PID, Range, events, ints, view
from hypothesis import given
from hypothesis import strategies as st

from dflash_bench.errors import UsageError
from dflash_bench.metrics.events.arrays import NONE, Names
from dflash_bench.metrics.events.host import Ranges, ranges_in_order
from dflash_bench.metrics.events.intervals import intervals
from dflash_bench.metrics.events.steps import find_steps
from dflash_bench.metrics.reading import Reading
from dflash_bench.metrics.steps import num_touched
from dflash_bench.metrics.waits import range_paths


def steps_of(*ranges, step="decode_step"):
    found, findings = find_steps(events(ranges).ranges, 0, Reading(step=step))
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


def test_a_step_is_taken_by_its_name_and_by_a_pattern_only_where_it_says_so():
    """Engines that write counts into their step names have another name every step."""
    ranges = [Range(f"step {k} (bs={k + 1})", k * 10, k * 10 + 5) for k in range(3)]
    assert len(steps_of(*ranges, step=r"re:step \d+ \(bs=\d+\)")[0]) == 3
    assert len(steps_of(*ranges, step=r"re:step \d+")[0]) == 0
    assert len(steps_of(*ranges, step="step 1 (bs=2)")[0]) == 1
    assert len(steps_of(Range("step (a|b)", 0, 5), step="step (a|b)")[0]) == 1


def test_a_pattern_that_is_none_is_a_usage_error():
    with pytest.raises(UsageError, match=r"--step-range 're:step\(' is no regular expression"):
        steps_of(Range("decode_step", 0, 1), step="re:step(")


def test_a_step_that_was_open_at_the_end_is_no_step():
    steps, _ = steps_of(Range("decode_step", 0, 10), Range("decode_step", 20, None))
    assert len(steps) == 1


def test_sums_count_only_what_lies_in_steps():
    steps, _ = steps_of(Range("decode_step", 0, 10), Range("decode_step", 20, 30))
    assert steps.sum_by(steps.of(ints([1, 5, 15, 25])), ints([1, 2, 4, 8])).tolist() == [3, 8]
    assert steps.sum_by(steps.of(ints([1, 5, 15, 25]))).tolist() == [2, 1]
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
    assert num_touched(steps, ints(a for a, _ in overhead), ints(b for _, b in overhead)) == touched


def test_the_innermost_range_is_of_the_same_thread_and_domain():
    own = view(
        events(
            [
                Range("decode_step", 0, 100),
                Range("inner", 10, 20),
                Range("elsewhere", 10, 20, tid=7),
                Range("cub::sort", 12, 14, domain="library"),
            ]
        )
    )
    names = own.own.name
    held = own.own_index.innermost(ints([PID, PID, 7, 7, 8]), ints([13, 50, 13, 50, 13]))
    assert [None if k == -1 else names.values[names.codes[k]] for k in held] == [
        "inner", "decode_step", "elsewhere", None, None,
    ]  # fmt: skip


def paths_at(ranges, *instants):
    """The path of ranges of the main thread at each instant."""
    texts, code = range_paths(view(events(ranges)), ints([PID] * len(instants)), ints(instants))
    return [texts[k] for k in code]


def test_a_path_names_all_ranges_that_hold_the_instant():
    ranges = [Range("decode_step", 0, 100), Range("prepare", 10, 50), Range("fill", 20, 30), Range("fill", 60, 70)]
    expected = ["decode_step", "decode_step > prepare", "decode_step > prepare > fill", "decode_step > fill", "-"]
    assert paths_at(ranges, 5, 15, 25, 65, 100) == expected


def test_without_ranges_nothing_is_innermost_and_there_are_no_paths():
    assert view(events()).own_index.innermost(ints([1]), ints([5])).tolist() == [-1]
    assert paths_at([], 5) == ["-"]


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
    name = Names(none, ("decode_step",))
    ranges = Ranges(none, Names(none, ("dflash",)), name, start, end, name, none.astype(bool))
    steps, _ = find_steps(ranges_in_order(ranges), 0, Reading())
    t = np.sort(ints(instants))
    looked_up = intervals(steps.start, steps.end)
    assert steps.of(t).tolist() == np.append(looked_up.source, NONE)[looked_up.holding(t)].tolist()
    assert steps.of_ascending(t).tolist() == steps.of(t).tolist()
