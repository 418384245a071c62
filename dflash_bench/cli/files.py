"""Files that commands write beside their output: whole, or not there."""

from __future__ import annotations

from pathlib import Path

from dflash_bench.cli.console import stderr
from dflash_bench.errors import DataError


def write_whole(path: Path, text: str) -> None:
    """Write under a temporary name, rename, and say so on stderr. Raises DataError when the file cannot be written."""
    partial = path.with_name(f".{path.name}.partial")
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        partial.write_text(text, encoding="utf-8")
        partial.replace(path)
    except OSError as error:
        raise DataError(f"{path} could not be written: {error.strerror}") from None
    stderr.print(f"written: {path}", markup=False)
