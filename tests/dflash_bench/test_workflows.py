"""What workflows and examples type is what the commands take; the gate works in any repository and leaks nothing."""

from __future__ import annotations

import os
import re
import shlex
import subprocess
import sys
from fnmatch import fnmatchcase
from pathlib import Path
from typing import Any

import pytest
import typer

from dflash_bench.capture import nsys
from dflash_bench.cli import app

ROOT = Path(__file__).parents[2]
FOLDER = ROOT / ".github" / "workflows"
EXAMPLES = sorted((ROOT / "examples" / "ci").iterdir())
GATE = (FOLDER / "gate.yml").read_text(encoding="utf-8")
INPUTS = GATE.partition("\n    inputs:\n")[2].partition("\n    outputs:\n")[0]
INSTALLED = nsys.find_nsys()


def script(step: str) -> str:
    """The shell script of a step, by its name."""
    block = re.search(rf"- name: {step}\n(?:.*\n)*?( +)run: \|\n((?:\1  .*\n|\n)+)", GATE)
    assert block, f"no script in step {step}"
    return "".join(line[len(block[1]) + 2 :] or "\n" for line in block[2].splitlines(keepends=True))


def play(step: str, folder: Path, **variables: str) -> subprocess.CompletedProcess[str]:
    """Run the script of a step as the runner does."""
    words = ["bash", "--noprofile", "--norc", "-eo", "pipefail", "-c", script(step)]
    environment = {**os.environ, "GITHUB_OUTPUT": "output", "GITHUB_STEP_SUMMARY": "summary", **variables}
    return subprocess.run(words, env=environment, cwd=folder, capture_output=True, text=True, check=False)


def command_lines(text: str) -> list[str]:
    """Every call of dflash-bench in a workflow or a shell script, each on one line."""
    joined = text.replace("\\\n", " ")
    before = r"^[ (a-z]*?(?:run: |cd \"\$side\" && |srun (?:--\S+ )*)?(?:\.venv/bin/)?"
    found = re.findall(before + "(dflash-bench [a-z].*)$", joined, re.M)
    return [re.sub(r" (2>|\|\|).*|\)$", "", line) for line in found]


TYPED = [FOLDER / "gate.yml", FOLDER / "ci.yml", *EXAMPLES]
COMMANDS = [(p.name, line) for p in TYPED for line in command_lines(p.read_text("utf-8"))]


@pytest.mark.parametrize(("file", "line"), COMMANDS)
def test_every_command_of_workflow_and_examples_is_one_that_the_command_line_takes(file: str, line: str) -> None:
    line = re.sub(r'"\$\{\w+\[@\]\}"', "", line)
    line = re.sub(r"\$\{?\w+\}?", "word", line)
    command: Any = typer.main.get_command(app)
    words = shlex.split(line)[1:]
    while hasattr(command, "commands"):
        command = command.commands[words.pop(0)]
    assert command.make_context("-", words).params


def test_the_commands_are_found_by_this_test() -> None:
    verbs = [shlex.split(line)[1] for line in command_lines(GATE)]
    assert verbs == ["doctor", "capture", "gate", "report"]
    assert all(command_lines(p.read_text("utf-8")) for p in EXAMPLES if p.name in ("nightly.yml", "slurm.sh"))


@pytest.mark.parametrize("path", EXAMPLES, ids=lambda p: p.name)
def test_an_example_gives_the_gate_only_inputs_that_it_has(path: Path) -> None:
    text = path.read_text("utf-8")
    known = set(re.findall(r"^      ([\w-]+):$", INPUTS, re.M))
    assert "command" in known
    for block in re.findall(r"uses: \S+/gate\.yml@\S+\n(?:.*\n)*?      with:\n((?: {8}.*\n)+)", text):
        given = set(re.findall(r"^        ([\w-]+):", block, re.M))
        assert "command" in given <= known


# ── the steps, played ────────────────────────────────────────────────────────────────────────────────────────────────


@pytest.mark.parametrize(
    ("version", "installed"),
    [
        ("0.2.0", "dflash-bench==0.2.0"),
        ("dflash-bench", "dflash-bench"),
        ("git+https://x/y@main", "git+https://x/y@main"),
    ],
)
def test_the_tool_is_installed_by_its_version_and_not_from_the_callers_checkout(
    tmp_path: Path, version: str, installed: str
) -> None:
    """A Python that notes what it is asked stands in for the real one: nothing is downloaded here."""
    python = tmp_path / "bin" / "python3"
    python.parent.mkdir()
    python.write_text('#!/bin/sh\necho "$@" >> asked\nmkdir -p "$TOOL/bin" && cp -u "$0" "$TOOL/bin/python" || true\n')
    python.chmod(0o755)
    path = f"{python.parent}{os.pathsep}{os.environ['PATH']}"
    done = play("Install", tmp_path, PATH=path, TOOL="tool", VERSION=version, GITHUB_PATH="path")
    assert done.returncode == 0, done.stderr
    assert (tmp_path / "asked").read_text().split()[-1] == installed
    assert (tmp_path / "path").read_text() == "tool/bin\n"


@pytest.mark.parametrize(
    ("code", "has_comment", "comment"),
    [(3, True, "a regression\n"), (2, False, "### ❔ No verdict (exit code 2)\n\n```\nError: no runs\n```\n")],
)
def test_the_verdict_ends_the_job_and_there_is_always_a_comment(
    tmp_path: Path, code: int, has_comment: bool, comment: str
) -> None:
    """The command is a stand-in; a gate that gives up before a verdict must not leave the last push's comment."""
    program = tmp_path / "bin" / "dflash-bench"
    program.parent.mkdir()
    made = "echo 'a regression' > reports/gate.md" if has_comment else "echo 'Error: no runs' >&2"
    program.write_text(f"#!/bin/sh\n{made}\nexit {code}\n")
    program.chmod(0o755)
    done = play("Judge", tmp_path, PATH=f"{program.parent}{os.pathsep}{os.environ['PATH']}")
    assert done.returncode == code
    assert (tmp_path / "output").read_text() == f"exit-code={code}\n"
    assert (tmp_path / "reports" / "gate.md").read_text() == comment
    assert (tmp_path / "summary").exists() != has_comment, "the gate itself writes the summary of a verdict"


DECODE = """
import time
import nvtx
for _ in range(60):
    with nvtx.annotate("decode_step", domain="mine"):
        with nvtx.annotate("prepare_for_decode", domain="mine"):
            time.sleep({seconds})
        time.sleep(0.002)
"""


@pytest.mark.nsys
@pytest.mark.skipif(INSTALLED is None or not INSTALLED.can_convert, reason="no nsys here that can convert")
def test_played_in_another_repository_it_measures_both_sides_in_turns_and_finds_what_got_slower(tmp_path: Path) -> None:
    """A scratch repository with a program of its own: the candidate prepares three times as long as the base."""
    for side, seconds in (("base", 0.001), ("candidate", 0.003)):
        (tmp_path / side).mkdir()
        (tmp_path / side / "decode.py").write_text(DECODE.format(seconds=seconds))
    tool = tmp_path / "tool" / "dflash-bench"
    tool.parent.mkdir()
    tool.write_text(f'#!/bin/sh\nexec {sys.executable} -m dflash_bench "$@"\n')
    tool.chmod(0o755)
    variables = {
        "PATH": f"{tool.parent}{os.pathsep}{os.environ['PATH']}",
        "DFLASH_BENCH_PROFILES": str(tmp_path / "profiles"),
        "SETUP": "echo ready > ready",
        "COMMAND": f"test -e ready && {sys.executable} decode.py",
        "REPEATS": "3",
    }
    for step in ("Set up both sides", "Measure in turns"):
        done = play(step, tmp_path, **variables)
        assert done.returncode == 0, done.stderr
    made = sorted((tmp_path / "profiles").iterdir(), key=lambda p: (p / "run.json").stat().st_mtime)
    assert [p.name for p in made] == [
        "base-r1", "candidate-r1", "candidate-r2", "base-r2", "base-r3", "candidate-r3",
    ]  # fmt: skip
    done = play("Judge", tmp_path, **variables)
    assert done.returncode == 3, done.stderr
    comment = (tmp_path / "reports" / "gate.md").read_text("utf-8")
    assert "Slower: step" in comment
    assert (tmp_path / "reports" / "gate.xml").stat().st_size > 0
    done = play("Report", tmp_path, **variables)
    assert done.returncode == 0, done.stderr
    assert "prepare_for_decode" in (tmp_path / "reports" / "report.html").read_text("utf-8")


# ── what may not happen ──────────────────────────────────────────────────────────────────────────────────────────────


@pytest.mark.parametrize("path", [*sorted(FOLDER.glob("*.yml")), *EXAMPLES], ids=lambda p: p.name)
def test_actions_are_pinned_to_commits(path: Path) -> None:
    used = re.findall(r"uses: (actions/\S+)", path.read_text(encoding="utf-8"))
    assert used or path in EXAMPLES
    assert not [each for each in used if not re.fullmatch(r"actions/[\w-]+@[0-9a-f]{40}", each)]


def test_no_input_is_pasted_into_a_script() -> None:
    """An input may hold anything: scripts see it as a variable only."""
    scripts = re.findall(r"run: \|\n((?: {10}.*\n|\n)+)", GATE)
    assert len(scripts) > 4
    assert not [text for text in scripts if "${{" in text]


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
    assert gate.count("uses: actions/checkout") == gate.count("persist-credentials: false") == 2
    assert "checkout" not in comment
