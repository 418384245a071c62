"""The gate as CI types it, on recorded and ingested runs of four ranks, one of them with a planted delay.

The delay: 150 µs of host time in every ``prepare_for_decode`` of rank 2, a quarter of what the call takes.
"""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from xml.etree import ElementTree

import pytest
from loop_profiles import LoopRun, make
from typer.testing import CliRunner

from dflash_bench.cli import app
from dflash_bench.errors import ExitCode
from dflash_bench.profile import open_profile
from dflash_bench.run.make import MadeRuns

DELAY_NS = 150_000


@pytest.fixture(scope="module")
def recorded(tmp_path_factory):
    """A folder with five runs each of the base, of the same code again, and of the code with the delay."""
    folder = tmp_path_factory.mktemp("recorded")
    for k in range(5):
        make(LoopRun(f"base-r{k}", seed=k), folder / "captures", folder / "profiles")
        make(LoopRun(f"same-r{k}", seed=100 + k), folder / "captures", folder / "profiles")
        make(LoopRun(f"slow-r{k}", seed=200 + k, delay_ns=DELAY_NS), folder / "captures", folder / "profiles")
    where = "--profiles", folder / "profiles", "--baselines", folder / "baselines"
    assert typed("baseline", "save", "base-r*", *where).exit_code == 0
    return folder


@pytest.fixture
def here(recorded, tmp_path, monkeypatch):
    """A working folder with those profiles and their baseline."""
    for name in ("profiles", "baselines"):
        shutil.copytree(recorded / name, tmp_path / name)
    monkeypatch.chdir(tmp_path)
    for name in ("GITHUB_ACTIONS", "GITHUB_STEP_SUMMARY"):
        monkeypatch.delenv(name, raising=False)
    return tmp_path


def typed(*words):
    found = CliRunner().invoke(app, [str(w) for w in words])
    if found.exception is not None and not isinstance(found.exception, SystemExit):
        raise found.exception
    return found


# ── the demonstration ────────────────────────────────────────────────────────────────────────────────────────────────


def test_a_planted_delay_is_caught_and_pinned_on_its_rank_and_range(here):
    found = typed("gate", "slow-r*", "--json")
    assert found.exit_code == ExitCode.REGRESSION
    decision = json.loads(found.stdout)
    assert decision["outcome"] == "fail"
    (culprit,) = decision["culprits"]
    assert (culprit["range"], culprit["ranks"], culprit["num_ranks"]) == ("prepare_for_decode", [2], 4)
    assert culprit["added_ns"] == pytest.approx(DELAY_NS, rel=0.1)
    prepare = {c["rank"]: c for c in decision["checks"] if c["metric"] == "cost.prepare_for_decode"}
    assert {rank for rank, c in prepare.items() if c["verdict"] == "regressed"} == {2}
    assert prepare[2]["low"] <= DELAY_NS <= prepare[2]["high"]


def test_the_same_code_again_passes(here):
    found = typed("gate", "same-r*")
    assert found.exit_code == ExitCode.PASS
    assert found.stdout.startswith("PASS")


def test_a_single_noisy_pair_is_inconclusive(here):
    """One run against one: nothing is claimed."""
    found = typed("gate", "same-r0", "--base", "base-r0", "--json")
    assert found.exit_code == ExitCode.INCONCLUSIVE
    assert any("one run a side" in c["reason"] for c in json.loads(found.stdout)["checks"])


def test_a_single_slow_run_never_fails(here):
    """150 µs are far beyond what the baseline's own runs differ by, and one run has its own luck all the same."""
    found = typed("gate", "slow-r0", "--json")
    assert found.exit_code == ExitCode.INCONCLUSIVE
    assert any("fewer than 3 never fail a gate" in c["reason"] for c in json.loads(found.stdout)["checks"])


def test_a_missing_baseline_names_the_command_to_type(here):
    found = typed("gate", "same-r0", "--baselines", "elsewhere")
    assert found.exit_code == ExitCode.USAGE
    assert "no baseline in elsewhere for arm control, workload made-up, 4 ranks, device simulated" in found.stderr
    assert "dflash-bench baseline save same-r0 --baselines elsewhere" in found.stderr


def test_a_baseline_of_another_device_is_refused(here):
    renamed(here / "profiles" / "same-r0", device="NVIDIA H300")
    found = typed("gate", "same-r0")
    assert found.exit_code == ExitCode.USAGE
    assert "is of device simulated, not NVIDIA H300" in found.stderr
    assert "dflash-bench baseline save same-r0" in found.stderr
    found = typed("gate", "same-r0", "--base", "base-r*")
    assert found.exit_code == ExitCode.USAGE
    assert "differ in device" in found.stderr


def renamed(profile: Path, **change: str) -> None:
    file = profile / "run.json"
    file.write_text(json.dumps({**json.loads(file.read_text()), **change}))


# ── how sides are named ──────────────────────────────────────────────────────────────────────────────────────────────


@pytest.mark.parametrize("base", ["base-r*", "base-r0,base-r1,base-r2,base-r3,base-r4", "only-base"])
def test_a_side_is_a_pattern_a_list_or_a_folder(here, base):
    shutil.copytree(here / "profiles", here / "only-base", ignore=shutil.ignore_patterns("same*", "slow*"))
    found = typed("gate", "same-r*", "--base", base, "--json")
    assert found.exit_code == ExitCode.PASS
    assert json.loads(found.stdout)["base"]["runs"] == [f"base-r{k}" for k in range(5)]


@pytest.mark.parametrize(
    ("words", "told"),
    [
        (["gate", "nothing-*"], "matches nothing-*"),
        (["gate", "same-r0", "--base", "same-r*"], "stands on both sides"),
        (["gate", "base-r0"], "is the baseline itself"),
        (["gate", "same-r0", "--inject", "step.period=0.1"], "--inject says what --self-test makes worse"),
        (["gate", "same-r0", "--self-test", "--inject", "step.period"], "METRIC=SHARE"),
        (["gate", "same-r0", "--self-test", "--inject", "step.period=-1"], "above 0"),
        (["gate", "same-r0", "--policy", "none.toml"], "none.toml cannot be read"),
        (["baseline", "show", "none.json"], "no such baseline"),
        (["calibrate", "same-r0"], "too few runs to tell the noise"),
    ],
)
def test_wrong_words_are_usage_errors(here, words, told):
    found = typed(*words)
    assert found.exit_code == ExitCode.USAGE
    assert told in found.stderr


def test_runs_of_two_arms_are_not_one_side(here):
    renamed(here / "profiles" / "same-r1", arm="topup")
    assert "several arms: control, topup" in typed("gate", "same-r*").stderr


def test_an_interrupted_run_is_not_judged(here):
    settings = open_profile(here / "profiles" / "same-r0").info.settings
    renamed(here / "profiles" / "same-r0", settings={**settings, "interrupted": True})
    assert "interrupted" in typed("gate", "same-r0").stderr


# ── what it writes ───────────────────────────────────────────────────────────────────────────────────────────────────


def test_junit_comment_summary_and_annotations(here, monkeypatch):
    monkeypatch.setenv("GITHUB_ACTIONS", "true")
    monkeypatch.setenv("GITHUB_STEP_SUMMARY", str(here / "summary.md"))
    found = typed("gate", "slow-r*", "--junit", "out/gate.xml", "--comment", "out/comment.md", "--json")
    assert found.exit_code == ExitCode.REGRESSION
    json.loads(found.stdout)
    assert int(ElementTree.parse(here / "out/gate.xml").getroot().get("failures")) > 0
    comment = (here / "out/comment.md").read_text()
    assert "prepare\\_for\\_decode takes" in comment
    assert (here / "summary.md").read_text() == comment
    assert any(line.startswith("::error title=dflash-bench") for line in found.stderr.splitlines())


# ── further runs ─────────────────────────────────────────────────────────────────────────────────────────────────────


def repeatable(profile: Path) -> None:
    settings = open_profile(profile).info.settings
    renamed(profile, settings={**settings, "steps_asked": 80})


def test_while_inconclusive_it_makes_further_runs_by_itself(here, recorded, monkeypatch):
    """The run command is replaced by a recorder of made-up runs; what it is asked for is what the profile says."""
    repeatable(here / "profiles" / "same-r0")
    asked = []

    def make_runs(request, _listener):
        asked.append(request)
        profile = make(LoopRun(request.name, seed=300 + len(asked)), here / "captures", request.profiles)
        return MadeRuns((profile,), (), is_interrupted=False)

    monkeypatch.setattr("dflash_bench.run.make.plan_runs", lambda request: request)
    monkeypatch.setattr("dflash_bench.run.make.make_runs", make_runs)
    found = typed("gate", "same-r0", "--json")
    decision = json.loads(found.stdout)
    assert found.exit_code == ExitCode.PASS
    assert decision["reruns"] == len(asked) >= 2
    first = asked[0]
    assert (first.arms, first.workload, first.ranks, first.steps) == (("control",), "made-up", 4, 80)
    assert first.recorder is True
    assert len(decision["candidate"]["runs"]) == 1 + len(asked)


def test_without_a_budget_no_run_is_made(here, monkeypatch):
    repeatable(here / "profiles" / "same-r0")
    monkeypatch.setattr("dflash_bench.run.make.make_runs", lambda *_: pytest.fail("a run was made"))
    assert typed("gate", "same-r0", "--reruns", 0).exit_code == ExitCode.INCONCLUSIVE


# ── trust ────────────────────────────────────────────────────────────────────────────────────────────────────────────


def test_what_calibrate_measured_is_written_and_the_gate_trusts_itself_with_it(here):
    found = typed("calibrate", "base-r*", "-o", "gate.toml", "--gate-repeats", "3")
    assert found.exit_code == 0
    assert "step.period" in found.stdout
    text = Path("gate.toml").read_text()
    assert "arm control, workload made-up" in text
    assert typed("calibrate", "base-r*", "-o", "gate.toml").exit_code == ExitCode.USAGE
    # two sides of three are dealt from the baseline's runs: it takes more than the five of the others
    more = "base-r*", "same-r1", "same-r2", "same-r3", "same-r4", "--baselines", "larger"
    assert typed("baseline", "save", *more).exit_code == 0
    trial = typed("gate", "same-r0", "--self-test", "--policy", "gate.toml", "--baselines", "larger")
    assert "BAD" not in trial.stdout
    assert trial.exit_code == 0
    assert typed("gate", "same-r*", "--policy", "gate.toml").exit_code == ExitCode.PASS
    assert typed("gate", "slow-r*", "--policy", "gate.toml").exit_code == ExitCode.REGRESSION


def test_a_gate_that_sleeps_fails_its_self_test(here):
    """A tolerance of 50 % sees no regression of 10 %: the self-test says so and does not exit 0."""
    Path("deaf.toml").write_text('repeats = 2\n[metrics]\n"step.period" = { relative = 0.5 }\n')
    found = typed("gate", "same-r0", "--self-test", "--policy", "deaf.toml", "--inject", "step.period=0.1")
    assert found.exit_code == ExitCode.BAD_DATA
    assert "BAD  step.period made worse" in found.stdout


# ── baselines as commands ────────────────────────────────────────────────────────────────────────────────────────────


def test_baselines_are_listed_shown_and_pruned(here):
    (row,) = json.loads(typed("baseline", "list", "--json").stdout)
    assert (row["arm"], row["workload"], row["world"], row["device"]) == ("control", "made-up", 4, "simulated")
    assert len(row["runs"]) == row["history"] == 5
    assert "made-up" in typed("baseline", "list").stdout
    shown = typed("baseline", "show", row["path"]).stdout
    assert "step.period" in shown
    assert "base-r4" in shown
    assert typed("baseline", "prune", row["path"], "--keep", 1).exit_code == 0
    (after,) = json.loads(typed("baseline", "list", "--json").stdout)
    assert after["runs"] == ["base-r4"]
    assert after["history"] == 5


def test_a_baseline_of_few_runs_and_sessions_says_that_it_cannot_judge(here):
    """One run of the session is left, and one session is known: what sessions do, nobody can tell."""
    (row,) = json.loads(typed("baseline", "list", "--json").stdout)
    typed("baseline", "prune", row["path"], "--keep", 1)
    found = typed("gate", "slow-r*", "--json")
    assert found.exit_code == ExitCode.INCONCLUSIVE
    assert any("fewer than 10 sessions" in c["reason"] for c in json.loads(found.stdout)["checks"])


def test_the_made_up_loop_is_what_it_says(recorded):
    """The delay is in the recorded ranges themselves: rank 2 takes 150 µs longer, the others do not."""
    import numpy as np

    def median(run, rank):
        frame = open_profile(recorded / "profiles" / run).frame("ranges")
        own = frame[(frame["name"] == "prepare_for_decode") & (frame["rank"] == rank)]
        return float(np.median(own["end_ns"] - own["start_ns"]))

    assert median("slow-r0", 2) - median("same-r0", 2) == pytest.approx(DELAY_NS, rel=0.15)
    assert median("slow-r0", 1) - median("same-r0", 1) == pytest.approx(0, abs=20_000)
