"""Reports that are no export yet: through ``nsys export``, and ``.qdstrm`` through its importer before that."""

from __future__ import annotations

from pathlib import Path

from dflash_bench.capture import convert, nsys
from dflash_bench.capture.convert import REPORT_SUFFIXES, STREAM_SUFFIX
from dflash_bench.ingest.nsys.folder_tables import FOLDER_ENDINGS
from dflash_bench.ingest.nsys.sqlite_tables import settled

CAPTURE_SUFFIXES = (".sqlite", *REPORT_SUFFIXES, STREAM_SUFFIX)
_BEST_FIRST = (".sqlite", *FOLDER_ENDINGS, *REPORT_SUFFIXES, STREAM_SUFFIX)
"""How the names of one capture's files end; of several beside each other the first is read."""


def to_export(path: Path, scratch: Path, tool_path: Path | None) -> Path:
    """The export of a capture: itself, or one made in ``scratch``, a folder for this capture alone.

    ``tool_path``: the nsys to use. Raises CaptureError or DataError when a report cannot be converted, saying what it
    is and what converts it.
    """
    if path.is_dir():
        return path
    if path.suffix not in (*REPORT_SUFFIXES, STREAM_SUFFIX):
        return settled(path, scratch)
    tool = nsys.find_nsys(tool_path)
    report = convert.import_stream(path, scratch, tool) if path.suffix == STREAM_SUFFIX else path
    return convert.export_fastest(report, scratch, tool)


def export_stem(path: Path) -> str:
    """What the files of one capture share of their names."""
    ending = next((ending for ending in _BEST_FIRST if path.name.endswith(ending)), path.suffix)
    return path.name.removesuffix(ending)


def is_superseded(path: Path) -> bool:
    """Whether a better form of the same capture lies beside it."""
    ending = path.name.removeprefix(stem := export_stem(path))
    better = _BEST_FIRST[: _BEST_FIRST.index(ending)] if ending in _BEST_FIRST else ()
    return any(path.with_name(stem + other).exists() for other in better)
