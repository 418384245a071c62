"""Launches joined to GPU work, and their lead: cases worked out by hand."""

from __future__ import annotations

import pytest
from handmade import Call, Work, api_calls, gpu_rows
from hypothesis import given
from hypothesis import strategies as st

from dflash_bench.metrics.events.gpu import pieces
from dflash_bench.metrics.events.launches import join


def joined(calls, work):
    """(API start, lead or None) of every launch, in order; the join; which calls have work."""
    found = join(api_calls(sorted(calls, key=lambda c: (c.start, c.id))), pieces(gpu_rows(work)))
    launches = found.launches
    leads = [
        (int(s), int(lead) if has else None)
        for s, lead, has in zip(launches.start, launches.lead, launches.has_lead, strict=True)
    ]
    return leads, found, found.has_work


def test_the_lead_is_the_end_of_the_work_before_minus_the_start_of_the_call():
    """Queued at 100 while work runs until 150: 50 ahead. Queued at 300 after it all ended at 250: 50 late."""
    calls = [Call("cudaLaunchKernel", t, t + 5, id=k) for k, t in enumerate((10, 100, 300), 1)]
    work = [Work(20, 150, id=1), Work(150, 250, id=2), Work(310, 400, id=3)]
    leads, counts, _ = joined(calls, work)
    assert leads == [(10, None), (100, 50), (300, -50)]
    assert (len(counts.work), len(counts.launches)) == (3, 3)


def test_the_first_launch_of_each_stream_has_none():
    calls = [Call("cudaLaunchKernel", t, t + 5, id=t) for t in (10, 20, 30, 40)]
    work = [Work(100, 200, id=10, stream=1), Work(100, 300, id=20, stream=2)]
    work += [Work(200, 210, id=30, stream=1), Work(300, 310, id=40, stream=2)]
    leads, _, _ = joined(calls, work)
    assert leads == [(10, None), (20, None), (30, 170), (40, 260)]


def test_one_stream_number_on_two_devices_is_two_streams():
    calls = [Call("cudaLaunchKernel", t, t + 5, id=t) for t in (10, 20)]
    leads, _, _ = joined(calls, [Work(100, 200, id=10, device=0), Work(100, 300, id=20, device=1)])
    assert leads == [(10, None), (20, None)]


def test_the_work_before_may_end_after_the_work_just_before():
    """Lead is against the latest end of all work before, not against the last piece's."""
    calls = [Call("cudaLaunchKernel", t, t + 5, id=t) for t in (10, 20, 30)]
    leads, _, _ = joined(calls, [Work(11, 900, id=10), Work(21, 50, id=20), Work(31, 60, id=30)])
    assert leads[-1] == (30, 870)


def test_many_kernels_of_one_graph_launch_are_one_piece_of_work():
    """A graph traced node by node: 3 rows of one id on one stream, from the first start to the last end."""
    calls = [Call("cudaGraphLaunch", 10, 15, id=1), Call("cudaGraphLaunch", 100, 105, id=2)]
    work = [Work(20, 30, id=1), Work(40, 90, id=1), Work(30, 40, id=1), Work(110, 120, id=2), Work(120, 130, id=2)]
    leads, counts, _ = joined(calls, work)
    assert leads == [(10, None), (100, -10)]
    assert (len(counts.work), len(counts.launches)) == (2, 2)


def test_a_graph_whose_nodes_run_on_two_streams_is_one_piece_on_the_stream_with_most_of_its_time():
    calls = [Call("cudaGraphLaunch", 10, 15, id=1), Call("cudaGraphLaunch", 100, 105, id=2)]
    work = [Work(20, 200, id=1, stream=1), Work(20, 90, id=1, stream=2)]
    work += [Work(210, 220, id=2, stream=1), Work(210, 250, id=2, stream=2)]
    leads, found, _ = joined(calls, work)
    assert leads == [(10, None), (100, None)], "the second replay works longest on the other stream"
    assert (found.work.stream.tolist(), found.work.end.tolist()) == ([1, 2], [200, 250])


def test_replays_of_one_graph_take_the_lane_that_most_of_them_have():
    """As before, with nodes that say whose they are; a third replay makes stream 1 the graph's."""
    calls = [Call("cudaGraphLaunch", t, t + 5, id=t) for t in (10, 100, 300)]
    work = [
        Work(start, end, id=i, stream=s, node=(5 << 32) + s)
        for i, s, start, end in (
            (10, 1, 20, 200), (10, 2, 20, 90), (100, 1, 210, 220), (100, 2, 210, 250), (300, 1, 310, 330),
        )
    ]  # fmt: skip
    leads, found, _ = joined(calls, work)
    assert leads == [(10, None), (100, 100), (300, -50)]
    assert found.work.stream.tolist() == [1, 1, 1]


def test_calls_that_start_together_come_in_the_order_of_their_ids():
    calls = [Call("cudaLaunchKernel", 10, 15, id=i) for i in (3, 1, 2)]
    leads, _, _ = joined(calls, [Work(20, 30, id=1), Work(30, 70, id=2), Work(70, 80, id=3)])
    assert leads == [(10, None), (10, 20), (10, 60)]


def test_work_without_a_call_has_no_lead_but_keeps_its_lane_busy_for_what_starts_after_it():
    """Queued at 100 while work of an unknown launch runs until 500: 400 ahead."""
    calls = [Call("cudaLaunchKernel", 10, 15, id=1), Call("cudaLaunchKernel", 100, 105, id=3)]
    leads, counts, launched = joined(calls, [Work(20, 30, id=1), Work(30, 500, id=2), Work(500, 510, id=3)])
    assert leads == [(10, None), (100, 400)]
    assert (len(counts.work), len(counts.launches)) == (3, 2)
    assert launched.all()


def test_a_call_without_work_is_no_launch():
    leads, _, launched = joined(
        [Call("cudaLaunchKernel", 1, 2, id=1), Call("cudaMalloc", 3, 4, id=2)], [Work(5, 6, id=1)]
    )
    assert leads == [(1, None)]
    assert launched.tolist() == [True, False]


def test_of_calls_that_repeat_an_id_the_first_counts():
    calls = [Call("cudaLaunchKernel", 10, 15, id=1), Call("cuLaunchKernel", 11, 14, id=1)]
    leads, counts, _ = joined(calls, [Work(20, 30, id=1)])
    assert leads == [(10, None)]
    assert counts.num_duplicate_calls == 1


def test_work_that_starts_before_its_call_is_counted_as_impossible_and_kept():
    calls = [Call("cudaLaunchKernel", t, t + 5, id=t) for t in (10, 100)]
    leads, counts, _ = joined(calls, [Work(20, 30, id=10), Work(99, 110, id=100)])
    assert counts.is_impossible.tolist() == [False, True]
    assert leads == [(10, None), (100, -70)]


# ── correlation id 0: graphs instantiated before the capture opened ─────────────────────────────────────────────────


def graph_calls(n, name="cudaGraphLaunch"):
    return [Call(name, 100 * k, 100 * k + 10, id=k + 1) for k in range(n)]


def replays(n):
    return [Work(100 * k + 20, 100 * k + 90, id=0, table="GRAPH_TRACE") for k in range(n)]


def test_replays_without_an_id_are_joined_in_order_when_there_is_one_for_each_launch():
    leads, counts, launched = joined(graph_calls(3), replays(3))
    assert leads == [(0, None), (100, -10), (200, -10)]
    assert (counts.num_by_order, counts.work.num_uncorrelated_rows, len(counts.launches)) == (3, 3, 3)
    assert launched.all()


def test_with_one_replay_too_few_nothing_is_joined_since_every_lead_could_be_shifted():
    leads, counts, _ = joined(graph_calls(3), replays(2))
    assert leads == []
    assert (counts.num_by_order, counts.work.num_uncorrelated_rows, len(counts.launches)) == (0, 2, 0)


def test_launches_that_have_their_work_by_id_do_not_take_a_replay_without_one():
    leads, counts, _ = joined(graph_calls(3), [*replays(3)[:2], Work(220, 290, id=3, table="GRAPH_TRACE")])
    assert len(leads) == 3
    assert counts.num_by_order == 2


def node_rows(graph, start, *, nodes=(1, 2, 3), stream=7):
    """One replay of a graph traced node by node: each node runs 10 ns, one after the other."""
    return [
        Work(start + 10 * k, start + 10 * k + 10, id=0, stream=stream, node=(graph << 32) + node)
        for k, node in enumerate(nodes)
    ]


def test_nodes_without_an_id_are_put_together_to_replays_since_each_replay_runs_every_node_once():
    work = [row for k in range(3) for row in node_rows(5, 100 * k + 20)]
    leads, counts, launched = joined(graph_calls(3), work)
    assert leads == [(0, None), (100, -50), (200, -50)]
    assert (len(counts.work), counts.num_by_order, counts.work.num_uncorrelated_rows, len(counts.launches)) == (
        3,
        3,
        9,
        3,
    )
    assert launched.all()


def test_replays_of_two_graphs_take_turns_as_they_were_launched():
    work = [*node_rows(5, 20), *node_rows(6, 120, nodes=(1, 2)), *node_rows(5, 220), *node_rows(6, 320, nodes=(1, 2))]
    leads, counts, _ = joined(graph_calls(4), work)
    assert leads == [(0, None), (100, -50), (200, -60), (300, -50)]
    assert counts.work.num_replays == 4


def test_a_replay_on_two_streams_is_one_piece():
    work = [
        row
        for k in range(2)
        for row in (*node_rows(5, 100 * k + 20), *node_rows(5, 100 * k + 30, nodes=(9,), stream=8))
    ]
    leads, counts, _ = joined(graph_calls(2), work)
    assert leads == [(0, None), (100, -50)]
    assert (counts.work.num_replays, counts.num_by_order, len(counts.work)) == (2, 2, 2)


def test_nodes_traced_singly_and_graphs_traced_whole_make_up_the_launches_together():
    work = [*node_rows(5, 20), Work(120, 190, id=0, table="GRAPH_TRACE"), *node_rows(5, 220)]
    leads, counts, _ = joined(graph_calls(3), work)
    assert leads == [(0, None), (100, -50), (200, -10)]
    assert counts.num_by_order == 3


def test_a_graph_that_a_capture_cut_in_the_middle_of_a_replay_gives_no_replays():
    """Which nodes belong together cannot be told when some were seen once more than others."""
    work = [*node_rows(5, 20)[1:], *node_rows(5, 120), *node_rows(5, 220)]
    leads, counts, _ = joined(graph_calls(3), work)
    assert leads == []
    assert (counts.work.num_replays, counts.work.num_uncorrelated_rows, len(counts.work)) == (0, 8, 8)


def test_a_graph_id_that_was_used_again_for_other_nodes_gives_no_replays():
    work = [*node_rows(5, 20), *node_rows(5, 120), *node_rows(5, 220, nodes=(1, 2, 3, 4))]
    assert joined(graph_calls(3), work)[1].work.num_replays == 0


def test_kernels_without_an_id_are_never_joined_by_order():
    _, counts, _ = joined([Call("cudaLaunchKernel", 1, 2, id=1)], [Work(5, 6, id=0)])
    assert (len(counts.launches), counts.num_by_order, counts.work.num_uncorrelated_rows) == (0, 0, 1)


def test_nothing_joins_nothing():
    assert joined([], [])[0] == []
    assert joined([Call("cudaLaunchKernel", 1, 2, id=1)], [])[0] == []
    assert len(joined([], [Work(1, 2, id=1)])[1].launches) == 0


# ── against brute force ─────────────────────────────────────────────────────────────────────────────────────────────

CALLS = st.lists(st.tuples(st.integers(0, 60), st.integers(1, 12)), max_size=15)
ROWS = st.lists(st.tuples(st.integers(0, 80), st.integers(1, 20), st.integers(1, 14), st.integers(1, 2)), max_size=20)


@given(CALLS, ROWS)
def test_every_lead_equals_the_definition(calls, rows):
    calls = [Call("cudaLaunchKernel", start, start + 1, id=i) for start, i in calls]
    work = [Work(start, start + length, id=i, stream=s) for start, length, i, s in rows]
    calls.sort(key=lambda c: (c.start, c.id))
    first = {}
    for call in calls:
        first.setdefault(call.id, call)
    pieces, time = {}, {}
    for w in work:
        start, end = pieces.get(w.id, (w.start, w.end))
        pieces[w.id] = min(start, w.start), max(end, w.end)
        time[w.id, w.stream] = time.get((w.id, w.stream), 0) + w.end - w.start
    lane = {i: 1 if time.get((i, 1), 0) >= 0.99 * time.get((i, 2), 0) else 2 for i in pieces}
    expected, before, lost_before = [], {1: [], 2: []}, {1: 0, 2: 0}
    # where most calls have work, one without has lost it, and nobody knows the lead behind
    is_losing = 0.5 < sum(c.id in pieces and first[c.id] is c for c in calls) / max(len(calls), 1) < 0.995
    for call in sorted((first[i] for i in pieces if i in first), key=lambda c: (c.start, c.id)):
        earlier = calls[: next(k for k, c in enumerate(calls) if c is call)]
        num_lost = sum(is_losing and c.id not in pieces and first[c.id] is c for c in earlier)
        start, end = pieces[call.id]
        alone = [e for i, (s, e) in pieces.items() if i not in first and lane[i] == lane[call.id] and s < start]
        ends = before[lane[call.id]]
        is_known = ends and num_lost == lost_before[lane[call.id]]
        expected.append((call.start, max(*ends, *alone, -1) - call.start if is_known else None))
        lost_before[lane[call.id]] = num_lost
        ends.append(end)
    assert joined(calls, work)[0] == expected


@pytest.mark.parametrize("shift", [-(10**15), 10**17])
def test_leads_do_not_depend_on_the_origin_of_time(shift):
    """Nanoseconds since 1970 do not fit a float64 exactly: nothing here may be one."""
    calls = [Call("cudaLaunchKernel", shift + t, shift + t + 5, id=t) for t in (10, 101)]
    leads, _, _ = joined(calls, [Work(shift + 20, shift + 30, id=10), Work(shift + 200, shift + 210, id=101)])
    assert leads[1] == (shift + 101, -71)
