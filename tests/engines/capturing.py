"""One run of a tiny engine by ``dflash-bench capture --annotate``, and what is to be counted of it."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections import Counter
from dataclasses import dataclass
from pathlib import Path

import pytest
from engines.environments import EngineEnvironment

from dflash_bench.layout import Events
from dflash_bench.metrics.measure import measure
from dflash_bench.model import ProcessInfo, RunMetrics
from dflash_bench.profile import Profile, open_profile

HERE = Path(__file__).parent


@dataclass(frozen=True)
class EngineRun:
    """A captured run: what the program printed, the profile, and its figures."""

    said: dict
    profile: Profile
    figures: RunMetrics

    def ranges(self, process: ProcessInfo) -> Counter[str]:
        names = self.profile.events(Events.RANGES, process, ["name"])["name"].to_pylist()
        return Counter(names)

    def nesting(self, process: ProcessInfo) -> set[tuple[str | None, str]]:
        """(the range that holds it, range), None for what lies in none; no range may cross another's end."""
        rows = self.profile.events(Events.RANGES, process, ["name", "start_ns", "end_ns"]).to_pylist()
        found, holders = set(), []
        for row in sorted(rows, key=lambda row: (row["start_ns"], -row["end_ns"])):
            while holders and holders[-1]["end_ns"] <= row["start_ns"]:
                holders.pop()
            assert not holders or row["end_ns"] <= holders[-1]["end_ns"], (row, holders[-1])
            found.add((holders[-1]["name"] if holders else None, row["name"]))
            holders.append(row)
        return found

    @property
    def processes(self) -> list[Counter[str]]:
        """The ranges of each process that has any, by name; the one with most first."""
        found = [self.ranges(process) for process in self.profile.info.processes if process.num_ranges]
        return sorted(found, key=lambda count: -count.total())

    def allocating_share(self, rank: int = 0) -> float:
        """The share of steps that take pages."""
        found = self.figures.find("alloc.step_share", rank)
        assert found is not None
        return float(found.values.mean())


def capture(
    engine: EngineEnvironment, tmp_path: Path, *words: str, recorder: str | None = "--recorder", **variables: str
) -> EngineRun:
    """Skips the test where the engine's environment is not there."""
    if not engine.is_there:
        pytest.skip(engine.reason)
    name = engine.name.partition("-")[0]
    line = [sys.executable, "-m", "dflash_bench", "capture", "--annotate", name, *filter(None, [recorder])]
    line += ["--profiles", str(tmp_path), "--name", "run", "--"]
    line += [engine.python, str(HERE / f"{name}_tiny.py"), *words]
    environment = {**os.environ, **engine.variables, **variables}
    environment["PYTHONPATH"] = variables.get("PYTHONPATH") or engine.variables.get("PYTHONPATH", "")
    done = subprocess.run(line, env=environment, capture_output=True, text=True, check=False, timeout=280)
    assert done.returncode == 0, done.stdout[-2000:] + done.stderr[-6000:]
    said = json.loads(next(each for each in reversed(done.stdout.splitlines()) if each.startswith("{")))
    profile = open_profile(tmp_path / "run")
    return EngineRun(said, profile, measure(profile))
