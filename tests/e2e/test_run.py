"""``dflash-bench run`` and ``capture`` as a person types them: real ranks, real recorders, real profiles."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
import time
from importlib.resources import files
from pathlib import Path

import pytest
from fake_nvidia_smi import H200, install
from stored_texts import stored_words
from typer.testing import CliRunner

import dflash_prep
from dflash_bench.capture import choice, nsys
from dflash_bench.cli import app
from dflash_bench.ingest.nsys.source import open_export
from dflash_bench.layout import Events, StepTable
from dflash_bench.model import Recorder
from dflash_bench.profile import open_profile
from dflash_bench.session import session_settings

pytest.importorskip("torch", reason="the decode loop needs the extra [impl]")

INSTALLED = nsys.find_nsys()
needs_nsys = pytest.mark.skipif(INSTALLED is None or not INSTALLED.can_convert, reason="no nsys here that can convert")
SECRET = "hunter2-of-the-environment"


def cli(*arguments: str, **more: str) -> subprocess.CompletedProcess[str]:
    """The installed command in a process of its own."""
    environment = {**os.environ, "SECRET_TOKEN": SECRET, **more}
    command = [sys.executable, "-c", "from dflash_bench.cli import main; main()", *arguments]
    return subprocess.run(command, env=environment, capture_output=True, text=True, check=False)


def assert_private(folder: Path) -> None:
    """Nothing of the environment, the arguments or the host is in a profile, raw captures aside."""
    for path in folder.rglob("*"):
        if path.is_file() and "captures" not in path.relative_to(folder).parts:
            assert SECRET.encode() not in path.read_bytes(), path
            assert os.uname().nodename not in stored_words(path), path


def test_two_ranks_with_the_built_in_recorder_end_as_a_whole_profile(tmp_path: Path) -> None:
    done = cli("run", "--arm", "topup", "--steps", "12", "--recorder", "--name", "r", "--profiles", str(tmp_path))
    assert done.returncode == 0, done.stderr
    assert "recording with the built-in recorder: asked for with --recorder" in done.stderr
    assert "every emitted range is there" in done.stdout
    assert f"next: dflash-bench metrics {tmp_path / 'r'}" in done.stdout
    profile = open_profile(tmp_path / "r")
    info = profile.info
    assert (info.arm, info.workload, info.ranks) == ("topup", "smoke", (0, 1))
    assert {capture.recorder for capture in info.captures} == {Recorder.BUILTIN}
    assert info.settings["steps"] == 12
    assert info.settings["switch.topup_pages"] == 2
    assert info.settings["model"] == "torch", "the kernels that a machine without a GPU decodes with"
    session = session_settings(Path(dflash_prep.__file__).parent)
    assert {name: info.settings.get(name) for name in session} == session, "machine and commit, for baselines"
    assert set(info.counters) == {"0", "1"}
    for process in info.processes:
        names = profile.events(Events.RANGES, process).column("name").to_pylist()
        assert names.count("decode_step") == 12
    assert sorted(p.name for p in (tmp_path / "r" / "captures").glob("*.sqlite")) == ["rank0.sqlite", "rank1.sqlite"]
    assert [p.name for p in tmp_path.iterdir()] == ["r"], "no temporary folder is left"
    assert_private(tmp_path / "r")


@pytest.mark.nsys
@needs_nsys
@pytest.mark.parametrize(("reports", "num_files"), [("per-rank", 2), ("one", 1)])
def test_two_ranks_with_the_installed_nsys(tmp_path: Path, reports: str, num_files: int) -> None:
    line = ["run", "--arm", "control", "--steps", "8", "--reports", reports, "--name", "r", "--profiles", str(tmp_path)]
    done = cli(*line)
    assert done.returncode == 0, done.stderr
    assert "recording with nsys" in done.stderr
    info = open_profile(tmp_path / "r").info
    assert len(info.captures) == num_files
    assert {capture.recorder for capture in info.captures} == {Recorder.NSYS}
    assert info.ranks == (0, 1)
    assert_private(tmp_path / "r")
    assert any(SECRET.encode() in p.read_bytes() for p in (tmp_path / "r" / "captures").glob("*.sqlite")), (
        "nsys stores the environment; this test would see it"
    )


def test_arms_run_verified_and_unprofiled_too_and_a_comparison_says_what_tracing_cost(tmp_path: Path) -> None:
    line = ["run", "--arm", "legacy", "--arm", "topup", "--ranks", "1", "--steps", "6", "--recorder", "--unprofiled"]
    done = cli(
        *line, "--apart", "--verify", "--check", "--device", "simulated", "--name", "r", "--profiles", str(tmp_path)
    )
    assert done.returncode == 0, done.stderr
    assert done.stdout.count("tokens equal the oracle's") == 2
    for arm in ("legacy", "topup"):
        profile = open_profile(tmp_path / f"r-{arm}")
        assert len(profile.frame("steps")) == len(profile.frame("unprofiled_steps")) == 6
        steps = [profile.steps(0, table).column("committed_tokens").to_pylist() for table in StepTable]
        assert steps[0] == steps[1], "with and without a tool it decodes the same"
        assert profile.info.settings["range_cost_ns"] > 0
        assert profile.info.settings["verified_tokens"] > 0
    shown = CliRunner().invoke(app, ["compare", "r-legacy", "r-topup", "--full", "--profiles", str(tmp_path)])
    assert shown.exit_code == 0, shown.stderr
    sheet = shown.stdout.partition("What tracing cost")[2]
    assert [row.split()[0] for row in sheet.splitlines()[2:4]] == ["legacy", "topup"]


def test_repeats_take_turns_and_each_is_a_run_of_its_own(tmp_path: Path) -> None:
    line = ["run", "--arm", "topup", "--arm", "control", "--apart", "--repeats", "2", "--recorder", "--dry-run"]
    result = CliRunner().invoke(app, [*line, "--name", "n", "--profiles", str(tmp_path)])
    assert result.exit_code == 0
    assert re.findall(r"--arm (\w+) .*?--out (\S+)/captures", result.stdout) == [
        ("topup", str(tmp_path / "n-topup-r1")),
        ("control", str(tmp_path / "n-control-r1")),
        ("topup", str(tmp_path / "n-topup-r2")),
        ("control", str(tmp_path / "n-control-r2")),
    ]
    assert list(tmp_path.iterdir()) == [], "a dry run writes nothing"


def test_several_arms_share_each_process_and_one_profile_holds_them_and_the_recorder_saw_every_range(
    tmp_path: Path,
) -> None:
    line = ["run", "--arm", "control", "--arm", "topup", "--block", "4", "--pairs", "3", "--recorder", "--verify"]
    done = cli(*line, "--device", "simulated", "--name", "d", "--profiles", str(tmp_path))
    assert done.returncode == 0, done.stderr
    assert done.stdout.count("control and topup in turns, 2 ranks") == 2, "two processes by default"
    assert done.stdout.count("every emitted range is there") == done.stdout.count("tokens equal the oracle's") == 2
    assert f"next: dflash-bench compare '{tmp_path}/d-r*'" in done.stdout
    orders = []
    for name in ("d-r1", "d-r2"):
        profile = open_profile(tmp_path / name)
        assert (profile.info.arm, profile.info.settings["arms"]) == (None, "control topup")
        steps = profile.frame("steps").dropna(subset="pair")
        assert set(steps.groupby(["rank", "arm", "pair"]).size()) == {4}, "every block has all its steps"
        order = [steps[steps["rank"] == rank].drop_duplicates(["arm", "pair"]).arm.tolist() for rank in (0, 1)]
        assert order[0] == order[1], "the ranks change arms together"
        orders.append(order[0])
        switches = {k: v for k, v in profile.info.settings.items() if k.startswith("switch.topup_pages")}
        assert switches == {"switch.topup_pages@control": 0, "switch.topup_pages@topup": 2}
        assert set(profile.info.counters) == {"0:control", "0:topup", "1:control", "1:topup"}
    assert orders[0] != orders[1], "each process draws its own order"


def test_pools_that_do_not_fit_beside_each_other_are_one_sentence(tmp_path: Path) -> None:
    file = tmp_path / "huge.toml"
    smoke = files("dflash_prep") / "workloads" / "smoke.toml"
    file.write_text(re.sub(r"pool_pages = \d+", "pool_pages = 100_000_000_000_000", smoke.read_text()))
    line = ["run", "--arm", "control", "--arm", "topup", "--ranks", "1", "--recorder", "--workload", str(file)]
    done = cli(*line, "--profiles", str(tmp_path / "p"))
    assert done.returncode == 5
    assert "arms control and topup cannot be run here: the pools of 2 arms at once do not fit" in done.stderr
    assert "Traceback" not in done.stderr


def test_discarded_captures_leave_only_the_profile(tmp_path: Path) -> None:
    line = ["run", "--arm", "topup", "--ranks", "1", "--steps", "3", "--recorder", "--discard-captures", "--name", "r"]
    done = cli(*line, "--profiles", str(tmp_path))
    assert done.returncode == 0, done.stderr
    assert not (tmp_path / "r" / "captures").exists()
    assert [p.name for p in tmp_path.iterdir()] == ["r"]


@pytest.mark.parametrize(
    ("arguments", "sentence"),
    [
        (["--arm", "topdown"], "unknown arm 'topdown'"),
        (["--arm", "topup,topup_pages=99"], "topup_pages must be 0 to 8"),
        (["--arm", "topup", "--workload", "nope"], "unknown workload 'nope'"),
        (["--arm", "topup", "--workload", "absent.toml"], "cannot read workload absent.toml"),
        (["--arm", "topup", "--arm", "topup"], "an arm is named twice"),
        (["--arm", "topup", "--arm", "legacy", "--steps", "9"], "--steps: a duet decodes 30 × 20 steps of each arm"),
        (["--arm", "topup", "--arm", "legacy", "--against", "HEAD"], "holds two versions of one arm"),
        (["--arm", "topup", "--against", "HEAD", "--unprofiled"], "--unprofiled and --against cannot be combined"),
        (["--arm", "topup", "--delay", "0:1:legacy"], "the arms of this run are topup"),
        (["--arm", "topup", "--name", "a/b"], "'a/b' cannot name a run"),
        (["--arm", "topup", "--nsys", "/no/nsys"], "there is no nsys at /no/nsys"),
        (["--arm", "topup", "--nsys", "/no/nsys", "--recorder"], "--nsys and --recorder exclude each other"),
        (["--arm", "topup", "--delay", "2"], "--delay 2 is not RANK:MICROSECONDS"),
        (["--arm", "topup", "--delay", "2:150", "--ranks", "2"], "the ranks of this run are 0 to 1"),
    ],
)
def test_what_cannot_be_meant_is_one_sentence_and_exit_code_2(
    tmp_path: Path, arguments: list[str], sentence: str
) -> None:
    result = CliRunner().invoke(app, ["run", *arguments, "--profiles", str(tmp_path / "p")])
    assert result.exit_code == 2
    assert sentence in result.stderr
    assert not (tmp_path / "p").exists()


def test_a_name_that_is_taken_is_refused_before_anything_runs(tmp_path: Path) -> None:
    (tmp_path / "r").mkdir()
    result = CliRunner().invoke(app, ["run", "--arm", "topup", "--name", "r", "--profiles", str(tmp_path)])
    assert result.exit_code == 2
    assert "exists already" in result.stderr


@pytest.mark.nsys
@needs_nsys
def test_nvtx_and_nsys_that_lose_ranges_together_fall_back_aloud_or_are_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert INSTALLED is not None
    if INSTALLED.version >= (2024,):
        pytest.skip("this nsys answers every nvtx")
    monkeypatch.setattr(choice, "_installed_nvtx", lambda: "0.2.17")
    line = ["run", "--arm", "topup", "--dry-run", "--profiles", str(tmp_path)]
    fallback = CliRunner().invoke(app, line)
    assert fallback.exit_code == 0
    assert "recording with the built-in recorder" in fallback.stderr
    assert 'pip install "nvtx<0.2.12"' in fallback.stderr
    refused = CliRunner().invoke(app, [*line, "--nsys", str(INSTALLED.path)])
    assert refused.exit_code == 5
    assert 'pip install "nvtx<0.2.12"' in refused.stderr


@pytest.mark.parametrize("recorder", ["--recorder", pytest.param("", marks=[pytest.mark.nsys, needs_nsys])])
def test_ctrl_c_ends_the_ranks_and_keeps_what_is_whole(tmp_path: Path, recorder: str) -> None:
    line = ["run", "--arm", "topup", "--steps", "1000000", "--name", "r", "--profiles", str(tmp_path)]
    command = [sys.executable, "-c", "from dflash_bench.cli import main; main()", *line, *filter(None, [recorder])]
    running = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    while not any(p.stat().st_size for p in tmp_path.glob(".r.*/progress")):
        assert running.poll() is None, running.communicate()
        time.sleep(0.05)
    pids = [int(p.read_text()) for p in tmp_path.glob(".r.*/rank*.pid")]
    running.send_signal(signal.SIGINT)
    out, err = running.communicate()
    assert running.returncode == 130, err
    assert "interrupted: what was whole is kept" in err
    assert "every emitted range is there" in out
    info = open_profile(tmp_path / "r").info
    assert info.ranks == (0, 1)
    assert info.settings["interrupted"] is True
    assert len(pids) == 2
    assert not [pid for pid in pids if Path(f"/proc/{pid}").exists()], "no rank outlives the command"


def test_without_nsys_a_command_cannot_be_captured_and_that_is_said(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(nsys, "find_all_nsys", lambda **_: ())
    result = CliRunner().invoke(app, ["capture", "--profiles", str(tmp_path), "--", "true"])
    assert result.exit_code == 5
    assert "recording a command with nsys needs one, and none was found" in result.stderr
    assert list(tmp_path.iterdir()) == []


@pytest.mark.nsys
@needs_nsys
def test_a_command_that_fails_is_reported_and_its_capture_kept(tmp_path: Path) -> None:
    code = "import nvtx, sys\nwith nvtx.annotate('work'): pass\nsys.exit(7)"
    done = cli("capture", "--name", "c", "--profiles", str(tmp_path), "--", sys.executable, "-c", code)
    assert done.returncode == 5
    assert "the command ended with exit code 7" in done.stderr
    profile = open_profile(tmp_path / "c")
    (process,) = profile.info.processes
    assert profile.events(Events.RANGES, process).column("name").to_pylist() == ["work"]
    assert_private(tmp_path / "c")


@pytest.mark.nsys
@needs_nsys
def test_a_command_that_fails_before_anything_is_recorded_is_named_as_the_cause(tmp_path: Path) -> None:
    done = cli("capture", "--name", "c", "--profiles", str(tmp_path), "--", sys.executable, "-c", "raise SystemExit(7)")
    assert done.returncode == 5
    assert "error: the command ended with exit code 7, and " in done.stderr
    assert "nothing to measure" in done.stderr
    assert not (tmp_path / "c").exists()


@pytest.mark.nsys
@needs_nsys
def test_a_captured_command_states_the_machine_it_ran_on(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    install(tmp_path, monkeypatch, H200)
    code = "import nvtx\nwith nvtx.annotate('work'): pass"
    done = cli("capture", "--name", "c", "--profiles", str(tmp_path / "p"), "--", sys.executable, "-c", code)
    assert done.returncode == 0, done.stderr
    own = open_profile(tmp_path / "p" / "c").info.settings
    assert (own["driver"], own["clocks"]) == ("580.159.04", "at most 1980/3201 MHz")
    assert own["cores"] == len(os.sched_getaffinity(0))
    # the session, so that a baseline knows which runs share a machine's mood
    assert own["machine"] == session_settings()["machine"]
    assert_private(tmp_path / "p" / "c")


@pytest.mark.nsys
@needs_nsys
def test_one_report_per_rank_of_a_torchrun_line_becomes_one_profile(tmp_path: Path) -> None:
    program = tmp_path / "rank.py"
    program.write_text(
        "import nvtx, os\n"
        "nvtx.mark(f\"dflash_bench rank={os.environ['RANK']} world=2 arm=mine\", domain='dflash')\n"
        "for _ in range(5):\n    with nvtx.annotate('decode_step', domain='dflash'): pass\n"
    )
    profiles = tmp_path / "profiles"
    ours = [sys.executable, "-c", "from dflash_bench.cli import main; main()", "capture", "--per-rank", "--name", "c"]
    torchrun = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node=2", "--no-python"]
    line = [*torchrun, *ours, "--profiles", str(profiles), "--", sys.executable, str(program)]
    done = subprocess.run(line, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    info = open_profile(profiles / "c").info
    assert (info.ranks, info.world, info.arm) == ((0, 1), 2, "mine")
    assert [process.num_ranges for process in info.processes] == [5, 5]
    assert [p.name for p in profiles.iterdir()] == ["c"]
    assert sorted(p.name for p in (profiles / "c" / "captures").iterdir()) == [
        "rank0.nsys-rep",
        "rank0.sqlite",
        "rank1.nsys-rep",
        "rank1.sqlite",
    ]


@pytest.mark.nsys
@needs_nsys
def test_a_torchrun_line_is_captured_into_one_report(tmp_path: Path) -> None:
    program = tmp_path / "rank.py"
    program.write_text(
        "import nvtx\nfor _ in range(5):\n    with nvtx.annotate('decode_step', domain='dflash'): pass\n"
    )
    torchrun = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node=2", str(program)]
    done = cli("capture", "--name", "c", "--profiles", str(tmp_path), "--", *torchrun)
    assert done.returncode == 0, done.stderr
    info = open_profile(tmp_path / "c").info
    assert len(info.captures) == 1
    assert [process.num_ranges for process in info.processes] == [5, 5]
    (file,) = (tmp_path / "c" / "captures").glob("*.sqlite")
    assert open_export(file).info.recorder is Recorder.NSYS


def test_a_dry_run_shows_the_line_with_its_window(tmp_path: Path) -> None:
    if INSTALLED is None:
        pytest.skip("no nsys here")
    line = ["capture", "--dry-run", "--capture-range", "decode_step", "--trace", "nvtx", "--name", "c"]
    result = CliRunner().invoke(app, [*line, "--profiles", str(tmp_path), "--", "python", "serve.py", "--port", "1"])
    assert result.exit_code == 0
    assert "--capture-range=nvtx '--nvtx-capture=decode_step@*' --capture-range-end=stop" in result.stdout
    assert result.stdout.rstrip().endswith("-- python serve.py --port 1")
    assert list(tmp_path.iterdir()) == []


def test_asking_for_help_and_dry_runs_import_nothing_heavy() -> None:
    code = (
        "import sys\nfrom typer.testing import CliRunner\nfrom dflash_bench.cli import app\n"
        "for line in (['--help'], ['run', '--help'], ['capture', '--help'], ['doctor', '--help']):\n"
        "    assert CliRunner().invoke(app, line).exit_code == 0\n"
        "print([m for m in ('torch', 'pandas', 'scipy', 'pyarrow') if m in sys.modules])"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout == "[]\n"
