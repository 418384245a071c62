"""The trace for Perfetto: well formed by the Trace Event Format, and with the leads that the metrics have.

Perfetto's trace processor (PyPI ``perfetto`` 0.59.1) fetches its program when it first runs; the package does not
hold it, so the file is held against the documented format:
https://docs.google.com/document/d/1CvAClvFfyA5R-PhYUmn5OOQtYMH4h6I0nSsKchNAySU
"""

from __future__ import annotations

import gzip
import json
from collections import Counter, defaultdict
from itertools import groupby
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from dflash_bench.errors import DataError
from dflash_bench.ingest.sources import IngestOptions, ingest
from dflash_bench.metrics.measure import measure
from dflash_bench.metrics.reading import Reading
from dflash_bench.profile import open_profile
from dflash_bench.report.perfetto import (
    TracedRun,
    _begins_and_ends,
    _nesting_rows,
    _trace_events,
    traced_run,
    write_trace,
)

REFERENCE = Path(__file__).parents[2] / "profiles" / "reference"


@pytest.fixture(scope="module")
def runs(h200, tmp_path_factory):
    """Profile and metrics of the arms ``sync`` and ``nosync``."""
    found = ingest([h200], IngestOptions(profiles=tmp_path_factory.mktemp("profiles")))
    by_arm = {p.info.arm: (p, measure(p)) for p in found}
    return by_arm["sync"], by_arm["nosync"]


@pytest.fixture(scope="module")
def trace(runs, tmp_path_factory):
    """The trace of both runs as a reader finds it."""
    path = tmp_path_factory.mktemp("trace") / "trace.json"
    count = write_trace(path, [traced_run(m.info.arm, p, m) for p, m in runs])
    found = json.loads(path.read_text(encoding="utf-8"))
    assert len(found["traceEvents"]) == count
    return found["traceEvents"]


def ns(event):
    """The instant in ns: the format counts in µs with a fraction, which is exact to the ns at these lengths."""
    return round(event["ts"] * 1000)


def tracks(events):
    """Slices and flow ends by (process, track), in file order."""
    found = defaultdict(list)
    for event in events:
        if event["ph"] != "M":
            found[event["pid"], event["tid"]].append(event)
    return found


def names(events, what):
    key = (lambda e: e["pid"]) if what == "process_name" else (lambda e: (e["pid"], e["tid"]))
    return {key(e): e["args"]["name"] for e in events if e["ph"] == "M" and e["name"] == what}


def slices(events):
    """(begin event, start, end) of each slice of one track, paired as the format says: E closes the latest open B."""
    stack, found = [], []
    for event in events:
        if event["ph"] == "B":
            stack.append(event)
        elif event["ph"] == "E":
            begin = stack.pop()
            found.append((begin, ns(begin), ns(event)))
    assert not stack, "a slice is left open"
    return found


def test_every_event_has_what_the_format_asks_of_its_phase(trace):
    for event in trace:
        assert event["ph"] in {"M", "B", "E", "s", "f"}
        assert type(event["pid"]) is int
        assert type(event["tid"]) is int
        if event["ph"] == "M":
            assert event["name"] in {"process_name", "process_sort_index", "thread_name", "thread_sort_index"}
            continue
        assert event["ts"] >= 0
        if event["ph"] != "E":
            assert event["name"]
            assert event["cat"]
        if event["ph"] == "f":
            assert event["bp"] == "e", "the arrow ends at the slice that holds it"


def test_events_of_a_track_ascend_in_time_and_their_slices_nest(trace):
    for events in tracks(trace).values():
        times = [ns(e) for e in events]
        assert times == sorted(times)
        for _, start, end in slices(events):
            assert start <= end


def test_every_track_and_process_is_named_and_each_track_belongs_to_one_process(trace):
    assert set(tracks(trace)) == set(names(trace, "thread_name"))
    assert Counter(tid for _, tid in tracks(trace)).most_common(1)[0][1] == 1
    assert list(names(trace, "process_name").values()) == [
        "sync rank 0", "sync rank 1", "nosync rank 0", "nosync rank 1",
    ]  # fmt: skip


def test_each_arrow_leads_from_a_launch_to_one_piece_of_gpu_work(trace):
    ends = defaultdict(dict)
    for events in tracks(trace).values():
        open_slices = []
        for event in events:
            if event["ph"] == "B":
                open_slices.append(event)
            elif event["ph"] == "E":
                open_slices.pop()
            else:
                assert event["ph"] not in ends[event["id"]], "one start and one end each"
                assert ns(event) == ns(open_slices[-1])
                ends[event["id"]][event["ph"]] = open_slices[-1]["cat"]
    assert set(map(tuple, map(sorted, (e.items() for e in ends.values())))) == {(("f", "gpu"), ("s", "launch"))}


def leads_of(events, pid):
    """Every lead inside steps, from the file alone: latest end of the works before on the stream − launch start."""
    titles = names(events, "thread_name")
    own = {tid: found for (p, tid), found in tracks(events).items() if p == pid}
    starts = {e["id"]: ns(e) for found in own.values() for e in found if e["ph"] == "s"}
    steps = [s for found in own.values() for s in slices(found) if "step" in s[0].get("args", {})]
    streams = defaultdict(list)
    for tid, found in own.items():
        if titles[pid, tid].startswith("GPU"):
            stream = titles[pid, tid].partition(" overlapping")[0]
            ending = {id(begin): end for begin, _, end in slices(found)}
            begins = [e for e in found if e["ph"] == "B"]
            arrows = {ns(e): e["id"] for e in found if e["ph"] == "f"}
            streams[stream] += [(starts[arrows[ns(b)]], ending[id(b)]) for b in begins if ns(b) in arrows]
    leads = []
    for works in streams.values():
        dry = None
        for launched, end in sorted(works):
            if dry is not None and any(begin <= launched < stop for _, begin, stop in steps):
                leads.append(dry - launched)
            dry = end if dry is None else max(dry, end)
    return leads


def test_leads_recomputed_from_the_file_are_the_metrics_leads(trace, runs):
    """All of them, to the nanosecond, on both ranks of both runs."""
    for pid, title in names(trace, "process_name").items():
        arm, _, rank = title.partition(" rank ")
        run = next(m for p, m in runs if p.info.arm == arm)
        expected = sorted(run.find("launch.lead", int(rank)).values.tolist())
        assert sorted(leads_of(trace, pid)) == expected
        assert len(expected) > 800


def test_leads_of_the_reference_profile_are_the_metrics_leads(tmp_path):
    """The same query on the profile of a whole run of 500 steps, as it lies in ``profiles/reference``."""
    profile = open_profile(REFERENCE / "h200-control-r1")
    measured = measure(profile)
    write_trace(tmp_path / "trace.json", [traced_run("control", profile, measured)])
    events = json.loads((tmp_path / "trace.json").read_text(encoding="utf-8"))["traceEvents"]
    expected = measured.find("launch.lead", 0).values
    found = leads_of(events, 1)
    assert sorted(found) == sorted(expected.tolist())
    assert np.median(found) == np.median(expected)
    assert len(found) == 15_603


def test_launches_carry_their_lead_as_an_argument(trace, runs):
    """As many as there are launches with a lead; those inside steps have the median that the metrics print."""
    pid = next(p for p, title in names(trace, "process_name").items() if title == "sync rank 0")
    own = {tid: found for (p, tid), found in tracks(trace).items() if p == pid}
    steps = [s for found in own.values() for s in slices(found) if "step" in s[0].get("args", {})]
    leads = [
        e["args"]["lead_ns"]
        for found in own.values()
        for e in found
        if e["ph"] == "B" and e["cat"] == "launch" and "lead_ns" in e["args"]
        if any(begin <= ns(e) < stop for _, begin, stop in steps)
    ]
    assert np.median(leads) == np.median(runs[0][1].find("launch.lead", 0).values)


def test_ranges_keep_their_names_and_number(trace, runs):
    profile, _ = runs[0]
    expected = Counter(profile.frame("ranges").query("rank == 1")["name"].astype(str))
    pid = next(p for p, title in names(trace, "process_name").items() if title == "sync rank 1")
    assert Counter(e["name"] for e in trace if e["ph"] == "B" and e["pid"] == pid and e["cat"] == "range") == expected


def test_the_first_steps_of_both_runs_begin_at_one_instant(trace):
    """The earliest first step of either run: start-up takes seconds, and differs."""
    first = {}
    for event in trace:
        if event["ph"] == "B" and event["args"].get("step") == 0:
            first[event["pid"]] = ns(event)
    assert min(first[1], first[2]) == min(first[3], first[4])


def test_a_span_of_steps_holds_these_steps_and_the_work_they_queued(runs):
    profile, _ = runs[0]
    found = list(_trace_events([TracedRun("sync", profile, {})], Reading(), (5, 8)))
    steps = [e["args"]["step"] for e in found if e["ph"] == "B" and "step" in e["args"] and e["pid"] == 1]
    assert steps == [5, 6, 7]
    flows = Counter(e["ph"] for e in found if e["ph"] in "sf")
    assert flows["s"] == flows["f"] > 0


def test_a_name_that_ends_in_gz_is_compressed(runs, tmp_path):
    path = tmp_path / "trace.json.gz"
    count = write_trace(path, [TracedRun("sync", runs[0][0], {})], steps=(0, 1))
    with gzip.open(path, "rt", encoding="utf-8") as file:
        assert len(json.load(file)["traceEvents"]) == count
    assert [p.name for p in tmp_path.iterdir()] == ["trace.json.gz"], "nothing partial is left"


def test_a_place_that_cannot_be_written_is_an_error_with_its_name(runs, tmp_path):
    (tmp_path / "file").write_text("")
    with pytest.raises(DataError, match=r"file/trace\.json could not be written"):
        write_trace(tmp_path / "file" / "trace.json", [TracedRun("sync", runs[0][0], {})])


spans = st.lists(st.tuples(st.integers(0, 40), st.integers(0, 20)), max_size=20).map(
    lambda found: sorted(((a, a + n) for a, n in found), key=lambda s: (s[0], -s[1]))
)


@given(spans)
def test_overlapping_intervals_are_spread_over_rows_in_which_they_nest(found):
    start, end = np.array([a for a, _ in found], np.int64), np.array([b for _, b in found], np.int64)
    rows = _nesting_rows(start, end)
    assert sorted(k for row in rows for k in row.tolist()) == list(range(len(found)))
    for row in rows:
        for place, k in enumerate(row.tolist()):
            for other in row.tolist()[:place]:
                assert end[other] <= start[k] or end[k] <= end[other]


@given(spans)
def test_begins_and_ends_are_a_well_formed_bracket_sequence(found):
    start, end = np.array([a for a, _ in found], np.int64), np.array([b for _, b in found], np.int64)
    for row in _nesting_rows(start, end):
        events = list(_begins_and_ends(start[row], end[row]))
        assert [t for _, _, t in events] == sorted(t for _, _, t in events)
        stack = []
        for phase, index, _ in events:
            if phase == "B":
                stack.append(index)
            else:
                assert stack.pop() == index
        assert not stack


def test_ranges_that_cross_lie_on_two_rows():
    """Start/end ranges need not nest: [0, 10) and [5, 15) cannot be one track's slices."""
    assert [row.tolist() for row in _nesting_rows(np.array([0, 5, 20]), np.array([10, 15, 30]))] == [[0, 2], [1]]


def test_file_order_keeps_each_process_together(trace):
    """Viewers name a process by the metadata before its first event."""
    assert [pid for pid, _ in groupby(e["pid"] for e in trace)] == [1, 2, 3, 4]
