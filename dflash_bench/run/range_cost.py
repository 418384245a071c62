"""What one range costs the loop's host, measured in a process that is traced as the loop is."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

from dflash_bench.capture.choice import RecorderChoice
from dflash_bench.capture.nsys_command import ProfileOptions, TraceKind, in_nsys_words, profile_command
from dflash_bench.capture.recorder import FOLDER_VARIABLE
from dflash_bench.errors import CaptureError
from dflash_bench.run.launch import SINK, SINK_VARIABLE, CommandLine

_REPEATS = 4000
"""Ranges of each of the five rounds. `python -m dflash_prep.ranges` measures 50 times as many, which nsys then converts
for a minute."""
_TIMEOUT_S = 120
_PROGRAM = f"from dflash_prep.ranges import choose_sink, cost_ns; print(cost_ns(choose_sink(0, 1), {_REPEATS}))"


def range_cost_ns(choice: RecorderChoice, folder: Path) -> float:
    """Nanoseconds that an empty range takes under the recorder of a run; ``folder`` takes what is left of measuring it.

    Raises CaptureError when it cannot be measured.
    """
    command = _range_cost_command(choice, folder)
    try:
        done = subprocess.run(
            command.line, env=command.full_environment(), capture_output=True, text=True, timeout=_TIMEOUT_S
        )
    except (OSError, subprocess.TimeoutExpired) as error:
        raise CaptureError(f"the cost of a range could not be measured: {error}") from None
    # nsys' own words stand around the one line that is a number
    numbers = [line for line in done.stdout.splitlines() if line.replace(".", "", 1).isdecimal()]
    if not numbers:
        said = (done.stderr or done.stdout).strip().splitlines()
        raise CaptureError(f"the cost of a range could not be measured: {said[-1] if said else 'nothing was said'}")
    return float(numbers[0])


def _range_cost_command(choice: RecorderChoice, folder: Path) -> CommandLine:
    """The command that measures it, a pure function."""
    measure = [sys.executable, "-c", _PROGRAM]
    if choice.tool is None:
        return CommandLine(tuple(measure), {SINK_VARIABLE: SINK, FOLDER_VARIABLE: str(folder)})
    line = profile_command(
        choice.tool, in_nsys_words(folder / "range_cost"), measure, ProfileOptions((TraceKind.NVTX,))
    )
    return CommandLine(tuple(part for part in line if part != "--export=sqlite"), {SINK_VARIABLE: None})
