"""Calls that load modules, compile, or capture or instantiate graphs: what a program does once, not in every step."""

from __future__ import annotations

import re

from dflash_bench.metrics.events.host import ApiCalls
from dflash_bench.model import BoolArray

_LOADS = re.compile(
    r"(cu|cuda|hip)(Library|Module)Load\w*|(cu|hip)Link(Create|Complete|Add)\w*"
    r"|(cu|cuda|hip)(GraphInstantiate|StreamBeginCapture|StreamEndCapture)\w*"
)
_MAY_LOAD = re.compile(r"(cu|cuda|hip)(Func|Module|Library|Occupancy)\w*")
"""Calls that take microseconds, but load the module where that was put off until its first use."""
_LONG_NS = 2_000_000


def is_load(calls: ApiCalls) -> BoolArray:
    """bool [calls]."""
    is_long = calls.end - calls.start >= _LONG_NS
    return calls.name.matching(_LOADS) | (calls.name.matching(_MAY_LOAD) & is_long)
