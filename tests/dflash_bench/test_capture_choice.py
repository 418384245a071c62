"""nsys or the built-in recorder: never silently, never one that loses ranges."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from dflash_bench.capture.choice import choose, choose_here, lost_ranges
from dflash_bench.capture.nsys import NsysTool
from dflash_bench.errors import CaptureError, UsageError
from dflash_bench.model import Recorder

OLD = NsysTool(Path("/usr/bin/nsys"), (2022, 4, 2, 1), Path("/usr/lib/QdstrmImporter"))
LAME = replace(OLD, version=(2025, 3, 1, 0), missing_libs=("libdw.so.1",), mend="apt-get install libdw1")


def test_a_usable_nsys_is_used() -> None:
    choice = choose(OLD, "0.2.11")
    assert choice.recorder is Recorder.NSYS
    assert choice.text == "recording with nsys 2022.4.2.1 (/usr/bin/nsys): found here"


def test_without_nsys_the_built_in_recorder_says_why_it_is_used() -> None:
    assert choose(None, "0.2.11").text == "recording with the built-in recorder: no nsys was found here"
    assert choose(OLD, "0.2.11", is_builtin_asked=True).recorder is Recorder.BUILTIN


@pytest.mark.parametrize(
    ("tool", "nvtx", "mend"),
    [
        (OLD, "0.2.17", 'pip install "nvtx<0.2.12"'),
        (OLD, None, "pip install nvtx"),
        (LAME, "0.2.17", "apt-get install libdw1"),
        (replace(OLD, importer=None, mend="ln -s a b"), "0.2.11", "ln -s a b"),
    ],
)
def test_an_nsys_that_would_lose_the_ranges_gives_way_or_is_refused(
    tool: NsysTool, nvtx: str | None, mend: str
) -> None:
    choice = choose(tool, nvtx)
    assert choice.recorder is Recorder.BUILTIN
    assert mend in choice.why, "falling back says what would mend it"
    with pytest.raises(CaptureError, match="cannot be used") as refusal:
        choose(tool, nvtx, is_asked=True)
    assert refusal.value.hint is not None
    assert mend in refusal.value.hint


def test_asking_for_both_is_a_contradiction() -> None:
    with pytest.raises(UsageError, match="exclude each other"):
        choose_here(Path("/usr/bin/nsys"), is_builtin_asked=True)


@pytest.mark.parametrize(("version", "is_lost"), [("0.2.17", True), ("0.2.11", False), (None, False)])
def test_what_the_pythons_own_nvtx_would_lose_is_known_before_a_capture(
    tmp_path: Path, version: str | None, is_lost: bool
) -> None:
    """A Python of another environment is asked itself; one without nvtx has nothing to lose."""
    python = tmp_path / "python3"
    python.write_text("#!/bin/sh\n" + (f"echo {version}\n" if version else "exit 1\n"))
    python.chmod(0o755)
    said = lost_ranges([str(python), "serve.py"], OLD)
    assert (said is not None) == is_lost
    if said is not None:
        assert "every range would be lost" in said
        assert 'pip install "nvtx<0.2.12"' in said
    assert lost_ranges([str(python), "serve.py"], LAME) is None, "a newer nsys answers"
