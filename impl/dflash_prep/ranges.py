"""Every range this package emits, and the one place through which they leave.

A range is a named piece of host time: ``with span(Range.FILL): ...``. Names live in the NVTX domain ``dflash``. Where
a range goes is decided once per process by the *sink*: NVTX, a recorder named by the environment, or nowhere. How many
ranges were emitted is counted here, before the sink, so that a capture that lost some can be told from a whole one.

Without :func:`use` nothing is emitted and a span costs two method calls; ``python -m dflash_prep.ranges`` measures the
cost of a range for each sink of this machine.
"""

from __future__ import annotations

import importlib
import os
import sys
from collections.abc import Callable
from enum import StrEnum
from time import perf_counter_ns
from typing import Any, Protocol

DOMAIN = "dflash"
SINK_VARIABLE = "DFLASH_PREP_SINK"
"""``module:factory`` (called as ``factory(rank=, world=)``), ``off``, or unset for NVTX."""


class Range(StrEnum):
    """The names, in the order in which one step meets them."""

    DECODE_STEP = "decode_step"
    FILTER_FINISHED = "filter_finished"
    ADMIT = "admit"
    CHECK_MEMORY = "check_memory"
    RETRACT = "retract"
    PREPARE_FOR_DECODE = "prepare_for_decode"
    EVICT_SWA = "evict_swa"
    FILL = "fill"
    H2D = "h2d"
    KV_ALLOC = "kv_alloc"
    GET_LAST_LOC = "get_last_loc"
    EVICT = "evict"
    ALLOC_EXTEND = "alloc_extend"
    ASSIGN_REQ_TO_TOKEN = "assign_req_to_token"
    CONSISTENCY = "consistency"
    DP_AGREEMENT = "dp_agreement"
    DP_MOE_COUNTS = "dp_moe_counts"
    RESOLVE_SEQ_LENS = "resolve_seq_lens"
    BLOCK_PREP = "block_prep"
    REBUILD_COMPACT = "rebuild_compact"
    METADATA = "metadata"
    DRAFT = "draft"
    DRAFT_SAMPLER = "draft_sampler"
    VERIFY = "verify"
    ACCEPT = "accept"
    PUBLISH = "publish"
    RESULT_COPY = "result_copy"
    STEP_GRAPH = "step_graph"
    PROCESS_RESULT = "process_result"

    # Enum hashes by a Python-level method; a span is looked up several times a step, so take the string's own hash.
    __hash__ = str.__hash__


class Sink(Protocol):
    """Receives what this process emits, in order, on the calling thread."""

    def push(self, name: str) -> None: ...

    def pop(self) -> None: ...

    def mark(self, text: str) -> None: ...

    def close(self) -> None: ...


class NullSink:
    """Emits nothing."""

    def push(self, *_text: str) -> None:
        pass

    pop = mark = close = push


class NvtxSink:
    """NVTX ranges in domain ``dflash``, each name registered with the tool once.

    From 0.2.12 the package's ``Domain`` has ``push_range(attributes)`` and is a do-nothing object when no tool listens.
    Before, the cheapest public way is an ``annotate`` object per name, entered again and again.
    """

    def __init__(self) -> None:
        import nvtx

        self._nvtx = nvtx
        self._domain: Any = nvtx.get_domain(DOMAIN)
        self._registered: dict[str, Any] = {}
        if hasattr(self._domain, "push_range"):
            self.push, self.pop = self._push_attributes, self._domain.pop_range
        for name in Range:
            self._register(name.value)

    def _register(self, name: str) -> Any:
        if hasattr(self._domain, "push_range"):
            entry = self._domain.get_event_attributes(message=name)
        else:
            entry = self._nvtx.annotate(message=name, color="blue", domain=DOMAIN)
        self._registered[name] = entry
        return entry

    def _push_attributes(self, name: str) -> None:
        self._domain.push_range(self._registered.get(name) or self._register(name))

    def push(self, name: str) -> None:
        (self._registered.get(name) or self._register(name)).__enter__()

    def pop(self) -> None:
        self._nvtx.pop_range(domain=DOMAIN)

    def mark(self, text: str) -> None:
        self._nvtx.mark(text, domain=DOMAIN)

    def close(self) -> None:
        pass


class Span:
    """One range as a context manager; stateless but for its count, hence reusable and re-entrant."""

    __slots__ = ("count", "name")

    def __init__(self, name: str) -> None:
        self.name = name
        self.count = 0

    def __enter__(self) -> None:
        self.count += 1
        _push(self.name)

    def __exit__(self, *_exc: object) -> None:
        _pop()


_sink: Sink = NullSink()
_push: Callable[[str], None] = _sink.push
_pop: Callable[[], None] = _sink.pop
_marks = 0
_SPANS = {name: Span(name.value) for name in Range}


span: Callable[[Range], Span] = _SPANS.__getitem__
"""The context manager of a range, the same object at every call: no allocation and no Python function per use."""


def mark(text: str) -> None:
    """An instant with a text in the sink's timeline."""
    global _marks
    _marks += 1
    _sink.mark(text)


def choose_sink(rank: int, world: int) -> Sink:
    """The sink that the environment asks for, not yet in use.

    Raises ValueError when ``DFLASH_PREP_SINK`` names something that cannot be imported or is not a factory.
    """
    choice = os.environ.get(SINK_VARIABLE, "")
    if choice == "off":
        return NullSink()
    if choice:
        return _factory(choice)(rank=rank, world=world)
    try:
        return NvtxSink()
    except ImportError:
        return NullSink()


def _factory(choice: str) -> Callable[..., Sink]:
    module, _, attribute = choice.partition(":")
    try:
        factory = getattr(importlib.import_module(module), attribute)
    except (ImportError, AttributeError, ValueError) as error:
        raise ValueError(f"{SINK_VARIABLE}={choice!r} must be module:factory, and this one is not: {error}") from error
    if not callable(factory):
        raise ValueError(f"{SINK_VARIABLE}={choice!r} must name a callable")
    return factory


def use(sink: Sink) -> None:
    """Send everything emitted from now on to `sink` and start counting from zero. The old sink is not closed."""
    global _sink, _push, _pop, _marks
    _sink, _push, _pop, _marks = sink, sink.push, sink.pop, 0
    for each in _SPANS.values():
        each.count = 0


def sink() -> Sink:
    """The sink in use."""
    return _sink


def emitted() -> dict[str, int]:
    """Ranges entered since :func:`use`, by name; names that never occurred are left out."""
    return {each.name: each.count for each in _SPANS.values() if each.count}


def marks_emitted() -> int:
    """Marks since :func:`use`."""
    return _marks


def cost_ns(sink: Sink, repeats: int = 200_000) -> float:
    """Median of five rounds of the mean wall time in ns of an empty range sent to `sink`; restores the sink in use."""
    previous = _sink
    use(sink)
    rounds = []
    for _ in range(5):
        start = perf_counter_ns()
        for _ in range(repeats):
            with span(Range.FILL):
                pass
        rounds.append((perf_counter_ns() - start) / repeats)
    use(previous)
    return sorted(rounds)[2]


def _main() -> None:
    sinks: dict[str, Callable[[], Sink]] = {"off": NullSink, "nvtx": NvtxSink}
    if os.environ.get(SINK_VARIABLE, "off") != "off":
        sinks[os.environ[SINK_VARIABLE]] = lambda: choose_sink(0, 1)
    for label, make in sinks.items():
        try:
            made = make()
        except ImportError:
            sys.stdout.write(f"{label}\tnot installed\n")
            continue
        sys.stdout.write(f"{label}\t{cost_ns(made):.0f} ns per range\n")
        made.close()


if __name__ == "__main__":
    # Under -m this file is a second module named __main__; measure the one that the rest of the package uses.
    importlib.import_module("dflash_prep.ranges")._main()
