"""What is installed on this machine, and which GPU and driver it has."""

from __future__ import annotations

import platform
import re
import shutil
import subprocess
from dataclasses import dataclass
from importlib import metadata
from pathlib import Path

from dflash_bench.capture import nsys
from dflash_bench.capture.nsys import NsysTool

NEEDED = ("typer", "rich", "numpy", "pandas", "pyarrow", "adbc-driver-sqlite", "adbc-driver-manager")
FOR_THE_LOOP = ("torch", "triton")
_SMI_TIMEOUT_S = 120


@dataclass(frozen=True, slots=True)
class MachineFacts:
    """What was found on this machine. Versions are None for what is not installed."""

    python: str
    packages: dict[str, str | None]
    nvtx: str | None
    tools: tuple[NsysTool, ...]
    gpus: tuple[str, ...]
    driver: str | None
    cuda: tuple[int, int] | None
    """The newest CUDA that the driver supports."""


def machine_facts() -> MachineFacts:
    """Ask this machine. Imports nothing heavy and initialises no GPU."""
    gpus, driver, cuda = _gpu()
    return MachineFacts(
        python=platform.python_version(),
        packages={name: _version(name) for name in (*NEEDED, *FOR_THE_LOOP)},
        nvtx=_version("nvtx"),
        tools=nsys.find_all_nsys(),
        gpus=gpus,
        driver=driver or _driver_from_proc(),
        cuda=cuda,
    )


def _parse_smi(query: str, banner: str) -> tuple[tuple[str, ...], str | None, tuple[int, int] | None]:
    """(GPU names, driver version, CUDA version) from ``nvidia-smi --query-gpu=name,driver_version`` and its banner."""
    rows = [[part.strip() for part in line.split(",")] for line in query.splitlines() if line.count(",") == 1]
    found = re.search(r"CUDA\s+(?:UMD\s+)?Version:\s*(\d+)\.(\d+)", banner)
    cuda = (int(found[1]), int(found[2])) if found else None
    return tuple(name for name, _ in rows), rows[0][1] if rows else None, cuda


def _version(package: str) -> str | None:
    try:
        return metadata.version(package)
    except metadata.PackageNotFoundError:
        return None


def _gpu() -> tuple[tuple[str, ...], str | None, tuple[int, int] | None]:
    if shutil.which("nvidia-smi") is None:
        return (), None, None
    query = _said(["nvidia-smi", "--query-gpu=name,driver_version", "--format=csv,noheader"])
    return _parse_smi(query, _said(["nvidia-smi"]))


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
        return subprocess.run(command, capture_output=True, text=True, errors="replace", timeout=_SMI_TIMEOUT_S).stdout
    except (OSError, subprocess.TimeoutExpired):
        return ""
