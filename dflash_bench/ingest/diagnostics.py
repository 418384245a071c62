"""What a capture says about its own gaps, as findings in our words.

The texts of DIAGNOSTIC_EVENT may hold paths and host names, so they are recognised here and never passed on.
"""

from __future__ import annotations

import re
from collections import Counter
from typing import TYPE_CHECKING

from dflash_bench.ingest.rows import Skipped
from dflash_bench.model import Finding

if TYPE_CHECKING:
    from dflash_bench.ingest.export import Export

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


def findings_of(export: Export, skipped: Skipped, rank: int | None) -> tuple[Finding, ...]:
    """Everything the export or its reading gives to know. ``rank``: the file's rank, None if it holds several."""
    found = [*skipped_rows(skipped, rank), *_diagnostics(export, rank)]
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


def _diagnostics(export: Export, rank: int | None) -> list[Finding]:
    texts = [
        value.decode("utf-8", "replace")
        for (value,) in export.cells("DIAGNOSTIC_EVENT", "text")
        if isinstance(value, bytes)
    ]
    counts = Counter(
        code for text in texts for code, (pattern, _) in _KNOWN.items() if re.search(pattern, text, re.IGNORECASE)
    )
    if "CUPTI_ACTIVITY_KIND_RUNTIME" in export.tables:
        # nsys says so of every child process without CUDA, too: with CUDA calls in the file it tells nothing
        del counts["cuda_not_started"]
    return [Finding(code, rank, counts[code], meaning) for code, (_, meaning) in _KNOWN.items() if counts[code]]
