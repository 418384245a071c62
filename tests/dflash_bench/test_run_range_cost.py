"""What a range costs under a recorder: which command measures it, and what is read of its answer."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from dflash_bench.capture import nsys
from dflash_bench.capture.choice import RecorderChoice
from dflash_bench.capture.nsys import NsysTool
from dflash_bench.errors import CaptureError
from dflash_bench.run import range_cost
from dflash_bench.run.range_cost import _range_cost_command, range_cost_ns

BUILTIN = RecorderChoice(None, "asked for")
INSTALLED = nsys.find_nsys()
needs_nsys = pytest.mark.skipif(INSTALLED is None or not INSTALLED.can_convert, reason="no nsys here that can convert")


def test_it_is_measured_under_the_recorder_of_the_run_and_nothing_is_exported(tmp_path: Path) -> None:
    tool = NsysTool(Path("/opt/nsys"), (2025, 3, 1, 0), Path("/opt/QdstrmImporter"))
    under_nsys = _range_cost_command(RecorderChoice(tool, "found"), tmp_path)
    assert under_nsys.line[:2] == ("/opt/nsys", "profile")
    assert "--export=sqlite" not in under_nsys.line
    assert under_nsys.environment["DFLASH_PREP_SINK"] is None
    builtin = _range_cost_command(BUILTIN, tmp_path)
    assert builtin.line[0] == sys.executable
    assert builtin.environment["DFLASH_BENCH_RECORD"] == str(tmp_path)


@pytest.mark.parametrize(
    "choice",
    [BUILTIN, pytest.param(RecorderChoice(INSTALLED, "found"), marks=[pytest.mark.nsys, needs_nsys])],
    ids=["recorder", "nsys"],
)
def test_a_range_costs_something(tmp_path: Path, choice: RecorderChoice, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(range_cost, "_PROGRAM", range_cost._PROGRAM.replace("4000", "200"))
    assert range_cost_ns(choice, tmp_path) > 0


def test_an_answer_without_a_number_is_an_error_with_what_was_said(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(range_cost, "_PROGRAM", "raise SystemExit('no loop here')")
    with pytest.raises(CaptureError, match="could not be measured: no loop here"):
        range_cost_ns(BUILTIN, tmp_path)
