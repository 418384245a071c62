"""``dflash-bench run``: record arms of the built-in decode loop."""

from __future__ import annotations

import re
import shlex
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from dflash_bench.cli.completion import offer_arms, offer_workloads
from dflash_bench.cli.console import stderr, stdout
from dflash_bench.cli.options import DEFAULT_PROFILES, NsysPath, ProfilesFolder
from dflash_bench.errors import ExitCode
from dflash_bench.run.request import Backend, LoopDevice, Reports, RunRequest

if TYPE_CHECKING:
    from dflash_bench.profile import Profile
    from dflash_bench.run.plan import RunPlan


def run(
    arm: Annotated[
        list[str],
        typer.Option(autocompletion=offer_arms, help="Arm to run: a name, or NAME,switch=value. Repeat for several."),
    ],
    workload: Annotated[
        str, typer.Option(autocompletion=offer_workloads, help="Workload: a name or a TOML file.")
    ] = "smoke",
    ranks: Annotated[int, typer.Option(min=1, help="Processes, one a rank.")] = 2,
    steps: Annotated[int | None, typer.Option(min=1, help="Decode steps of a run of one arm. Default: 400.")] = None,
    seed: Annotated[int, typer.Option(min=0, help="Decides requests, lengths and accepted tokens.")] = 0,
    repeats: Annotated[
        int | None, typer.Option(min=1, help="Runs of each arm (default: 1), or processes of a duet (default: 2).")
    ] = None,
    apart: Annotated[
        bool, typer.Option("--apart", help="Several arms: a run of each, taking turns, instead of a duet.")
    ] = False,
    block: Annotated[int, typer.Option(min=1, help="Steps of a duet between two changes of the arm.")] = 20,
    pairs: Annotated[int, typer.Option(min=1, help="Blocks of each arm in a process of a duet.")] = 30,
    against: Annotated[
        str | None, typer.Option(metavar="REF", help="A duet of the code here with that of a git ref, on one arm.")
    ] = None,
    against_python: Annotated[
        Path | None, typer.Option(metavar="PATH", help="The same with the code of another Python environment.")
    ] = None,
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
            metavar="RANK:MICROSECONDS[:ARM]",
            help="Keep the host of one rank busy for so long in every prepare_for_decode; of one arm of a duet.",
        ),
    ] = None,
    device: Annotated[
        LoopDevice, typer.Option(help="What the ranks decode on; several may share a GPU.")
    ] = LoopDevice.AUTO,
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
    """Run arms of the built-in decode loop on N ranks, record them, and ingest each run into a profile.

    Several arms are a duet: they share each process and take turns block by block, in an order drawn anew for every
    pair of blocks, so that whatever slows the machine for seconds slows both. One profile then holds all arms.
    Records with nsys when a usable one is found, otherwise with the built-in recorder, and says which and why. After
    each run every emitted range is looked for in the capture. Of several runs, one that fails does not stop the others.
    Ctrl-C ends the ranks and keeps what is whole.
    """
    from dflash_bench.cli.run_console import RunConsole
    from dflash_bench.run.make import make_runs
    from dflash_bench.run.plan import plan_runs

    request = RunRequest(
        tuple(arm),
        workload,
        ranks,
        steps,
        seed,
        repeats,
        apart,
        block,
        pairs,
        against,
        against_python,
        unprofiled=unprofiled,
        verify=verify,
        check=check,
        delay=delay,
        device=device,
        backend=backend,
        recorder=recorder,
        reports=reports,
        timeout=timeout,
        allow_missing=allow_missing,
        discard_captures=discard_captures,
        nsys=nsys,
        name=name,
        profiles=profiles,
    )
    plan = plan_runs(request)
    if dry_run:
        _show(plan)
        return
    made = make_runs(plan, RunConsole())
    if made.is_interrupted:
        whole = f" ({len(made.profiles)} of {len(plan.runs)} runs)" if len(plan.runs) > 1 else ""
        stderr.print(f"interrupted: what was whole is kept{whole}")
        raise typer.Exit(ExitCode.INTERRUPTED)
    if made.profiles:
        _say_next(plan, made.profiles)
    made.require_all(plan)


def _show(plan: RunPlan) -> None:
    """The commands of all runs, in order."""
    from dflash_bench.capture.nsys_command import shell_line
    from dflash_bench.run.launch import launch_command

    stderr.print(plan.choice.text, markup=False)
    for run in plan.runs:
        for launch in plan.launches(run, plan.request.profiles / run.name / "captures"):
            command = launch_command(launch)
            variables = {key: value for key, value in command.environment.items() if value is not None}
            stdout.out(shell_line(command.line, variables))


def _say_next(plan: RunPlan, done: Sequence[Profile]) -> None:
    """The command that a person most likely wants now: it can be pasted."""
    sides = [[p for p in done if p.info.arm == arm] for arm in plan.request.arms]
    sides = [side for side in sides if side] or [list(done)]
    verb = "compare" if len(sides) > 1 or plan.request.is_duet else "metrics"
    line = ["dflash-bench", verb, *(_word(side) for side in (_base_first(sides) if verb == "compare" else sides[:1]))]
    stdout.print(f"next: {shlex.join(line)}", markup=False, soft_wrap=True)


def _word(side: Sequence[Profile]) -> str:
    """The runs of one side as one word: a pattern where it means these and no others, else their names."""
    first = side[0].path
    pattern = re.sub(r"-r\d+$", "-r*", first.name)
    if len(side) > 1 and {p.path for p in side} == set(first.parent.glob(pattern)):
        return str(first.parent / pattern)
    return ",".join(str(p.path) for p in side)


def _base_first(sides: Sequence[Sequence[Profile]]) -> list[Sequence[Profile]]:
    """The first two in the order of the ladder of arms, on which every rung adds a change to the one before."""
    from dflash_prep.arms import ARMS

    ladder = [*ARMS]
    return sorted(sides[:2], key=lambda side: ladder.index((side[0].info.arm or ladder[0]).partition(",")[0]))
