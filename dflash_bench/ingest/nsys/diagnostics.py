"""What a capture says about its own gaps, as findings in our words.

The texts of DIAGNOSTIC_EVENT may hold paths and host names, so they are recognised here and never passed on.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterator

from dflash_bench.capture.tables import ExportTable
from dflash_bench.ingest.nsys.export import Export
from dflash_bench.ingest.nsys.tables import NSYS_TABLES
from dflash_bench.ingest.rows import Skipped
from dflash_bench.model import Finding

_KNOWN = {
    "driver_not_supported": (
        r"driver version .* is not supported",
        "the CUDA driver is newer than this nsys supports: GPU rows may be missing; use a newer nsys",
    ),
    "nvtx_incomplete": (
        r"Not all NVTX events might have been collected",
        "nsys itself says that NVTX ranges may be missing",
    ),
    "cuda_not_started": (
        r"CUDA profiling might have not been started correctly",
        "nsys itself says that CUDA profiling may not have started",
    ),
}

_OLDEST_SCHEMA, _NEWEST_SCHEMA = (2, 9), (3, 25)
"""Schema versions whose tables and columns are known, from exports of nsys 2022.1 to 2026.2."""


def findings_of(export: Export, skipped: Skipped, rank: int | None) -> tuple[Finding, ...]:
    """Everything the export or its reading gives to know. ``rank``: the file's rank, None if it holds several."""
    found = [*skipped.findings(rank), *_diagnostics(export, rank), *_schema(export, rank), *_unread(export, rank)]
    partial = [
        k for k in ("EXPORT_PARAM_TABLES_TO_EXPORT", "EXPORT_PARAM_TIMES_TO_EXPORT") if export.about_export.get(k)
    ]
    if partial:
        found.append(
            Finding("partial_export", rank, len(partial), "a partial export: tables or times were left out on purpose")
        )
    if "DERIVED_BY" in export.about_export or "DERIVED_WINDOW_NS" in export.about_export:
        found.append(
            Finding("clipped_window", rank, 1, "a slice of a longer capture: what began or ended outside is cut off")
        )
    return tuple(found)


def _schema(export: Export, rank: int | None) -> Iterator[Finding]:
    if export.schema_version is None:
        text = "nothing says which nsys wrote it: tables and columns are taken at their names"
        yield Finding("schema_unstated", rank, 1, text)
        return
    version = tuple(int(part[:9]) for part in export.schema_version.split(".")[:2])
    if not _OLDEST_SCHEMA <= version <= _NEWEST_SCHEMA:
        known = " to ".join(".".join(map(str, schema)) for schema in (_OLDEST_SCHEMA, _NEWEST_SCHEMA))
        text = f"schema {export.schema_version} is none of {known}, which are known: columns may mean something else"
        yield Finding("schema_unknown", rank, 1, text)


def _unread(export: Export, rank: int | None) -> Iterator[Finding]:
    """What is in the export and is not read."""
    if views := export.stored.left_out & NSYS_TABLES:
        text = f"{len(views)} of nsys' tables are views here, which are programs; they were left out"
        yield Finding("view_left_out", rank, len(views), text)
    if ExportTable.SYNCHRONIZATION in export.tables and ExportTable.RUNTIME not in export.tables:
        waits = export.stored.num_rows(ExportTable.SYNCHRONIZATION)
        text = f"{waits:,} waits for the GPU are captured without their API calls: no host wait is told from them"
        yield from [Finding("waits_without_calls", rank, waits, text)] * bool(waits)


def _diagnostics(export: Export, rank: int | None) -> list[Finding]:
    texts = [
        value.decode("utf-8", "replace")
        for (value,) in export.cells(ExportTable.DIAGNOSTICS, "text")
        if isinstance(value, bytes)
    ]
    counts = Counter(
        code for text in texts for code, (pattern, _) in _KNOWN.items() if re.search(pattern, text, re.IGNORECASE)
    )
    if ExportTable.RUNTIME in export.tables:
        # nsys says so of every child process without CUDA, too: with CUDA calls in the file it tells nothing
        del counts["cuda_not_started"]
    return [Finding(code, rank, counts[code], meaning) for code, (_, meaning) in _KNOWN.items() if counts[code]]
