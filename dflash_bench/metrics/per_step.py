"""Figures that are a sum over each step; in captures without steps the same per second of the whole capture."""

from __future__ import annotations

from dflash_bench.metrics.measurements import Measurements
from dflash_bench.metrics.view import View
from dflash_bench.model import IntArray


def add_per_step(
    view: View, found: Measurements, name: str, per_step: IntArray, chosen: IntArray, share: float | None
) -> None:
    """Add a metric ``name`` ending in ``_per_step``: its sum of each step, of the steps that are chosen."""
    if len(view.steps):
        if len(chosen):
            found.add(name, per_step[chosen], chosen, coverage=share)
        return
    scope = view.scope
    seconds = float((scope.end - scope.start).sum()) / 1e9
    found.add_value(f"{name.removesuffix('_per_step')}_per_s", float(per_step.sum()) / seconds, coverage=share)
