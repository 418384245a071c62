"""`dflash-bench list`, and what a shell offers: both say what is really there."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import pytest
from loop_profiles import LoopRun, make
from typer.testing import CliRunner

from dflash_bench.cli import app
from dflash_bench.metrics.presets import PRESETS
from dflash_bench.metrics.registry import SPECS
from dflash_bench.profile import open_profile

REFERENCE = Path(__file__).parents[2] / "profiles" / "reference"


def listed(*words: str) -> str:
    result = CliRunner().invoke(app, ["list", *words])
    assert result.exit_code == 0, result.stderr
    return result.stdout


def offered(monkeypatch: pytest.MonkeyPatch, *words: str) -> list[str]:
    """What bash is told to offer for the last of the words."""
    monkeypatch.setenv("_DFLASH_BENCH_COMPLETE", "complete_bash")
    monkeypatch.setenv("COMP_WORDS", " ".join(["dflash-bench", *words]))
    monkeypatch.setenv("COMP_CWORD", str(len(words)))
    return CliRunner().invoke(app, [], prog_name="dflash-bench").stdout.split()


@pytest.fixture(scope="module")
def profiles(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Two runs, the second one the newer."""
    folder = tmp_path_factory.mktemp("runs")
    for name, arm in (("early", "control"), ("late", "topup")):
        make(LoopRun(name, seed=1, arm=arm, world=3, steps=4), folder / "captures", folder / "profiles")
    return folder / "profiles"


def test_runs_are_listed_newest_first_with_what_tells_them_apart(profiles: Path) -> None:
    (profiles / "late" / "figures").mkdir()
    (profiles / "late" / "figures" / "kept").write_bytes(bytes(1_000_000))
    data = json.loads(listed("--json", "--profiles", str(profiles)))
    assert [(r["run"], r["arms"], r["workload"], r["ranks"], r["device"]) for r in data] == [
        ("late", ["topup"], "made-up", [0, 1, 2], "simulated"),
        ("early", ["control"], "made-up", [0, 1, 2], "simulated"),
    ]
    for run in data:
        files = [p for p in (profiles / run["run"]).rglob("*") if p.is_file() and p.name != "kept"]
        assert run["size_bytes"] == sum(p.stat().st_size for p in files)
    shown = listed("--profiles", str(profiles))
    assert shown.startswith(f"2 runs in {profiles}")
    assert [line.split()[0] for line in shown.splitlines()[2:]] == ["late", "early"]


def test_a_folder_without_runs_is_told_with_what_makes_one(tmp_path: Path) -> None:
    result = CliRunner().invoke(app, ["list", "--profiles", str(tmp_path)])
    assert result.exit_code == 2
    assert "dflash-bench run --arm control" in result.stderr


def test_arms_are_listed_with_what_each_adds_and_which_share_all_their_switches() -> None:
    arms = pytest.importorskip("dflash_prep.arms")
    data = {each["arm"]: each for each in json.loads(listed("arms", "--json"))}
    assert {name: each["switches"] for name, each in data.items()} == arms.listing()
    assert {name for name, each in data.items() if each["same_as"]} == {"control"}
    shown = listed("arms")
    rows = [line.split()[0] for line in shown.splitlines()]
    assert "control" in rows
    assert "shares all switches with counts" in shown
    for switch in data["legacy"]["switches"]:
        assert len([line for line in shown.splitlines() if f" {switch}" in line]) == 1, switch


def test_workloads_and_presets_are_those_that_the_options_take() -> None:
    workload = pytest.importorskip("dflash_prep.workload")
    assert [each["workload"] for each in json.loads(listed("workloads", "--json"))] == workload.names()
    assert [each["preset"] for each in json.loads(listed("presets", "--json"))] == [str(name) for name in PRESETS]


def test_a_shell_is_offered_runs_where_a_run_is_meant(profiles: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("DFLASH_BENCH_PROFILES", str(profiles))
    assert offered(monkeypatch, "compare", "") == ["late", "early"]
    assert offered(monkeypatch, "compare", "early", "l") == ["late"]
    assert offered(monkeypatch, "metrics", "early,l") == ["early,late"]
    assert offered(monkeypatch, "report", "--profiles", str(REFERENCE), "h200x2-t") == sorted(
        (p.name for p in REFERENCE.glob("h200x2-t*")),
        key=lambda name: (REFERENCE / name / "run.json").stat().st_mtime,
        reverse=True,
    )


def test_behind_a_duet_its_arms_are_offered(profiles: Path, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    shutil.copytree(profiles / "early", tmp_path / "both")
    file = tmp_path / "both" / "run.json"
    file.write_text(json.dumps(json.loads(file.read_text()) | {"arms": ["control", "topup"]}))
    assert open_profile(tmp_path / "both").info.arms == ("control", "topup")
    monkeypatch.setenv("DFLASH_BENCH_PROFILES", str(tmp_path))
    assert [word.split(":")[-1] for word in offered(monkeypatch, "metrics", "both:t")] == ["topup"]


def test_a_shell_is_offered_arms_switches_workloads_presets_and_metrics(monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("dflash_prep.arms")
    assert offered(monkeypatch, "run", "--arm", "to") == ["topup"]
    assert offered(monkeypatch, "run", "--arm", "control,topup") == ["control,topup_pages="]
    assert offered(monkeypatch, "run", "--workload", "dep16") == ["dep16-bs192", "dep16-c2884"]
    assert offered(monkeypatch, "metrics", "--preset", "v") == ["vllm"]
    names = offered(monkeypatch, "metrics", "--metric", "alloc.")
    assert names == [spec.name for spec in SPECS if spec.name.startswith("alloc.")]
    assert names
