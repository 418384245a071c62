"""Which of the two recorders a run uses, and why."""

from __future__ import annotations

import subprocess
from collections.abc import Sequence
from dataclasses import dataclass
from importlib import metadata
from pathlib import Path

from dflash_bench.capture import nsys
from dflash_bench.capture.check import NVTX_MEND, nvtx_problem
from dflash_bench.capture.nsys import NsysTool
from dflash_bench.errors import CaptureError, UsageError
from dflash_bench.model import Recorder

_ANSWER_S = 30


@dataclass(frozen=True, slots=True)
class RecorderChoice:
    """The recorder of a run; ``tool`` is None exactly when it is the built-in one. ``why`` is half a sentence."""

    tool: NsysTool | None
    why: str

    @property
    def recorder(self) -> Recorder:
        return Recorder.BUILTIN if self.tool is None else Recorder.NSYS

    @property
    def text(self) -> str:
        """One line for the person who runs it."""
        name = "the built-in recorder" if self.tool is None else f"nsys {self.tool.version_text} ({self.tool.path})"
        return f"recording with {name}: {self.why}"


def _installed_nvtx() -> str | None:
    """Version of the python nvtx package, None without it."""
    try:
        return metadata.version("nvtx")
    except metadata.PackageNotFoundError:
        return None


def lost_ranges(command: Sequence[str], tool: NsysTool) -> str | None:
    """Why the Python ranges of a command would not arrive, known before it runs; None when nothing is known.

    Asked is the command's own Python, where it is one, else this one.
    """
    version = _installed_nvtx()
    if Path(command[0]).name.startswith("python"):
        code = "from importlib.metadata import version; print(version('nvtx'))"
        try:
            done = subprocess.run([command[0], "-c", code], capture_output=True, text=True, timeout=_ANSWER_S)
        except (OSError, subprocess.TimeoutExpired):
            return None
        version = done.stdout.strip() if done.returncode == 0 else None
    problem = None if version is None else nvtx_problem(version, tool.version)
    return None if problem is None else f"{problem.text}; {NVTX_MEND} where it runs, or install a newer nsys"


def choose(
    tool: NsysTool | None, nvtx_version: str | None, *, is_asked: bool = False, is_builtin_asked: bool = False
) -> RecorderChoice:
    """The recorder to use, given the nsys at hand.

    An nsys that was found but would lose ranges or leave no readable file gives way to the built-in recorder, and
    ``why`` says so. One that was asked for (`is_asked`) is refused instead: CaptureError, with the mending command.
    """
    if is_builtin_asked:
        return RecorderChoice(None, "asked for with --recorder")
    if tool is None:
        return RecorderChoice(None, "no nsys was found here")
    problem, mend = _unusable(tool, nvtx_version)
    if problem is None:
        return RecorderChoice(tool, "asked for with --nsys" if is_asked else "found here")
    if is_asked:
        raise CaptureError(f"nsys {tool.version_text} at {tool.path} cannot be used: {problem}", hint=mend)
    return RecorderChoice(None, f"nsys {tool.version_text} is here, but {problem} (to mend it: {mend})")


def choose_here(explicit: Path | None, *, is_builtin_asked: bool) -> RecorderChoice:
    """`choose` for this machine. Raises UsageError when both recorders are asked for, or `explicit` is not there."""
    if explicit is not None and is_builtin_asked:
        raise UsageError("--nsys and --recorder exclude each other", hint="give one of them")
    tool = None if is_builtin_asked else nsys.find_nsys(explicit)
    return choose(tool, _installed_nvtx(), is_asked=explicit is not None, is_builtin_asked=is_builtin_asked)


def _unusable(tool: NsysTool, nvtx_version: str | None) -> tuple[str | None, str | None]:
    """Why this nsys would give no usable capture of python ranges, and what mends that: (None, None) when it would."""
    if tool.missing_libs:
        lacks = ", ".join(tool.missing_libs)
        return f"its importer lacks {lacks}, so only a raw .qdstrm would be left", tool.mend or f"install {lacks}"
    if not tool.can_convert:
        return "it has no QdstrmImporter, so only a raw .qdstrm would be left", tool.mend or "install all of nsys"
    pair = nvtx_problem(nvtx_version, tool.version)
    if pair is not None:
        return pair.text, "pip install nvtx" if nvtx_version is None else f"{NVTX_MEND}, or install a newer nsys"
    return None, None
