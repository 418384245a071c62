"""Command lines for nsys: pure functions, so that ``--dry-run`` shows exactly what would run."""

from __future__ import annotations

import shlex
from collections.abc import Sequence
from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path

from dflash_bench.capture.nsys import NsysTool, has_nvidia_gpu
from dflash_bench.errors import UsageError


class TraceKind(StrEnum):
    """What nsys can trace that a profile can hold."""

    CUDA = "cuda"
    NVTX = "nvtx"
    OSRT = "osrt"


_CUDA_PROFILER_API = "cudaProfilerApi"


def default_traces() -> tuple[TraceKind, ...]:
    """CUDA is traced where there is a GPU; elsewhere nsys would only warn about it."""
    return (TraceKind.CUDA, TraceKind.NVTX) if has_nvidia_gpu() else (TraceKind.NVTX,)


@dataclass(frozen=True, slots=True)
class ProfileOptions:
    """What to record of a command.

    ``capture_range`` is ``cudaProfilerApi`` or the name of an NVTX range (``NAME`` in any domain, ``NAME@DOMAIN``).
    ``delay_s`` and ``duration_s`` cut the capture by time. ``kill`` is the signal nsys sends when a timed capture ends
    (``none``, ``sigterm``, ``sigkill``); None keeps nsys' own choice, sigterm.
    """

    traces: tuple[TraceKind, ...] = (TraceKind.CUDA, TraceKind.NVTX)
    capture_range: str | None = None
    delay_s: int | None = None
    duration_s: int | None = None
    kill: str | None = None
    wait: str = "primary"

    def __post_init__(self) -> None:
        if not self.traces:
            raise UsageError("nothing to trace", hint=f"--trace {','.join(TraceKind)}")
        if self.capture_range is not None and (self.delay_s is not None or self.duration_s is not None):
            raise UsageError("--capture-range and --delay/--duration both say when to record", hint="give one of them")
        if self.capture_range == _CUDA_PROFILER_API and TraceKind.CUDA not in self.traces:
            raise UsageError(f"--capture-range {_CUDA_PROFILER_API} needs CUDA tracing", hint="add cuda to --trace")


def parse_traces(text: str) -> tuple[TraceKind, ...]:
    """``cuda,nvtx`` → the traces. Raises UsageError for anything else."""
    try:
        return tuple(dict.fromkeys(TraceKind(part.strip()) for part in text.split(",") if part.strip()))
    except ValueError:
        raise UsageError(
            f"cannot trace {text!r}", hint=f"choose from {', '.join(TraceKind)}, separated by commas"
        ) from None


def profile_command(
    tool: NsysTool, output: str, command: Sequence[str], options: ProfileOptions | None = None
) -> list[str]:
    """The ``nsys profile`` line that records `command` into ``<output>.nsys-rep`` and ``<output>.sqlite``.

    `output` may hold nsys' own ``%q{VARIABLE}``. Only options that 2022.4 and 2025.3 both have are used. Sampling and
    context switches are off: they need privileges and add nothing to host ranges and launches.
    """
    options = options or ProfileOptions()
    line = [str(tool.path), "profile", "-t", ",".join(options.traces), "-s", "none", "--cpuctxsw=none"]
    line += ["--trace-fork-before-exec=true", f"--wait={options.wait}"]
    line += _window(options)
    if options.kill is not None:
        line.append(f"--kill={options.kill}")
    return [*line, "--export=sqlite", "--force-overwrite=true", "-o", output, *command]


def _window(options: ProfileOptions) -> list[str]:
    line = []
    if options.capture_range is not None:
        # nsys' default, stop-shutdown, ends the profiled program together with the range: fatal for a server.
        if options.capture_range == _CUDA_PROFILER_API:
            line = [f"--capture-range={_CUDA_PROFILER_API}"]
        else:
            name = options.capture_range if "@" in options.capture_range else f"{options.capture_range}@*"
            line = ["--capture-range=nvtx", f"--nvtx-capture={name}"]
        line.append("--capture-range-end=stop")
    if options.delay_s is not None:
        line.append(f"--delay={options.delay_s}")
    if options.duration_s is not None:
        line.append(f"--duration={options.duration_s}")
    return line


def export_command(tool: NsysTool, report: Path, output: Path, kind: str = "sqlite") -> list[str]:
    """The ``nsys export`` line that turns a report into an export of that type."""
    return [str(tool.path), "export", f"--type={kind}", "--force-overwrite=true", "-o", str(output), str(report)]


def import_command(importer: Path, stream: Path, output: Path) -> list[str]:
    """The ``QdstrmImporter`` line that turns a raw ``.qdstrm`` stream into a report."""
    return [str(importer), "--force-overwrite", f"--output-file={output}", f"--input-file={stream}"]


def in_nsys_words(path: Path) -> str:
    """A path as nsys takes it: a % would start a pattern."""
    return str(path).replace("%", "%%")


def shell_line(command: Sequence[str], environment: dict[str, str] | None = None) -> str:
    """A command as a line that a shell takes, with the variables it is given."""
    variables = [f"{key}={shlex.quote(value)}" for key, value in sorted((environment or {}).items())]
    return " ".join([*variables, shlex.join(command)])
