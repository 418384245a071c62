"""``range.NAME``: how long the ranges of each name last."""

from __future__ import annotations

import numpy as np

from dflash_bench.metrics.events.arrays import NONE, by_code, changes
from dflash_bench.metrics.measurements import Measurements
from dflash_bench.metrics.view import View

_MAX_LISTED = 500
"""Engines that write counts into range names make a name per step: more names than this are noise, not metrics."""


def measure_ranges(view: View, found: Measurements) -> None:
    """Every closed range. A name that several domains use counts in the step range's domain alone, if there."""
    ranges, steps = view.events.ranges, view.steps
    found.add_value("coverage.open_ranges", len(view.events.unclosed))
    names = ranges.name
    is_own = ranges.domain.among({steps.domain})
    total = np.bincount(names.codes, minlength=len(names.values))
    own = total if is_own.all() else np.bincount(names.codes[is_own], minlength=len(names.values))
    is_own_name = own > 0
    if num_others := int((total - own)[is_own_name].sum()):
        found.warn("name_in_two_domains", num_others)
    counted = np.where(is_own_name, own, total)
    is_listed = counted > 0
    if (num_names := int(is_listed.sum())) > _MAX_LISTED:
        found.warn("too_many_range_names", num_names - _MAX_LISTED, num_names=num_names, limit=_MAX_LISTED)
        is_listed[np.argsort(-counted, kind="stable")[_MAX_LISTED:]] = False
    is_counted = is_listed[names.codes]
    if not is_own.all():
        is_counted &= is_own | ~is_own_name[names.codes]
    step = steps.covering(ranges.start) if view.is_part else None
    rows = np.flatnonzero(is_counted if step is None else is_counted & (step != NONE))
    rows = rows[by_code(names.codes[rows])]
    length, codes = (ranges.end - ranges.start)[rows], names.codes[rows]
    if not len(rows):
        return
    first = np.flatnonzero(changes(codes))
    pairs = None if step is None or steps.pair is None else np.split(steps.pair[step[rows]], first[1:])
    for k, (code, part) in enumerate(zip(codes[first].tolist(), np.split(length, first[1:]), strict=True)):
        found.add(f"range.{names.values[code]}", part, pair=None if pairs is None else pairs[k])
