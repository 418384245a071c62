"""The ladder of `dflash-bench run`: turns, names, and that a run that fails or is interrupted loses nothing else.

Runs are made by a stand-in for the recording that writes real captures, or fails as real ones do.
"""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import pytest
from fake_nvidia_smi import H200, install

from dflash_bench.capture.recorder import EventRecorder, Origin
from dflash_bench.capture.supervise import ChildEnd, Limits, Rung
from dflash_bench.errors import BenchError, CaptureError, UsageError
from dflash_bench.layout import STEPS
from dflash_bench.profile import open_profile
from dflash_bench.run import make
from dflash_bench.run.launch import Launch
from dflash_bench.run.ledger import LoopLedger
from dflash_bench.run.make import MadeRun, RunListener, make_runs
from dflash_bench.run.plan import RunPlan, plan_runs
from dflash_bench.run.record import RunCapture, RunInterruptedError
from dflash_bench.run.request import RunRequest

COLUMNS = [name for name in STEPS.names if name not in ("arm", "pair")]
STEP_LINES = f"{','.join(COLUMNS)}\n" + "".join(f"{k},{k},1000,36,0,0,0,0,,,,0\n" for k in range(3))


class Recording:
    """Stands in for `record`. ``fails`` maps (arm, is it unprofiled) to what happens instead of a whole run."""

    def __init__(self, fails: dict[tuple[str, bool], object]) -> None:
        self.fails, self.made, self.device = fails, list[tuple[str, bool]](), "cpu"

    def __call__(self, launch: Launch, on_progress: object, limits: Limits) -> RunCapture:
        self.made.append((",".join(launch.arms), launch.is_unprofiled))
        trouble = self.fails.get(self.made[-1])
        (launch.folder / "rank0.log").write_text("a log")
        if trouble == "crash":
            raise CaptureError(f"{launch.title}: rank 0 of 1 died", hint=f"see {launch.folder / 'rank0.log'}")
        if trouble == "stopped early":
            raise RunInterruptedError("interrupted before there was anything whole to keep")
        ticks = iter(range(0, 100_000, 1000))
        recorder = EventRecorder(launch.folder / "rank0.sqlite", origin=Origin(0, 0), clock=lambda: next(ticks))
        recorder.mark(f"dflash_bench rank=0 world=1 arm={launch.arms[0]}")
        for _ in range(3):
            recorder.push("decode_step")
            recorder.pop()
        files = ()
        if not launch.is_unprofiled:
            recorder.close()
            files = (recorder.path,)
        (launch.folder / "rank0.steps.csv").write_text(STEP_LINES)
        rung = Rung.INTERRUPTED if trouble == "stopped" else Rung.RUNNING
        return RunCapture(files, (self._ledger(launch),), (), ChildEnd(0, rung))

    def _ledger(self, launch: Launch) -> LoopLedger:
        return LoopLedger(
            rank=0, world=1, arm=launch.arms[0], switches={}, workload="smoke", seed=7, steps=3, interrupted=False,
            device=self.device, domain="dflash", ranges={"decode_step": 3}, marks=1, versions={}, counters={},
            checks={"verified_tokens": 12},
        )  # fmt: skip


class Told(RunListener):
    """Keeps what it is told."""

    def __init__(self) -> None:
        self.failures, self.runs = list[str](), list[str]()

    def on_failure(self, error: BenchError) -> None:
        self.failures.append(f"{error.text}\n{error.hint}")

    def on_run(self, made: MadeRun) -> None:
        self.runs.append(made.profile.path.name)


def plan(folder: Path, *arms: str, repeats: int = 1, unprofiled: bool = False, verify: bool = False) -> RunPlan:
    request = RunRequest(arms, ranks=1, steps=3, seed=7, repeats=repeats, unprofiled=unprofiled, verify=verify)
    return plan_runs(replace(request, apart=True, recorder=True, name="n", profiles=folder))


def record_with(monkeypatch: pytest.MonkeyPatch, **fails: str) -> Recording:
    found = Recording({(arm.removesuffix("_unprofiled"), arm.endswith("_unprofiled")): f for arm, f in fails.items()})
    monkeypatch.setattr(make, "record", found)
    monkeypatch.setattr(make, "range_cost_ns", lambda *_: 640.0)
    return found


def test_arms_take_turns_and_every_run_knows_its_ladder_its_repeat_and_its_position(tmp_path: Path) -> None:
    found = plan(tmp_path, "legacy", "topup", repeats=2)
    assert [(*r.arms, r.repeat, r.position) for r in found.runs] == [
        ("legacy", 1, 1),
        ("topup", 1, 2),
        ("legacy", 2, 3),
        ("topup", 2, 4),
    ]
    assert plan(tmp_path, "legacy").ladder != found.ladder
    with pytest.raises(UsageError, match="named twice"):
        plan(tmp_path, "legacy", "legacy")


def test_a_run_that_crashes_loses_nothing_else_and_is_told_at_the_end(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    recording = record_with(monkeypatch, topup="crash")
    planned, told = plan(tmp_path, "legacy", "topup", "bulk"), Told()
    done = make_runs(planned, told)
    assert recording.made == [("legacy", False), ("topup", False), ("bulk", False)]
    assert told.runs == ["n-legacy", "n-bulk"]
    assert [p.info.arm for p in done.profiles] == ["legacy", "bulk"]
    assert done.failed == ("n-topup",)
    with pytest.raises(CaptureError, match="1 of 3 runs failed: n-topup"):
        done.require_all(planned)
    assert "arm topup: rank 0 of 1 died" in told.failures[0]
    assert sorted(p.name for p in tmp_path.iterdir()) == ["n-bulk", "n-legacy", "n-topup.failed"]


def test_the_error_of_a_single_run_is_raised_as_it_is(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    record_with(monkeypatch, topup="crash")
    with pytest.raises(CaptureError, match="rank 0 of 1 died") as failure:
        make_runs(plan(tmp_path, "topup"))
    assert failure.value.hint == f"see {tmp_path / 'n.failed' / 'rank0.log'}"


@pytest.mark.parametrize(("trouble", "kept"), [("stopped", ["legacy", "topup"]), ("stopped early", ["legacy"])])
def test_ctrl_c_ends_the_ladder_and_keeps_what_is_whole(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, trouble: str, kept: list[str]
) -> None:
    recording = record_with(monkeypatch, topup=trouble)
    done = make_runs(plan(tmp_path, "legacy", "topup", "bulk", unprofiled=True))
    assert done.is_interrupted
    assert [p.info.arm for p in done.profiles] == kept
    assert recording.made == [("legacy", False), ("legacy", True), ("topup", False)], "nothing is started after it"


def test_each_arm_also_runs_without_a_tool_and_its_steps_come_into_the_same_profile(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    record_with(monkeypatch)
    planned = plan(tmp_path, "legacy", unprofiled=True)
    done = make_runs(planned)
    profile = open_profile(done.profiles[0].path)
    assert len(profile.frame("steps")) == len(profile.frame("unprofiled_steps")) == 3
    own = profile.info.settings
    assert own["range_cost_ns"] == 640.0
    assert (own["ladder"], own["repeat"], own["position"]) == (planned.ladder, 1, 1)
    assert (own["device_asked"], own["backend"], own["verify"], own["check"]) == ("auto", "gloo", False, False)
    assert own["verified_tokens"] == 12


def test_an_unprofiled_run_that_fails_leaves_the_recorded_one_whole_and_is_told(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    record_with(monkeypatch, legacy_unprofiled="crash")
    told = Told()
    done = make_runs(plan(tmp_path, "legacy", "topup", unprofiled=True), told)
    assert [p.info.arm for p in done.profiles] == ["legacy", "topup"]
    assert done.failed == ("n-legacy (unprofiled)",)
    assert [len(p.frame("unprofiled_steps")) for p in done.profiles] == [0, 3]
    log = tmp_path / "n-legacy" / "captures" / "unprofiled.failed" / "rank0.log"
    assert log.read_text() == "a log"
    assert str(log) in told.failures[0]
    with pytest.raises(CaptureError, match="rank 0 of 1 died"):
        make_runs(plan(tmp_path / "alone", "legacy", unprofiled=True))


def test_an_unprofiled_run_that_is_interrupted_says_nothing_of_the_cost_of_tracing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    record_with(monkeypatch, legacy_unprofiled="stopped")
    done = make_runs(plan(tmp_path, "legacy", "topup", unprofiled=True))
    assert done.is_interrupted
    assert done.failed == ()
    (profile,) = done.profiles
    assert profile.frame("unprofiled_steps").empty


def test_ctrl_c_while_a_capture_is_read_keeps_the_capture_in_sight(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def interrupted(*_: object) -> None:
        raise KeyboardInterrupt

    record_with(monkeypatch)
    monkeypatch.setattr(make._Maker, "_ingest", interrupted)
    with pytest.raises(KeyboardInterrupt):
        make_runs(plan(tmp_path, "legacy"))
    assert (tmp_path / "n.failed" / "rank0.sqlite").is_file()


def test_what_run_json_keeps_is_plain_data(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    record_with(monkeypatch)
    done = make_runs(plan(tmp_path, "legacy", verify=True))
    content = json.loads((done.profiles[0].path / "run.json").read_text())["settings"]
    assert content["verify"] is True
    assert content["cores"] > 0
    assert content["cpu"]
    assert content["recorder"] == "built-in recorder"


@pytest.mark.parametrize(("device", "driver"), [("cuda", "580.159.04"), ("simulated", None)])
def test_a_run_on_a_gpu_states_the_driver_and_a_simulated_one_does_not(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, device: str, driver: str | None
) -> None:
    """The machine has a GPU both times; only one of the runs was made on it."""
    install(tmp_path, monkeypatch, H200)
    record_with(monkeypatch).device = device
    profiles = tmp_path / "profiles"
    (profile,) = make_runs(plan(profiles, "legacy")).profiles
    assert profile.info.settings.get("driver") == driver
    assert ("clocks" in profile.info.settings) == (device == "cuda")
