"""``dflash-bench calibrate``: how quiet is this machine?"""

from __future__ import annotations

import dataclasses
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from dflash_bench.cli.completion import offer_arms, offer_runs, offer_workloads
from dflash_bench.cli.console import reading_progress, stderr, stdout
from dflash_bench.cli.files import write_whole
from dflash_bench.cli.gate import PolicyFile
from dflash_bench.cli.options import (
    DEFAULT_PROFILES,
    AgreementRange,
    NsysPath,
    PresetName,
    ProfilesFolder,
    RankPattern,
    StepRange,
    chosen_pattern,
    chosen_reading,
)
from dflash_bench.errors import ExitCode, UsageError
from dflash_bench.run.request import RunRequest

if TYPE_CHECKING:
    from collections.abc import Sequence

    from dflash_bench.gate.calibration import Floor
    from dflash_bench.ingest.sources import IngestOptions
    from dflash_bench.model import RunInfo
    from dflash_bench.profile import Profile
    from dflash_bench.report.sheets import Sheet


def calibrate(
    runs: Annotated[
        list[str] | None, typer.Argument(autocompletion=offer_runs, help="Runs of one arm. Without: they are made now.")
    ] = None,
    arm: Annotated[str, typer.Option(autocompletion=offer_arms, help="Arm to run, without RUNS.")] = "control",
    workload: Annotated[
        str, typer.Option(autocompletion=offer_workloads, help="Workload to run, without RUNS.")
    ] = "smoke",
    ranks: Annotated[int, typer.Option(min=1, help="Processes, one a rank.")] = 2,
    steps: Annotated[int, typer.Option(min=1, help="Decode steps of each run.")] = 400,
    seed: Annotated[int, typer.Option(min=0, help="Decides requests, lengths and accepted tokens.")] = 0,
    repeats: Annotated[int, typer.Option(min=4, help="Runs to make, without RUNS.")] = 10,
    recorder: Annotated[bool, typer.Option("--recorder", help="Record with the built-in recorder, not nsys.")] = False,
    gate_repeats: Annotated[int, typer.Option(min=2, help="Runs a side that the gate will have.")] = 5,
    policy: PolicyFile = None,
    output: Annotated[
        Path | None, typer.Option("--output", "-o", dir_okay=False, help="Write the policy to this TOML file.")
    ] = None,
    replace: Annotated[bool, typer.Option("--replace", help="Overwrite the file.")] = False,
    preset: PresetName = None,
    step_range: StepRange = None,
    agreement_range: AgreementRange = None,
    rank_pattern: RankPattern = None,
    nsys: NsysPath = None,
    profiles: ProfilesFolder = DEFAULT_PROFILES,
) -> None:
    """Measure the noise floor of every watched metric from runs of one arm: what the gate sees, and with how many runs.

    Tolerances are the policy's and stay as they are: what is acceptable, no noise says.
    """
    from dflash_bench.capture.folder import run_name
    from dflash_bench.gate.calibration import noise_floor, policy_toml
    from dflash_bench.gate.policy import load_policy
    from dflash_bench.ingest.sources import IngestOptions
    from dflash_bench.metrics.measure import measure
    from dflash_bench.report.console import rendered

    if output is not None and output.exists() and not replace:
        raise UsageError(f"{output} exists already", hint="choose another -o FILE, or pass --replace")
    rules = load_policy(policy)
    options = IngestOptions(profiles=profiles, rank_pattern=chosen_pattern(preset, rank_pattern), nsys=nsys)
    if runs:
        found = _named(runs, options)
    else:
        name = run_name(workload, arm, "calibrate")
        request = RunRequest((arm,), workload, ranks, steps, seed, repeats, recorder=recorder, nsys=nsys, name=name)
        found = _made(dataclasses.replace(request, profiles=profiles))
    reading = chosen_reading(preset, step_range, agreement_range)
    floors = noise_floor([measure(p, reading) for p in found], rules, gate_repeats)
    stdout.print(rendered(_sheet(floors, gate_repeats)))
    if output is not None:
        write_whole(output, policy_toml(floors, rules, gate_repeats, _about(found[0].info, len(found), gate_repeats)))
        stderr.print(f"next: dflash-bench gate RUNS --policy {output}", markup=False)


def _named(runs: Sequence[str], options: IngestOptions) -> list[Profile]:
    from dflash_bench.cli.sides import resolve_side
    from dflash_bench.environment import differences

    with reading_progress() as progress:
        found = [p for words in runs for p in resolve_side(words, options, progress)]
    arms = sorted({p.info.arm or "not stated" for p in found})
    wrong = [d.finding.text for d in differences([p.info for p in found], [found[0].info])]
    if len(arms) > 1 or wrong:
        text = "; ".join([*([f"the arms {', '.join(arms)}"] if len(arms) > 1 else []), *wrong])
        raise UsageError(f"calibration takes runs that are alike: {text}")
    return found


def _made(request: RunRequest) -> list[Profile]:
    from dflash_bench.cli.run_console import RunConsole
    from dflash_bench.run.make import make_runs
    from dflash_bench.run.plan import plan_runs

    plan = plan_runs(request)
    made = make_runs(plan, RunConsole())
    if made.is_interrupted:
        raise typer.Exit(ExitCode.INTERRUPTED)
    made.require_all(plan)
    return list(made.profiles)


def _sheet(floors: Sequence[Floor], repeats: int) -> Sheet:
    from dflash_bench.report.sheets import Sheet

    rows = tuple(
        (
            f.metric,
            f.kind,
            str(f.runs),
            _percent(f.spread),
            _percent(f.tolerance),
            _percent(f.detectable),
            "> 20" if f.needed is None else str(f.needed),
        )
        for f in floors
    )
    columns = ("metric", "share of", "runs", "spread", "tolerance", "seen", "runs needed")
    note = (
        f"spread: standard deviation between runs, of the worst rank; seen: by {repeats} runs a side, 9 times in 10;"
        " runs needed: on each side, to see twice the tolerance"
    )
    return Sheet("Noise floor", columns, rows, left=("metric", "share of"), note=note)


def _percent(share: float) -> str:
    return f"{100 * share:.2f} %"


def _about(info: RunInfo, num: int, repeats: int) -> str:
    return (
        f"Noise measured by dflash-bench calibrate on {num} runs of arm {info.arm}, workload {info.workload},\n"
        f"{info.world or len(info.ranks)} ranks, device {info.device}, {info.created_utc[:10]};\n"
        f"for {repeats} runs a side."
    )
