"""What a baseline is a baseline of: device, software stack, workload, arm and world size."""

from __future__ import annotations

import hashlib
import json
import re
from dataclasses import dataclass
from pathlib import Path

from dflash_bench.environment import stack
from dflash_bench.errors import UsageError
from dflash_bench.model import RunInfo


@dataclass(frozen=True, slots=True)
class BaselineKey:
    """What a baseline is a baseline of. ``stack`` is sorted name and version pairs."""

    device: str
    stack: tuple[tuple[str, str], ...]
    workload: str
    arm: str
    world: int

    @classmethod
    def of(cls, info: RunInfo) -> BaselineKey:
        """The key of a run. Raises UsageError when the run does not say what it is."""
        world = info.world or len(info.ranks)
        missing = [n for n, v in (("device", info.device), ("workload", info.workload), ("arm", info.arm)) if not v]
        if missing or info.device is None or info.workload is None or info.arm is None:
            raise UsageError(
                f"{info.run} does not say its {' and '.join(missing)}, so it has no baseline",
                hint="name them on ingest: dflash-bench ingest --arm ARM --workload NAME PATH",
            )
        return cls(info.device, tuple(sorted(stack(info).items())), info.workload, info.arm, world)

    @property
    def path(self) -> Path:
        """Where the file lies in the folder of baselines."""
        print_ = hashlib.sha256(json.dumps(self.stack).encode()).hexdigest()[:8]
        return Path(_slug(self.device)) / f"{_slug(self.workload)}-{_slug(self.arm)}-w{self.world}-{print_}.json"

    @property
    def text(self) -> str:
        """The key in words."""
        versions = ", ".join(f"{name} {version}" for name, version in self.stack)
        ranks = "1 rank" if self.world == 1 else f"{self.world} ranks"
        return f"arm {self.arm}, workload {self.workload}, {ranks}, device {self.device} ({versions})"

    def differs_from(self, other: BaselineKey) -> tuple[str, ...]:
        """The parts of the key that another key has otherwise, in words."""
        parts = [
            f"{name} {getattr(other, name)}, not {getattr(self, name)}"
            for name in ("device", "workload", "arm", "world")
            if getattr(self, name) != getattr(other, name)
        ]
        mine, theirs = dict(self.stack), dict(other.stack)
        for name in sorted({*mine, *theirs}):
            if mine.get(name) != theirs.get(name):
                parts.append(f"{name} {theirs.get(name, 'not stated')}, not {mine.get(name, 'not stated')}")
        return tuple(parts)


def _slug(text: str) -> str:
    return re.sub(r"[^\w.+]+", "-", text).strip("-.").lower() or "unnamed"
