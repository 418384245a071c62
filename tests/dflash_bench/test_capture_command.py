"""Recording any command: places, lines, noise, and real programs under real nsys."""

from __future__ import annotations

import io
import os
import subprocess
import sys
from pathlib import Path

import pytest

from dflash_bench.capture import nsys
from dflash_bench.capture.check import count_ranges
from dflash_bench.capture.command import (
    CommandCapture,
    RankPlace,
    _without_noise,
    environment_of,
    place_of,
    record_command,
    whole_line,
)
from dflash_bench.capture.folder import free_name, new_capture_folder, run_name, set_aside, shared_capture_folder
from dflash_bench.capture.nsys import NsysTool
from dflash_bench.capture.nsys_command import ProfileOptions, TraceKind
from dflash_bench.errors import CaptureError, UsageError

TOOL = NsysTool(Path("/opt/nsys"), (2025, 3, 1, 0), Path("/opt/QdstrmImporter"))
INSTALLED = nsys.find_nsys()
needs_nsys = pytest.mark.skipif(INSTALLED is None or not INSTALLED.can_convert, reason="no nsys here that can convert")
NVTX = ProfileOptions(traces=(TraceKind.NVTX,))
EMIT = """
import nvtx, sys
print("hello from the command")
for _ in range(5):
    with nvtx.annotate("step", domain="mine"):
        with nvtx.annotate("inner", domain="mine"): pass
sys.exit(CODE)
"""


@pytest.mark.parametrize(
    ("environment", "place"),
    [
        ({"RANK": "3", "WORLD_SIZE": "8"}, RankPlace("RANK", 3, 8)),
        ({"OMPI_COMM_WORLD_RANK": "1", "OMPI_COMM_WORLD_SIZE": "2"}, RankPlace("OMPI_COMM_WORLD_RANK", 1, 2)),
        ({"SLURM_PROCID": "0", "SLURM_NTASKS": "4"}, RankPlace("SLURM_PROCID", 0, 4)),
        ({"LOCAL_RANK": "2"}, RankPlace("LOCAL_RANK", 2, None)),
    ],
)
def test_the_rank_is_read_from_whoever_started_it(environment: dict[str, str], place: RankPlace) -> None:
    assert place_of(environment) == place


def test_per_rank_without_a_rank_is_a_usage_error() -> None:
    with pytest.raises(UsageError, match="none is set"):
        place_of({"RANK": "first"})


def test_one_report_for_all_or_one_per_rank() -> None:
    whole = CommandCapture(("python", "x.py"), Path("/c"), TOOL, NVTX)
    mine = CommandCapture(("python", "x.py"), Path("/c"), TOOL, NVTX, RankPlace("SLURM_PROCID", 1, 2))
    assert "/c/all_processes" in whole_line(whole)
    assert "/c/rank%q{SLURM_PROCID}" in whole_line(mine)
    assert (whole.stem, mine.stem) == ("all_processes", "rank1")
    assert whole_line(whole)[-3:] == ["--", "python", "x.py"]


def test_an_nvtx_capture_range_also_sees_unregistered_strings() -> None:
    ranged = CommandCapture(("x",), Path("/c"), TOOL, ProfileOptions(capture_range="step"))
    assert environment_of(ranged) == {"NSYS_NVTX_PROFILER_REGISTER_ONLY": "0"}
    assert environment_of(CommandCapture(("x",), Path("/c"), TOOL, NVTX)) == {}


@pytest.mark.parametrize(
    ("line", "left"),
    [
        (b"hello\n", b"hello\n"),
        (b"\n", b"\n"),
        (b"[1/2] loading weights\n", b"[1/2] loading weights\n"),
        (b"\r[1/2] [0%      ] r.nsys-rep\r[1/2] [==50%   ] r.nsys-rep\n", b""),
        (b"Generating '/tmp/nsys-report-1a2b.qdstrm'\n", b""),
        (b"Generated:\n", b""),
        (b"    /c/run/all_processes.sqlite\n", b""),
        (b"Capture range started in the application.\n", b"Capture range started in the application.\n"),
    ],
)
def test_nsys_bars_and_passing_paths_are_dropped_and_nothing_of_the_command(line: bytes, left: bytes) -> None:
    assert _without_noise(line, Path("/c/run")) == left


def test_run_names_fit_a_folder_and_do_not_collide(tmp_path: Path) -> None:
    name = run_name("smoke", "control,topup_pages=4")
    assert name.startswith("smoke-control-topup_pages-4-20")
    (tmp_path / "a").mkdir()
    (tmp_path / "a-2").mkdir()
    assert free_name(tmp_path, "a") == "a-3"
    assert free_name(tmp_path, "b") == "b"


def test_a_failed_runs_files_are_set_aside_visibly_and_empty_ones_are_not_kept(tmp_path: Path) -> None:
    folder = new_capture_folder(tmp_path, "r")
    (folder / "rank0.log").touch()
    assert set_aside(folder, tmp_path, "r") is None
    assert list(tmp_path.iterdir()) == []
    folder = new_capture_folder(tmp_path, "r")
    (folder / "rank0.log").write_text("boom")
    assert set_aside(folder, tmp_path, "r") == tmp_path / "r.failed"
    assert set_aside(folder, tmp_path, "r") is None, "it is gone from its first place"


def test_a_profiles_folder_that_cannot_be_made_is_a_usage_error(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    with pytest.raises(UsageError, match="cannot be written"):
        new_capture_folder(tmp_path / "file", "r")


def test_a_command_becomes_its_rank_and_its_output_goes_to_the_log(tmp_path: Path) -> None:
    line = [sys.executable, "-m", "dflash_bench.capture.exec_rank", str(tmp_path), "--"]
    code = "import os, sys; print(os.getpid()); print('oops', file=sys.stderr); sys.exit(3)"
    environment = {**os.environ, "RANK": "5"}
    done = subprocess.run([*line, sys.executable, "-c", code], env=environment, capture_output=True, check=False)
    assert (done.returncode, done.stdout, done.stderr) == (3, b"", b"")
    pid = (tmp_path / "rank5.pid").read_text().strip()
    assert sorted((tmp_path / "rank5.log").read_text().split()) == sorted([pid, "oops"])
    missing = subprocess.run([*line, "/no/such/program"], env=environment, capture_output=True, check=False)
    assert missing.returncode == 127
    assert "No such file" in (tmp_path / "rank5.log").read_text()
    assert subprocess.run(line[:4], capture_output=True, check=False).returncode == 2


def installed(tmp_path: Path, code: int, options: ProfileOptions = NVTX) -> CommandCapture:
    assert INSTALLED is not None
    command = (sys.executable, "-c", EMIT.replace("CODE", str(code)))
    return CommandCapture(command, tmp_path, INSTALLED, options)


@pytest.mark.nsys
@needs_nsys
@pytest.mark.parametrize("code", [0, 7])
def test_a_real_command_is_recorded_and_its_exit_code_told(tmp_path: Path, code: int) -> None:
    output = io.BytesIO()
    (file,), outcome = record_command(installed(tmp_path, code), output)
    assert outcome.code == code
    (process,) = count_ranges(file, "mine")
    assert process.ranges == {"step": 5, "inner": 5}
    assert output.getvalue() == b"hello from the command\n"


@pytest.mark.nsys
@needs_nsys
def test_a_real_capture_range_cuts_and_lets_the_command_go_on(tmp_path: Path) -> None:
    options = ProfileOptions(traces=(TraceKind.NVTX,), capture_range="step")
    (file,), outcome = record_command(installed(tmp_path, 7, options), io.BytesIO())
    assert outcome.code == 7, "the command ran to its own end"
    (process,) = count_ranges(file, "mine")
    assert 0 < process.num_ranges < 10


@pytest.mark.nsys
@needs_nsys
def test_a_capture_range_that_never_begins_is_said_to_be_the_cause(tmp_path: Path) -> None:
    options = ProfileOptions(traces=(TraceKind.NVTX,), capture_range="absent")
    with pytest.raises(CaptureError, match="absent never began"):
        record_command(installed(tmp_path, 0, options), io.BytesIO())


@pytest.mark.parametrize("make", [new_capture_folder, shared_capture_folder])
def test_a_folder_that_cannot_be_written_is_told_with_the_option_that_names_another(tmp_path: Path, make) -> None:
    (tmp_path / "file").touch()
    with pytest.raises(UsageError, match="cannot be written") as refusal:
        make(tmp_path / "file" / "profiles", "r")
    assert "--profiles" in str(refusal.value.hint)
