"""What one rank did, written beside the capture: the loop's own account, independent of any profiler."""

from __future__ import annotations

import json
import os
from dataclasses import asdict, dataclass, field
from importlib import metadata
from pathlib import Path
from platform import python_version
from typing import Any

from dflash_prep.ranges import DOMAIN, emitted, marks_emitted

VERSION = 1


@dataclass(frozen=True, slots=True)
class Ledger:
    """`ranges` and `marks` are what was emitted, counted at the source; `counters` the engine counters by name.

    `delay` is what was planted, ``RANK:MICROSECONDS[:ARM]``, the same on every rank. In a duet `arm` is None,
    `switches` and `counters` are by arm, and what was checked is the sum over the arms.
    """

    rank: int
    world: int
    arm: str | None
    arms: tuple[str, ...]
    switches: dict[str, Any]
    workload: str
    seed: int
    steps: int
    interrupted: bool
    device: str
    counters: dict[str, Any]
    settings: dict[str, Any]
    checks: dict[str, Any]
    delay: str | None = None
    domain: str = DOMAIN
    ranges: dict[str, int] = field(default_factory=emitted)
    marks: int = field(default_factory=marks_emitted)
    versions: dict[str, str] = field(default_factory=lambda: versions())
    version: int = VERSION

    def write(self, folder: Path) -> Path:
        """Write ``rank{R}.json`` into `folder`, whole or not at all; returns its path."""
        folder.mkdir(parents=True, exist_ok=True)
        path = folder / f"rank{self.rank}.json"
        unfinished = path.with_suffix(f".json.{os.getpid()}.tmp")
        unfinished.write_text(json.dumps(asdict(self), indent=1, sort_keys=True) + "\n", encoding="utf-8")
        unfinished.replace(path)
        return path


def versions() -> dict[str, str]:
    """Python and the packages that decide what a run measures, those that are installed."""
    found = {"python": python_version()}
    for package in ("torch", "triton", "nvtx", "numpy", "dflash-bench"):
        try:
            found[package] = metadata.version(package)
        except metadata.PackageNotFoundError:
            continue
    return found
