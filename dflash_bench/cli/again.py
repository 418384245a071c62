"""Making another run of what a profile was made of."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from dflash_bench.errors import UsageError

if TYPE_CHECKING:
    from dflash_bench.model import RunInfo
    from dflash_bench.profile import Profile


def is_repeatable(info: RunInfo) -> bool:
    """Whether the run is one of the built-in loop's, so that another can be made like it."""
    return info.arm is not None and info.workload is not None and "steps_asked" in info.settings


def run_again(info: RunInfo, profiles: Path) -> Profile:
    """One more run of the same arm, workload, ranks, steps and seed, recorded as that one was.

    Raises UsageError when the run is not one of the built-in loop's, or its workload is a file that is not known here.
    """
    from dflash_bench.capture.folder import free_name, run_name
    from dflash_bench.capture.launch import Reports
    from dflash_bench.cli.run import run
    from dflash_bench.model import Recorder
    from dflash_bench.profile import open_profile

    own = info.settings
    if not is_repeatable(info) or info.arm is None or info.workload is None:
        raise UsageError(f"{info.run} was not made by `dflash-bench run`, so the gate cannot make another one")
    name = free_name(profiles, run_name(info.workload, info.arm, "again"))
    run(
        arm=[info.arm],
        workload=info.workload,
        ranks=_whole(own["ranks"]),
        steps=_whole(own["steps_asked"]),
        seed=_whole(own["seed"]),
        recorder=own.get("recorder") == Recorder.BUILTIN,
        reports=Reports(str(own["reports"])) if own.get("reports") else Reports.PER_RANK,
        name=name,
        profiles=profiles,
    )
    return open_profile(profiles / name)


def _whole(value: object) -> int:
    if not isinstance(value, int):
        raise UsageError(f"the profile says {value!r} where a number of ranks, steps or a seed should be")
    return value
