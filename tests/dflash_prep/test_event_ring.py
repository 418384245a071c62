"""Event rings, the read_done mailbox and the write-after-read barrier."""

import ast
from pathlib import Path

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

import dflash_prep
from dflash_prep.kernels.event_ring import (
    COPY_DONE_DEPTH,
    READ_DONE_DEPTH,
    EventRing,
    ReadDoneMailbox,
    event_source,
    war_barrier,
)


class FakeEvent:
    """Remembers what was asked of it."""

    def __init__(self) -> None:
        self.records = 0
        self.waited_by: list[object] = []

    def record(self, stream: object = None) -> None:
        self.records += 1

    def wait(self, stream: object = None) -> None:
        self.waited_by.append(stream)

    def synchronize(self) -> None:
        pass


class FakeStream:
    def __init__(self) -> None:
        self.waited_for: list[object] = []

    def wait_stream(self, other: object) -> None:
        self.waited_for.append(other)


class Factory:
    def __init__(self) -> None:
        self.made: list[FakeEvent] = []

    def __call__(self) -> FakeEvent:
        self.made.append(FakeEvent())
        return self.made[-1]


def test_ten_draws_at_depth_three_make_three_events_round_robin_and_none_before_the_first_draw() -> None:
    create = Factory()
    ring = EventRing(3, create)
    assert create.made == []
    drawn = [ring.next() for _ in range(10)]
    assert len(create.made) == 3
    assert drawn == [create.made[i % 3] for i in range(10)]


@given(depth=st.integers(1, 9), draws=st.integers(1, 40))
def test_any_depth_consecutive_draws_are_distinct(depth: int, draws: int) -> None:
    ring = EventRing(depth, FakeEvent)
    drawn = [ring.next() for _ in range(draws + depth)]
    for first in range(draws):
        assert len({id(each) for each in drawn[first : first + depth]}) == depth


@pytest.mark.parametrize("depth", [0, -1])
def test_a_ring_without_events_is_refused(depth: int) -> None:
    with pytest.raises(ValueError, match="depth"):
        EventRing(depth, FakeEvent)


def test_the_legacy_source_creates_an_event_at_every_draw() -> None:
    legacy, ring = Factory(), Factory()
    fresh = event_source(READ_DONE_DEPTH, reuse=False, create=legacy)
    reused = event_source(READ_DONE_DEPTH, reuse=True, create=ring)
    for _ in range(10):
        fresh.next()
        reused.next()
    assert (len(legacy.made), len(ring.made)) == (10, 2)


def test_published_depths() -> None:
    assert (READ_DONE_DEPTH, COPY_DONE_DEPTH) == (2, 3)


def test_the_mailbox_hands_out_the_latest_record_once() -> None:
    create = Factory()
    box = ReadDoneMailbox(EventRing(2, create))
    assert box.take() is None
    box.publish()
    box.publish()
    assert [each.records for each in create.made] == [1, 1]
    assert box.take() is create.made[1]
    assert box.take() is None


def test_the_barrier_is_fine_with_read_done_and_coarse_without() -> None:
    schedule, forward, read_done = FakeStream(), FakeStream(), FakeEvent()
    war_barrier(schedule, forward, read_done)
    assert (read_done.waited_by, schedule.waited_for) == ([schedule], [])
    war_barrier(schedule, forward, None)
    assert schedule.waited_for == [forward]


def created_outside_a_ring(source: str) -> list[str]:
    """Names with read_done or copy_done in them to which an event is assigned that was created on the spot."""
    found = []
    for node in ast.walk(ast.parse(source)):
        if not isinstance(node, ast.Assign | ast.AnnAssign) or not isinstance(node.value, ast.Call):
            continue
        creates = ast.unparse(node.value.func).rpartition(".")[2] == "Event"
        targets = node.targets if isinstance(node, ast.Assign) else [node.target]
        names = [ast.unparse(each) for each in targets]
        found += [name for name in names if creates and ("read_done" in name or "copy_done" in name)]
    return found


def test_no_source_file_creates_a_read_done_or_copy_done_event_of_its_own() -> None:
    assert created_outside_a_ring("self.read_done = torch.cuda.Event()\nother = ring.next()") == ["self.read_done"]
    files = sorted(Path(dflash_prep.__file__).parent.rglob("*.py"))
    assert len(files) > 10
    assert {file.name: bad for file in files if (bad := created_outside_a_ring(file.read_text()))} == {}


@pytest.mark.gpu
def test_on_a_gpu_eight_rounds_on_a_ring_of_two_observe_the_right_value() -> None:
    ring, side = EventRing(2), torch.cuda.Stream()
    cell, seen = torch.zeros(1, dtype=torch.int64, device="cuda"), []
    torch.cuda.synchronize()
    for value in range(1, 9):
        with torch.cuda.stream(side):
            torch.cuda._sleep(20_000_000)
            cell.fill_(value)
            event = ring.next()
            event.record()
        event.wait()
        copy = cell.clone()
        side.wait_stream(torch.cuda.current_stream())
        event.synchronize()
        seen.append(copy)
    assert [int(each) for each in seen] == list(range(1, 9))


@pytest.mark.gpu
@pytest.mark.parametrize("fine", [False, True])
def test_on_a_gpu_the_barrier_keeps_a_table_write_behind_the_read_in_flight(fine: bool) -> None:
    forward, schedule = torch.cuda.Stream(), torch.cuda.Stream()
    table = torch.zeros(1024, dtype=torch.int32, device="cuda")
    box = ReadDoneMailbox(event_source(READ_DONE_DEPTH, reuse=True))
    torch.cuda.synchronize()
    snapshots = []
    for step in range(1, 9):
        with torch.cuda.stream(forward):
            forward.wait_stream(schedule)
            torch.cuda._sleep(20_000_000)
            snapshots.append(table.clone())
            box.publish()
        war_barrier(schedule, forward, box.take() if fine else None)
        with torch.cuda.stream(schedule):
            table.fill_(step)
    torch.cuda.synchronize()
    assert [each.unique().tolist() for each in snapshots] == [[step] for step in range(8)]
