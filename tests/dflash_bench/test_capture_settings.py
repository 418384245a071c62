"""What a profile keeps of how its run was asked for is enough to ask for the same again, option by option."""

from __future__ import annotations

import inspect
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import typer
from simulated_runs import run as simulated

from dflash_bench.capture.choice import RecorderChoice
from dflash_bench.capture.launch import Backend, Device, Launch, LoopOptions, Reports
from dflash_bench.capture.nsys import NsysTool
from dflash_bench.capture.record import RunCapture
from dflash_bench.capture.settings import asked, asked_words, is_repeatable, run_settings
from dflash_bench.capture.supervise import Limits, Outcome, Rung
from dflash_bench.cli import again, app
from dflash_bench.cli.ladder import Settings
from dflash_bench.cli.run import run
from dflash_bench.errors import UsageError
from dflash_bench.model import RunInfo

NOT_OF_THE_RUN = {"repeats", "nsys", "name", "profiles", "dry_run"}
"""Options that say how many runs are made, where they go, and where a tool lies on this machine."""

OPTIONS = LoopOptions(Device.SIMULATED, Backend.NCCL, is_verified=True, is_checked=True, delay="1:150")
NSYS = RecorderChoice(NsysTool(Path("/opt/nsys"), (2025, 3, 1, 0), Path("/opt/QdstrmImporter")), "found here")
BUILTIN = RecorderChoice(None, "asked for with --recorder")
UNUSUAL = Launch("topup,topup_pages=4", "churn", 3, 77, 5, Path(), NSYS, Reports.ONE, options=OPTIONS)
USUAL = Launch("control", "smoke", 2, 400, 0, Path(), NSYS)


def kept(launch: Launch, shared: Settings) -> RunInfo:
    """The run as its profile describes it."""
    capture = RunCapture((), (), (), Outcome(0, Rung.RUNNING))
    settings = {**run_settings(launch, capture, {}), **shared.kept}
    return replace(simulated([]).info, arm=launch.arm, workload=shared.workload, settings=settings)


def unusual(choice: RecorderChoice = NSYS) -> RunInfo:
    """A run that was asked for with another value than the default in every option."""
    shared = Settings(Path("p"), Limits(silence_s=44.5), True, True, "churn", is_unprofiled_too=True, range_cost_ns=1.0)
    return kept(replace(UNUSUAL, choice=choice), shared)


def usual() -> RunInfo:
    return kept(USUAL, Settings(Path("p"), Limits(), False, False, "smoke"))


def parsed(words: list[str]) -> dict[str, Any]:
    """What `dflash-bench run` is called with when these words are typed."""
    command = typer.main.get_command(app).commands["run"]  # type: ignore[attr-defined]
    found: dict[str, Any] = command.make_context("run", list(words)).params
    return found


def test_every_option_of_run_is_kept_or_known_not_to_matter() -> None:
    options = set(inspect.signature(run).parameters)
    assert options == set(asked(usual())) | NOT_OF_THE_RUN, "keep a new option in capture/settings.py"


def test_no_option_is_lost() -> None:
    """Each differs from its default here, or this test would not see it go."""
    found = {**asked(unusual()), "recorder": asked(unusual(BUILTIN))["recorder"]}
    assert found == {
        "arm": "topup,topup_pages=4",
        "workload": "churn",
        "ranks": 3,
        "steps": 77,
        "seed": 5,
        "unprofiled": True,
        "verify": True,
        "check": True,
        "delay": "1:150",
        "device": "simulated",
        "backend": "nccl",
        "recorder": True,
        "reports": "one",
        "timeout": 44.5,
        "allow_missing": True,
        "discard_captures": True,
    }
    defaults = {name: p.default for name, p in inspect.signature(run).parameters.items()}
    assert not [name for name, value in found.items() if value == defaults[name]]


@pytest.mark.parametrize("info", [unusual(), unusual(BUILTIN), usual()], ids=["unusual", "recorder", "usual"])
def test_the_words_to_type_mean_the_same(info: RunInfo) -> None:
    words = asked_words(info)
    assert words[:2] == ["dflash-bench", "run"]
    own = parsed(words[2:])
    assert {name: [value] if name == "arm" else value for name, value in asked(info).items()} == {
        name: value for name, value in own.items() if name not in NOT_OF_THE_RUN
    }


def test_what_is_the_default_is_not_typed() -> None:
    assert " ".join(asked_words(usual())) == (
        "dflash-bench run --arm control --workload smoke --ranks 2 --steps 400 --seed 0"
    )


@pytest.mark.parametrize(("choice", "nsys"), [(NSYS, Path("/opt/nsys")), (BUILTIN, None)])
def test_another_run_is_asked_for_with_all_of_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, choice: RecorderChoice, nsys: Path | None
) -> None:
    """An nsys named for the gate records it where the first run was recorded with one."""
    words: dict[str, Any] = {}
    monkeypatch.setattr(sys.modules["dflash_bench.cli.run"], "run", lambda **own: words.update(own))
    monkeypatch.setattr(sys.modules["dflash_bench.profile"], "open_profile", lambda path: path)
    info = unusual(choice)
    made = again.run_again(info, tmp_path, Path("/opt/nsys"))
    assert words == {
        **asked(info),
        "arm": ["topup,topup_pages=4"],
        "nsys": nsys,
        "name": Path(str(made)).name,
        "profiles": tmp_path,
    }
    assert isinstance(words["device"], Device)
    assert isinstance(words["reports"], Reports)


def test_a_run_that_does_not_say_its_steps_cannot_be_made_again(tmp_path: Path) -> None:
    silent = replace(usual(), settings={"ranks": 2, "seed": 0})
    assert not is_repeatable(silent)
    with pytest.raises(UsageError, match="was not made by `dflash-bench run`"):
        again.run_again(silent, tmp_path)


def test_profiles_of_earlier_versions_have_the_defaults_for_what_they_do_not_say() -> None:
    old = replace(usual(), settings={"ranks": 2, "seed": 0, "steps_asked": 400, "recorder": "nsys", "reports": None})
    assert asked(old) == asked(usual())


def test_a_workload_from_a_file_is_made_again_from_its_text(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The file may be gone, or say something else by now."""
    seen: list[tuple[str, str]] = []
    monkeypatch.setattr(
        sys.modules["dflash_bench.cli.run"],
        "run",
        lambda workload, **_: seen.append((Path(workload).name, Path(workload).read_text())),
    )
    monkeypatch.setattr(sys.modules["dflash_bench.profile"], "open_profile", lambda path: path)
    shared = Settings(Path("p"), Limits(), False, False, "few", workload_toml="a = 1")
    info = kept(replace(USUAL, workload="somewhere/few.toml"), shared)
    again.run_again(info, tmp_path)
    assert seen == [("few.toml", "a = 1")]
    assert "--workload few.toml" in " ".join(asked_words(info))
