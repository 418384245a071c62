"""``coverage.*``: how much of launches and GPU work a capture lets one see, and what is withheld for want of it."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from dflash_bench.metrics.events.arrays import NONE
from dflash_bench.metrics.events.launches import Join, is_launch
from dflash_bench.metrics.measurements import Measurements
from dflash_bench.metrics.view import View
from dflash_bench.model import BoolArray

WITHHELD_BELOW = 0.50
WARNED_BELOW = 0.95
"""Coverage under which a lead, stall or share figure is withheld, or shown with a warning."""


@dataclass(frozen=True, slots=True)
class Coverage:
    """The share of launches and work that lead and stall figures could see."""

    share: float


def measure_coverage(view: View, is_launching: BoolArray, found: Measurements) -> Coverage | None:
    """What was joined, and warnings of what was not. None where lead and stall figures are withheld.

    ``is_launching`` bool [steps]: those with a launch that work was found for.
    """
    joined, calls = view.join, view.events.calls
    # without steps, coverage is told all the same
    seen = is_launch(calls.name) & (view.step_of_call != NONE if len(view.steps) else True)
    graphs = seen & calls.name.containing("GraphLaunch")
    num_seen, without = int(seen.sum()), int((seen & ~joined.has_work).sum())
    if num_seen:
        found.add("coverage.launches_matched", joined.has_work[seen])
    _add_join(joined, found)
    if without:
        found.warn("launches_without_work", without, num=num_seen)
    num_work, unlaunched = len(joined.work), joined.num_unlaunched
    share = (num_work - unlaunched) / max(1, num_work)
    if num_seen:
        share = min(share, 1 - without / num_seen)
    replays = _about_replays(joined)
    if graphs.any() and not joined.has_work[graphs].any():
        found.warn("graph_launches_without_work", int(graphs.sum()), replays=replays)
        return None
    if not len(view.steps):
        return None
    facts = {"share": share, "without": without, "unlaunched": unlaunched, "replays": replays}
    if share < WITHHELD_BELOW:
        found.warn("coverage_withheld", without + unlaunched, **facts)
        return None
    if share < WARNED_BELOW:
        found.warn("coverage_low", without + unlaunched, **facts)
    if not is_launching.all():
        found.warn("steps_without_launches", int((~is_launching).sum()), num=len(view.steps))
    return Coverage(share)


def _add_join(joined: Join, found: Measurements) -> None:
    num_work, unlaunched = len(joined.work), joined.num_unlaunched
    num_uncorrelated, replays = joined.work.num_uncorrelated_rows, _about_replays(joined)
    found.add_value("gpu_work_without_launch", unlaunched, num_work)
    found.add_value("coverage.gpu_work_uncorrelated", num_uncorrelated, num_work)
    found.add_value("coverage.impossible_pairs", joined.num_impossible, num_work - unlaunched)
    if num_work:
        found.add("coverage.gpu_work_matched", np.repeat([True, False], [num_work - unlaunched, unlaunched]))
    if unlaunched:
        found.warn("gpu_work_without_launch", unlaunched, num=num_work)
    if num_uncorrelated and not joined.num_by_order:
        found.warn("gpu_work_uncorrelated", num_uncorrelated, replays=replays)
    if joined.num_by_order:
        found.warn("joined_by_order", joined.num_by_order)
    if joined.num_duplicate_calls:
        found.warn("duplicate_api_calls", joined.num_duplicate_calls)
    if joined.num_impossible:
        found.warn("impossible_pairs", joined.num_impossible)


def _about_replays(joined: Join) -> str:
    """Why replays without a correlation id could not be joined in order of launch, if there are any."""
    work = joined.work
    if not work.num_uncorrelated_rows or joined.num_by_order:
        return ""
    if not work.num_replays:
        return f"; {work.num_uncorrelated_rows:,} GPU rows without correlation id make up no whole graph replays"
    return (
        f"; {work.num_replays:,} graph replays without correlation id face {joined.num_waiting:,} graph launches"
        " without work, and which belongs to which cannot be told"
    )
