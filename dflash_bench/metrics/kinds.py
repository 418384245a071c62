"""``steps@KIND``, ``step.period@KIND``: like is compared with like.

Steps that prefill are longer and launch no decode graph; a step that falls back from its CUDA graph to eager launches
is another step than its neighbours. They are counted apart, and timed apart where there are enough of them.
"""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from dflash_bench.metrics.events.kinds import Kind
from dflash_bench.metrics.measurements import Measurements
from dflash_bench.metrics.view import View
from dflash_bench.model import BoolArray

_MIN_STEPS = 20
"""Steps of a kind from which it has figures of its own: of fewer a median says little."""


def timed(view: View) -> Iterator[tuple[Kind, BoolArray]]:
    """The kinds with steps enough for figures of their own, if there are several: bool [steps] for each."""
    kinds = {kind: own for kind, own in view.kinds.items() if own.any()}
    for kind, own in kinds.items() if len(kinds) > 1 else ():
        if own.sum() >= _MIN_STEPS:
            yield kind, own


def measure_kinds(view: View, found: Measurements) -> None:
    """How many steps there are of each kind, and how long they take."""
    steps = view.steps
    for kind, is_own in view.kinds_of_all.items():
        found.add_value(f"steps@{kind}", int(is_own.sum()), len(is_own))
    if idle := int(view.is_idle.sum()):
        found.warn("idle_steps", idle, num=len(view.is_idle))
    for kind, is_own in timed(view):
        # until the next step starts: the last one has none
        own = np.flatnonzero(is_own & steps.is_followed)
        found.add(f"step.period@{kind}", steps.next_start[own] - steps.start[own], own)
