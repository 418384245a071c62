"""Faults that take events away, or move them: from what a rank did to what the capture shows of it."""

from __future__ import annotations

from dataclasses import fields, replace

import numpy as np
import numpy.typing as npt

from generator.events import FIRST_SYNC, RANGES, Chunk
from generator.spec import Fault, Spec

CLOCK_SHIFT_NS = 123_456_789
"""How much later the session of each rank begins than that of the rank before, where ranks have their own clocks."""
CLOCK_ERROR_NS = 3_000_000
"""How much more than that its stated time is late: clocks of two hosts agree to milliseconds."""

Mask = npt.NDArray[np.bool_]


def faulted(spec: Spec, chunk: Chunk) -> Chunk:
    """The events of a chunk that the capture shows."""
    if spec.has(Fault.NO_AGREEMENT):
        chunk = _kept(chunk, "range_", chunk.range_name != RANGES.index("dp_agreement"))
    if spec.has(Fault.STEPS_IDLE):
        chunk = _kept(chunk, "call_", (chunk.call_step % 4 != 3) | (chunk.call_name >= FIRST_SYNC))
        chunk = _kept(chunk, "work_", chunk.work_step % 4 != 3)
    if spec.has(Fault.WORK_CUT):
        chunk = _kept(chunk, "work_", np.arange(len(chunk.work_id)) % 3 != 2)
    is_untraced = spec.has(Fault.ONE_RANK_TRACED) and chunk.rank > 0
    if is_untraced or spec.has(Fault.DRIVER_CALLS_ONLY):
        chunk = _kept(chunk, "work_", np.zeros(len(chunk.work_id), bool))
    if is_untraced:
        chunk = _kept(chunk, "call_", np.zeros(len(chunk.call_id), bool))
    if spec.has(Fault.DRIVER_CALLS_ONLY):
        chunk = _kept(chunk, "call_", chunk.call_name >= FIRST_SYNC)
    return _moved(chunk, -CLOCK_SHIFT_NS * chunk.rank) if spec.has(Fault.OWN_CLOCKS) else chunk


def _kept(chunk: Chunk, prefix: str, keep: Mask) -> Chunk:
    """The chunk with only these of its ranges, calls or pieces of work."""
    names = [f.name for f in fields(Chunk) if f.name.startswith(prefix)]
    names += ["step_number"] if prefix == "range_" else []
    return replace(chunk, **{name: getattr(chunk, name)[keep] for name in names})


def _moved(chunk: Chunk, by_ns: int) -> Chunk:
    names = [f.name for f in fields(Chunk) if f.name.endswith(("_start", "_end"))]
    return replace(chunk, **{name: getattr(chunk, name) + by_ns for name in names})
