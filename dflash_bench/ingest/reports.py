"""Reports that are no SQLite yet: through ``nsys export``, and ``.qdstrm`` through its importer before that."""

from __future__ import annotations

from pathlib import Path

from dflash_bench.capture import convert, nsys
from dflash_bench.capture.convert import REPORT_SUFFIXES, STREAM_SUFFIX
from dflash_bench.ingest.export import settled

CAPTURE_SUFFIXES = (".sqlite", *REPORT_SUFFIXES, STREAM_SUFFIX)


def to_export(path: Path, scratch: Path, tool_path: Path | None) -> Path:
    """The SQLite export of a capture file: itself, or one made in ``scratch``, a folder for this file alone.

    ``tool_path``: the nsys to use. Raises CaptureError or DataError when a report cannot be converted, saying what it
    is and what converts it.
    """
    if path.suffix not in (*REPORT_SUFFIXES, STREAM_SUFFIX):
        return settled(path, scratch)
    tool = nsys.find(tool_path)
    report = convert.import_stream(path, tool) if path.suffix == STREAM_SUFFIX else path
    return convert.export_report(report, scratch / f"{path.stem}.sqlite", tool)
