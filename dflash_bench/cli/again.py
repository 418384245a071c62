"""Making another run of what a profile was made of."""

from __future__ import annotations

from pathlib import Path
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING

from dflash_bench.errors import UsageError

if TYPE_CHECKING:
    from dflash_bench.model import RunInfo
    from dflash_bench.profile import Profile


def run_again(info: RunInfo, profiles: Path, nsys: Path | None = None) -> Profile:
    """One more run, asked for with the options of that one. ``nsys``: the one to record with, where it was nsys.

    Raises UsageError when the run is not one of the built-in loop's, or its workload is not known here.
    """
    from dflash_bench.capture.folder import free_name, run_name
    from dflash_bench.capture.launch import Backend, Device, Reports
    from dflash_bench.capture.settings import asked, is_repeatable
    from dflash_bench.cli.run import run
    from dflash_bench.profile import open_profile

    if not is_repeatable(info):
        raise UsageError(f"{info.run} was not made by `dflash-bench run`, so the gate cannot make another one")
    own = asked(info)
    name = free_name(profiles, run_name(str(info.workload), own["arm"], "again"))
    own |= {"arm": [own["arm"]], "device": Device(own["device"]), "backend": Backend(own["backend"])}
    own["reports"] = Reports(own["reports"])
    with TemporaryDirectory(prefix="dflash-bench-") as folder:
        if text := info.settings.get("workload_toml"):
            file = Path(folder) / own["workload"]
            file.write_text(str(text), encoding="utf-8")
            own["workload"] = str(file)
        run(**own, nsys=None if own["recorder"] else nsys, name=name, profiles=profiles)
    return open_profile(profiles / name)
