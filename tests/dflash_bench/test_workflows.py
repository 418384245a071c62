"""What the workflows for GitHub type is what the commands take; what they upload is harmless."""

from __future__ import annotations

import os
import re
import shlex
import subprocess
from fnmatch import fnmatchcase
from pathlib import Path
from typing import Any

import pytest
import typer

from dflash_bench.cli import app
from dflash_bench.run.plan import plan_runs
from dflash_bench.run.request import RunRequest

FOLDER = Path(__file__).parents[2] / ".github" / "workflows"
GATE = (FOLDER / "gate.yml").read_text(encoding="utf-8")
VALUES = {"GATED": "r*", "FIRST": "r*", "RANKS": "2", "STEPS": "10", "REPEATS": "2", "RERUNS": "4"}
"""What variables that stand for numbers hold; all others hold a word."""


def script(step: str) -> str:
    """The shell script of a step, by its name."""
    block = re.search(rf"- name: {step}\n(?:.*\n)*?( +)run: \|\n((?:\1  .*\n|\n)+)", GATE)
    assert block, f"no script in step {step}"
    return "".join(line[len(block[1]) + 2 :] or "\n" for line in block[2].splitlines(keepends=True))


def command_lines() -> list[str]:
    """Every call of dflash-bench, each on one line."""
    joined = GATE.replace("\\\n", " ")
    found = re.findall(r"^(?: *| *run: )(dflash-bench [a-z].*)$", joined, re.MULTILINE)
    return [re.sub(r" (2>|\|\|).*", "", line) for line in found]


@pytest.mark.parametrize("line", command_lines())
def test_every_command_of_the_gate_workflow_is_one_that_the_command_line_takes(line: str) -> None:
    line = line.replace('"${options[@]}"', "--arm control --arm topup")
    line = re.sub(r"\$(\w+)", lambda found: VALUES.get(found[1], "word"), line)
    command: Any = typer.main.get_command(app)
    words = shlex.split(line)[1:]
    while hasattr(command, "commands"):
        command = command.commands[words.pop(0)]
    assert command.make_context("-", words).params


def test_the_commands_are_found_by_this_test() -> None:
    assert [shlex.split(line)[1] for line in command_lines()] == ["doctor", "run", "baseline", "gate", "report"]


@pytest.mark.parametrize(
    ("arms", "gated"),
    [("control topup", "topup"), ("control", "control"), ("legacy control,topup_pages=4", "control,topup_pages=4")],
)
def test_the_workflow_names_runs_as_the_run_command_does(tmp_path: Path, arms: str, gated: str) -> None:
    found = outputs(tmp_path, ARMS=arms, GATE_ARM=gated)
    request = RunRequest(tuple(arms.split()), repeats=2, recorder=True, name="ci-7-1", profiles=tmp_path)
    made = plan_runs(request).runs
    for name, arm in (("gated", gated), ("first", arms.split()[0])):
        assert {p.name for p in made if fnmatchcase(p.name, found[name])} == {p.name for p in made if p.arm == arm}


def test_two_gates_of_one_workflow_run_keep_their_artifacts_apart(tmp_path: Path) -> None:
    keys = {outputs(tmp_path, WORKLOAD=name)["key"] for name in ("smoke", "loads/smoke.toml")}
    assert keys == {"topup-smoke-w2", "topup-loads-smoke.toml-w2"}


def test_one_run_of_each_arm_is_too_few_for_a_gate(tmp_path: Path) -> None:
    with pytest.raises(subprocess.CalledProcessError):
        outputs(tmp_path, REPEATS="1")


def outputs(folder: Path, **more: str) -> dict[str, str]:
    """What the step that names the runs puts out."""
    file = folder / "output"
    file.write_text("")
    own = {"ARMS": "control topup", "GATE_ARM": "topup", "WORKLOAD": "smoke", "RANKS": "2", "REPEATS": "2", **more}
    environment = {**os.environ, **own, "NAME": "ci-7-1", "GITHUB_OUTPUT": str(file)}
    words = ["bash", "--noprofile", "--norc", "-eo", "pipefail", "-c", script("Name the runs")]
    subprocess.run(words, env=environment, check=True, capture_output=True)
    return dict(line.split("=", 1) for line in file.read_text().splitlines())


@pytest.mark.parametrize(
    ("code", "has_comment", "comment"),
    [(3, True, "a regression\n"), (2, False, "### ❔ No verdict (exit code 2)\n\n```\nError: no baseline\n```\n")],
)
def test_the_verdict_ends_the_job_and_there_is_always_a_comment(
    tmp_path: Path, code: int, has_comment: bool, comment: str
) -> None:
    """The command is a stand-in; a gate that gives up before a verdict must not leave the last push's comment."""
    program = tmp_path / "bin" / "dflash-bench"
    program.parent.mkdir()
    made = "echo 'a regression' > reports/gate.md" if has_comment else "echo 'Error: no baseline' >&2"
    program.write_text(f"#!/bin/sh\n{made}\nexit {code}\n")
    program.chmod(0o755)
    environment = {"PATH": f"{program.parent}{os.pathsep}{os.environ['PATH']}", **VALUES}
    environment |= {"POLICY": "p", "BASELINES": "b", "GITHUB_OUTPUT": "output", "GITHUB_STEP_SUMMARY": "summary"}
    words = ["bash", "--noprofile", "--norc", "-eo", "pipefail", "-c", script("Judge")]
    done = subprocess.run(words, env=environment, cwd=tmp_path, capture_output=True, text=True)
    assert done.returncode == code
    assert (tmp_path / "output").read_text() == f"exit-code={code}\n"
    assert (tmp_path / "reports" / "gate.md").read_text() == comment
    assert (tmp_path / "summary").exists() != has_comment, "the gate itself writes the summary of a verdict"


@pytest.mark.parametrize("path", sorted(FOLDER.glob("*.yml")), ids=lambda p: p.name)
def test_actions_are_pinned_to_commits(path: Path) -> None:
    used = re.findall(r"uses: (actions/\S+)", path.read_text(encoding="utf-8"))
    assert used
    assert not [each for each in used if not re.fullmatch(r"actions/[\w-]+@[0-9a-f]{40}", each)]


def test_no_raw_capture_can_be_uploaded() -> None:
    """Files are named one by one; `captures` lies in a profile beside them, and no pattern reaches into it."""
    block = re.search(r"          path: \|\n((?: {12}.*\n)+)", GATE)
    assert block
    patterns = [line.strip().replace("${{ env.DFLASH_BENCH_PROFILES }}", "p") for line in block[1].splitlines()]
    raw = [
        "p/r1/captures/rank0.sqlite",
        "p/r1/captures/rank0.nsys-rep",
        "p/r1/captures/rank0.log",
        "p/r1/captures/x.json",
    ]
    assert not [(file, p) for file in raw for p in patterns if fnmatchcase(file, p)]
    kept = ["p/r1/run.json", "p/r1/processes.parquet", "p/r1/ranges/rank=0/capture0-process1.parquet"]
    assert all(any(fnmatchcase(file, p) for p in patterns) for file in kept)


def test_the_job_that_runs_a_pull_requests_code_cannot_write() -> None:
    gate, comment = GATE.split("\n  comment:\n")
    assert "\npermissions: {}\n" in gate
    assert "write" not in re.findall(r"\n    permissions:\n((?: {6}.*\n)+)", gate)[0]
    assert "persist-credentials: false" in gate
    assert "checkout" not in comment
