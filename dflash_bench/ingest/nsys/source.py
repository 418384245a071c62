"""An nsys export as a source of events (`ingest.source.Source`)."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

from dflash_bench.ingest.fingerprint import fingerprint
from dflash_bench.ingest.nsys import diagnostics, events
from dflash_bench.ingest.nsys.export import Export, check_header, check_is_nsys
from dflash_bench.ingest.nsys.folder_tables import FolderTables
from dflash_bench.ingest.nsys.sqlite_tables import SqliteTables
from dflash_bench.ingest.nsys.tables import NvtxEvent, Tables
from dflash_bench.ingest.ranks import RankMark
from dflash_bench.ingest.rows import Batch, Skipped
from dflash_bench.ingest.source import Section
from dflash_bench.model import Finding


class NsysSource(Export):
    """An opened export."""

    @property
    def stated(self) -> dict[int, RankMark]:
        """nsys knows no ranks: only marks among the events tell them."""
        return {}

    def rank_marks(self) -> tuple[RankMark, ...]:
        """The rank marks of the file, without reading the rest of it."""
        texts = [self.nvtx_text(text, key) for text, key in self.nvtx_rows(NvtxEvent.MARK, "text", "textId")]
        return tuple(mark for text in texts if (mark := RankMark.parse(text)) is not None)

    def sections(self) -> tuple[Section, ...]:
        """NVTX, API calls, GPU work and overhead, where the file has them."""
        return events.sections(self)

    def stream(self, skipped: Skipped, section: Section | None = None) -> Iterator[Batch]:
        """The events of a section, or all."""
        return events.stream(self, skipped, section)

    def findings(self, skipped: Skipped, rank: int | None) -> tuple[Finding, ...]:
        """What the file gives to know."""
        return diagnostics.findings_of(self, skipped, rank)


def open_export(path: Path, source: Path | None = None) -> NsysSource:
    """Open an export: an SQLite file or a folder of tables. ``source``: the report it was made of, whose name it bears.

    Raises DataError, with one sentence that names the file and what it is instead, when it is no readable nsys export.
    """
    name = source or path
    stored: Tables
    if path.is_dir():
        folder = stored = FolderTables.of(path, name)
        size, what = sum(file.stat().st_size for file in folder.files.values()), "a folder of tables"
    else:
        size, what = check_header(path), "a SQLite database"
        stored = SqliteTables.of(path, name)
    check_is_nsys(stored, name, what)
    return NsysSource(name, stored, fingerprint(name), size)
