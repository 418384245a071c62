"""What of the machine a run's figures depend on: its CPU, and of its GPUs the driver, the clocks and the power limit.

Everything is read and nothing is set. Serial numbers, UUIDs, bus addresses and host names are not even asked for.
"""

from __future__ import annotations

import logging
import os
import platform
import re
import shutil
import subprocess
from collections.abc import Sequence
from pathlib import Path

from dflash_bench.model import Value

log = logging.getLogger(__name__)

_TIMEOUT_S = 60
"""nvidia-smi takes seconds where no other process keeps the driver loaded."""

_FIELDS = (
    "driver_version",
    "clocks.sm",
    "clocks.mem",
    "clocks.applications.graphics",
    "clocks.applications.memory",
    "clocks.max.sm",
    "clocks.max.mem",
    "power.limit",
    "persistence_mode",
)
"""What nvidia-smi is asked for, of every GPU; clocks in MHz, power in W."""

_GpuRow = dict[str, str]
"""Field → what nvidia-smi said of one GPU; fields that this GPU or driver does not have are left out."""


def host_settings(cpuinfo: Path = Path("/proc/cpuinfo")) -> dict[str, Value]:
    """``cpu``: the model; ``cores``: how many of them this process may use."""
    return {"cpu": _cpu_model(cpuinfo), "cores": len(os.sched_getaffinity(0))}


def gpu_settings() -> dict[str, Value]:
    """``driver``, ``clocks``, ``clocks_found``, ``power_limit_w`` and ``persistence`` of this host's GPUs, as text.

    ``clocks`` are those that somebody chose (application clocks) and the highest possible ones, SM and memory;
    ``clocks_found`` are those of this moment, which an idle GPU lowers by itself. Empty without nvidia-smi; where that
    fails, a warning is logged, and runs made here do not state these things.
    """
    if shutil.which("nvidia-smi") is None:
        return {}
    command = ["nvidia-smi", f"--query-gpu={','.join(_FIELDS)}", "--format=csv,noheader,nounits"]
    try:
        done = subprocess.run(command, capture_output=True, text=True, errors="replace", timeout=_TIMEOUT_S)
    except (OSError, subprocess.TimeoutExpired) as error:
        log.warning("driver and clocks are not known: nvidia-smi did not answer: %s", error)
        return {}
    rows = _parse_rows(done.stdout) if done.returncode == 0 else []
    if not rows:
        said = (done.stdout.strip() or done.stderr.strip() or "nothing").splitlines()[0]
        log.warning("driver and clocks are not known: nvidia-smi said: %s", said)
    return _described(rows)


def _parse_rows(csv: str) -> list[_GpuRow]:
    """The GPUs in nvidia-smi's table. A field in brackets ([N/A], [Not Supported], …) is one that is not there."""
    lines = [[part.strip() for part in line.split(",")] for line in csv.splitlines()]
    return [
        {name: value for name, value in zip(_FIELDS, line, strict=True) if value and not value.startswith("[")}
        for line in lines
        if len(line) == len(_FIELDS)
    ]


def _described(rows: Sequence[_GpuRow]) -> dict[str, Value]:
    """What is kept of several GPUs: each value once, in words where it has parts."""
    found = {
        "driver": [row.get("driver_version") for row in rows],
        "clocks": [_chosen(row) for row in rows],
        "clocks_found": [_pair(row, "clocks.sm", "clocks.mem") for row in rows],
        "power_limit_w": [row.get("power.limit") for row in rows],
        "persistence": [row.get("persistence_mode") for row in rows],
    }
    return {name: text for name, values in found.items() if (text := _each_once(values)) is not None}


def _chosen(row: _GpuRow) -> str | None:
    application = _pair(row, "clocks.applications.graphics", "clocks.applications.memory")
    highest = _pair(row, "clocks.max.sm", "clocks.max.mem")
    parts = [f"application {application}" if application else "", f"at most {highest}" if highest else ""]
    return ", ".join(part for part in parts if part) or None


def _pair(row: _GpuRow, sm: str, memory: str) -> str | None:
    """SM and memory clock in one word; None unless both are there."""
    return f"{row[sm]}/{row[memory]} MHz" if sm in row and memory in row else None


def _each_once(values: Sequence[str | None]) -> str | None:
    return " and ".join(sorted({value for value in values if value is not None})) or None


def _cpu_model(cpuinfo: Path) -> str:
    """The model's name; the architecture where the kernel does not tell it, as on ARM."""
    try:
        found = re.search(r"^model name\s*:\s*(.+)$", cpuinfo.read_text(encoding="utf-8", errors="replace"), re.M)
    except OSError:
        found = None
    return found[1].strip() if found else platform.machine()
