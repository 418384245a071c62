"""Really capture ten ranges, with every way there is, and read them back."""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
from collections.abc import Callable
from pathlib import Path

from dflash_bench.capture.check import count_ranges
from dflash_bench.capture.convert import sqlite_of
from dflash_bench.capture.nsys import NsysTool
from dflash_bench.capture.nsys_command import ProfileOptions, TraceKind, profile_command
from dflash_bench.capture.recorder import FOLDER_VARIABLE
from dflash_bench.doctor.checks import CheckStatus, MachineCheck
from dflash_bench.doctor.facts import MachineFacts
from dflash_bench.errors import BenchError, CaptureError

_NUM_TEST_RANGES = 10
_CAPTURE_TIMEOUT_S = 120

_EMIT_NVTX = f"""
import nvtx
for _ in range({_NUM_TEST_RANGES}):
    nvtx.push_range("doctor", domain="dflash")
    nvtx.pop_range(domain="dflash")
"""
_EMIT_TO_RECORDER = f"""
from dflash_bench.capture.recorder import sink
out = sink(rank=0, world=1)
for _ in range({_NUM_TEST_RANGES}):
    out.push("doctor")
    out.pop()
"""


_PREFIX = "self-test: "


def self_tests(facts: MachineFacts) -> tuple[MachineCheck, ...]:
    """Capture ten ranges with every way there is, and read them back."""
    tools = (_self_test(f"{_PREFIX}nsys {tool.version_text}", _nsys_test(tool)) for tool in facts.tools)
    return (*tools, _self_test(f"{_PREFIX}built-in recorder", _recorder_test))


def ways_to_capture(checks: tuple[MachineCheck, ...]) -> tuple[str, ...]:
    """What captured everything in its self-test."""
    passed = (check.name for check in checks if check.status is CheckStatus.OK)
    return tuple(name.removeprefix(_PREFIX) for name in passed if name.startswith(_PREFIX))


def _self_test(name: str, capture: Callable[[Path], Path]) -> MachineCheck:
    with tempfile.TemporaryDirectory(prefix="dflash-bench-doctor-") as folder:
        try:
            counts = count_ranges(capture(Path(folder)))
        except BenchError as error:
            return MachineCheck(name, CheckStatus.FAIL, error.text.replace(folder, "…"), error.hint)
    found = sum(count.ranges.get("doctor", 0) for count in counts)
    if found == _NUM_TEST_RANGES:
        return MachineCheck(name, CheckStatus.OK, f"captured {found} of {_NUM_TEST_RANGES} ranges and read them back")
    return MachineCheck(
        name, CheckStatus.FAIL, f"only {found} of {_NUM_TEST_RANGES} ranges arrived", "see the checks above"
    )


def _nsys_test(tool: NsysTool) -> Callable[[Path], Path]:
    def capture(folder: Path) -> Path:
        command = profile_command(
            tool, f"{folder}/test", [sys.executable, "-c", _EMIT_NVTX], ProfileOptions(traces=(TraceKind.NVTX,))
        )
        _run(command, dict(os.environ))
        return sqlite_of(folder, "test", tool)

    return capture


def _recorder_test(folder: Path) -> Path:
    _run([sys.executable, "-c", _EMIT_TO_RECORDER], {**os.environ, FOLDER_VARIABLE: str(folder)})
    return folder / "rank0.sqlite"


def _run(command: list[str], environment: dict[str, str]) -> None:
    try:
        done = subprocess.run(
            command, env=environment, capture_output=True, text=True, errors="replace", timeout=_CAPTURE_TIMEOUT_S
        )
    except (OSError, subprocess.TimeoutExpired) as error:
        raise CaptureError(f"{Path(command[0]).name} did not run: {error}") from None
    if done.returncode != 0:
        last = (done.stderr.strip() or done.stdout.strip() or "it said nothing").splitlines()[-1]
        raise CaptureError(f"{Path(command[0]).name} ended with exit code {done.returncode}: {last}")
