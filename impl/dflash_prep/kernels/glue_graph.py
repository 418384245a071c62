"""A small CUDA graph around the metadata preparation of each replay (section 8.4; padded form #47676).

Before every replay of a model graph, a handful of tiny kernels derive attention metadata. They cost host launches, not
device time, so they are captured once per key and replayed: two eager runs, then a capture, then replays.

A value computed on the host inside the preparation would be frozen by the capture, silently. Here that is an error: the
host values of the metadata must agree between the eager runs. SGLang 0.5.23 switches its own graph off for DFlash for
that reason: its verification is planned on the host at every replay, drafts would be judged by the plan of the capture,
and about one token a step would be accepted. The metadata of `attention_metadata.py` have no such value, so here the
graph may be on; a backend that plans on the host has to say so by not opting in, or is found out in the eager runs.
"""

import dataclasses
from collections.abc import Callable, Hashable, Sequence
from dataclasses import dataclass
from enum import StrEnum
from typing import Any, Generic, NamedTuple, TypeVar

import torch

WARM_UPS = 2
"""Eager runs before the capture: the first compiles kernels, the second shows that nothing on the host changes."""
PADDED_SEQ_LEN = 1
"""Length of a padding row: attention over no keys at all is undefined, and pool row 0 takes any write."""

Metadata = TypeVar("Metadata")


class _FrozenHostValueError(RuntimeError):
    """A metadata preparation computes something on the host that changes from step to step; it cannot be captured."""


class GlueMode(StrEnum):
    """Forward modes, as far as they key a glue graph."""

    DECODE = "decode"
    TARGET_VERIFY = "target_verify"


class GlueKey(NamedTuple):
    """What a captured preparation depends on besides the contents of its static buffers."""

    bs: int
    captured_mode: GlueMode
    actual_mode: GlueMode


@dataclass(frozen=True, slots=True)
class RowTier:
    """Opt-in of a backend whose target verify has no host value up to a number of rows, bs x draft tokens."""

    row_limit: int
    num_draft_tokens: int

    def supports_glue_graph(self, mode: GlueMode, bs: int) -> bool:
        return mode is GlueMode.TARGET_VERIFY and bs * self.num_draft_tokens <= self.row_limit


@dataclass(frozen=True, slots=True)
class GlueBatch:
    """The facts of one replay that decide whether its preparation may be a graph."""

    raw_bs: int
    padded_bs: int
    mode: GlueMode
    two_batch_overlap: bool = False
    pdmux: bool = False
    lora: bool = False


class GlueRefusal(StrEnum):
    """Why a replay prepares its metadata eagerly."""

    PADDED = "the batch is padded"
    TWO_BATCH_OVERLAP = "two-batch overlap splits the batch on the host"
    PDMUX = "prefill and decode share the device"
    LORA = "adapters are chosen on the host"
    BACKEND = "a backend has not opted in for this mode and batch size"


def glue_refusal(batch: GlueBatch, backends: Sequence[object], *, padded: bool) -> GlueRefusal | None:
    """None if the preparation may be a graph.

    A backend opts in by its method `supports_glue_graph(mode, bs)`, like RowTier; one without the method has not.
    Without `padded` (before #47676) only batches of exactly a captured size qualify; under DP attention every rank is
    padded to the agreed maximum, so there the graph never applied.
    """
    if batch.raw_bs != batch.padded_bs and not padded:
        return GlueRefusal.PADDED
    if batch.two_batch_overlap:
        return GlueRefusal.TWO_BATCH_OVERLAP
    if batch.pdmux:
        return GlueRefusal.PDMUX
    if batch.lora:
        return GlueRefusal.LORA
    if not all(_opts_in(each, batch) for each in backends):
        return GlueRefusal.BACKEND
    return None


def _opts_in(backend: object, batch: GlueBatch) -> bool:
    ask = getattr(backend, "supports_glue_graph", None)
    return ask is not None and bool(ask(batch.mode, batch.padded_bs))


class GlueInputs:
    """Static inputs of a captured preparation, sized for the largest graph; staging them is what stays outside."""

    def __init__(self, capacity: int, device: torch.device | str) -> None:
        self.seq_lens = torch.full((capacity,), PADDED_SEQ_LEN, dtype=torch.int64, device=device)
        self.pool_indices = torch.zeros(capacity, dtype=torch.int64, device=device)

    def stage(self, seq_lens: torch.Tensor, pool_indices: torch.Tensor, padded_bs: int) -> None:
        """Copy int64 [bs] inputs and turn rows [bs, padded_bs) into padding: pool row 0, length 1."""
        bs = seq_lens.numel()
        if not bs <= padded_bs <= self.seq_lens.numel():
            raise ValueError(f"cannot pad {bs} requests to {padded_bs} in buffers for {self.seq_lens.numel()}")
        self.seq_lens[:bs].copy_(seq_lens)
        self.pool_indices[:bs].copy_(pool_indices)
        if bs < padded_bs:
            self.seq_lens[bs:padded_bs].fill_(PADDED_SEQ_LEN)
            self.pool_indices[bs:padded_bs].zero_()


@dataclass(frozen=True, slots=True)
class Captured(Generic[Metadata]):
    """A captured preparation: how to run it again, and the Python metadata it made, which every replay hands out."""

    replay: Callable[[], None]
    metadata: Metadata


def capture_cuda_graph(prepare: Callable[[], Metadata]) -> Captured[Metadata]:
    """Record the kernels of `prepare` into a CUDA graph. They do not run until the first replay."""
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph, capture_error_mode="thread_local"):  # see CudaDevice.graph
        metadata = prepare()
    return Captured(graph.replay, metadata)


class GlueGraphs(Generic[Metadata]):
    """The graphs of one runner, by key. `Metadata` is a dataclass; its non-tensor fields are its host values."""

    def __init__(self, capture: Callable[[Callable[[], Metadata]], Captured[Metadata]] = capture_cuda_graph) -> None:
        """`capture` records a preparation without running it."""
        self._capture = capture
        self._warm: dict[Hashable, list[Metadata]] = {}
        self._graphs: dict[Hashable, Captured[Metadata]] = {}

    def run(self, key: GlueKey, prepare: Callable[[], Metadata]) -> Metadata:
        """Prepare the metadata of this replay and return it, eagerly or by graph.

        `prepare` must read and write static buffers only. Raises _FrozenHostValueError when its host values differ
        between the eager runs and the capture.
        """
        captured = self._graphs.get(key)
        if captured is None:
            warm = self._warm.setdefault(key, [])
            if len(warm) < WARM_UPS:
                warm.append(prepare())
                return warm[-1]
            captured = self._capture(prepare)
            _require_equal_host_values([*warm, captured.metadata], key)
            self._graphs[key] = captured
            del self._warm[key]
        captured.replay()
        return captured.metadata

    def reset(self) -> None:
        """Drop all graphs and warm-ups, e.g. after buffers moved."""
        self._warm.clear()
        self._graphs.clear()

    def __len__(self) -> int:
        """Captured graphs."""
        return len(self._graphs)


def _require_equal_host_values(runs: Sequence[Any], key: GlueKey) -> None:
    first = _host_values(runs[0])
    for each in runs[1:]:
        changed = sorted(name for name, value in _host_values(each).items() if value != first[name])
        if changed:
            raise _FrozenHostValueError(
                f"{', '.join(changed)} of the metadata for {key} changes between steps on the host"
            )


def _host_values(metadata: Any) -> dict[str, object]:
    values = ((field.name, getattr(metadata, field.name)) for field in dataclasses.fields(metadata))
    return {name: value for name, value in values if not isinstance(value, torch.Tensor)}
