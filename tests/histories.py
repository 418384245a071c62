"""Baselines with a history of nights, made up: how they run, and where they change."""

from __future__ import annotations

from datetime import date, timedelta

import numpy as np

from dflash_bench.baseline.key import BaselineKey
from dflash_bench.baseline.runs import Baseline, HistoryEntry
from dflash_bench.session import Session

USUAL = {
    "step.period": 9.6e6,
    "tokens.per_s": 13_000.0,
    "host.busy_per_step": 2.2e6,
    "cost.prepare_for_decode": 4.1e5,
    "step.lead": 8.3e6,
    "alloc.step_share": 0.4,
    "dp.agreement_tax": 1.2e5,
}
KEY = BaselineKey("NVIDIA H200", (("driver", "580.1"), ("torch", "2.11.0")), "dep32-c5768", "topup", 2)


def nights(num=40, factors=None, arm="topup", seed=0):
    """A baseline of so many nights of three runs. ``factors``: (metric, night) → times what it was from then on."""
    rng, history = np.random.default_rng(seed), []
    for night in range(num):
        day = (date(2026, 5, 1) + timedelta(days=night)).isoformat()
        level = dict(USUAL)
        for (metric, since), times in (factors or {}).items():
            level[metric] *= times if night >= since else 1
        drift = 1 + 0.004 * rng.standard_normal()
        for run in range(3):
            figures = {
                f"{name}@all": value * drift * (1 + 0.005 * rng.standard_normal()) for name, value in level.items()
            }
            session = Session("0a1b2c3d", day, str(7000 + night))
            name = f"night-{night}-r{run}"
            history.append(HistoryEntry(name, f"{day}T01:4{run}:00", figures, session, f"{night + 0x5B1C0DE:012x}"))
    key = BaselineKey(KEY.device, KEY.stack, KEY.workload, arm, KEY.world)
    return Baseline(key, (), tuple(history))
