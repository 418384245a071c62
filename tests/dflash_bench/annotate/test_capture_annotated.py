"""``dflash-bench capture --annotate`` of a small program: by nsys, by the built-in recorder, by the torch profiler."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from collections import Counter

import pytest
from toy_engine import TABLE, Toy

from dflash_bench.layout import Events
from dflash_bench.metrics.measure import measure
from dflash_bench.profile import open_profile

PROGRAM = "from toy.engine import Loop\nLoop(1, 2).run({steps})\n"
FORTY_STEPS = PROGRAM.format(steps=40)
HAS_NSYS = shutil.which("nsys") is not None


@pytest.fixture
def toy(tmp_path):
    return Toy(tmp_path)


def capture(toy, *words, program=FORTY_STEPS, code=0):
    (toy.folder / "table.toml").write_text(TABLE)
    (toy.folder / "program.py").write_text(program)
    line = [sys.executable, "-m", "dflash_bench", "capture", "--profiles", str(toy.folder / "p"), "--name", "run"]
    line += [*words, "--", sys.executable, str(toy.folder / "program.py")]
    environment = {**os.environ, "PYTHONPATH": str(toy.folder / "lib")}
    done = subprocess.run(line, env=environment, capture_output=True, text=True, check=False)
    assert done.returncode == code, done.stderr
    return done


def counts(toy):
    profile = open_profile(toy.folder / "p" / "run")
    (process,) = [each for each in profile.info.processes if each.num_ranges]
    return profile, process, Counter(profile.events(Events.RANGES, process)["name"].to_pylist())


@pytest.mark.parametrize(
    "words",
    [
        ["--recorder"],
        pytest.param(
            [], marks=[pytest.mark.nsys, pytest.mark.skipif(not HAS_NSYS, reason="no nsys here")], id="under nsys"
        ),
    ],
)
def test_its_ranges_and_its_rank_are_in_the_profile(toy, words):
    done = capture(toy, "--annotate", str(toy.folder / "table.toml"), *words)
    profile, process, count = counts(toy)
    assert (process.rank, process.world, process.arm) == (1, 2, "toy")
    assert count == {"decode_step": 39, "schedule": 41, "prepare_for_decode": 40, "kv_alloc": 20, "make": 1}
    share = measure(profile).find("alloc.step_share", 1)
    assert (share.values.sum(), share.n) == (20, 39)
    assert "warning" not in done.stderr


def test_the_arm_of_the_command_line_is_that_of_the_marks(toy):
    capture(toy, "--annotate", str(toy.folder / "table.toml"), "--recorder", "--arm", "after")
    assert counts(toy)[1].arm == "after"


def test_the_torch_profiler_records_fifty_steps_after_a_warm_up(toy):
    pytest.importorskip("torch")
    program = "import torch\n" + PROGRAM.format(steps=100)
    capture(toy, "--annotate", str(toy.folder / "table.toml"), "--torch-profiler", program=program)
    _, _, count = counts(toy)
    assert count["decode_step"] == count["prepare_for_decode"] == 50
    assert count["kv_alloc"] == 25


def test_a_killed_process_is_said_beside_what_the_others_left(toy):
    program = (
        "import os, signal\nfrom toy.engine import Loop\n"
        "if os.fork() == 0:\n    Loop(0, 2).run(5)\n    os.kill(os.getpid(), signal.SIGKILL)\n"
        "os.wait()\nLoop(1, 2).run(5)\n"
    )
    done = capture(toy, "--annotate", str(toy.folder / "table.toml"), "--recorder", program=program)
    assert "were killed before they wrote what they had recorded: their ranges are lost" in done.stderr
    profile, _, count = counts(toy)
    assert count["decode_step"] == 4
    assert "process_killed" in {each.code for each in profile.info.findings}
    assert not list((profile.path / "captures").glob("*.running"))


def test_a_program_that_calls_nothing_of_the_table_is_an_error_with_a_hint(toy):
    done = capture(toy, "--annotate", str(toy.folder / "table.toml"), "--recorder", program="pass\n", code=5)
    assert "it called none of the functions of the table" in done.stderr
    assert "--check" in done.stderr


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["--recorder"], "none is named"),
        (["--annotate", "vllm", "--recorder", "--torch-profiler"], "cannot be combined"),
        (["--annotate", "vlm"], "there is no table of annotations 'vlm'"),
    ],
)
def test_what_cannot_be_is_said_before_anything_runs(toy, words, said):
    done = capture(toy, *words, program="raise SystemExit('BEGUN')\n", code=2)
    assert said in done.stderr
    assert "BEGUN" not in done.stderr
