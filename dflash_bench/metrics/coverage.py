"""``coverage.*``: how much of launches, calls and GPU work a capture lets one see, and what is withheld for want of it.

Each figure rests on its own population: leads on launches, and on graph launches where these are joined less often;
waits and costs on API calls.
"""

from __future__ import annotations

import numpy as np

from dflash_bench.metrics.events.arrays import NONE
from dflash_bench.metrics.events.launches import Join, is_launch
from dflash_bench.metrics.measurements import Coverage, Measurements
from dflash_bench.metrics.view import View
from dflash_bench.model import BoolArray, IntArray

_WITHHELD_BELOW = 0.50
_WARNED_BELOW = 0.95
"""Coverage under which a figure is withheld, or shown with a warning."""


def measure_coverage(view: View, found: Measurements) -> Coverage:
    """What was joined, and warnings of what was not."""
    calls = view.events.calls
    if num_calls := len(calls):
        num_launches = int(is_launch(calls.name).sum())
        if not num_launches:
            found.warn("no_launch_calls", num_calls)
        if not len(view.events.gpu):
            found.warn("no_gpu_rows", num_launches, where="")
    if not len(view.events.gpu):
        return Coverage(calls=1.0 if num_calls else None)
    joined, step = view.join, view.step_of_call
    seen = is_launch(calls.name) & np.append(view.is_traced, False)[step]
    is_good = joined.has_work.copy()
    is_good[joined.launches.call[joined.is_impossible]] = False
    graphs = seen & calls.name.containing("GraphLaunch")
    if seen.any():
        found.add("coverage.launches_matched", joined.has_work[seen])
    _add_join(view, joined, found)
    without = int((seen & ~joined.has_work).sum())
    if without:
        found.warn("launches_without_work", without, num=int(seen.sum()))
    of_calls = _share_of_calls(view)
    of_work = 1 - joined.num_unlaunched / max(1, len(joined.work)) if view.is_traced.all() else of_calls
    of_graphs = _share(is_good, graphs)
    of_launches = min(of_work, _share(is_good, seen), of_graphs)
    impossible = int(joined.is_impossible.sum())
    facts: dict[str, object] = {
        "without": without,
        "unlaunched": joined.num_unlaunched,
        "impossible": f", {impossible:,} pairs that cannot be" if impossible else "",
        "replays": _about_replays(joined),
    }
    if graphs.any() and not joined.has_work[graphs].any():
        found.warn("graph_launches_without_work", int(graphs.sum()), replays=facts["replays"])
        return Coverage(None, _judged(of_calls, "calls", facts, view, found))
    launches = _judged(of_launches, "launches", facts, view, found)
    return Coverage(launches, _judged(of_calls, "calls", facts, view, found))


def _share(is_good: BoolArray, among: BoolArray) -> float:
    return float(is_good[among].mean()) if among.any() else 1.0


def _share_of_calls(view: View) -> float:
    """The share of the GPU work that started in traced steps whose launch call is in the capture.

    Work that was queued before the capture began runs before the first that was launched in it, lane by lane.
    """
    joined, steps = view.join, view.scope
    if not len(steps) or not len(joined.launches):
        return 1.0 if not len(joined.work) else float(len(joined.launches) > 0)
    work, lane = joined.work, joined.work.lane
    is_launched = np.zeros(len(work), bool)
    is_launched[joined.launches.piece] = True
    first = np.full(int(lane.max()) + 1, np.iinfo(np.int64).max)
    np.minimum.at(first, lane[is_launched], work.start[is_launched])
    step = steps.covering(work.start)
    inside = (step != NONE) & np.append(view.is_traced, False)[step] & (work.start >= first[lane])
    return float(is_launched[inside].mean()) if inside.any() else 1.0


def _judged(share: float, what: str, facts: dict[str, object], view: View, found: Measurements) -> float | None:
    """The share, None where it is too small, with the warning that is due."""
    # a launch lost in steps is a call lost, and what else was lost with it nobody knows
    if not len(view.scope) or share >= (1.0 if what == "calls" else _WARNED_BELOW):
        return share
    is_withheld = share < _WITHHELD_BELOW
    count = int(str(facts["without"])) + int(str(facts["unlaunched"]))
    if what == "launches":
        if is_withheld:
            found.warn("coverage_withheld", count, share=share, **facts)
        else:
            found.warn("coverage_low", count, share=share, **facts)
    elif what == "calls" and is_withheld:
        found.warn("calls_withheld", int(str(facts["unlaunched"])), share=share)
    elif what == "calls":
        # 99.97 % is not all of them
        found.warn("calls_missing", int(str(facts["unlaunched"])), share=f"{min(share, 0.9999):.{2 * (share > 0.99)}%}")
    return None if is_withheld else share


def _add_join(view: View, joined: Join, found: Measurements) -> None:
    num_work, unlaunched = len(joined.work), joined.num_unlaunched
    num_uncorrelated, replays = joined.work.num_uncorrelated_rows, _about_replays(joined)
    num_impossible, num_damaged = int(joined.is_impossible.sum()), int(view.events.gpu.is_damaged.sum())
    found.add_value("gpu_work_without_launch", unlaunched, num_work)
    found.add_value("coverage.gpu_work_uncorrelated", num_uncorrelated, num_work)
    found.add_value("coverage.impossible_pairs", num_impossible, num_work - unlaunched)
    found.add_value("coverage.impossible_rows", num_damaged, len(view.events.gpu))
    if num_work:
        found.add("coverage.gpu_work_matched", np.repeat([True, False], [num_work - unlaunched, unlaunched]))
    if num_damaged:
        found.warn("impossible_rows", num_damaged)
    if untraced := int((~view.is_traced).sum()):
        found.warn("steps_without_calls", untraced, num=len(view.scope), which=_spans(np.flatnonzero(~view.is_traced)))
    if unlaunched:
        found.warn("gpu_work_without_launch", unlaunched, num=num_work)
    if num_uncorrelated and not joined.num_by_order:
        found.warn("gpu_work_uncorrelated", num_uncorrelated, replays=replays)
    if joined.num_by_order:
        shift = f", the first of them to replay number {joined.shift}" if joined.shift else ""
        found.warn("joined_by_order", joined.num_by_order, shift=shift)
    if joined.num_duplicate_calls:
        found.warn("duplicate_api_calls", joined.num_duplicate_calls)
    if num_impossible:
        found.warn("impossible_pairs", num_impossible, num=num_work - unlaunched)


def _spans(numbers: IntArray) -> str:
    """Numbers as text, those in a row as one: 0–49, 70."""
    parts = np.split(numbers, np.flatnonzero(np.diff(numbers) > 1) + 1)
    texts = [f"{part[0]}" if len(part) == 1 else f"{part[0]}–{part[-1]}" for part in parts[:5]]
    return ", ".join(texts) + (", …" if len(parts) > 5 else "")


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
