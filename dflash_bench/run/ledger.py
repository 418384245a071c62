"""The decode loop's own account of a run, one file per rank: what it emitted, counted apart from any profiler."""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import MISSING, dataclass, field, fields
from pathlib import Path
from typing import Any

from dflash_bench.errors import CaptureError
from dflash_bench.model import Value

_VERSION = 1


@dataclass(frozen=True, slots=True)
class LoopLedger:
    """What one rank says it did. ``ranges`` is name → number emitted; ``counters`` are the engine counters by name.

    In a duet ``arm`` is None, ``arms`` names all, and ``switches`` and ``counters`` hold one such table for each.
    ``checks`` is what was proven of the run: ``verified_tokens`` and ``leaked_tokens`` are numbers. ``settings`` is
    what the loop chose by itself, such as ``model``: whose kernels decoded.
    """

    rank: int
    world: int
    arm: str | None
    switches: dict[str, Any]
    workload: str
    seed: int
    steps: int
    interrupted: bool
    device: str
    domain: str
    ranges: dict[str, int]
    marks: int
    versions: dict[str, str]
    counters: dict[str, Any]
    checks: dict[str, Any] = field(default_factory=dict)
    settings: dict[str, Any] = field(default_factory=dict)
    arms: list[str] = field(default_factory=list)

    def counters_by_rank(self) -> Iterator[tuple[str, dict[str, float]]]:
        """(rank, counters), or (rank:arm, counters) of each arm of a duet."""
        if self.arm is None:
            yield from ((f"{self.rank}:{arm}", dict(self.counters[arm])) for arm in self.arms)
        else:
            yield str(self.rank), dict(self.counters)

    def switch_settings(self) -> Iterator[tuple[str, Value]]:
        """(switch, value); of a duet (switch@arm, value) where its arms differ."""
        tables = {arm: self.switches[arm] for arm in self.arms} if self.arm is None else {"": self.switches}
        first = next(iter(tables.values()))
        for name in sorted(first):
            is_same = all(table.get(name) == first[name] for table in tables.values())
            yield from ((name if is_same else f"{name}@{arm}", own.get(name)) for arm, own in tables.items())


def _read_ledger(path: Path) -> LoopLedger:
    """Read one ``rank<R>.json``. Keys that this version does not know are left out.

    Raises CaptureError when it cannot be read, is of another version, or lacks a key.
    """
    try:
        raw: Any = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        raise CaptureError(f"{path}: the ledger cannot be read: {error}") from None
    version = raw.get("version") if isinstance(raw, dict) else None
    if version != _VERSION:
        raise CaptureError(f"{path}: a ledger of version {version}; this version reads {_VERSION}")
    missing = [f.name for f in fields(LoopLedger) if f.name not in raw and f.default_factory is MISSING]
    if missing:
        raise CaptureError(f"{path}: the ledger lacks {', '.join(missing)}")
    return LoopLedger(**{f.name: raw[f.name] for f in fields(LoopLedger) if f.name in raw})


def read_ledgers(folder: Path) -> tuple[LoopLedger, ...]:
    """All ledgers of a folder, by rank."""
    return tuple(sorted((_read_ledger(path) for path in folder.glob("rank*.json")), key=lambda ledger: ledger.rank))
