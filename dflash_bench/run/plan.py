"""The runs of one request, checked and in order, before any of them is made."""

from __future__ import annotations

import importlib.util
import secrets
import sys
from collections.abc import Iterator
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from pathlib import Path

from dflash_bench.capture.choice import RecorderChoice, choose_here
from dflash_bench.capture.folder import folder_word, free_name, run_name
from dflash_bench.errors import UsageError
from dflash_bench.run.launch import Launch
from dflash_bench.run.request import RunRequest


@dataclass(frozen=True, slots=True)
class PlannedRun:
    """A run to make. ``arms``: one, or those of a duet. ``repeat`` counts the runs of an arm from 1, ``position`` all
    runs in their order.
    """

    name: str
    arms: tuple[str, ...]
    repeat: int
    position: int


@dataclass(frozen=True, slots=True)
class RunPlan:
    """What is made for a request. ``workload`` is its name, ``workload_toml`` its text where it is a file.

    ``ladder`` is one word for all runs, which ``run.json`` keeps: by it all runs of an arm are found together.
    """

    request: RunRequest
    choice: RecorderChoice
    workload: str
    workload_toml: str | None
    ladder: str
    runs: tuple[PlannedRun, ...]

    def launches(self, run: PlannedRun, folder: Path) -> Iterator[Launch]:
        """How a run of the installed code is started, and how once more without any tool where that is asked for."""
        launch = Launch(self.request, run.arms, folder, self.choice, order_seed=1000 * self.request.seed + run.repeat)
        yield launch
        if self.request.unprofiled:
            yield replace(launch, folder=folder / "unprofiled", is_unprofiled=True)


def plan_runs(request: RunRequest) -> RunPlan:
    """All runs in order: the arms take turns, so that a drift of the machine hits all of them alike.

    Raises UsageError when the loop cannot run here, when an arm, the workload or the delay is none, and when a name
    cannot be had; CaptureError when an nsys was asked for that cannot be used.
    """
    _require_loop()
    arms, workload = _known(request)
    choice = choose_here(request.nsys, is_builtin_asked=request.recorder)
    request = replace(request, arms=arms, delay=_checked_delay(request.delay, request.ranks, arms))
    if len(set(arms)) < len(arms):
        raise UsageError("an arm is named twice", hint="--repeats N makes further runs of every arm")
    if request.is_against and len(arms) > 1:
        raise UsageError("--against holds two versions of one arm against each other", hint="name one --arm")
    if request.is_against and request.unprofiled:
        raise UsageError("--unprofiled and --against cannot be combined", hint="leave one of them out")
    if request.is_duet and request.steps is not None:
        raise UsageError(
            f"--steps: a duet decodes {request.pairs} × {request.block} steps of each arm (--pairs, --block)",
            hint="--apart makes a run of each arm, of so many steps",
        )
    alone = [arms] if request.is_duet else [(arm,) for arm in arms]
    turns = [(repeat, own) for repeat in range(1, request.num_repeats + 1) for own in alone]
    runs = (
        PlannedRun(_name(request, workload, own, repeat), own, repeat, position)
        for position, (repeat, own) in enumerate(turns, start=1)
    )
    text = Path(request.workload).read_text(encoding="utf-8") if request.workload.endswith(".toml") else None
    ladder = f"{datetime.now(UTC):%Y%m%dT%H%M%SZ}-{secrets.token_hex(3)}"
    return RunPlan(request, choice, workload, text, ladder, tuple(runs))


def _require_loop() -> None:
    for module in ("torch", "dflash_prep"):
        if importlib.util.find_spec(module) is None:
            raise UsageError(
                f"the built-in decode loop needs {module}, which is not installed in {sys.prefix}",
                hint='pip install "dflash-bench[impl]"',
            )


def _known(request: RunRequest) -> tuple[tuple[str, ...], str]:
    """Arms in their canonical spelling and the workload's name."""
    from dflash_prep.arms import ArmError, parse_arm
    from dflash_prep.workload import WorkloadError, load

    try:
        return tuple(parse_arm(text).name for text in request.arms), load(request.workload).name
    except ArmError as error:
        raise UsageError(str(error), hint="python -m dflash_prep.loop --list shows all of them") from None
    except WorkloadError as error:
        raise UsageError(str(error), hint="python -m dflash_prep.loop --list shows the named ones") from None


def _checked_delay(delay: str | None, ranks: int, arms: tuple[str, ...]) -> str | None:
    """In its canonical spelling. Raises UsageError for no ``RANK:MICROSECONDS[:ARM]``, or what is not run."""
    if delay is None:
        return None
    rank, us, arm = (*delay.split(":", 2), "", "")[:3]
    if not all(part.isascii() and part.isdecimal() for part in (rank, us)):
        raise UsageError(f"--delay {delay} is not RANK:MICROSECONDS", hint="two whole numbers, such as --delay 2:150")
    if int(rank) >= ranks:
        raise UsageError(f"--delay {delay}: the ranks of this run are 0 to {ranks - 1}", hint="--ranks N runs more")
    if arm and arm not in arms:
        raise UsageError(f"--delay {delay}: the arms of this run are {' and '.join(arms)}", hint="--arm ARM runs more")
    return f"{int(rank)}:{int(us)}{f':{arm}' if arm else ''}"


def _against(request: RunRequest) -> list[str]:
    return ["against", request.against or "python"] if request.is_against else []


def _name(request: RunRequest, workload: str, arms: tuple[str, ...], repeat: int) -> str:
    """After ``--name`` where one is given, else after workload, arms and time."""
    from dflash_bench.ingest.build import check_run_name

    suffix = "" if request.num_repeats == 1 else f"-r{repeat}"
    if request.name is None:
        name = free_name(request.profiles, run_name(workload, *arms, *_against(request)) + suffix)
    else:
        name = (request.name if arms == request.arms else f"{request.name}-{folder_word(arms[0])}") + suffix
    check_run_name(name)
    if (request.profiles / name).exists():
        raise UsageError(f"{request.profiles / name} exists already", hint="choose another --name")
    return name
