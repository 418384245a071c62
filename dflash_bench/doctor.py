"""What a capture on this machine can and cannot see, and the command that mends each problem.

Facts are gathered once (`gather`); each check is a pure function of them. The self-tests then really capture ten ranges
with every available recorder and read them back.
"""

from __future__ import annotations

import os
import platform
import re
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Callable
from dataclasses import dataclass
from enum import StrEnum
from importlib import metadata
from pathlib import Path

from dflash_bench import __version__
from dflash_bench.capture import nsys
from dflash_bench.capture.check import NVTX_MEND, count_ranges, nvtx_problem
from dflash_bench.capture.convert import sqlite_of
from dflash_bench.capture.nsys import NsysTool
from dflash_bench.capture.nsys_command import ProfileOptions, Trace, profile_command
from dflash_bench.capture.recorder import FOLDER_VARIABLE
from dflash_bench.errors import BenchError

NEEDED = ("typer", "rich", "numpy", "pandas", "pyarrow", "adbc-driver-sqlite", "adbc-driver-manager")
FOR_THE_LOOP = ("torch", "triton")
NUM_TEST_RANGES = 10
PROBE_TIMEOUT_S = 120
INSTALL_NSYS = "install nsight-systems-cli from NVIDIA's repository (Debian non-free: apt-get install nsight-systems)"

BUNDLED: tuple[tuple[tuple[int, int], tuple[int, ...]], ...] = (
    ((11, 8), (2022, 4)),
    ((12, 0), (2022, 4)),
    ((12, 1), (2023, 1)),
    ((12, 2), (2023, 2)),
    ((12, 3), (2023, 3)),
    ((12, 4), (2023, 4)),
    ((12, 5), (2024, 2)),
    ((12, 6), (2024, 5)),
    ((12, 8), (2024, 6)),
    ((12, 9), (2025, 1)),
    ((13, 0), (2025, 3)),
    ((13, 1), (2025, 5)),
)
"""The nsys that each CUDA release brought along: an older one does not know that release's driver."""


class Status(StrEnum):
    """``warn`` limits what a capture sees, ``fail`` makes a way of capturing impossible."""

    OK = "ok"
    WARN = "warn"
    FAIL = "fail"


@dataclass(frozen=True, slots=True)
class Check:
    """One finding of the doctor. ``mend`` is the command or step that mends it, None when there is nothing to mend."""

    name: str
    status: Status
    what: str
    mend: str | None = None


@dataclass(frozen=True, slots=True)
class Facts:
    """What was found on this machine. Versions are None for what is not installed."""

    python: str
    packages: dict[str, str | None]
    nvtx: str | None
    tools: tuple[NsysTool, ...]
    gpus: tuple[str, ...]
    driver: str | None
    cuda: tuple[int, int] | None
    """The newest CUDA that the driver supports."""


def gather() -> Facts:
    """Ask this machine. Imports nothing heavy and initialises no GPU."""
    gpus, driver, cuda = _gpu()
    return Facts(
        python=platform.python_version(),
        packages={name: _version(name) for name in (*NEEDED, *FOR_THE_LOOP)},
        nvtx=_version("nvtx"),
        tools=nsys.find_all(),
        gpus=gpus,
        driver=driver or _driver_from_proc(),
        cuda=cuda,
    )


def examine(facts: Facts) -> tuple[Check, ...]:
    """All checks that need no capture."""
    found = [_packages(facts), _nvtx_package(facts), *_nsys(facts), _gpu_check(facts)]
    found += [
        check
        for tool in facts.tools
        for check in (_importer(tool), _driver_check(facts, tool), _pair(facts, tool))
        if check
    ]
    return (*found, _loop(facts))


def self_tests(facts: Facts) -> tuple[Check, ...]:
    """Capture ten ranges with every way there is, and read them back."""
    tools = (_self_test(f"self-test: nsys {tool.version_text}", _nsys_test(tool)) for tool in facts.tools)
    return (*tools, _self_test("self-test: built-in recorder", _recorder_test))


def can_capture(checks: tuple[Check, ...]) -> bool:
    """Whether at least one self-test captured everything."""
    return any(check.status is Status.OK for check in checks if check.name.startswith("self-test"))


def parse_smi(query: str, banner: str) -> tuple[tuple[str, ...], str | None, tuple[int, int] | None]:
    """(GPU names, driver version, CUDA version) from ``nvidia-smi --query-gpu=name,driver_version`` and its banner."""
    rows = [[part.strip() for part in line.split(",")] for line in query.splitlines() if line.count(",") == 1]
    found = re.search(r"CUDA\s+(?:UMD\s+)?Version:\s*(\d+)\.(\d+)", banner)
    cuda = (int(found[1]), int(found[2])) if found else None
    return tuple(name for name, _ in rows), rows[0][1] if rows else None, cuda


def nsys_for(cuda: tuple[int, int]) -> tuple[int, ...] | None:
    """The oldest nsys known to fit a CUDA driver; None when that driver is older than the table."""
    return max((version for release, version in BUNDLED if release <= cuda), default=None)


def _version(package: str) -> str | None:
    try:
        return metadata.version(package)
    except metadata.PackageNotFoundError:
        return None


def _gpu() -> tuple[tuple[str, ...], str | None, tuple[int, int] | None]:
    if shutil.which("nvidia-smi") is None:
        return (), None, None
    query = _said(["nvidia-smi", "--query-gpu=name,driver_version", "--format=csv,noheader"])
    return parse_smi(query, _said(["nvidia-smi"]))


def _driver_from_proc(path: Path = Path("/proc/driver/nvidia/version")) -> str | None:
    try:
        found = re.search(
            r"x86_64\s+(\d[\d.]+)|Module\s+(\d[\d.]+)", path.read_text(encoding="utf-8", errors="replace")
        )
    except OSError:
        return None
    return next((group for group in found.groups() if group), None) if found else None


def _said(command: list[str]) -> str:
    try:
        return subprocess.run(command, capture_output=True, text=True, errors="replace", timeout=PROBE_TIMEOUT_S).stdout
    except (OSError, subprocess.TimeoutExpired):
        return ""


def _packages(facts: Facts) -> Check:
    missing = [name for name in NEEDED if facts.packages.get(name) is None]
    if missing:
        return Check("packages", Status.FAIL, f"missing: {', '.join(missing)}", f"pip install {' '.join(missing)}")
    versions = ", ".join(f"{name} {facts.packages[name]}" for name in NEEDED[:5])
    return Check("packages", Status.OK, f"dflash-bench {__version__}, Python {facts.python}, {versions}")


def _nvtx_package(facts: Facts) -> Check:
    if facts.nvtx is None:
        return Check(
            "nvtx", Status.WARN, "the python package nvtx is missing: nothing reaches nsys", "pip install nvtx"
        )
    return Check("nvtx", Status.OK, f"nvtx {facts.nvtx}")


def _nsys(facts: Facts) -> tuple[Check, ...]:
    if not facts.tools:
        what = (
            "none on PATH, under /opt/nvidia, in Nsight Compute or Debian's place: only the built-in recorder is left"
        )
        return (Check("nsys", Status.WARN, what, INSTALL_NSYS),)
    return tuple(Check("nsys", Status.OK, f"nsys {tool.version_text} at {tool.path}") for tool in facts.tools)


def _importer(tool: NsysTool) -> Check:
    name = f"nsys {tool.version_text}: importer"
    if tool.missing_libs:
        lacks = ", ".join(tool.missing_libs)
        return Check(
            name, Status.FAIL, f"lacks {lacks}: only a raw .qdstrm would be left", tool.mend or f"install {lacks}"
        )
    if tool.is_wrapper:
        return Check(name, Status.OK, "not looked at: this nsys is a script around another; its self-test tells")
    if tool.importer is None:
        where = (
            f"is at {tool.stray_importer}, where this nsys does not look" if tool.stray_importer else "is not installed"
        )
        return Check(
            name, Status.FAIL, f"QdstrmImporter {where}: only a raw .qdstrm would be left", tool.mend or INSTALL_NSYS
        )
    return Check(name, Status.OK, f"{tool.importer}, all libraries found")


def _gpu_check(facts: Facts) -> Check:
    if facts.gpus:
        cuda = f", CUDA {facts.cuda[0]}.{facts.cuda[1]}" if facts.cuda else ""
        return Check("GPU", Status.OK, f"{len(facts.gpus)} × {facts.gpus[0]}, driver {facts.driver}{cuda}")
    if facts.driver:
        return Check(
            "GPU", Status.WARN, f"driver {facts.driver}, but nvidia-smi lists no GPU: captures see the host only"
        )
    return Check("GPU", Status.WARN, "no NVIDIA driver: captures see host ranges only, no launches and no GPU work")


def _driver_check(facts: Facts, tool: NsysTool) -> Check | None:
    wanted = nsys_for(facts.cuda) if facts.cuda else None
    if facts.cuda is None or wanted is None:
        return None
    name = f"nsys {tool.version_text}: driver"
    driver = f"the driver's CUDA {facts.cuda[0]}.{facts.cuda[1]}"
    needs = ".".join(map(str, wanted))
    if tool.version >= wanted:
        return Check(name, Status.OK, f"knows {driver}")
    first_of_major = nsys_for((facts.cuda[0], 0))
    if first_of_major is not None and tool.version < first_of_major:
        what = f"older than {driver}: records ranges and driver calls, but no launches and no GPU work"
    else:
        what = f"older than {driver}: some GPU rows may be missing"
    return Check(name, Status.WARN, what, f"use nsys {needs} or later")


def _pair(facts: Facts, tool: NsysTool) -> Check:
    name = f"nsys {tool.version_text}: nvtx"
    problem = nvtx_problem(facts.nvtx, tool.version)
    if problem is None:
        return Check(name, Status.OK, f"records the ranges of nvtx {facts.nvtx}")
    mend = "pip install nvtx" if facts.nvtx is None else f"{NVTX_MEND}, or use nsys 2024 or later"
    return Check(name, Status.FAIL, problem.text, mend)


def _loop(facts: Facts) -> Check:
    missing = [name for name in FOR_THE_LOOP if facts.packages.get(name) is None]
    if missing:
        what = f"{' and '.join(missing)} missing: `dflash-bench run` cannot start; everything else works"
        return Check("decode loop", Status.WARN, what, 'pip install "dflash-bench[impl]"')
    return Check("decode loop", Status.OK, ", ".join(f"{name} {facts.packages[name]}" for name in FOR_THE_LOOP))


_EMIT_NVTX = f"""
import nvtx
for _ in range({NUM_TEST_RANGES}):
    nvtx.push_range("doctor", domain="dflash")
    nvtx.pop_range(domain="dflash")
"""
_EMIT_TO_RECORDER = f"""
from dflash_bench.capture.recorder import sink
out = sink(rank=0, world=1)
for _ in range({NUM_TEST_RANGES}):
    out.push("doctor")
    out.pop()
"""


def _self_test(name: str, capture: Callable[[Path], Path]) -> Check:
    with tempfile.TemporaryDirectory(prefix="dflash-bench-doctor-") as folder:
        try:
            counts = count_ranges(capture(Path(folder)))
        except BenchError as error:
            return Check(name, Status.FAIL, error.text.replace(folder, "…"), error.hint)
    found = sum(count.ranges.get("doctor", 0) for count in counts)
    if found == NUM_TEST_RANGES:
        return Check(name, Status.OK, f"captured {found} of {NUM_TEST_RANGES} ranges and read them back")
    return Check(name, Status.FAIL, f"only {found} of {NUM_TEST_RANGES} ranges arrived", "see the checks above")


def _nsys_test(tool: NsysTool) -> Callable[[Path], Path]:
    def capture(folder: Path) -> Path:
        command = profile_command(
            tool, f"{folder}/test", [sys.executable, "-c", _EMIT_NVTX], ProfileOptions(traces=(Trace.NVTX,))
        )
        _run(command, dict(os.environ))
        return sqlite_of(folder, "test", tool)

    return capture


def _recorder_test(folder: Path) -> Path:
    _run([sys.executable, "-c", _EMIT_TO_RECORDER], {**os.environ, FOLDER_VARIABLE: str(folder)})
    return folder / "rank0.sqlite"


def _run(command: list[str], environment: dict[str, str]) -> None:
    from dflash_bench.errors import CaptureError

    try:
        done = subprocess.run(
            command, env=environment, capture_output=True, text=True, errors="replace", timeout=PROBE_TIMEOUT_S
        )
    except (OSError, subprocess.TimeoutExpired) as error:
        raise CaptureError(f"{Path(command[0]).name} did not run: {error}") from None
    if done.returncode != 0:
        last = (done.stderr.strip() or done.stdout.strip() or "it said nothing").splitlines()[-1]
        raise CaptureError(f"{Path(command[0]).name} ended with exit code {done.returncode}: {last}")
