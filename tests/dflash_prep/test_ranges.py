"""Ranges: what a span sends, what is counted, and how the sink is chosen."""

from __future__ import annotations

import sys
import types

import pytest

from dflash_prep import ranges
from dflash_prep.ranges import NullSink, NvtxSink, Range, mark, span


class ListSink:
    """Keeps what it receives."""

    def __init__(self) -> None:
        self.events: list[tuple[str, str]] = []

    def push(self, name: str) -> None:
        self.events.append(("push", name))

    def pop(self) -> None:
        self.events.append(("pop", ""))

    def mark(self, text: str) -> None:
        self.events.append(("mark", text))

    def close(self) -> None:
        self.events.append(("close", ""))


@pytest.fixture
def received():
    sink = ListSink()
    ranges.use(sink)
    yield sink.events
    ranges.use(NullSink())


def test_nested_spans_reach_the_sink_in_order_and_are_counted(received) -> None:
    with span(Range.DECODE_STEP):
        with span(Range.FILL):
            mark("between")
        with span(Range.FILL):
            pass
    names = [name or kind for kind, name in received]
    assert names == ["decode_step", "fill", "between", "pop", "fill", "pop", "pop"]
    assert ranges.emitted() == {"decode_step": 1, "fill": 2}
    assert ranges.marks_emitted() == 1


def test_a_range_that_ends_in_an_exception_is_closed(received) -> None:
    with pytest.raises(KeyError), span(Range.VERIFY):
        raise KeyError
    assert [kind for kind, _ in received] == ["push", "pop"]


def test_a_new_sink_starts_counting_from_zero(received) -> None:
    with span(Range.DRAFT):
        mark("x")
    ranges.use(NullSink())
    assert ranges.emitted() == {}
    assert ranges.marks_emitted() == 0


def test_one_span_object_per_range_so_a_use_allocates_nothing() -> None:
    assert span(Range.FILL) is span(Range("fill"))
    assert len({id(span(name)) for name in Range}) == len(Range)


def test_the_environment_names_the_sink(monkeypatch) -> None:
    module = types.ModuleType("sink_of_this_test")
    module.make = lambda rank, world: (rank, world)
    monkeypatch.setitem(sys.modules, "sink_of_this_test", module)
    monkeypatch.setenv(ranges.SINK_VARIABLE, "sink_of_this_test:make")
    assert ranges.choose_sink(3, 4) == (3, 4)
    monkeypatch.setenv(ranges.SINK_VARIABLE, "off")
    assert isinstance(ranges.choose_sink(0, 1), NullSink)


@pytest.mark.parametrize("bad", ["no_such_module:f", "json:no_such_name", "json", "json:__doc__"])
def test_a_sink_that_cannot_be_made_is_one_clear_error(monkeypatch, bad) -> None:
    monkeypatch.setenv(ranges.SINK_VARIABLE, bad)
    with pytest.raises(ValueError, match="DFLASH_PREP_SINK"):
        ranges.choose_sink(0, 1)


def test_nvtx_is_the_default_and_is_replaced_by_nothing_when_not_installed(monkeypatch) -> None:
    monkeypatch.delenv(ranges.SINK_VARIABLE, raising=False)
    assert isinstance(ranges.choose_sink(0, 1), NvtxSink)
    monkeypatch.setitem(sys.modules, "nvtx", None)
    assert isinstance(ranges.choose_sink(0, 1), NullSink)


class AttributeDomain:
    """The part of the domain object that newer nvtx packages have."""

    def __init__(self) -> None:
        self.registered: list[str] = []
        self.events: list[str] = []

    def get_event_attributes(self, message: str) -> str:
        self.registered.append(message)
        return message

    def push_range(self, attributes: str) -> None:
        self.events.append(attributes)

    def pop_range(self) -> None:
        self.events.append("pop")


def test_with_a_newer_nvtx_each_name_is_registered_once_and_pushed_as_attributes(monkeypatch) -> None:
    domain = AttributeDomain()
    module = types.ModuleType("nvtx")
    module.get_domain = lambda name: domain
    monkeypatch.setitem(sys.modules, "nvtx", module)
    sink = NvtxSink()
    for _ in range(3):
        sink.push("fill")
        sink.pop()
    assert domain.events == ["fill", "pop"] * 3
    assert domain.registered.count("fill") == 1
