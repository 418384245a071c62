"""The seam between capture files and profiles: whatever gives events batch by batch is a `Source`."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

from dflash_bench.ingest.ranks import RankMark
from dflash_bench.ingest.rows import Batch, Skipped
from dflash_bench.model import CaptureInfo, Finding


@dataclass(frozen=True, slots=True)
class Section:
    """A part of a capture file that can be read by itself. ``num_rows`` is about how many events it holds.

    All rows of one event table come from one section: it alone writes their files.
    """

    name: str
    num_rows: int


class Source(Protocol):
    """One opened capture file, of whatever kind. It is sent to other processes: it pickles, and holds nothing open.

    ``path`` is what a person calls the file, which for a converted report is the report. ``stated``: ranks that the
    file states beside its events, by process; ``engines``: what each process is of, as far as titles tell.
    """

    @property
    def path(self) -> Path: ...

    @property
    def info(self) -> CaptureInfo: ...

    @property
    def is_simulated(self) -> bool: ...

    @property
    def gpu_names(self) -> tuple[str, ...]: ...

    @property
    def engines(self) -> Mapping[int, str]: ...

    @property
    def stated(self) -> dict[int, RankMark]: ...

    def rank_marks(self) -> tuple[RankMark, ...]:
        """The ranks that the file holds, as far as it says so, without reading the rest of it."""

    def sections(self) -> tuple[Section, ...]:
        """The file in parts, always the same ones; a file that can only be read front to back is one part."""

    def stream(self, skipped: Skipped, section: Section | None = None) -> Iterator[Batch]:
        """The events of a section, or all. Rows that are none are counted in ``skipped``.

        Raises DataError when the file is damaged.
        """

    def findings(self, skipped: Skipped, rank: int | None) -> tuple[Finding, ...]:
        """What the file, or what was skipped in it, gives to know. ``rank``: the file's, None if it holds several."""
