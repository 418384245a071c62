"""Steps that load modules, compile or instantiate graphs: counted, named, and kept out of what is ranked."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from dflash_bench.metrics.events.host import ApiCalls
from dflash_bench.metrics.events.loads import is_load
from dflash_bench.metrics.measurements import Measurements
from dflash_bench.metrics.view import View
from dflash_bench.model import IntArray

_EARLY = 0.1
"""Part of a capture in whose steps a warm-up counts as its beginning, which an option can leave out."""


def measure_warm_up(view: View, found: Measurements) -> None:
    """A warning that says how many steps, which calls, how much of the time, and what leaves them out."""
    steps, number = view.steps, np.flatnonzero(view.is_warm_up)
    if not len(number):
        return
    length = steps.end - steps.start
    share = int(length[number].sum()) / max(int(length.sum()), 1)
    calls = view.events.calls
    loads = calls[is_load(calls)]
    names = ", ".join(_most_time(loads[view.scope.covering(loads.start) >= 0]))
    behind = int(number[-1]) + 1
    is_early = behind <= max(10, int(_EARLY * len(steps))) and not view.is_part
    option = f"--skip-steps {behind}" if is_early else ""
    hint = f"; {option} leaves them out of every figure" if option else ""
    share_text = f"{share:.0%}"
    found.warn("warm_up_steps", len(number), num=len(steps), names=names, share=share_text, hint=hint, option=option)


def _most_time(calls: ApiCalls, limit: int = 2) -> list[str]:
    total = np.bincount(calls.name.codes, weights=calls.end - calls.start, minlength=len(calls.name.values))
    return [calls.name.values[k] for k in np.argsort(-total, kind="stable")[:limit] if total[k]]


def blame_warm_up(
    view: View,
    found: Measurements,
    table: str,
    keys: Sequence[tuple[Sequence[str], IntArray]],
    ns: IntArray,
    step: IntArray,
    separator: str | None = None,
) -> None:
    """What of the nanoseconds that a table blames on labels lies in steps that warm up. ``ns``, ``step``: int64 [n]."""
    rows = np.flatnonzero(view.is_warm_up[step])
    if len(rows):
        found.blame(f"{table}.warm_up", [(names, code[rows]) for names, code in keys], ns[rows], separator)
