"""Captures that ended badly: a lost tail, ranges that cross or stay open. Each is said, and only where it is so."""

from __future__ import annotations

import numpy as np
import pytest
from handmade import Call, Range, Work, events, mark, view, write

from dflash_bench.ingest.sources import IngestOptions, ingest
from dflash_bench.metrics.endings import measure_endings
from dflash_bench.metrics.measure import measure
from dflash_bench.metrics.measurements import Measurements

US = 1000
STEP = 1000 * US
NUM = 40


class Loop:
    """Forty steps of 1 ms. Each fills, launches a graph that runs 300 µs, waits for it, and takes the result."""

    def __init__(self):
        self.ranges, self.calls, self.work = [], [], []
        for k in range(NUM):
            at = k * STEP
            self.ranges += [
                Range("decode_step", at, at + 900 * US),
                Range("prepare", at + 10 * US, at + 400 * US),
                Range("fill", at + 20 * US, at + 300 * US),
                Range("result", at + 600 * US, at + 800 * US),
            ]
            self.calls += [
                Call("cudaGraphLaunch", at + 410 * US, at + 420 * US, 2 * k + 1),
                Call("cudaStreamSynchronize", at + 610 * US, at + 730 * US, 2 * k + 2),
            ]
            self.work.append(Work(at + 430 * US, at + 730 * US, 2 * k + 1))

    def lose(self, what, upto, *, names=None):
        rows = [r for r in getattr(self, what) if r.start < upto or (names and r.name not in names)]
        setattr(self, what, rows)

    def replace(self, old, *new):
        self.ranges = [r for r in self.ranges if r != old] + list(new)

    def find(self, step, name):
        (row,) = [r for r in self.ranges if r.name == name and r.start // STEP == step]
        return row

    def findings(self):
        found = Measurements(0)
        measure_endings(view(events(self.ranges, self.calls, self.work)), found)
        return {f.code: f for f in found.findings}


@pytest.fixture
def loop():
    return Loop()


def test_of_a_whole_capture_nothing_is_said(loop):
    assert loop.findings() == {}


@pytest.mark.parametrize("lost", [1, 4, 15])
@pytest.mark.parametrize(
    ("what", "names", "said"),
    [
        ("ranges", {"result"}, "lack result,"),
        ("ranges", {"prepare", "fill"}, "lack prepare, fill,"),
        ("work", None, "lack GPU rows,"),
    ],
)
def test_the_last_steps_that_lack_what_the_others_have_are_counted_and_named(loop, what, names, said, lost):
    loop.lose(what, (NUM - lost) * STEP, names=names)
    (tail,) = loop.findings().values()
    assert tail.code == "tail_incomplete"
    assert (tail.rank, tail.count) == (0, lost)
    span = NUM * STEP - 100 * US
    assert f"the last {lost} of {NUM} steps, {(lost * STEP - 100 * US) / span:.0%} of their time" in tail.text
    assert said in tail.text
    assert f"--steps :{NUM - lost} leaves" in tail.text


def test_steps_without_calls_at_the_end_are_no_idle_ones_where_their_ranges_are_whole(loop):
    loop.lose("calls", (NUM - 5) * STEP)
    loop.lose("work", (NUM - 5) * STEP)
    (found,) = loop.findings().values()
    assert (found.code, found.count) == ("tail_incomplete", 5)
    assert "lack API calls, GPU rows," in found.text


def test_idle_and_empty_steps_at_the_end_are_no_lost_tail(loop):
    """An engine without requests runs its loop all the same, and prepares nothing."""
    for what in ("calls", "work"):
        loop.lose(what, (NUM - 5) * STEP)
    loop.lose("ranges", (NUM - 5) * STEP, names={"prepare", "fill", "result"})
    assert loop.findings() == {}


def test_what_only_some_steps_have_is_not_missed_at_the_end(loop):
    for k in range(0, NUM, 2):
        loop.replace(loop.find(k, "fill"))
    loop.lose("ranges", (NUM - 5) * STEP, names={"fill"})
    assert loop.findings() == {}


def test_launches_without_ranges_at_the_end_are_said_with_their_part(loop):
    loop.lose("ranges", (NUM - 10) * STEP)
    (found,) = loop.findings().values()
    assert (found.code, found.count) == ("ranges_end_early", 10)
    after = (NUM - 1) * STEP + 410 * US
    assert f"for {(after - (NUM - 11) * STEP - 900 * US) / after:.0%} of the time" in found.text


def test_eager_work_after_the_steps_is_something_else(loop):
    for k in range(NUM, NUM + 20):
        loop.calls.append(Call("cudaLaunchKernel", k * STEP, k * STEP + US, 1000 + k))
    assert loop.findings() == {}


def test_ranges_that_are_closed_in_another_order_are_counted_and_named(loop):
    """``prepare`` is closed before ``fill``, which began in it, in five steps; ``result`` outlasts its step in one."""
    for k in range(5, 10):
        fill = loop.find(k, "fill")
        loop.replace(fill, Range("fill", fill.start, fill.start + 390 * US))
    result = loop.find(20, "result")
    loop.replace(result, Range("result", result.start, result.start + 320 * US))
    (found,) = loop.findings().values()
    assert (found.code, found.count) == ("ranges_misnested", 6)
    assert f"6 of {4 * NUM} ranges" in found.text
    assert "(fill, prepare, decode_step, result)" in found.text
    assert f"in 6 steps, {6 * STEP / (NUM * STEP - 100 * US):.0%} of step time" in found.text


def test_spans_that_overlap_are_not_nested_badly(loop):
    loop.ranges += [Range("request", k * STEP + 50 * US, (k + 3) * STEP, kind=60) for k in range(NUM - 4)]
    assert loop.findings() == {}


def test_what_another_thread_does_is_not_nested_in_the_steps(loop):
    loop.ranges += [Range("copy", k * STEP + 500 * US, k * STEP + 1200 * US, tid=99) for k in range(NUM)]
    assert loop.findings() == {}


def test_a_range_never_closed_is_said_with_its_step_and_one_open_at_the_end_is_not(loop):
    """A pop that failed in step 12: ``prepare`` stays open. The last step is open since the capture ended in it."""
    prepare = loop.find(12, "prepare")
    loop.replace(prepare, Range("prepare", prepare.start, None))
    loop.ranges += [Range("serve", -STEP, None), Range("decode_step", NUM * STEP, None)]
    (found,) = loop.findings().values()
    assert (found.code, found.count) == ("ranges_not_closed", 1)
    assert "(prepare), the first in step 12" in found.text


@pytest.mark.parametrize("seed", range(20))
def test_any_tail_at_random_is_found_as_a_loop_over_rows_finds_it(loop, seed):
    """Independent reading: for each name, the steps that hold it, counted one by one."""
    rng = np.random.default_rng(seed)
    for name in ("prepare", "fill", "result"):
        for row in [r for r in loop.ranges if r.name == name]:
            if rng.random() < rng.choice([0.0, 0.02, 0.2]):
                loop.replace(row)
        if rng.random() < 0.6:
            loop.lose("ranges", int(rng.integers(15, NUM)) * STEP, names={name})
    wanted = {}
    for name in ("prepare", "fill", "result"):
        has = [any(r.name == name and r.start // STEP == k for r in loop.ranges) for k in range(NUM)]
        last = max(k for k in range(NUM) if has[k])
        if last < NUM - 1 and last + 1 >= NUM / 2 and sum(has) >= 0.95 * (last + 1):
            wanted[name] = NUM - 1 - last
    found = loop.findings()
    assert ("tail_incomplete" in found) == bool(wanted)
    if wanted:
        assert found["tail_incomplete"].count == max(wanted.values())
        assert all(name in found["tail_incomplete"].text for name in wanted)


def test_ranks_that_died_in_their_first_step_do_not_pass_as_a_whole_capture(tmp_path):
    rows = [
        row
        for rank, pid in enumerate((10, 20))
        for row in (
            mark(rank, 2, pid=pid),
            Range("decode_step", 1 * US, None, pid=pid, tid=pid),
            Range("prepare", 2 * US, 90 * US, pid=pid, tid=pid),
        )
    ]
    (profile,) = ingest([write(tmp_path / "a.sqlite", rows)], IngestOptions(tmp_path / "p", run="x"))
    said = [f for f in measure(profile).findings if f.code == "no_steps"]
    assert [f.rank for f in said] == [0, 1]
    assert all("was open at the end: it died, or was cut, in its first step" in f.text for f in said)
