"""What a capture says about its own gaps, as findings in our words.

The texts of DIAGNOSTIC_EVENT may hold paths and host names, so they are recognised here and never passed on.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterator
from typing import TYPE_CHECKING

from dflash_bench.ingest.nsys.tables import NSYS_TABLES
from dflash_bench.ingest.rows import Skipped
from dflash_bench.model import Finding

if TYPE_CHECKING:
    from dflash_bench.ingest.nsys.export import Export

RUNTIME, WAITS = "CUPTI_ACTIVITY_KIND_RUNTIME", "CUPTI_ACTIVITY_KIND_SYNCHRONIZATION"

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

_SKIPPED = {
    "table_without_columns": "rows lie in tables without a column that they mean nothing without, and were left out",
    "table_without_ids": "rows lie in tables without the column of an id, and were read as if all had one and the same",
    "name_missing": "rows have a name that the file does not hold, and are shown by its number or without one",
    "ranges_lost": "NVTX domains were opened and not one range is there: the nvtx package and this nsys may not match",
    "range_open_at_end": "ranges were still open when the capture ended: they are in no figure of durations",
    "gpu_work_without_device": "graph replays begin on the host, without a device: they count for one of their own",
    "range_without_time": "ranges have no start or length and were left out",
    "range_ends_before_start": "NVTX ranges end before they start and were left out",
    "api_call_ends_before_start": "API calls end before they start and were left out",
    "gpu_work_ends_before_start": "GPU rows end before they start and were left out",
    "overhead_ends_before_start": "overhead rows end before they start and were left out",
    "api_call_without_time": "API calls have no start or end and were left out",
    "gpu_work_without_time": "GPU rows have no timestamps (CUPTI writes 0) and were left out",
    "overhead_without_time": "overhead rows have no start or end and were left out",
    "api_row_is_backtrace": "API rows are backtraces that repeat a call's id; they are no calls and were left out",
}


OLDEST_SCHEMA, NEWEST_SCHEMA = (2, 9), (3, 25)
"""Schema versions whose tables and columns are known, from exports of nsys 2022.1 to 2026.2."""


def findings_of(export: Export, skipped: Skipped, rank: int | None) -> tuple[Finding, ...]:
    """Everything the export or its reading gives to know. ``rank``: the file's rank, None if it holds several."""
    found = [*skipped_rows(skipped, rank), *_diagnostics(export, rank), *_schema(export, rank), *_unread(export, rank)]
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


def skipped_rows(skipped: Skipped, rank: int | None) -> tuple[Finding, ...]:
    """What was left out while reading, and why."""
    return tuple(
        Finding(code, rank, count, f"{count:,} {_SKIPPED[code]}") for code, count in sorted(skipped.counts.items())
    )


def _schema(export: Export, rank: int | None) -> Iterator[Finding]:
    if export.schema_version is None:
        text = "nothing says which nsys wrote it: tables and columns are taken at their names"
        yield Finding("schema_unstated", rank, 1, text)
        return
    version = tuple(int(part[:9]) for part in export.schema_version.split(".")[:2])
    if not OLDEST_SCHEMA <= version <= NEWEST_SCHEMA:
        known = " to ".join(".".join(map(str, schema)) for schema in (OLDEST_SCHEMA, NEWEST_SCHEMA))
        text = f"schema {export.schema_version} is none of {known}, which are known: columns may mean something else"
        yield Finding("schema_unknown", rank, 1, text)


def _unread(export: Export, rank: int | None) -> Iterator[Finding]:
    """What is in the export and is not read."""
    if views := export.stored.left_out & NSYS_TABLES:
        text = f"{len(views)} of nsys' tables are views here, which are programs; they were left out"
        yield Finding("view_left_out", rank, len(views), text)
    if WAITS in export.tables and RUNTIME not in export.tables and (waits := export.stored.num_rows(WAITS)):
        text = f"{waits:,} waits for the GPU are captured without their API calls: no host wait is told from them"
        yield Finding("waits_without_calls", rank, waits, text)


def _diagnostics(export: Export, rank: int | None) -> list[Finding]:
    texts = [
        value.decode("utf-8", "replace")
        for (value,) in export.cells("DIAGNOSTIC_EVENT", "text")
        if isinstance(value, bytes)
    ]
    counts = Counter(
        code for text in texts for code, (pattern, _) in _KNOWN.items() if re.search(pattern, text, re.IGNORECASE)
    )
    if RUNTIME in export.tables:
        # nsys says so of every child process without CUDA, too: with CUDA calls in the file it tells nothing
        del counts["cuda_not_started"]
    return [Finding(code, rank, counts[code], meaning) for code, (_, meaning) in _KNOWN.items() if counts[code]]
