"""Files that commands write beside their output: whole, or not there."""

from __future__ import annotations

from pathlib import Path

from dflash_bench.cli.console import stderr
from dflash_bench.whole import write_text


def write_whole(path: Path, text: str) -> None:
    """Write under a temporary name, rename, and say so on stderr. Raises DataError when the file cannot be written."""
    write_text(path, text)
    stderr.print(f"written: {path}", markup=False)
