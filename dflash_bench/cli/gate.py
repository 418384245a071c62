"""``dflash-bench gate``: may this change be merged?"""

from __future__ import annotations

import os
import shlex
from contextlib import nullcontext
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from dflash_bench.cli.completion import offer_arms, offer_runs, offer_workloads
from dflash_bench.cli.console import reading_progress, stderr, stdout
from dflash_bench.cli.files import write_whole
from dflash_bench.cli.gate_against import duet_runs, further_runs, told_to_git
from dflash_bench.cli.options import (
    DEFAULT_PROFILES,
    AgreementRange,
    AsJson,
    NsysPath,
    PresetName,
    ProfilesPlace,
    RankPattern,
    StepRange,
    chosen_pattern,
    chosen_reading,
)
from dflash_bench.cli.sides import measure_all, resolve_side
from dflash_bench.cli.urls import with_urls
from dflash_bench.errors import DataError, UsageError
from dflash_bench.run.request import LoopDevice, RunRequest

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from dflash_bench.baseline.runs import Baseline
    from dflash_bench.gate.decision import Decision
    from dflash_bench.gate.policy import Policy
    from dflash_bench.gate.self_test import Trial
    from dflash_bench.ingest.sources import IngestOptions
    from dflash_bench.metrics.reading import Reading
    from dflash_bench.model import RunInfo, RunMetrics, Sides
    from dflash_bench.profile import Profile

PolicyFile = Annotated[
    Path | None, typer.Option(help="Policy: a TOML file, or a pyproject.toml. Default: pyproject.toml here, if any.")
]


@with_urls("candidate", "base")
def gate(
    candidate: Annotated[
        str | None,
        typer.Argument(autocompletion=offer_runs, help="Runs of one arm: names, a pattern, captures, or a folder."),
    ] = None,
    base: Annotated[
        str | None,
        typer.Option(autocompletion=offer_runs, help="Runs to hold it against. Default: the baseline of its key."),
    ] = None,
    against: Annotated[
        str | None,
        typer.Option(metavar="REF", help="Instead of RUNS: hold the code here against a git ref, in turns, now."),
    ] = None,
    against_python: Annotated[
        Path | None, typer.Option(metavar="PATH", help="The same against another Python environment.")
    ] = None,
    arm: Annotated[str, typer.Option(autocompletion=offer_arms, help="Arm to run with --against.")] = "control",
    workload: Annotated[
        str, typer.Option(autocompletion=offer_workloads, help="Workload to run with --against.")
    ] = "smoke",
    ranks: Annotated[int, typer.Option(min=1, help="Ranks of each version with --against.")] = 2,
    block: Annotated[int, typer.Option(min=1, help="Steps between two changes of the version.")] = 20,
    pairs: Annotated[int, typer.Option(min=1, help="Blocks of each version in a pair of processes.")] = 30,
    repeats: Annotated[int, typer.Option(min=1, help="Pairs of processes with --against.")] = 2,
    device: Annotated[LoopDevice, typer.Option(help="What is decoded on with --against.")] = LoopDevice.AUTO,
    recorder: Annotated[bool, typer.Option("--recorder", help="Record with the built-in recorder, not nsys.")] = False,
    bisect: Annotated[
        bool, typer.Option("--bisect", help="For `git bisect run`: exit 125, skip, where it cannot tell.")
    ] = False,
    baselines: Annotated[
        Path | None,
        typer.Option(
            envvar="DFLASH_BENCH_BASELINES", file_okay=False, help="Folder of the baselines. Default: the policy's."
        ),
    ] = None,
    policy: PolicyFile = None,
    reruns: Annotated[
        int | None,
        typer.Option(min=0, help="Further runs it may make while inconclusive. Default: the policy's budget."),
    ] = None,
    json: AsJson = False,
    junit: Annotated[Path | None, typer.Option(dir_okay=False, help="Also write JUnit XML.")] = None,
    comment: Annotated[
        Path | None, typer.Option(dir_okay=False, help="Also write a pull-request comment in Markdown.")
    ] = None,
    self_test: Annotated[
        bool, typer.Option("--self-test", help="Try the gate on the base itself: made worse it must fail, halved pass.")
    ] = False,
    inject: Annotated[
        list[str] | None, typer.Option(help="With --self-test: METRIC=SHARE to make worse, e.g. step.period=0.1.")
    ] = None,
    preset: PresetName = None,
    step_range: StepRange = None,
    agreement_range: AgreementRange = None,
    rank_pattern: RankPattern = None,
    nsys: NsysPath = None,
    profiles: ProfilesPlace = DEFAULT_PROFILES,
) -> None:
    """Judge runs against a baseline under a policy: exit 0 pass, 3 regression, 4 the data cannot tell.

    While it cannot tell it makes further runs by itself, up to a budget, when the candidate is a run of the built-in
    loop. In GitHub Actions it adds annotations and the step summary. --against needs no runs and no baseline: it makes
    a duet of the code here and the code it is held against.
    """
    from dflash_bench.gate.decision import run_gate
    from dflash_bench.gate.policy import load_policy
    from dflash_bench.ingest.sources import IngestOptions

    with told_to_git() if bisect else nullcontext():
        if inject and not self_test:
            raise UsageError("--inject says what --self-test makes worse", hint="add --self-test")
        request = RunRequest(
            (arm,),
            workload,
            ranks,
            repeats=repeats,
            block=block,
            pairs=pairs,
            against=against,
            against_python=against_python,
            device=device,
            recorder=recorder,
            nsys=nsys,
            profiles=profiles,
        )
        if (candidate is None) != request.is_against or (base is not None and request.is_against):
            raise UsageError("name the runs to judge, or a version to hold the code against", hint="--against REF")
        rules = load_policy(policy)
        rules = replace(
            rules,
            budget=rules.budget if reruns is None else reruns,
            baselines=rules.baselines if baselines is None else baselines,
        )
        options = IngestOptions(profiles=profiles, rank_pattern=chosen_pattern(preset, rank_pattern), nsys=nsys)
        reading = chosen_reading(preset, step_range, agreement_range)
        again: Callable[[int], Sides] | None
        if candidate is None:
            sides, again = _duet(request, reading)
        else:
            sides = _sides(candidate, base, rules, options, reading)
            again = _again(sides, options, reading)
        if self_test:
            _self_test(sides, rules, inject or [])
            return
        decision = run_gate(sides, rules, again, reading)
        _tell(decision, as_json=json, junit_file=junit, comment_file=comment)
        raise typer.Exit(decision.exit_code)


def _duet(request: RunRequest, reading: Reading) -> tuple[Sides, Callable[[int], Sides]]:
    """Both versions from runs made now, and how more are made."""
    from dflash_bench.model import Sides

    made = duet_runs(request)

    def sides() -> Sides:
        old, new = ([profile.of_arm(label) for profile in made] for label in request.labels)
        return Sides(measure_all(old, reading), measure_all(new, reading))

    def again(num: int) -> Sides:
        stderr.print(f"inconclusive: making {num} further pair{'s' * (num != 1)} of processes", markup=False)
        made.extend(further_runs(request, num))
        return sides()

    return sides(), again


def _sides(candidate: str, base: str | None, policy: Policy, options: IngestOptions, reading: Reading) -> Sides:
    from dflash_bench.baseline.folder import find
    from dflash_bench.model import Sides

    with reading_progress() as progress:
        new = resolve_side(candidate, options, progress)
        old = None if base is None else resolve_side(base, options, progress)
    for profile in (*new, *(old or ())):
        if profile.info.settings.get("interrupted"):
            raise UsageError(f"{profile.info.run} was interrupted: the gate takes whole runs only")
    if old is not None:
        if same := {(p.path, p.arm) for p in old} & {(p.path, p.arm) for p in new}:
            twice = ", ".join(sorted(path.name for path, _ in same))
            raise UsageError(f"{twice} stands on both sides", hint="name other runs with --base")
        return Sides(measure_all(old, reading), measure_all(new, reading))
    baseline = find(policy.baselines, new[0].info)
    if not baseline.runs:
        raise UsageError("the baseline holds no runs any more", hint=f"dflash-bench baseline save {new[0].info.run}")
    fresh = [p for p in new if p.info.run not in {r.run for r in baseline.runs}]
    if not fresh:
        raise UsageError(f"{candidate} is the baseline itself", hint="name a run that is not in it, or --base RUNS")
    return _against(baseline, measure_all(fresh, reading))


def _against(baseline: Baseline, candidate: tuple[RunMetrics, ...]) -> Sides:
    """The runs of the candidate's session, where the baseline has three or more of it; else all, of other sessions."""
    from dflash_bench.model import Sides
    from dflash_bench.session import Session

    sessions = {Session.of(run.info) for run in candidate}
    runs = baseline.run_metrics()
    own = tuple(run for run in runs if Session.of(run.info) in sessions)
    is_other = len(own) < 3
    return Sides(runs if is_other else own, candidate, baseline.figures(), is_baseline=True, is_other_session=is_other)


def _again(sides: Sides, options: IngestOptions, reading: Reading) -> Callable[[int], Sides] | None:
    """How further runs are made; None where the candidate is not a run of the built-in loop. The sides take turns."""
    from dflash_bench.cli.run_console import RunConsole
    from dflash_bench.metrics.measure import measure
    from dflash_bench.run.make import make_again
    from dflash_bench.run.request import is_repeatable, request_of

    new = sides.candidate[0].info
    old = None if sides.is_baseline else sides.base[0].info
    if not is_repeatable(new) or (old is not None and not is_repeatable(old)):
        return None

    def one_more(info: RunInfo) -> Profile:
        return make_again(info, options.profiles, options.nsys, RunConsole(stderr))

    def again(num: int) -> Sides:
        runs = f"{num} further run{'s' * (num != 1)} a side" if old else f"{num} further run{'s' * (num != 1)}"
        stderr.print(f"inconclusive: making {runs}: {shlex.join(request_of(new).words)}", markup=False, soft_wrap=True)
        base, candidate = list(sides.base), list(sides.candidate)
        for _ in range(num):
            if old is not None:
                base.append(measure(one_more(old), reading))
            candidate.append(measure(one_more(new), reading))
        return replace(sides, base=tuple(base), candidate=tuple(candidate))

    return again


def _tell(decision: Decision, *, as_json: bool, junit_file: Path | None, comment_file: Path | None) -> None:
    from dflash_bench.gate import github
    from dflash_bench.gate.as_json import gate_json
    from dflash_bench.gate.junit import junit
    from dflash_bench.gate.sheets import gate_report
    from dflash_bench.report.console import show

    if as_json:
        typer.echo(gate_json(decision))
    else:
        show(gate_report(decision), stdout)
    if junit_file is not None:
        write_whole(junit_file, junit(decision))
    if comment_file is not None:
        write_whole(comment_file, github.comment(decision))
    if summary := os.environ.get("GITHUB_STEP_SUMMARY"):
        with Path(summary).open("a", encoding="utf-8") as file:
            file.write(github.comment(decision))
    if os.environ.get("GITHUB_ACTIONS") == "true":
        for line in github.annotation_lines(decision):
            # the runner reads commands from both streams; stdout may be JSON
            typer.echo(line, err=True)


def _self_test(sides: Sides, policy: Policy, inject: Sequence[str]) -> None:
    from dflash_bench.gate.self_test import self_test

    trials = self_test(sides.base, policy, sides.history, _injected(inject))
    for trial in trials:
        sign = "ok  " if trial.is_passed else "BAD "
        line = f"{sign} {trial.name}: {trial.failed} of {trial.deals} deals fail, {_wanted(trial)}; {trial.text}"
        stdout.print(line, markup=False, soft_wrap=True)
    wrong = [t for t in trials if not t.is_passed]
    if wrong:
        raise DataError(
            f"the gate is not to be trusted on this baseline: {len(wrong)} of {len(trials)} trials went wrong",
            hint="dflash-bench calibrate RUNS says what this machine can see, and how many runs it takes",
        )


def _wanted(trial: Trial) -> str:
    return "wanted: nearly all" if trial.must_fail else "wanted: hardly any"


def _injected(texts: Sequence[str]) -> dict[str, float] | None:
    found = {}
    for text in texts:
        name, _, share = text.partition("=")
        try:
            found[name] = float(share)
        except ValueError:
            raise UsageError(f"--inject {text}: METRIC=SHARE, such as step.period=0.1") from None
        if not 0 < found[name] < 10:
            raise UsageError(f"--inject {text}: the share lies above 0 and below 10")
    return found or None
