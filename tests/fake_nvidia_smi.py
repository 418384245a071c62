"""An nvidia-smi for machines without one: it prints what it is given and notes what it was asked."""

from __future__ import annotations

import os
import shlex
from pathlib import Path

import pytest

H200 = "580.159.04, 345, 3201, [N/A], [N/A], 1980, 3201, 700.00, Enabled"
"""A GPU as driver 580 describes it: application clocks are a thing of the past there."""


def install(folder: Path, monkeypatch: pytest.MonkeyPatch, *rows: str, code: int = 0) -> Path:
    """Put it first on PATH; every call appends its arguments, one a line, to the file that is returned."""
    asked = folder / "asked"
    program = folder / "nvidia-smi"
    lines = " ".join(shlex.quote(row) for row in rows)
    program.write_text(
        f"#!/bin/sh\nprintf '%s\\n' \"$@\" >> {shlex.quote(str(asked))}\nprintf '%s\\n' {lines}\nexit {code}\n"
    )
    program.chmod(0o755)
    monkeypatch.setenv("PATH", f"{folder}{os.pathsep}{os.environ['PATH']}")
    return asked
