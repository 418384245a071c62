"""``launch.by_lane``: which streams the GPU work runs on, and how far ahead the host is on each."""

from __future__ import annotations

import numpy as np

from dflash_bench.metrics.events.arrays import at_rows, distinct
from dflash_bench.metrics.leads import main_lane
from dflash_bench.metrics.measurements import Measurements
from dflash_bench.metrics.view import View


def measure_lanes(view: View, found: Measurements) -> None:
    """A row for each lane that launches inside steps work on: launches with a lead, median lead, share run ahead,
    share of the GPU time, and whether it is the main one.
    """
    if found.coverage.launches is None or not len(view.launches):
        return
    work, launches = view.join.work, view.launches
    lane, main = at_rows(work.lane, launches.piece), main_lane(view)
    time = (work.end - work.start)[launches.piece]
    for own in distinct(lane):
        of_lane = lane == own
        piece = launches.piece[of_lane][0]
        leads = launches.lead[of_lane & launches.has_lead]
        ahead = (float(np.median(leads)), float((leads > 0).mean())) if len(leads) else (None, None)
        share = float(time[of_lane].sum() / max(time.sum(), 1))
        row = (
            int(work.device[piece]),
            int(work.stream[piece]),
            len(leads),
            *ahead,
            share,
            "main" if own == main else "",
        )
        found.rows.setdefault("launch.by_lane", []).append(row)
