"""A run of any program of a person's own: recorded, ingested, and kept where it failed."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import IO, TYPE_CHECKING

from dflash_bench.annotate.sinks import RUNNING
from dflash_bench.capture.check import count_ranges, silent_domains
from dflash_bench.capture.command import CommandCapture, record_command
from dflash_bench.capture.folder import free_name, new_capture_folder, run_name, set_aside, shared_capture_folder
from dflash_bench.capture.machine import gpu_settings, host_settings
from dflash_bench.capture.supervise import ChildEnd
from dflash_bench.errors import BenchError, CaptureError, UsageError, quoted
from dflash_bench.findings import finding
from dflash_bench.model import Finding
from dflash_bench.session import session_settings

if TYPE_CHECKING:
    from dflash_bench.profile import Profile


@dataclass(frozen=True, slots=True)
class ProgramRun:
    """What to record, and where the profile goes and what it is filed under. The capture's folder is chosen here."""

    capture: CommandCapture
    name: str
    profiles: Path
    arm: str | None = None
    workload: str | None = None
    is_discarding: bool = False

    @property
    def is_of_one_rank(self) -> bool:
        """Whether other processes like this one record the other ranks of the same run."""
        return self.capture.place is not None


@dataclass(frozen=True, slots=True)
class MadeProgramRun:
    """What came of it. ``profile`` is None while other ranks have yet to end; their captures lie in ``folder`` too."""

    folder: Path
    end: ChildEnd
    profile: Profile | None = None

    def require_success(self) -> None:
        """Raises CaptureError when the program failed by itself."""
        if self.end.code != 0 and not self.end.is_interrupted:
            text = f"the command ended with {_ending(self.end)}; what it did until then is recorded"
            raise CaptureError(text, hint=f"see {self.profile.path if self.profile else self.folder}")


def program_name(name: str | None, program: str, profiles: Path) -> str:
    """The name of a run, after the program and the time where none is given. Raises UsageError when it is taken."""
    from dflash_bench.ingest.build import check_run_name

    if name is None:
        return free_name(profiles, run_name(Path(program).name))
    check_run_name(name)
    if (profiles / name).exists():
        raise UsageError(f"{profiles / name} exists already", hint="choose another --name")
    return name


def make_program_run(run: ProgramRun, output: IO[bytes], on_warning: Callable[[str], None]) -> MadeProgramRun:
    """Record the program, whose standard output goes to ``output``, and ingest what it left.

    Of several ranks the last one to end ingests all. Raises UsageError when there is no such program or no room for its
    capture; CaptureError and DataError when there is nothing that can be read: they name what was left, and where.
    """
    program = run.capture.command[0]
    if shutil.which(program) is None:
        raise UsageError(f"there is no command {quoted(program)}", hint="look at its spelling, or give its whole path")
    folder = _folder(run)
    capture = replace(run.capture, folder=folder.resolve())
    end: ChildEnd | None = None
    try:
        files, end = record_command(capture, output)
        for lost in _losses(capture, files):
            on_warning(lost.text)
        profile = _ingest_when_all_done(run, folder) if run.is_of_one_rank else _ingest(run, files, folder)
    except BenchError as error:
        placed = _with_place(error, folder, folder if run.is_of_one_rank else set_aside(folder, run.profiles, run.name))
        if end is None or end.code == 0:
            raise placed from None
        # most likely the cause of whatever is missing
        raise type(placed)(f"the command ended with {_ending(end)}, and {placed.text}", hint=placed.hint) from None
    return MadeProgramRun(folder, end, profile)


def _folder(run: ProgramRun) -> Path:
    """A folder of its own; all ranks of one run share one, each with its own files."""
    place = run.capture.place
    if place is None:
        return new_capture_folder(run.profiles, run.name)
    folder = shared_capture_folder(run.profiles, run.name)
    if any(folder.glob(f"{run.capture.stem}.*")):
        raise UsageError(f"{folder} holds a capture of rank {place.rank} already", hint="choose another --name")
    return folder


def _losses(capture: CommandCapture, files: list[Path]) -> list[Finding]:
    """What the capture lacks although its processes emitted it."""
    silent = () if capture.tool is None else silent_domains(count_ranges(files[0], None))
    return [*silent, *_killed(capture.folder)]


def _killed(folder: Path) -> tuple[Finding, ...]:
    """Processes whose notes say that they still record, although the command is over."""
    pids = [note.stem.removeprefix("pid") for note in sorted(folder.glob(f"*.{RUNNING}"))]
    return (finding("process_killed", None, len(pids), pids=", ".join(pids)),) if pids else ()


def _ingest_when_all_done(run: ProgramRun, folder: Path) -> Profile | None:
    """The last rank to come here ingests all; the others only note that they are done."""
    place = run.capture.place
    assert place is not None, "asked of one rank of several"
    (folder / f"rank{place.rank}.done").touch()
    if place.world is None or len(list(folder.glob("rank*.done"))) < place.world:
        return None
    try:
        (folder / "ingesting").touch(exist_ok=False)
    except (FileExistsError, FileNotFoundError):
        return None
    written = run.capture.written if run.capture.tool is None else "rank*.sqlite"
    return _ingest(run, sorted(folder.glob(written)), folder)


def _ingest(run: ProgramRun, files: list[Path], folder: Path) -> Profile:
    from dflash_bench.ingest.sources import IngestOptions, ingest

    options = IngestOptions(
        profiles=run.profiles,
        run=run.name,
        arm=run.arm,
        workload=run.workload,
        settings={**host_settings(), **gpu_settings(), **session_settings()},
        captures=None if run.is_discarding else folder,
        findings=_killed(folder),
    )
    for left in folder.glob(f"*.{RUNNING}"):
        left.unlink()
    (profile,) = ingest(files, options)
    if run.is_discarding:
        shutil.rmtree(folder)
    for note in ("ingesting", *(f"rank{rank}.done" for rank in profile.info.ranks)):
        (profile.path / "captures" / note).unlink(missing_ok=True)
    return profile


def _ending(end: ChildEnd) -> str:
    return f"exit code {end.code}" if end.code > 0 else f"signal {-end.code}"


def _with_place(error: BenchError, folder: Path, left: Path | None) -> BenchError:
    """The same error; it says where what was recorded is, if anything was."""
    if left is None:
        return error
    text = error.text.replace(str(folder.resolve()), str(left))
    hint = f"what was recorded is in {left}"
    return type(error)(text, hint=f"{error.hint}; {hint}" if error.hint else hint)
