"""What a profile keeps of how its run was asked for is enough to ask for the same again, option by option."""

from __future__ import annotations

import inspect
from dataclasses import fields, replace
from pathlib import Path
from typing import Any

import pytest
import typer
from simulated_runs import run as simulated

from dflash_bench.capture.choice import RecorderChoice
from dflash_bench.capture.nsys import NsysTool
from dflash_bench.capture.supervise import ChildEnd
from dflash_bench.cli import app
from dflash_bench.cli.run import run
from dflash_bench.errors import UsageError
from dflash_bench.model import RunInfo
from dflash_bench.run import make, request
from dflash_bench.run.make import MadeRuns, RunListener, make_again
from dflash_bench.run.plan import PlannedRun, RunPlan
from dflash_bench.run.record import RunCapture
from dflash_bench.run.request import Backend, LoopDevice, Reports, RunRequest, is_repeatable, request_of

NOT_OF_THE_RUN = {"repeats", "apart", "against", "against_python", "nsys", "name", "profiles"}
"""Options that say how many runs are made, where they go, and where a tool lies on this machine."""

NSYS = RecorderChoice(NsysTool(Path("/opt/nsys"), (2025, 3, 1, 0), Path("/opt/QdstrmImporter")), "found here")
BUILTIN = RecorderChoice(None, "asked for with --recorder")
USUAL = RunRequest(("control",))
UNUSUAL = RunRequest(
    ("topup,topup_pages=4",), "churn", 3, 77, 5, unprofiled=True, verify=True, check=True, delay="1:150",
    device=LoopDevice.SIMULATED, backend=Backend.NCCL, reports=Reports.ONE, timeout=44.5, allow_missing=True,
    discard_captures=True,
)  # fmt: skip
DUET = replace(UNUSUAL, arms=("topup,topup_pages=4", "legacy"), steps=None, block=7, pairs=9)
"""Another value than the default in every option."""


def kept(request: RunRequest, choice: RecorderChoice = NSYS, workload_toml: str | None = None) -> RunInfo:
    """The run as its profile describes it."""
    workload = Path(request.workload).stem
    planned = PlannedRun("n", request.arms, 1, 1)
    plan = RunPlan(request, choice, workload, workload_toml, "ladder", (planned,))
    settings = make._Maker(plan, RunListener(), None)._settings(planned, RunCapture((), (), (), ChildEnd(0)), {})
    arm = None if request.is_duet else planned.arms[0]
    return replace(simulated([]).info, arm=arm, workload=workload, settings=settings)


def usual() -> RunInfo:
    return kept(USUAL)


def parsed(words: list[str]) -> dict[str, Any]:
    """What `dflash-bench run` is called with when these words are typed."""
    command = typer.main.get_command(app).commands["run"]  # type: ignore[attr-defined]
    found: dict[str, Any] = command.make_context("run", list(words)).params
    return found


def test_every_option_of_run_is_one_of_a_request_and_kept_or_known_not_to_matter() -> None:
    options = set(inspect.signature(run).parameters) - {"dry_run"} - {"arm"} | {"arms"}
    assert options == {f.name for f in fields(RunRequest)}
    assert options - NOT_OF_THE_RUN - {"arms", "workload", "recorder"} == set(request._KEPT), "keep a new option"


@pytest.mark.parametrize("asked", [UNUSUAL, DUET], ids=["apart", "duet"])
@pytest.mark.parametrize("choice", [NSYS, BUILTIN], ids=["nsys", "recorder"])
def test_no_option_is_lost(choice: RecorderChoice, asked: RunRequest) -> None:
    """Each differs from its default here, or this test would not see it go."""
    same = {f.name for f in fields(RunRequest) if getattr(asked, f.name) == getattr(USUAL, f.name)}
    assert same == NOT_OF_THE_RUN | {"recorder"} | ({"steps"} if asked is DUET else {"block", "pairs"})
    is_builtin = choice is BUILTIN
    wanted = replace(asked, recorder=is_builtin, reports=Reports.PER_RANK if is_builtin else Reports.ONE)
    assert request_of(kept(asked, choice)) == wanted, "reports are nsys' matter"


@pytest.mark.parametrize("info", [kept(UNUSUAL), kept(DUET), kept(UNUSUAL, BUILTIN), usual()])
def test_the_words_to_type_mean_the_same(info: RunInfo) -> None:
    words = request_of(info).words
    assert words[:2] == ["dflash-bench", "run"]
    typed = parsed(words[2:])
    own = {f.name: getattr(request_of(info), f.name) for f in fields(RunRequest)}
    assert typed.pop("dry_run") is False
    assert tuple(typed.pop("arm")) == own.pop("arms")
    assert typed == own


def test_what_is_the_default_is_not_typed() -> None:
    assert " ".join(request_of(usual()).words) == (
        "dflash-bench run --arm control --workload smoke --ranks 2 --steps 400 --seed 0"
    )


def asked_again(monkeypatch: pytest.MonkeyPatch) -> list[tuple[RunRequest, str]]:
    """The requests that are made from now on, and what their workload's file says; none is carried out."""
    seen: list[tuple[RunRequest, str]] = []

    def make_runs(asked: RunRequest, _listener: object) -> MadeRuns:
        file = Path(asked.workload)
        seen.append((asked, file.read_text() if file.exists() else ""))
        return MadeRuns(("a profile",), (), is_interrupted=False)  # type: ignore[arg-type]

    monkeypatch.setattr(make, "plan_runs", lambda asked: asked)
    monkeypatch.setattr(make, "make_runs", make_runs)
    return seen


@pytest.mark.parametrize(("choice", "nsys"), [(NSYS, Path("/opt/nsys")), (BUILTIN, None)])
def test_another_run_is_asked_for_with_all_of_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, choice: RecorderChoice, nsys: Path | None
) -> None:
    """An nsys named for the gate records it where the first run was recorded with one."""
    seen = asked_again(monkeypatch)
    info = kept(UNUSUAL, choice)
    make_again(info, tmp_path, Path("/opt/nsys"))
    ((found, _),) = seen
    assert found == replace(request_of(info), nsys=nsys, profiles=tmp_path, name=found.name)
    assert found.name is not None
    assert found.name.startswith("churn-topup-topup_pages-4-again-")


def test_a_run_that_does_not_say_its_steps_cannot_be_made_again(tmp_path: Path) -> None:
    silent = replace(usual(), settings={"ranks": 2, "seed": 0})
    assert not is_repeatable(silent)
    with pytest.raises(UsageError, match="was not made by `dflash-bench run`"):
        make_again(silent, tmp_path)


def test_profiles_of_earlier_versions_have_the_defaults_for_what_they_do_not_say() -> None:
    old = replace(usual(), settings={"ranks": 2, "seed": 0, "steps_asked": 400, "recorder": "nsys", "reports": None})
    assert request_of(old) == request_of(usual())


def test_a_workload_from_a_file_is_made_again_from_its_text(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The file may be gone, or say something else by now."""
    seen = asked_again(monkeypatch)
    info = kept(replace(USUAL, workload="somewhere/few.toml"), workload_toml="a = 1")
    make_again(info, tmp_path)
    assert [(Path(asked.workload).name, text) for asked, text in seen] == [("few.toml", "a = 1")]
    assert "--workload few.toml" in " ".join(request_of(info).words)
