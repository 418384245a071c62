"""Reports and raw streams become SQLite, or it is said what they are and what converts them."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from dflash_bench.capture import nsys
from dflash_bench.capture.check import count_ranges
from dflash_bench.capture.convert import (
    _export_report,
    _export_types,
    _stream_version,
    explain,
    export_fastest,
    import_stream,
    sqlite_of,
)
from dflash_bench.capture.nsys import NsysTool
from dflash_bench.capture.nsys_command import ProfileOptions, TraceKind, profile_command
from dflash_bench.errors import CaptureError, DataError
from dflash_bench.ingest.nsys.reports import to_export

INSTALLED = nsys.find_nsys()
needs_nsys = pytest.mark.skipif(INSTALLED is None or not INSTALLED.can_convert, reason="no nsys here that can convert")
STREAM_HEAD = b"U3w[END]NVIDIA Nsight Systems Stream 2025.3.1.0!\n\xe2G"


IMPORTER = 'for a in "$@"; do case "$a" in --output-file=*) echo report > "${a#--output-file=}";; esac; done'
EXPORTER = 'while [ "$1" != -o ]; do shift; done; cat "$3" > "$2"'


def program(path: Path, body: str) -> Path:
    path.write_text(f"#!/bin/sh\n{body}\n")
    path.chmod(0o755)
    return path


def tool(tmp_path: Path, body: str = "exit 1", importer: str | None = None, **more: object) -> NsysTool:
    """An nsys that does what the shell lines say."""
    binary = program(tmp_path / "nsys", body)
    found = None if importer is None else program(tmp_path / "QdstrmImporter", importer)
    return NsysTool(binary, (2022, 4, 2, 1), found, **more)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("said", "problem"),
    [
        (
            "Qdstrm version 2025.3.1.0 is not supported. The QdstrmImporter and qdstrm file versions must match.",
            "is a raw stream of nsys 2025.3.1.0, and this importer is of 2022.4.2.1: the two versions must be equal",
        ),
        (
            "Report was created in Nsight Systems version (2026.1), newer than this one",
            "was made by nsys 2026.1, newer than this nsys 2022.4.2.1",
        ),
        ("Exportation error: Version not supported: 36398880", "was made by a newer nsys than this 2022.4.2.1"),
        ("Exportation error: Section Table Reference magic number mismatch.", "is damaged or no nsys report"),
        ("Exportation error: Cannot read from stream.", "is damaged or no nsys report"),
        (
            '[tag*] = "/x/s.qdstrm"\n\nQdstrm file is incomplete or invalid. Please ensure\n',
            "is incomplete or no nsys stream",
        ),
        ("first\nsomething new\n\n", "could not be converted: something new"),
        ("", "could not be converted: nsys said nothing"),
    ],
)
def test_what_nsys_says_is_turned_into_one_sentence(tmp_path: Path, said: str, problem: str) -> None:
    assert explain(said, tool(tmp_path))[0] == problem


def test_a_report_newer_than_nsys_is_a_clear_error_and_leaves_nothing(tmp_path: Path) -> None:
    report = tmp_path / "new.nsys-rep"
    report.write_bytes(b"x")
    says = "echo 'Report was created in Nsight Systems version (2026.1), newer than this' >&2; exit 1"
    with pytest.raises(DataError, match=r"new\.nsys-rep was made by nsys 2026\.1, newer than this nsys") as refusal:
        _export_report(report, tmp_path / "out.sqlite", tool(tmp_path, says))
    assert refusal.value.hint is not None
    assert sorted(p.name for p in tmp_path.iterdir()) == ["new.nsys-rep", "nsys"]


def test_an_export_that_claims_success_but_wrote_nothing_is_an_error(tmp_path: Path) -> None:
    report = tmp_path / "r.nsys-rep"
    report.write_bytes(b"x")
    with pytest.raises(DataError, match="nsys said nothing"):
        _export_report(report, tmp_path / "out.sqlite", tool(tmp_path, "exit 0"))


def test_a_missing_report_is_named(tmp_path: Path) -> None:
    with pytest.raises(DataError, match="no such report"):
        _export_report(tmp_path / "absent.nsys-rep", tmp_path / "out.sqlite", tool(tmp_path))


def test_without_nsys_a_report_is_named_for_what_it_is(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(nsys, "find_nsys", lambda explicit=None: None)
    report = tmp_path / "r.nsys-rep"
    report.write_bytes(b"x")
    with pytest.raises(CaptureError, match="an nsys report, and there is no nsys here"):
        _export_report(report, tmp_path / "out.sqlite")


def test_a_raw_stream_says_who_wrote_it(tmp_path: Path) -> None:
    stream = tmp_path / "s.qdstrm"
    stream.write_bytes(STREAM_HEAD)
    assert _stream_version(stream) == "2025.3.1.0"
    stream.write_bytes(b"something else")
    assert _stream_version(stream) is None


def test_a_raw_stream_without_an_importer_is_named_for_what_it_is(tmp_path: Path) -> None:
    stream = tmp_path / "s.qdstrm"
    stream.write_bytes(STREAM_HEAD)
    with pytest.raises(CaptureError, match=r"a raw nsys stream of nsys 2025\.3\.1\.0, not yet a report"):
        import_stream(stream, tmp_path, tool(tmp_path))
    lame = tool(tmp_path, importer="exit 0", missing_libs=("libdw.so.1",), mend="apt-get install libdw1")
    with pytest.raises(CaptureError, match=r"lacks libdw\.so\.1") as refusal:
        import_stream(stream, tmp_path, lame)
    assert refusal.value.hint == "apt-get install libdw1"


def test_a_left_over_stream_is_imported_and_then_exported(tmp_path: Path) -> None:
    (tmp_path / "rank0.qdstrm").write_bytes(STREAM_HEAD)
    made = sqlite_of(tmp_path, "rank0", tool(tmp_path, EXPORTER, IMPORTER))
    assert made == tmp_path / "rank0.sqlite"
    assert made.read_text() == "report\n"
    assert (tmp_path / "rank0.nsys-rep").exists(), "the report is kept beside its export"


@pytest.mark.parametrize("is_damaged", [False, True])
def test_an_ingest_of_a_stream_touches_nothing_beside_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, is_damaged: bool
) -> None:
    theirs, scratch = tmp_path / "theirs", tmp_path / "scratch"
    theirs.mkdir()
    scratch.mkdir()
    (theirs / "s.qdstrm").write_bytes(STREAM_HEAD)
    (theirs / "s.nsys-rep").write_bytes(b"another report")
    fake = tool(tmp_path, EXPORTER, f"{IMPORTER}; exit {int(is_damaged)}")
    monkeypatch.setattr(nsys, "find_nsys", lambda *_: fake)
    if is_damaged:
        with pytest.raises(DataError, match=r"theirs/s\.qdstrm could not be converted"):
            to_export(theirs / "s.qdstrm", scratch, None)
    else:
        assert to_export(theirs / "s.qdstrm", scratch, None).parent == scratch
    left = {p.name: p.read_bytes() for p in theirs.iterdir()}
    assert left == {"s.qdstrm": STREAM_HEAD, "s.nsys-rep": b"another report"}


def test_an_nsys_that_left_nothing_at_all_is_an_error(tmp_path: Path) -> None:
    with pytest.raises(CaptureError, match="wrote no report"):
        sqlite_of(tmp_path, "rank0", tool(tmp_path))


HELP = r"""if [ "$2" = --help ]; then
printf '\t-t, --type=\n\n\t   Possible values are: sqlite, hdf,\n\t   parquetdir, info.\n\t   Export format.\n'
exit 0
fi
while [ "$1" != -o ]; do shift; done"""
"""An nsys that offers Parquet tables; what follows makes the export in $2 from the report in $3."""


def test_an_nsys_says_itself_which_exports_it_offers(tmp_path: Path) -> None:
    assert _export_types(tool(tmp_path, HELP)) == {"sqlite", "hdf", "parquetdir", "info"}
    assert _export_types(tool(tmp_path, "exit 1")) == frozenset()


def test_a_report_becomes_parquet_tables_where_nsys_offers_them(tmp_path: Path) -> None:
    report = tmp_path / "r.nsys-rep"
    report.write_text("report")
    made = export_fastest(report, tmp_path, tool(tmp_path, f'{HELP}\nmkdir "$2" && cp "$3" "$2/NVTX_EVENTS.parquet"'))
    assert made == tmp_path / "r_pqtdir"
    assert (made / "NVTX_EVENTS.parquet").read_text() == "report"


def test_where_the_parquet_tables_fail_sqlite_is_tried_and_nothing_is_left_of_them(tmp_path: Path) -> None:
    report = tmp_path / "r.nsys-rep"
    report.write_text("report")
    fails = f'{HELP}\ncase "$2" in *_pqtdir) mkdir "$2"; exit 1;; *) cp "$3" "$2";; esac'
    made = export_fastest(report, tmp_path, tool(tmp_path, fails))
    assert made == tmp_path / "r.sqlite"
    assert made.read_text() == "report"
    assert not (tmp_path / "r_pqtdir").exists()


@pytest.mark.nsys
@needs_nsys
def test_the_installed_nsys_offers_sqlite(tmp_path: Path) -> None:
    assert INSTALLED is not None
    assert "sqlite" in _export_types(INSTALLED)


@pytest.mark.nsys
@needs_nsys
def test_the_installed_nsys_exports_its_own_report_again_and_refuses_a_truncated_one(tmp_path: Path) -> None:
    assert INSTALLED is not None
    emit = "import nvtx\nfor _ in range(7):\n    with nvtx.annotate('fill', domain='dflash'): pass"
    options = ProfileOptions(traces=(TraceKind.NVTX,))
    subprocess.run(
        profile_command(INSTALLED, str(tmp_path / "r"), [sys.executable, "-c", emit], options),
        check=True,
        capture_output=True,
    )
    (tmp_path / "r.sqlite").unlink()
    (process,) = count_ranges(sqlite_of(tmp_path, "r", INSTALLED))
    assert process.ranges == {"fill": 7}
    cut = tmp_path / "cut.nsys-rep"
    cut.write_bytes((tmp_path / "r.nsys-rep").read_bytes()[:4000])
    with pytest.raises(DataError, match=r"cut\.nsys-rep is damaged or no nsys report"):
        _export_report(cut, tmp_path / "cut.sqlite", INSTALLED)
    assert not (tmp_path / "cut.sqlite").exists()


@pytest.mark.nsys
@needs_nsys
def test_the_installed_nsys_refuses_a_report_of_a_version_that_it_does_not_know(tmp_path: Path) -> None:
    assert INSTALLED is not None
    report = tmp_path / "new.nsys-rep"
    report.write_bytes(b"NVIDIA Tegra Profiler Report 99999999.\n\x0bLocal (CLI)" + bytes(64))
    with pytest.raises(DataError, match=r"new\.nsys-rep was made by a newer nsys than this"):
        _export_report(report, tmp_path / "new.sqlite", INSTALLED)


@pytest.mark.nsys
@needs_nsys
def test_the_installed_importer_refuses_a_stream_of_another_version(tmp_path: Path) -> None:
    assert INSTALLED is not None
    stream = tmp_path / "s.qdstrm"
    stream.write_bytes(b"U3w[END]NVIDIA Nsight Systems Stream 1999.1.1.0!\n" + bytes(64))
    with pytest.raises(DataError, match=r"s\.qdstrm"):
        import_stream(stream, tmp_path, INSTALLED)
    assert not (tmp_path / "s.nsys-rep").exists()
