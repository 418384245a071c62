"""Turning what nsys leaves into an export: a report by ``nsys export``, a raw stream by ``QdstrmImporter`` before."""

from __future__ import annotations

import logging
import re
import shutil
import subprocess
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from dflash_bench.capture import nsys
from dflash_bench.capture.nsys import NsysTool
from dflash_bench.capture.nsys_command import export_command, import_command
from dflash_bench.errors import CaptureError, DataError
from dflash_bench.whole import whole_file

log = logging.getLogger(__name__)

REPORT_SUFFIXES = (".nsys-rep", ".qdrep")
STREAM_SUFFIX = ".qdstrm"
_STREAM_VERSION = re.compile(rb"Nsight Systems Stream (\d+(?:\.\d+)+)")
_CONVERT_TIMEOUT_S = 3600
TABLE_FOLDER, TABLE_FOLDER_ENDING = "parquetdir", "_pqtdir"
"""Type and name of an export into one Parquet file per table, which nsys knows since 2023.4."""
_TYPES = re.compile(r"--type=\s+Possible values are:?\s+([\w\s,]+)")


@dataclass(frozen=True, slots=True)
class _Said:
    """What nsys printed, recognised: the problem in our words and what mends it."""

    pattern: str
    problem: str
    hint: str


# Patterns are nsys' own words: of 2022.4 where an old tool met a new file, else as public reports quote them.
_SAYINGS = (
    _Said(
        r"created (?:in|by|with) .*version \(?([\d.x]+)\)?.*newer",
        "was made by nsys {0}, newer than this nsys {1}",
        "export it where it was made, or pass --nsys with a newer one",
    ),
    _Said(
        r"Version not supported",
        "was made by a newer nsys than this {0}",
        "export it where it was made, or pass --nsys with a newer one",
    ),
    _Said(
        r"Qdstrm version ([\d.]+) is not supported",
        "is a raw stream of nsys {0}, and this importer is of {1}: the two versions must be equal",
        "import it with QdstrmImporter of that nsys",
    ),
    _Said(
        r"magic number mismatch|Cannot read from stream|Invalid version prefix",
        "is damaged or no nsys report",
        "copy it again from where it was made",
    ),
    _Said(
        r"Qdstrm file is incomplete or invalid",
        "is incomplete or no nsys stream",
        "copy it again from where it was made, or record again and let the program run to its end",
    ),
    _Said(r"importer binary and its dependencies were not found", "cannot be imported: nsys finds no importer", ""),
)


def explain(output: str, tool: NsysTool) -> tuple[str, str | None]:
    """What went wrong, from what nsys printed: (problem, hint). An unknown message is passed on as its last line."""
    for said in _SAYINGS:
        if found := re.search(said.pattern, output, re.IGNORECASE):
            return said.problem.format(*found.groups(), tool.version_text), said.hint or None
    lines = [line.strip() for line in output.splitlines() if line.strip()]
    return f"could not be converted: {lines[-1] if lines else 'nsys said nothing'}", None


def _stream_version(path: Path) -> str | None:
    """The nsys version that wrote a ``.qdstrm``, from its head; None when that does not say."""
    with path.open("rb") as file:
        found = _STREAM_VERSION.search(file.read(256))
    return found[1].decode("ascii") if found else None


def _export_report(report: Path, output: Path, tool: NsysTool | None = None) -> Path:
    """Export an nsys report to `output` (SQLite), written whole or not at all. Without `tool`: the best one found.

    Raises DataError when the report is missing, damaged, or newer than the nsys; CaptureError when there is no nsys.
    """
    if not report.is_file():
        raise DataError(f"{report}: no such report")
    tool = tool or nsys.find_nsys()
    if tool is None:
        raise CaptureError(
            f"{report}: an nsys report, and there is no nsys here to export it",
            hint=f"where nsys is: nsys export --type=sqlite {report.name}",
        )
    with whole_file(output, ".sqlite") as partial:
        _convert(report, export_command(tool, report, partial), partial, tool)
    return output


def _export_types(tool: NsysTool) -> frozenset[str]:
    """The types of export that an nsys offers, as its help says; none when it does not say."""
    try:
        done = subprocess.run(
            [str(tool.path), "export", "--help"], capture_output=True, text=True, errors="replace", timeout=60
        )
    except (OSError, subprocess.TimeoutExpired):
        return frozenset()
    found = _TYPES.search(done.stdout)
    return frozenset(re.findall(r"\w+", found[1])) if found else frozenset()


def export_fastest(report: Path, folder: Path, tool: NsysTool | None = None) -> Path:
    """Export a report into ``folder`` by the fastest way that nsys offers: as Parquet tables, else as SQLite.

    SQLite inserts row by row what Parquet takes column by column. Raises as `_export_report` does.
    """
    tool = tool or nsys.find_nsys()
    if tool is not None and report.is_file() and TABLE_FOLDER in _export_types(tool):
        output = folder / f"{report.stem}{TABLE_FOLDER_ENDING}"
        try:
            _convert(report, export_command(tool, report, output, TABLE_FOLDER), output, tool)
            return output
        except DataError as error:
            log.warning("%s as Parquet tables; trying SQLite", error)
    return _export_report(report, folder / f"{report.stem}.sqlite", tool)


def import_stream(stream: Path, folder: Path, tool: NsysTool | None = None) -> Path:
    """Import a raw ``.qdstrm`` into a ``.nsys-rep`` of its name in ``folder``, and return that.

    A report of that name in there is lost. Raises DataError when the stream cannot be imported, CaptureError, which
    says what the file is, when there is no importer that could.
    """
    tool = tool or nsys.find_nsys()
    importer = None if tool is None else tool.importer or tool.stray_importer
    made_by = _stream_version(stream)
    what = f"{stream}: a raw nsys stream{f' of nsys {made_by}' if made_by else ''}, not yet a report"
    if tool is None or importer is None:
        raise CaptureError(f"{what}, and there is no QdstrmImporter here", hint=f"QdstrmImporter --input-file {stream}")
    if tool.missing_libs:
        lacks = ", ".join(tool.missing_libs)
        raise CaptureError(f"{what}, and the importer {importer} lacks {lacks}", hint=tool.mend or f"install {lacks}")
    report = folder / f"{stream.stem}{REPORT_SUFFIXES[0]}"
    _convert(stream, import_command(importer, stream, report), report, tool)
    return report


def sqlite_of(folder: Path, stem: str, tool: NsysTool) -> Path:
    """The SQLite export of one nsys output ``folder/stem.*``, made from what nsys left when it is not there yet.

    Raises CaptureError or DataError, which name what was left, when there is no way to it.
    """
    output = folder / f"{stem}.sqlite"
    if output.is_file():
        return output
    report = folder / f"{stem}{REPORT_SUFFIXES[0]}"
    stream = folder / f"{stem}{STREAM_SUFFIX}"
    if not report.is_file() and stream.is_file():
        log.info("importing %s, which nsys left behind", stream)
        report = import_stream(stream, folder, tool)
    if not report.is_file():
        raise CaptureError(f"nsys {tool.version_text} wrote no report {report}", hint="dflash-bench doctor")
    return _export_report(report, output, tool)


def _convert(source: Path, command: Sequence[str], output: Path, tool: NsysTool) -> None:
    try:
        done = subprocess.run(command, capture_output=True, text=True, errors="replace", timeout=_CONVERT_TIMEOUT_S)
    except OSError as error:
        raise CaptureError(f"{command[0]} does not run: {error}") from None
    except subprocess.TimeoutExpired:
        raise CaptureError(f"{source}: converting it took more than {_CONVERT_TIMEOUT_S} s and was stopped") from None
    if done.returncode != 0 or not output.exists():
        if output.is_dir():
            shutil.rmtree(output, ignore_errors=True)
        else:
            output.unlink(missing_ok=True)
        problem, hint = explain(done.stdout + "\n" + done.stderr, tool)
        raise DataError(f"{source} {problem}", hint=hint)
