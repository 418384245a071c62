"""The gate on real runs of the decode loop: four ranks, a delay of 150 µs planted in one, and noise as it comes.

The runs were recorded once, on a busy 2-core machine, and lie in ``tests/data/gate-demo``: so the answers are the same
wherever this test runs. Under the marker `soak` all of it is made anew, on this machine.
"""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
from typer.testing import CliRunner

from dflash_bench.cli import app
from dflash_bench.errors import ExitCode
from dflash_bench.profile import open_profile

DATA = Path(__file__).parents[1] / "data" / "gate-demo"
SCRIPT = Path(__file__).parents[1] / "benchmarks" / "gate_demo.py"
DELAY_NS = 150_000


def typed(*words):
    found = CliRunner().invoke(app, [str(w) for w in words])
    if found.exception is not None and not isinstance(found.exception, SystemExit):
        raise found.exception
    return found


@pytest.fixture
def here(tmp_path, monkeypatch):
    """A working folder with the recorded runs, the baseline made of the first five, and the policy."""
    shutil.copytree(DATA / "profiles", tmp_path / "profiles")
    shutil.copyfile(DATA / "gate.toml", tmp_path / "gate.toml")
    monkeypatch.chdir(tmp_path)
    for name in ("GITHUB_ACTIONS", "GITHUB_STEP_SUMMARY"):
        monkeypatch.delenv(name, raising=False)
    assert typed("baseline", "save", "base-r*").exit_code == 0
    return tmp_path


def assert_caught(found):
    """Exit 3, and nothing else is blamed than the rank and the range that were delayed."""
    assert found.exit_code == ExitCode.REGRESSION, found.stdout
    decision = json.loads(found.stdout)
    (culprit,) = decision["culprits"]
    assert (culprit["range"], culprit["ranks"], culprit["num_ranks"]) == ("prepare_for_decode", [2], 4)
    (check,) = (c for c in decision["checks"] if c["metric"] == "range.prepare_for_decode" and c["rank"] == 2)
    assert check["low"] <= DELAY_NS <= check["high"]


def test_the_planted_delay_is_caught_and_pinned_on_its_rank_and_range(here):
    assert_caught(typed("gate", "slow-r*", "--policy", "gate.toml", "--json"))


def test_the_same_code_again_passes(here):
    found = typed("gate", "same-r*", "--policy", "gate.toml")
    assert found.exit_code == ExitCode.PASS, found.stdout


@pytest.mark.parametrize("repeat", range(1, 6))
def test_a_single_noisy_pair_is_inconclusive(here, repeat):
    words = f"same-r{repeat}", "--base", f"base-r{repeat}", "--policy", "gate.toml"
    found = typed("gate", *words)
    assert found.exit_code == ExitCode.INCONCLUSIVE, found.stdout


def test_on_these_runs_the_gate_trusts_itself(here):
    """Three of the baseline's runs against three others do not fail; with twice the tolerance planted, they do."""
    assert typed("baseline", "save", "same-r2", "same-r3", "same-r4", "same-r5").exit_code == 0
    found = typed("gate", "same-r1", "--self-test", "--policy", "gate.toml")
    assert found.exit_code == 0
    assert "BAD" not in found.stdout


def test_without_a_baseline_the_command_that_makes_one_is_named(here):
    found = typed("gate", "same-r1", "--baselines", "elsewhere")
    assert found.exit_code == ExitCode.USAGE
    assert "dflash-bench baseline save same-r1 --baselines elsewhere" in " ".join(found.stderr.split())


def test_a_run_of_another_device_is_not_held_against_it(here):
    file = here / "profiles" / "same-r1" / "run.json"
    file.write_text(json.dumps({**json.loads(file.read_text()), "device": "NVIDIA H200"}))
    found = typed("gate", "same-r1")
    assert found.exit_code == ExitCode.USAGE
    told = " ".join(found.stderr.split())
    assert "is of device simulated, not NVIDIA H200" in told
    assert "dflash-bench baseline save same-r1" in told


def test_that_the_delay_was_planted_is_said_and_forbids_nothing(here):
    found = typed("compare", "base-r1", "slow-r1", "--json")
    codes = {f["code"]: f["text"] for f in json.loads(found.stdout)["warnings"]}
    assert codes["different_delay"] == "the runs differ in delay: none against 2:150"


def test_the_recorded_runs_are_what_they_are_said_to_be():
    delays = {}
    for path in sorted((DATA / "profiles").iterdir()):
        own = open_profile(path).info
        assert (own.device, own.world, own.workload, own.settings["interrupted"]) == ("simulated", 4, "few", False)
        delays[path.name] = own.settings["delay"]
    assert delays == {
        **{f"{arm}-r{k}": None for arm in ("base", "same") for k in range(1, 6)},
        **{f"slow-r{k}": "2:150" for k in range(1, 4)},
    }


@pytest.mark.soak
@pytest.mark.timeout(3600)
def test_the_same_live_on_this_machine(tmp_path, monkeypatch):
    """25 runs: five are the baseline, five the same code, five have the delay, ten tell how noisy the machine is."""
    pytest.importorskip("torch", reason="the decode loop needs the extra [impl]")
    subprocess.run([sys.executable, str(SCRIPT), str(tmp_path / "profiles")], check=True)
    monkeypatch.chdir(tmp_path)
    shutil.copyfile(DATA / "gate.toml", "gate.toml")
    print(typed("calibrate", "floor-r*", "--policy", "gate.toml").stdout)
    assert typed("baseline", "save", "base-r*").exit_code == 0
    assert_caught(typed("gate", "slow-r*", "--policy", "gate.toml", "--json"))
    assert typed("gate", "same-r*", "--policy", "gate.toml").exit_code == ExitCode.PASS
    single = typed("gate", "same-r1", "--base", "base-r1", "--policy", "gate.toml")
    assert single.exit_code == ExitCode.INCONCLUSIVE
