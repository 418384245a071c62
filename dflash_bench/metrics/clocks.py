"""Which captures share a clock."""

from __future__ import annotations

from collections.abc import Sequence

from dflash_bench.model import CaptureInfo


def first_on_clock(captures: Sequence[CaptureInfo]) -> list[int]:
    """For each capture, the first one on the same clock.

    Captures whose time 0 is the same nanosecond share theirs: the built-in recorder gives all ranks of a run one
    origin, while every session of nsys has its own.
    """
    origin = [c.session_start_utc_ns for c in captures]
    return [k if start is None else origin.index(start) for k, start in enumerate(origin)]
