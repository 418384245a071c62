"""What a shell offers behind a word that is not finished: runs, arms, workloads, presets, metrics."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any


def offer_runs(ctx: Any, incomplete: str) -> Iterator[str]:
    """Profiles of the folder that the command line or the environment names, newest first; ``a,b`` goes on behind the
    comma, ``RUN:`` with the arms of a duet."""
    before, comma, word = incomplete.rpartition(",")
    folder = Path(ctx.params.get("profiles") or os.environ.get("DFLASH_BENCH_PROFILES") or "profiles")
    run, colon, arm = word.partition(":")
    if colon:
        yield from (f"{before}{comma}{run}:{each}" for each in _arms_of(folder / run) if each.startswith(arm))
        return
    found = sorted(folder.glob("*/run.json"), key=lambda path: path.stat().st_mtime, reverse=True)
    names = (path.parent.name for path in found)
    yield from (before + comma + name for name in names if name.startswith(word) and not name.startswith("."))


def _arms_of(profile: Path) -> tuple[str, ...]:
    from dflash_bench.errors import BenchError
    from dflash_bench.profile import open_profile

    try:
        return open_profile(profile).info.arms
    except BenchError:
        return ()


def offer_arms(incomplete: str) -> Iterator[str]:
    """Arms, and behind an arm and a comma its switches."""
    try:
        from dflash_prep.arms import ARMS
    except ImportError:
        return
    before, comma, word = incomplete.rpartition(",")
    if not comma:
        yield from (name for name in ARMS if name.startswith(word))
    elif (arm := ARMS.get(before.partition(",")[0])) is not None:
        switches = arm.switches.__dataclass_fields__
        yield from (f"{before},{name}=" for name in switches if name.startswith(word) and f",{name}=" not in before)


def offer_workloads(incomplete: str) -> Iterator[str]:
    """The named workloads. (Files are offered by the shell itself.)"""
    try:
        from dflash_prep.workload import names
    except ImportError:
        return
    yield from (name for name in names() if name.startswith(incomplete))


def offer_presets(incomplete: str) -> Iterator[str]:
    """Engines whose ranges are known."""
    from dflash_bench.metrics.presets import Preset

    yield from (preset for preset in Preset if preset.startswith(incomplete))


def offer_metrics(incomplete: str) -> Iterator[str]:
    """Names of metrics; of a family its beginning."""
    from dflash_bench.metrics.registry import SPECS

    yield from (spec.name for spec in SPECS if spec.name.startswith(incomplete))
