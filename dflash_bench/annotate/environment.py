"""The variables with which a command is annotated."""

from __future__ import annotations

import importlib.util
import os
import sys
from pathlib import Path

from dflash_bench.annotate.process import ARM_VARIABLE, KIND_VARIABLE, TABLE_VARIABLE
from dflash_bench.annotate.sinks import NVTX_VARIABLE, SinkKind
from dflash_bench.annotate.table import read_table

HOOK = Path(__file__).parent / "hook"
MODULES_VARIABLE = "DFLASH_BENCH_ANNOTATE_MODULES"


def annotating(table: Path, sink: SinkKind, arm: str | None = None) -> dict[str, str]:
    """What to add to a command's environment; what it starts inherits it. Raises UsageError for a bad table."""
    path = [str(HOOK), *filter(None, [os.environ.get("PYTHONPATH")])]
    found = {
        "PYTHONPATH": os.pathsep.join(path),
        TABLE_VARIABLE: str(table),
        KIND_VARIABLE: str(sink),
        MODULES_VARIABLE: ",".join(read_table(table).modules),
    }
    if (nvtx := importlib.util.find_spec("nvtx")) is not None and nvtx.origin is not None:
        found[NVTX_VARIABLE] = f"{sys.implementation.cache_tag}:{Path(nvtx.origin).parent}"
    return found | ({ARM_VARIABLE: arm} if arm else {})
