"""The engine's own result beside ours, before anything is written: what the shadow mode compares.

The engine's function runs on stand-ins: a copy of the draft input, the batch with stand-ins for its requests, and in
place of the allocation a recorder. So it computes all that it would, and changes nothing.
"""

from __future__ import annotations

import contextlib
import copy
from collections.abc import Callable
from dataclasses import dataclass
from types import FunctionType, SimpleNamespace
from typing import Any

from dflash_prep.sglang.preparation import Plan
from dflash_prep.state.request import ceil_to, floor_to
from dflash_prep.state.topup import TopUpDecision

PrepareFunction = Callable[[Any, Any], None]


class DifferenceError(Exception):
    """Ours is not what the engine's own would have been; the message says in what, and with which numbers."""


@dataclass(frozen=True, slots=True)
class UpstreamResult:
    """What the engine's own function would hand to the allocation and leave behind."""

    figures: dict[str, object]
    cur: list[int]
    nxt: list[int]
    committed: list[int]
    num_needed: int


class _BatchStandIn:
    """A batch that reads as the real one and keeps for itself what is written to it."""

    def __init__(self, batch: Any) -> None:
        self.__dict__["_batch"] = batch
        self.__dict__["reqs"] = [
            SimpleNamespace(kv=req.kv, sampling_params=req.sampling_params, decode_batch_idx=0) for req in batch.reqs
        ]

    def __getattr__(self, name: str) -> Any:
        return getattr(self._batch, name)

    def batch_size(self) -> int:
        return len(self.reqs)

    def maybe_evict_swa(self) -> None:
        """Was done already, and would change the pools."""


def run_upstream(original: FunctionType, draft: Any, batch: Any) -> UpstreamResult:
    """What `original`, the engine's `prepare_for_decode`, makes of a step, without a trace in the engine."""
    calls: list[dict[str, Any]] = []

    def record(_tree: Any, _rows: Any, **arguments: Any) -> None:
        calls.append(arguments)

    # the same code over the same names, but for what takes pages and for streams of its own
    names = original.__globals__ | {
        "alloc_for_spec_decode": record,
        "_get_overlap_plan_stream": lambda _device: (None, contextlib.nullcontext()),
    }
    alone = FunctionType(original.__code__, names, original.__name__, original.__defaults__)
    stand_in, own = _BatchStandIn(batch), copy.copy(draft)
    for name in [n for n in vars(own) if n.startswith("_prepare_") and n.endswith("_buf")]:
        setattr(own, name, None)  # not the buffers that a step in flight may still read
    alone(own, stand_in)
    (call,) = calls
    return UpstreamResult(
        figures={
            "seq_lens_sum": int(stand_in.seq_lens_sum),
            "nxt_kv_lens_sum": int(own.nxt_kv_lens_sum),
            "max_top_k": own.max_top_k,
            "uniform_top_k_value": own.uniform_top_k_value,
        },
        cur=call["cur_kv_lens"].tolist(),
        nxt=call["nxt_kv_lens"].tolist(),
        committed=stand_in.seq_lens_cpu.tolist(),
        num_needed=int(call["num_needed_tokens"]),
    )


def compare(
    plan: Plan, upstream: UpstreamResult, *, topup_pages: int, page_size: int, reserve: int, width: int
) -> None:
    """Raise DifferenceError unless the plan is the engine's result, or that result and the pages of the top-up.

    What is compared is what would be written: host views of the lengths and the device's copies of them, sums, and the
    number of tokens. ``reserve``, ``page_size`` and ``width`` (of a row) in tokens.
    """
    nxt = upstream.nxt
    figures = dict(upstream.figures)
    if plan.guard.decision is TopUpDecision.TAKEN:
        _require("top-up on a step", upstream.num_needed > 0, True)
        limit, more = floor_to(width, page_size), topup_pages * page_size
        top = [min(ceil_to(committed + reserve, page_size) + more, limit) for committed in upstream.committed]
        nxt = [max(pair) for pair in zip(upstream.nxt, top, strict=True)]
        figures["nxt_kv_lens_sum"] = sum(nxt)
    needed = sum(nxt) - sum(upstream.cur)
    cur_there, nxt_there = plan.ship() if plan.watermark.num_needed else (plan.lens.cur, plan.lens.nxt)
    for what, ours, theirs in (
        ("cur_kv_lens", plan.lens.cur.tolist(), upstream.cur),
        ("nxt_kv_lens", plan.lens.nxt.tolist(), nxt),
        ("cur_kv_lens on the device", cur_there.tolist(), upstream.cur),
        ("nxt_kv_lens on the device", nxt_there.tolist(), nxt),
        ("seq_lens_cpu", plan.lens.committed.tolist(), upstream.committed),
        ("num_needed_tokens", plan.watermark.num_needed, needed),
        ("seq_lens_sum", plan.figures.committed_sum, figures["seq_lens_sum"]),
        ("nxt_kv_lens_sum", plan.figures.nxt_sum, figures["nxt_kv_lens_sum"]),
        ("max_top_k", plan.figures.max_top_k, figures["max_top_k"]),
        ("uniform_top_k_value", plan.figures.uniform_top_k_value, figures["uniform_top_k_value"]),
    ):
        _require(what, ours, theirs)


def _require(what: str, ours: object, theirs: object) -> None:
    if ours == theirs:
        return
    if isinstance(ours, list) and isinstance(theirs, list) and len(ours) == len(theirs):
        at = next(i for i, (a, b) in enumerate(zip(ours, theirs, strict=True)) if a != b)
        raise DifferenceError(f"{what} of request {at} is {ours[at]}, the engine's own {theirs[at]}")
    raise DifferenceError(f"{what} is {ours}, the engine's own {theirs}")
