"""Reusable CUDA events, and the barrier that keeps table writes behind the reads of the step in flight.

#31698: creating two or three events a step costs the host microseconds each; a ring of fixed depth reuses them.
Section 9.4: writes to shared tables wait for `read_done`, which the last reader of the tables records.
"""

from collections.abc import Callable
from typing import Protocol

import torch

READ_DONE_DEPTH = 2
"""At most one read_done is outstanding per runner, and one is being recorded."""
COPY_DONE_DEPTH = 3
"""At most two result copies are in flight under overlap, and one is being recorded."""


class Event(Protocol):
    """What the ring needs nothing of and its users do: `torch.cuda.Event`, or a stand-in in tests."""

    def record(self, stream: torch.cuda.Stream | None = None) -> None: ...

    def wait(self, stream: torch.cuda.Stream | None = None) -> None: ...

    def synchronize(self) -> None: ...


class EventRing:
    """`depth` events in turn, each created on its first draw. Any `depth` consecutive draws are distinct objects."""

    def __init__(self, depth: int, create: Callable[[], Event] = torch.cuda.Event) -> None:
        """ValueError unless depth >= 1."""
        if depth < 1:
            raise ValueError(f"an event ring needs a depth of at least 1, not {depth}")
        self._create = create
        self._events: list[Event | None] = [None] * depth
        self._turn = 0

    def next(self) -> Event:
        """The next event. Its previous record must be consumed: the caller's depth has to guarantee that."""
        event = self._events[self._turn]
        if event is None:
            event = self._events[self._turn] = self._create()
        self._turn = (self._turn + 1) % len(self._events)
        return event


class _FreshEvents:
    """Before #31698: a new event at every draw."""

    def __init__(self, create: Callable[[], Event] = torch.cuda.Event) -> None:
        self._create = create

    def next(self) -> Event:
        return self._create()


def event_source(
    depth: int, *, reuse: bool, create: Callable[[], Event] = torch.cuda.Event
) -> EventRing | _FreshEvents:
    """A ring (#31698), or fresh events (legacy)."""
    return EventRing(depth, create) if reuse else _FreshEvents(create)


class ReadDoneMailbox:
    """The latest `read_done` of one runner; taking it empties the box, so that an old record never passes for new."""

    def __init__(self, events: EventRing | _FreshEvents) -> None:
        self._events = events
        self._pending: Event | None = None

    def publish(self) -> None:
        """Record on the current stream that it has read the shared tables for the last time in this step."""
        event = self._events.next()
        event.record()
        self._pending = event

    def take(self) -> Event | None:
        event, self._pending = self._pending, None
        return event


def war_barrier(
    schedule_stream: torch.cuda.Stream,
    forward_stream: torch.cuda.Stream,
    read_done: Event | None,
) -> None:
    """Make later writes on `schedule_stream` wait for the in-flight step's reads; the host does not block.

    Fine: wait for `read_done`. Coarse, when nobody recorded one (pass None to force it): wait for all of
    `forward_stream`.
    """
    if read_done is None:
        schedule_stream.wait_stream(forward_stream)
    else:
        read_done.wait(schedule_stream)
