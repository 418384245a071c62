"""Two versions of the code against each other, and `git bisect run` with the gate: it finds the commit to blame.

A scratch repository holds a copy of the loop; one of its commits makes the preparation slower.
"""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
from typer.testing import CliRunner

from dflash_bench.cli import app
from dflash_bench.profile import open_profile

pytest.importorskip("torch", reason="the decode loop needs the extra [impl]")

ROOT = Path(__file__).parents[2]
TOOL = [sys.executable, "-c", "from dflash_bench.cli import main; main()"]
PREPARATION = "impl/dflash_prep/state/decode_prep.py"
SPAN = "with span(Range.PREPARE_FOR_DECODE):"
SLOWER = """

@contextmanager
def _slower():
    begun = perf_counter_ns()
    yield
    until = perf_counter_ns() + SHARE * (perf_counter_ns() - begun)
    while perf_counter_ns() < until:
        pass


from contextlib import contextmanager
from time import perf_counter_ns
"""
POLICY = """
[metrics]
"cost.prepare_for_decode" = { relative = 0.05 }
"""


def git(top: Path, *words: str) -> str:
    own = {"GIT_CONFIG_GLOBAL": os.devnull, "GIT_CONFIG_SYSTEM": os.devnull}
    who = ["-c", "user.name=a", "-c", "user.email=a@example.org", "-c", "init.defaultBranch=main"]
    line = ["git", *who, *words]
    done = subprocess.run(line, cwd=top, env={**os.environ, **own}, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout.strip()


def repository(folder: Path, num: int, planted: int | None, share: float) -> list[str]:
    """So many commits of the loop, oldest first; commit ``planted`` makes every preparation longer by that share."""
    shutil.copytree(ROOT / "impl", folder / "impl", ignore=shutil.ignore_patterns("__pycache__", "*.egg-info"))
    (folder / ".gitignore").write_text("__pycache__\nprofiles\n")
    git(folder, "init", "--quiet")
    commits = []
    for k in range(num):
        (folder / "impl" / "notes.txt").write_text(f"change {k}\n")
        if k == planted:
            file = folder / PREPARATION
            text = file.read_text()
            assert text.count(SPAN) == 1, "the place to plant it has moved"
            file.write_text(text.replace(SPAN, SPAN[:-1] + ", _slower():") + SLOWER.replace("SHARE", str(share)))
        git(folder, "add", "--all")
        git(folder, "commit", "--quiet", "-m", f"Change {k}")
        commits.append(git(folder, "rev-parse", "HEAD"))
    return commits


def searched(folder: Path, good: str, *more: str) -> str:
    """What `git bisect run` says in the end."""
    (folder / "gate.toml").write_text(POLICY)
    git(folder, "bisect", "start", "HEAD", good)
    line = [
        "gate",
        "--against",
        good,
        "--bisect",
        "--policy",
        "gate.toml",
        "--recorder",
        "--device",
        "simulated",
        *more,
    ]
    return git(folder, "bisect", "run", *TOOL, *line)


def test_the_commit_after_which_the_preparation_takes_far_longer_is_found(tmp_path: Path) -> None:
    """Three commits: one run of the gate decides. The whole search stands under ``soak``."""
    good, bad, _ = repository(tmp_path, 3, planted=1, share=20)
    said = searched(tmp_path, good, "--ranks", "1", "--pairs", "12", "--block", "4", "--reruns", "0")
    assert f"{bad} is the first bad commit" in said
    profiles = [open_profile(path.parent) for path in (tmp_path / "profiles").glob("*/run.json")]
    assert {(p.info.arms, p.info.settings["base"], p.info.settings["candidate"]) for p in profiles} == {
        (("base", "candidate"), good[:12], bad[:12])
    }
    assert len(profiles) == 2, "a process has its own luck"
    assert git(tmp_path, "worktree", "list").count("\n") == 0, "nothing stays checked out"


@pytest.mark.soak
@pytest.mark.parametrize("planted", [5, 11])
def test_fifteen_percent_of_the_preparation_are_found_in_sixteen_commits(tmp_path: Path, planted: int) -> None:
    commits = repository(tmp_path, 16, planted, share=0.15)
    short = ROOT / "profiles" / "reference" / "short.toml"
    said = searched(tmp_path, commits[0], "--ranks", "1", "--pairs", "60", "--repeats", "4", "--workload", str(short))
    assert f"{commits[planted]} is the first bad commit" in said


@pytest.fixture
def scratch(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    repository(tmp_path, 1, None, 0)
    monkeypatch.chdir(tmp_path)
    return tmp_path


@pytest.mark.parametrize(
    ("words", "code", "sentence"),
    [
        (["run", "--arm", "topup", "--against", "nowhere"], 2, "has no such commit"),
        (["gate", "--against", "nowhere"], 2, "has no such commit"),
        (["gate", "--against", "nowhere", "--bisect"], 128, "has no such commit"),
        (["gate", "--against", "HEAD", "--bisect", "--workload", "none"], 128, "unknown workload"),
        (["gate", "--against", "HEAD", "--nsys", "/bin/true", "--bisect"], 125, "is not nsys"),
        (["gate"], 2, "name the runs to judge, or a version to hold the code against"),
        (["gate", "r", "--against", "HEAD"], 2, "name the runs to judge, or a version to hold the code against"),
        (["run", "--arm", "topup", "--against-python", "/no/python"], 2, "/no/python does not run"),
    ],
)
def test_what_cannot_be_held_against_anything_is_one_sentence(
    scratch: Path, words: list[str], code: int, sentence: str
) -> None:
    """Wrong for every commit: the search ends. Wrong for this one, or for this machine now: it is skipped."""
    result = CliRunner().invoke(app, words)
    assert (result.exit_code, sentence in re.sub(r"\s+", " ", result.stderr)) == (code, True), result.stderr
    assert git(scratch, "worktree", "list").count("\n") == 0


def test_outside_of_a_repository_of_the_loop_the_other_way_is_named(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    result = CliRunner().invoke(app, ["run", "--arm", "topup", "--against", "HEAD"])
    assert result.exit_code == 2
    assert "--against-python PATH" in result.stderr


def test_another_environment_is_the_base(tmp_path: Path) -> None:
    """Its Python is a script here that says so before it becomes the real one."""
    python = tmp_path / "bin" / "python"
    python.parent.mkdir()
    python.write_text(f'#!/bin/sh\necho "$@" >> {tmp_path}/ran\nexec {sys.executable} "$@"\n')
    python.chmod(0o755)
    line = ["run", "--arm", "topup", "--against-python", str(tmp_path), "--ranks", "1", "--recorder", "--repeats", "1"]
    line += ["--pairs", "2", "--block", "2", "--device", "simulated", "--name", "r", "--profiles", str(tmp_path / "p")]
    done = subprocess.run([*TOOL, *line], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    assert "base and candidate in turns, 1 rank, 2 pairs of blocks of 2 steps" in done.stdout
    ran = (tmp_path / "ran").read_text().splitlines()
    assert [line for line in ran if line.startswith("-m dflash_prep.loop --arm topup --turns")]
    info = open_profile(tmp_path / "p" / "r").info
    assert info.arms == ("base", "candidate")
    assert str(info.settings["base"]).endswith("of another environment")
