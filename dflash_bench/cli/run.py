"""``dflash-bench run``: record arms of the built-in decode loop."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING, Annotated

import typer

from dflash_bench.capture.launch import Backend, Device, Launch, LoopOptions, Reports, launch_command
from dflash_bench.cli.console import stderr, stdout
from dflash_bench.cli.options import DEFAULT_PROFILES, NsysPath, ProfilesFolder
from dflash_bench.errors import CaptureError, ExitCode, UsageError

if TYPE_CHECKING:
    from dflash_bench.capture.choice import RecorderChoice
    from dflash_bench.cli.ladder import Planned
    from dflash_bench.profile import Profile


def run(
    arm: Annotated[list[str], typer.Option(help="Arm to run: a name, or NAME,switch=value. Repeat for several.")],
    workload: Annotated[str, typer.Option(help="Workload: a name or a TOML file.")] = "smoke",
    ranks: Annotated[int, typer.Option(min=1, help="Processes, one a rank.")] = 2,
    steps: Annotated[int, typer.Option(min=1, help="Decode steps of each run.")] = 400,
    seed: Annotated[int, typer.Option(min=0, help="Decides requests, lengths and accepted tokens.")] = 0,
    repeats: Annotated[int, typer.Option(min=1, help="Runs of each arm; the arms take turns.")] = 1,
    unprofiled: Annotated[
        bool, typer.Option("--unprofiled", help="Run each once more without any tool: shows what tracing costs.")
    ] = False,
    verify: Annotated[bool, typer.Option("--verify", help="Compare all tokens with the oracle's after a run.")] = False,
    check: Annotated[
        bool, typer.Option("--check", help="Check every allocation step; the host waits for it, so steps get slower.")
    ] = False,
    delay: Annotated[
        str | None,
        typer.Option(
            metavar="RANK:MICROSECONDS", help="Keep the host of one rank busy for so long in every prepare_for_decode."
        ),
    ] = None,
    device: Annotated[Device, typer.Option(help="What the ranks decode on; several may share a GPU.")] = Device.AUTO,
    backend: Annotated[Backend, typer.Option(help="What carries the agreement of the ranks.")] = Backend.GLOO,
    nsys: NsysPath = None,
    recorder: Annotated[bool, typer.Option("--recorder", help="Record with the built-in recorder, not nsys.")] = False,
    reports: Annotated[Reports, typer.Option(help="One nsys report per rank, or one for all.")] = Reports.PER_RANK,
    name: Annotated[str | None, typer.Option(help="Name of the run; with several, the arm is added.")] = None,
    profiles: ProfilesFolder = DEFAULT_PROFILES,
    timeout: Annotated[float, typer.Option(min=1, help="Seconds without a sign of life before a run is ended.")] = 300,
    allow_missing: Annotated[bool, typer.Option("--allow-missing", help="Ingest even when ranges were lost.")] = False,
    discard_captures: Annotated[
        bool, typer.Option("--discard-captures", help="Do not keep the raw captures beside the profile.")
    ] = False,
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Show the commands, run nothing.")] = False,
) -> None:
    """Run arms of the built-in decode loop on N ranks, record them, and ingest each into a profile.

    Records with nsys when a usable one is found, otherwise with the built-in recorder, and says which and why. After
    each run every emitted range is looked for in the capture. Of several runs, one that fails does not stop the others.
    Ctrl-C ends the ranks and keeps what is whole.
    """
    from dflash_bench.capture.choice import choose_here
    from dflash_bench.capture.launch import require_torch
    from dflash_bench.capture.supervise import Limits
    from dflash_bench.cli.ladder import Names, Settings, make_all, planned

    require_torch()
    arms, workload_name = _validated(arm, workload)
    choice = choose_here(nsys, is_builtin_asked=recorder)
    options = LoopOptions(device, backend, is_verified=verify, is_checked=check, delay=_valid_delay(delay, ranks))
    launch = Launch(arms[0], workload, ranks, steps, seed, Path(), choice, reports, options=options)
    runs = planned(launch, arms, repeats, Names(profiles, workload_name, name))
    stderr.print(choice.text, markup=False)
    if dry_run:
        _show(runs, profiles, unprofiled=unprofiled)
        return
    settings = Settings(
        profiles,
        Limits(silence_s=timeout),
        allow_missing,
        discard_captures,
        workload_name,
        unprofiled,
        _range_cost(choice) if unprofiled else None,
        Path(workload).read_text(encoding="utf-8") if workload.endswith(".toml") else None,
    )
    ladder = make_all(runs, settings)
    if ladder.is_interrupted:
        whole = f" ({len(ladder.profiles)} of {len(runs)} runs)" if len(runs) > 1 else ""
        stderr.print(f"interrupted: what was whole is kept{whole}")
        raise typer.Exit(ExitCode.INTERRUPTED)
    if ladder.profiles:
        _say_next(ladder.profiles)
    ladder.require_all(len(runs))


def _validated(arms: list[str], workload: str) -> tuple[list[str], str]:
    """Arms in their canonical spelling and the workload's name. Raises UsageError for an unknown one."""
    from dflash_prep.arms import ArmError, parse_arm
    from dflash_prep.workload import WorkloadError, load

    try:
        return [parse_arm(text).name for text in arms], load(workload).name
    except ArmError as error:
        raise UsageError(str(error), hint="python -m dflash_prep.loop --list shows all of them") from None
    except WorkloadError as error:
        raise UsageError(str(error), hint="python -m dflash_prep.loop --list shows the named ones") from None


def _valid_delay(delay: str | None, ranks: int) -> str | None:
    """The delay in its canonical spelling. Raises UsageError for no ``RANK:MICROSECONDS`` or a rank that is not run."""
    if delay is None:
        return None
    rank, _, us = delay.partition(":")
    if not all(part.isascii() and part.isdecimal() for part in (rank, us)):
        raise UsageError(f"--delay {delay} is not RANK:MICROSECONDS", hint="two whole numbers, such as --delay 2:150")
    if int(rank) >= ranks:
        raise UsageError(f"--delay {delay}: the ranks of this run are 0 to {ranks - 1}", hint="--ranks N runs more")
    return f"{int(rank)}:{int(us)}"


def _range_cost(choice: RecorderChoice) -> float | None:
    """Measured once for all runs; that it could not be is said, and stops nothing."""
    from dflash_bench.capture.range_cost import range_cost_ns

    with TemporaryDirectory(prefix="dflash-bench-") as folder:
        try:
            return range_cost_ns(choice, Path(folder))
        except CaptureError as error:
            stderr.print(f"warning: {error.text}", markup=False)
            return None


def _show(runs: Sequence[Planned], profiles: Path, *, unprofiled: bool) -> None:
    """The commands of all runs, in order."""
    for each in runs:
        folder = profiles / each.run / "captures"
        _show_one(dataclasses.replace(each.launch, folder=folder))
        if unprofiled:
            _show_one(dataclasses.replace(each.launch, folder=folder / "unprofiled", is_unprofiled=True))


def _show_one(launch: Launch) -> None:
    from dflash_bench.capture.nsys_command import shown

    command = launch_command(launch)
    variables = {key: value for key, value in command.environment.items() if value is not None}
    stdout.out(shown(command.line, variables))


def _say_next(done: Sequence[Profile]) -> None:
    if len(done) == 1:
        text = f"dflash-bench metrics {done[0].path}"
    else:
        base, candidate = _base_first(done[0], done[1])
        text = f"dflash-bench compare {base.path} {candidate.path}"
    stdout.print(f"next: {text}", markup=False, soft_wrap=True)


def _base_first(one: Profile, other: Profile) -> tuple[Profile, Profile]:
    """The pair in the order of the ladder of arms, on which every rung adds a change to the one before."""
    from dflash_prep.arms import ARMS

    ladder = [*ARMS]
    first, second = sorted((one, other), key=lambda p: ladder.index((p.info.arm or ladder[0]).partition(",")[0]))
    return first, second
