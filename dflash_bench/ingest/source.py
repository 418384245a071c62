"""The seam between capture files and profiles: whatever gives events batch by batch is a `Source`."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Protocol

from dflash_bench.ingest.ranks import RankMark
from dflash_bench.ingest.rows import Batch, Skipped
from dflash_bench.model import Finding, Recorder


class Source(Protocol):
    """One opened capture file, of whatever kind.

    ``path`` is what a person calls the file, which for a converted report is the report. ``num_rows`` is about how many
    events there are, to show progress by. ``stated``: ranks that the file states beside its events, by process.
    """

    @property
    def path(self) -> Path: ...

    @property
    def fingerprint(self) -> str: ...

    @property
    def size_bytes(self) -> int: ...

    @property
    def recorder(self) -> Recorder: ...

    @property
    def is_simulated(self) -> bool: ...

    @property
    def exporter_version(self) -> str | None: ...

    @property
    def schema_version(self) -> str | None: ...

    @property
    def session_start_utc_ns(self) -> int | None: ...

    @property
    def time_range(self) -> tuple[int | None, int | None]: ...

    @property
    def gpu_names(self) -> tuple[str, ...]: ...

    @property
    def num_rows(self) -> int: ...

    @property
    def stated(self) -> dict[int, RankMark]: ...

    def rank_marks(self) -> tuple[RankMark, ...]:
        """The ranks that the file holds, as far as it says so, without reading the rest of it."""

    def stream(self, skipped: Skipped) -> Iterator[Batch]:
        """All events. Rows that are none are counted in ``skipped``. Raises DataError when the file is damaged."""

    def findings(self, skipped: Skipped, rank: int | None) -> tuple[Finding, ...]:
        """What the file, or what was skipped in it, gives to know. ``rank``: the file's, None if it holds several."""
