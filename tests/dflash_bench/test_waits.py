"""Where the host waited, and what the GPU lost: who takes the blame."""

from __future__ import annotations

import pytest
from handmade import PID, Call, Range, Work, events, ints, view
from hypothesis import given
from hypothesis import strategies as st

from dflash_bench.metrics import waits
from dflash_bench.metrics.measurements import Coverage, Measurements, blame_rows, merged
from dflash_bench.metrics.stalls import measure_stalls


@pytest.mark.parametrize(
    ("name", "is_wait"),
    [
        ("cudaStreamSynchronize", True),
        ("cudaEventSynchronize", True),
        ("cudaDeviceSynchronize", True),
        ("cuStreamSynchronize", True),
        ("cuCtxSynchronize", True),
        ("cuEventSynchronize", True),
        ("cudaStreamSynchronize_ptsz", True),
        ("cudaStreamWaitEvent", False),
        ("cudaEventQuery", False),
        ("cudaMemcpy", False),
    ],
)
def test_which_calls_are_host_waits(name, is_wait):
    assert (waits.SYNC.fullmatch(name) is not None) == is_wait


@pytest.mark.parametrize(
    ("name", "blocks"),
    [
        ("cudaMemcpy", True),
        ("cudaMemcpy2D", True),
        ("cuMemcpyDtoH", True),
        ("cudaMemcpyFromSymbol", True),
        ("cudaMemcpyAsync", False),
        ("cuMemcpyDtoHAsync", False),
        ("cudaMemset", False),
    ],
)
def test_which_copies_block(name, blocks):
    assert (waits.BLOCKING_COPY.fullmatch(name) is not None) == blocks


RANGES = (Range("decode_step", 0, 100), Range("fill", 10, 40), Range("decode_step", 200, 300))


def waited(calls):
    found = Measurements(0, coverage=Coverage(calls=1.0))
    waits.measure_waits(view(events(RANGES, calls)), found)
    return found.causes, {name: samples.values.tolist() for name, samples in found.metrics.items()}


def test_waits_are_those_inside_steps_on_any_thread():
    calls = [
        Call("cudaStreamSynchronize", 20, 30, id=1),
        Call("cudaStreamSynchronize", 50, 60, id=2, tid=9),
        Call("cudaStreamSynchronize", 150, 160, id=3),
        Call("cudaLaunchKernel", 21, 22, id=4),
        Call("cudaLaunchKernel", 201, 202, id=5),
    ]
    causes, found = waited(calls)
    assert found == {
        "sync.cudaStreamSynchronize": [10, 10],
        "sync.total_per_step": [20, 0],
        "sync.calls_per_step": [2, 0],
        "launch.calls_per_step": [1, 1],
    }
    assert blame_rows(causes["sync.by_thread"], 0) == [
        (0, str(PID), "cudaStreamSynchronize", 1, 10, 10.0),
        (0, "9", "cudaStreamSynchronize", 1, 10, 10.0),
    ]


def test_the_code_that_waited_is_the_path_of_ranges_around_the_call():
    calls = [
        Call("cudaStreamSynchronize", 20, 30, id=1),
        Call("cudaMemcpy", 50, 55, id=2),
        Call("cudaMemcpyAsync", 60, 65, id=3),
        Call("cudaEventSynchronize", 250, 251, id=4, tid=9),
        Call("cudaLaunchKernel", 260, 261, id=5),
    ]
    assert blame_rows(waited(calls)[0]["sync.by_range"], 3) == [
        (3, "decode_step > fill", "cudaStreamSynchronize", 1, 10, 10.0),
        (3, "decode_step", "cudaMemcpy", 1, 5, 5.0),
        (3, "-", "cudaEventSynchronize", 1, 1, 1.0),
    ]


def test_a_stall_is_blamed_on_what_the_thread_did_when_the_stream_ran_dry():
    """Dry at 25 inside fill's sync, at 45 in plain CPU work of the step, at 120 outside all steps."""
    calls = [
        Call("cudaLaunchKernel", 1, 2, id=1),
        Call("cudaStreamSynchronize", 20, 30, id=9),
        Call("cudaLaunchKernel", 35, 36, id=2),
        Call("cudaLaunchKernel", 60, 61, id=3),
        Call("cudaLaunchKernel", 210, 211, id=4),
    ]
    work = [Work(2, 25, id=1), Work(36, 45, id=2), Work(61, 120, id=3), Work(211, 220, id=4)]
    found = Measurements(0, coverage=Coverage(1.0, 1.0))
    measure_stalls(view(events(RANGES, calls, work)), found)
    assert blame_rows(found.causes["stall.by_cause"], None) == [
        (None, "- · -", 1, 90, 90.0),
        (None, "decode_step · -", 1, 15, 15.0),
        (None, "fill · cudaStreamSynchronize", 1, 10, 10.0),
    ]


def blame(keys, value):
    found = Measurements(0)
    found.blame("table", keys, value)
    return found.causes["table"]


def test_rows_of_a_cause_count_sum_and_halve():
    found = blame([(("a", "b"), ints([0, 1, 0, 0, -1]))], ints([5, 100, 1, 9, 3]))
    assert blame_rows(found, 2) == [(2, "b", 1, 100, 100.0), (2, "a", 3, 15, 5.0), (2, "-", 1, 3, 3.0)]


def test_no_values_give_no_rows():
    assert blame_rows(blame([((), ints([]))], ints([])), 0) == []
    assert blame_rows(merged([]), None) == []


LABELS = st.lists(st.tuples(st.integers(-1, 2), st.integers(-1, 1), st.integers(-50, 50)), max_size=20)


@given(LABELS, LABELS)
def test_merged_blames_are_those_of_the_concatenated_samples(one, two):
    """Ranks know other names, or the same in another order: what counts is the label."""

    def part(rows, first, second):
        return blame(
            [(first, ints(a for a, _, _ in rows)), (second, ints(b for _, b, _ in rows))], ints(v for _, _, v in rows)
        )

    expected = {}
    for rows, first, second in ((one, "abc", "xy"), (two, "cab", "yx")):
        for a, b, value in rows:
            label = ("-" if a < 0 else first[a], "-" if b < 0 else second[b])
            expected.setdefault(label, []).append(value)
    found = blame_rows(merged([part(one, "abc", "xy"), part(two, "cab", "yx")]), None)
    assert {row[1:3]: row[3:5] for row in found} == {k: (len(v), sum(v)) for k, v in expected.items()}
    assert [row[4] for row in found] == sorted((row[4] for row in found), reverse=True)
