"""Launching ranks: the command lines, and what comes of ranks that succeed, fail, hang or lose ranges.

The ranks here are a stand-in for the decode loop that keeps to its contract: ranges through the sink that the
environment names (or nvtx), a ledger, a progress file. Its arm says how it behaves.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import pytest

from dflash_bench.capture import nsys, nsys_command
from dflash_bench.capture.check import by_rank, count_ranges
from dflash_bench.capture.choice import RecorderChoice
from dflash_bench.capture.nsys import NsysTool
from dflash_bench.capture.supervise import ChildEnd, Limits, Rung
from dflash_bench.errors import CaptureError, UsageError
from dflash_bench.run import plan
from dflash_bench.run.failure import _first_failure, _said_at_end, is_session_clash
from dflash_bench.run.launch import Launch, launch_command
from dflash_bench.run.ledger import _read_ledger
from dflash_bench.run.record import _steps_done, record
from dflash_bench.run.request import Backend, LoopDevice, Reports, RunRequest

BUILTIN = RecorderChoice(None, "asked for")
TOOL = NsysTool(Path("/opt/nsys"), (2025, 3, 1, 0), Path("/opt/QdstrmImporter"))
INSTALLED = nsys.find_nsys()
needs_nsys = pytest.mark.skipif(INSTALLED is None or not INSTALLED.can_convert, reason="no nsys here that can convert")

LOOP = """
import argparse, importlib, json, os, signal, sys, time
from pathlib import Path
p = argparse.ArgumentParser()
for name in ("arm", "workload", "out", "progress"): p.add_argument("--" + name)
for name in ("steps", "seed"): p.add_argument("--" + name, type=int)
p.add_argument("--verify", action="store_true")
o = p.parse_args()
rank, world = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])
choice = os.environ.get("DFLASH_PREP_SINK")
if choice == "off":
    push = mark = lambda text: None
    pop = close = lambda: None
elif choice:
    module, _, factory = choice.partition(":")
    sink = getattr(importlib.import_module(module), factory)(rank=rank, world=world)
    push, pop, mark, close = sink.push, sink.pop, sink.mark, sink.close
else:
    import nvtx
    push = lambda name: nvtx.push_range(name, domain="dflash")
    pop = lambda: nvtx.pop_range(domain="dflash")
    mark = lambda text: nvtx.mark(text, domain="dflash")
    close = lambda: None
mark(f"dflash_bench rank={rank} world={world} arm={o.arm}")
if o.arm == "fail" and rank == world - 1:
    print("RuntimeError: page 17 was given out twice", file=sys.stderr)
    sys.exit(7)
if o.arm == "wrong" and rank == world - 1:
    print(f"a warning of no weight\\nrank {rank} left the oracle at step 9, request 4, position 70", file=sys.stderr)
    sys.exit(5)
stopped = []
signal.signal(signal.SIGINT, lambda *_: stopped.append(1))
done = 0
while done < o.steps and not stopped:
    push("decode_step"); push("fill"); pop(); pop()
    done += 1
    if rank == 0:
        with open(o.progress, "ab") as f: f.write(b".")
    while o.arm == "hang" and done == 3 and not stopped: time.sleep(0.05)
ranges = {"decode_step": done, "fill": done + (5 if o.arm == "lossy" and rank == 1 else 0)}
ledger = dict(version=1, rank=rank, world=world, arm=o.arm, switches={"topup_pages": 2}, workload=o.workload,
    seed=o.seed, steps=done, interrupted=bool(stopped), device="cpu", domain="dflash", ranges=ranges, marks=1,
    versions={"python": "3", "nvtx": "0.2.11"}, counters={"retracted": 0.0},
    checks={"verified_tokens": done, "mismatch": None})
Path(o.out, f"rank{rank}.json").write_text(json.dumps(ledger))
close()
"""


@pytest.fixture
def job(tmp_path: Path) -> Launch:
    """A launch of the stand-in on two ranks."""
    program = tmp_path / "loop.py"
    program.write_text(LOOP)
    folder = tmp_path / "captures"
    folder.mkdir()
    return Launch(RunRequest(("good",), steps=20), ("good",), folder, BUILTIN, program=(str(program),))


def test_with_the_recorder_torchrun_starts_the_ranks_and_the_sink_is_named() -> None:
    command = launch_command(replace(each_launch(), choice=BUILTIN))
    line = " ".join(command.line)
    assert f"{sys.executable} -m torch.distributed.run --standalone --nproc-per-node=2 -m" in line
    assert line.endswith(
        f"dflash_bench.capture.exec_rank /x -- {sys.executable} -m dflash_prep.loop --arm topup --workload smoke "
        "--seed 7 --steps 20 --out /x --progress /x/progress"
    )
    assert command.environment["DFLASH_PREP_SINK"] == "dflash_bench.capture.recorder:sink"
    assert command.environment["DFLASH_BENCH_RECORD"] == "/x"


def test_one_report_per_rank_puts_nsys_inside_torchrun_and_one_for_all_around_it() -> None:
    each = launch_command(replace(each_launch(), folder=Path("/x%y")))
    whole = launch_command(asked(each_launch(), reports=Reports.ONE))
    assert each.line[:3] == (sys.executable, "-m", "torch.distributed.run")
    assert "--no-python" in each.line
    assert "/x%%y/rank%q{RANK}" in each.line, "nsys would take %y for a pattern"
    assert whole.line[:2] == ("/opt/nsys", "profile")
    assert "/x/all_ranks" in whole.line
    assert each.environment["DFLASH_PREP_SINK"] is None, "a sink from outside would keep the ranges from nsys"


def each_launch() -> Launch:
    request = RunRequest(("topup",), steps=20, seed=7)
    return Launch(request, ("topup",), Path("/x"), RecorderChoice(TOOL, "found"))


def asked(one: Launch, **options: object) -> Launch:
    """The same launch, of a request with other options."""
    return replace(one, request=replace(one.request, **options))


def test_a_single_rank_is_started_without_torchrun() -> None:
    alone = replace(asked(each_launch(), ranks=1), choice=BUILTIN)
    command = launch_command(alone)
    assert command.line[:3] == (sys.executable, "-m", "dflash_bench.capture.exec_rank")
    assert {command.environment[key] for key in ("RANK", "LOCAL_RANK")} == {"0"}
    assert command.environment["WORLD_SIZE"] == "1"
    for reports, stem in ((Reports.PER_RANK, "rank0"), (Reports.ONE, "all_ranks")):
        line = launch_command(asked(replace(alone, choice=each_launch().choice), reports=reports)).line
        assert line[:2] == ("/opt/nsys", "profile")
        assert line[line.index("-o") + 1 :][:2] == (f"/x/{stem}", sys.executable)


@pytest.mark.parametrize(("arm", "text"), [("wrong", "ran and was wrong: rank 0 left"), ("fail", "rank 0 of 1 ended")])
def test_a_single_rank_that_fails_is_named_by_its_own_exit_code(job: Launch, arm: str, text: str) -> None:
    with pytest.raises(CaptureError, match=f"arm {arm}:? {text}") as failure:
        record(asked(replace(job, arms=(arm,)), ranks=1))
    assert ("exit code 7; it said:" in failure.value.text) == (arm == "fail")
    assert failure.value.hint == f"the whole log is {job.folder / 'rank0.log'}"


def test_a_single_recorded_rank_is_whole(job: Launch) -> None:
    capture = record(asked(job, ranks=1))
    assert [path.name for path in capture.files] == ["rank0.sqlite"]
    assert capture.findings == ()


def test_what_the_loop_is_to_do_otherwise_is_passed_on_and_its_own_choices_are_not_spelled_out() -> None:
    assert RunRequest(()).loop_arguments == ("--workload", "smoke", "--seed", "0", "--steps", "400")
    options = {"device": LoopDevice.CUDA, "backend": Backend.NCCL, "verify": True, "check": True, "delay": "2:150"}
    line = launch_command(asked(each_launch(), **options)).line
    assert "--seed 7 --steps 20 --device cuda --backend nccl --delay 2:150 --verify --check --out /x" in " ".join(line)


def test_an_unprofiled_run_has_neither_nsys_nor_recorder_nor_ranges() -> None:
    for choice in (BUILTIN, RecorderChoice(TOOL, "found")):
        command = launch_command(replace(each_launch(), choice=choice, is_unprofiled=True))
        assert "/opt/nsys" not in command.line
        assert command.environment["DFLASH_PREP_SINK"] == "off"
        assert "DFLASH_BENCH_RECORD" not in command.environment


def test_the_starts_of_nsys_are_kept_apart_only_when_that_is_asked_for() -> None:
    together, apart = each_launch(), replace(each_launch(), stagger_s=0.5)
    assert "--after" not in " ".join(launch_command(together).line)
    line = launch_command(apart).line
    at = line.index("--after=0.5")
    assert line[at - 1 : at + 3] == ("dflash_bench.capture.exec_rank", "--after=0.5", "--", "/opt/nsys")


def test_without_a_gpu_only_nvtx_is_traced(monkeypatch: pytest.MonkeyPatch) -> None:
    for has_gpu, traces in ((False, "nvtx"), (True, "cuda,nvtx")):
        monkeypatch.setattr(nsys_command, "has_nvidia_gpu", lambda has_gpu=has_gpu: has_gpu)
        line = launch_command(each_launch()).line
        assert line[line.index("-t") + 1] == traces


def test_variables_are_added_and_taken_away(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("DFLASH_PREP_SINK", "off")
    monkeypatch.setenv("OMP_NUM_THREADS", "3")
    environment = launch_command(each_launch()).full_environment()
    assert "DFLASH_PREP_SINK" not in environment
    assert environment["OMP_NUM_THREADS"] == "3"


def test_torchs_absence_is_said_with_the_command_that_mends_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(plan.importlib.util, "find_spec", lambda name: None)
    with pytest.raises(UsageError, match="needs torch") as refusal:
        plan.plan_runs(RunRequest(("topup",)))
    assert refusal.value.hint == 'pip install "dflash-bench[impl]"'


def test_the_rank_that_failed_first_is_read_from_torchruns_report() -> None:
    report = """
  Failures:
  [1]: rank      : 0 (local_rank: 0)  exitcode  : -15 (pid: 4)
  Root Cause (first observed failure):
  [0]:
    rank      : 1 (local_rank: 1)
    exitcode  : 7 (pid: 5)
"""
    assert _first_failure(report) == (1, 7)
    assert _first_failure("no report") is None


def test_the_end_of_a_log_is_told_without_progress_bars(tmp_path: Path) -> None:
    log = tmp_path / "log"
    log.write_text("first\n[1/2] [0%   ] r.nsys-rep\r[1/2] [=50% ] r.nsys-rep\r[1/2] [=100%] r.nsys-rep\nlast\n\n")
    assert _said_at_end(log) == ["first", "last"]
    assert _said_at_end(tmp_path / "absent") == []


def test_a_ledger_of_another_version_or_without_a_key_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "rank0.json"
    for content, problem in (
        ("{", "cannot be read"),
        ('{"version": 2}', "of version 2"),
        ('{"version": 1}', "lacks rank"),
    ):
        path.write_text(content)
        with pytest.raises(CaptureError, match=problem):
            _read_ledger(path)


def test_two_recorded_ranks_are_whole_on_one_time_axis_and_progress_is_told(job: Launch) -> None:
    told: list[int] = []
    capture = record(job, told.append)
    assert [path.name for path in capture.files] == ["rank0.sqlite", "rank1.sqlite"]
    assert capture.findings == ()
    assert not capture.is_interrupted
    assert [ledger.rank for ledger in capture.ledgers] == [0, 1]
    assert told[-1] == 20
    assert told == sorted(told)
    counts = by_rank(count for path in capture.files for count in count_ranges(path))
    assert counts == {0: {"decode_step": 20, "fill": 20}, 1: {"decode_step": 20, "fill": 20}}
    assert not list(job.folder.glob("*.pid")), "notes about living processes do not outlive them"


def test_a_failing_rank_is_named_with_what_it_said(job: Launch) -> None:
    with pytest.raises(CaptureError, match="arm fail: rank 1 of 2 ended with exit code 7") as failure:
        record(replace(job, arms=("fail",)))
    assert "RuntimeError: page 17 was given out twice" in failure.value.text
    assert failure.value.hint == f"the whole log is {job.folder / 'rank1.log'}"


def test_a_rank_that_decodes_wrongly_is_one_sentence_with_the_place(job: Launch) -> None:
    with pytest.raises(CaptureError) as failure:
        record(replace(job, arms=("wrong",)))
    place = "rank 1 left the oracle at step 9, request 4, position 70"
    assert failure.value.text == f"arm wrong ran and was wrong: {place}"
    assert failure.value.hint == f"the whole log is {job.folder / 'rank1.log'}"


def test_an_unprofiled_run_leaves_ledgers_and_no_capture(job: Launch) -> None:
    capture = record(asked(replace(job, is_unprofiled=True), verify=True))
    assert (capture.files, capture.findings) == ((), ())
    assert [(ledger.rank, ledger.checks["verified_tokens"]) for ledger in capture.ledgers] == [(0, 20), (1, 20)]
    assert not list(job.folder.glob("*.sqlite"))


CLASH = "[boost::errinfo_api_function_*] = sem_open"
FAKE_NSYS = """#!{python}
# An nsys whose first {failures} starts on rank 1 meet another one's; then it records as the built-in recorder does.
import os, sys
from pathlib import Path
folder, rank = Path("{folder}"), os.environ["RANK"]
output = Path(sys.argv[sys.argv.index("-o") + 1].replace("%q{{RANK}}", rank))
command = sys.argv[sys.argv.index("-o") + 2:]
starts = len(list(folder.glob(f"start-{{rank}}-*")))
(folder / f"start-{{rank}}-{{starts}}").touch()
if rank == "1" and starts < {failures}:
    print("Dynamic exception type: boost::wrapexcept<QuadDCommon::InternalErrorException>")
    print("{clash}")
    sys.exit(1)
os.environ.update(DFLASH_PREP_SINK="dflash_bench.capture.recorder:sink", DFLASH_BENCH_RECORD=str(output.parent))
os.execvp(command[0], command)
"""


def clashing(folder: Path, failures: int) -> NsysTool:
    """A stand-in for nsys that cannot start on rank 1 the first times."""
    path = folder / "nsys"
    path.write_text(FAKE_NSYS.format(python=sys.executable, folder=folder, failures=failures, clash=CLASH))
    path.chmod(0o755)
    return NsysTool(path, (2022, 4, 2, 1), path)


def test_nsys_that_clash_at_the_start_are_started_again_apart_and_that_is_said(
    job: Launch, tmp_path: Path, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("dflash_bench.run.record._STAGGER_S", 0.05)
    capture = record(replace(job, choice=RecorderChoice(clashing(tmp_path, 1), "found")))
    assert [ledger.rank for ledger in capture.ledgers] == [0, 1]
    assert capture.findings == (), "every range is there"
    assert "could not start on all 2 ranks at one moment (sem_open); starting again" in caplog.text
    assert (tmp_path / "start-1-1").exists()
    assert not (tmp_path / "start-1-2").exists(), "started once more, not more often"


def test_nsys_that_clash_every_time_are_an_error_that_names_two_ways_out(
    job: Launch, monkeypatch: pytest.MonkeyPatch
) -> None:
    staggered: list[float] = []

    def clash(launches: list[Launch], *_: object) -> tuple[ChildEnd, Launch]:
        staggered.append(launches[0].stagger_s)
        (launches[0].folder / "rank0.log").touch()
        (launches[0].folder / "launcher.log").write_text(f"{CLASH}\n")
        return ChildEnd(1), launches[0]

    monkeypatch.setattr("dflash_bench.run.record._supervised", clash)
    with pytest.raises(CaptureError, match="could not start on all 2 ranks") as failure:
        record(replace(each_launch(), folder=job.folder))
    assert failure.value.hint is not None
    assert "--reports one" in failure.value.hint
    assert "--recorder" in failure.value.hint
    assert staggered == [0, 0.5, 1], "three attempts, further and further apart"


def test_the_same_words_from_a_rank_that_did_start_are_not_taken_for_a_clash(tmp_path: Path) -> None:
    (tmp_path / "launcher.log").write_text(f"{CLASH}\n")
    (tmp_path / "rank0.log").touch()
    assert is_session_clash(tmp_path, 2)
    assert not is_session_clash(tmp_path, 1)
    (tmp_path / "launcher.log").write_text("RuntimeError: no memory left\n")
    assert not is_session_clash(tmp_path, 2)


def test_a_start_put_off_by_the_rank_becomes_the_command_itself(tmp_path: Path) -> None:
    told = [sys.executable, "-c", "import os; print(os.getppid())"]
    line = [sys.executable, "-m", "dflash_bench.capture.exec_rank"]
    done = subprocess.run([*line, "--after=0.01", "--", *told], capture_output=True, text=True, check=True)
    assert int(done.stdout) == os.getpid(), "no process stands between"
    for wrong in (["--after=x", "--", "true"], ["--after=0.1", "true"], []):
        assert subprocess.run([*line, *wrong], capture_output=True, check=False).returncode == 2
    assert subprocess.run([*line, "--after=0", "--", "/no/such"], capture_output=True, check=False).returncode == 127


def test_ranges_that_the_ledger_counts_and_the_file_lacks_are_found(job: Launch) -> None:
    capture = record(replace(job, arms=("lossy",)))
    (finding,) = capture.findings
    assert (finding.code, finding.rank, finding.count) == ("ranges_missing", 1, 5)
    assert "fill 5" in finding.text


class LimitsOnceHanging(Limits):
    """No limit until the rank hangs, so that a slow start is never taken for silence."""

    folder = Path()

    def of(self, rung: Rung) -> float | None:
        if rung is Rung.RUNNING:
            return self.silence_s if _steps_done(self.folder) == 3 else None
        return super().of(rung)


def test_a_rank_that_hangs_is_ended_and_called_silent(job: Launch) -> None:
    LimitsOnceHanging.folder = job.folder
    with pytest.raises(CaptureError, match=r"gave no sign of life for 0\.5 s and was ended"):
        record(replace(job, arms=("hang",)), limits=LimitsOnceHanging(silence_s=0.5, interrupt_s=60, terminate_s=60))
    ledger = json.loads((job.folder / "rank0.json").read_text())
    assert ledger["interrupted"], "the rank was asked politely first"


@pytest.mark.nsys
@needs_nsys
@pytest.mark.parametrize("reports", list(Reports))
def test_the_installed_nsys_records_every_range_of_both_ranks(job: Launch, reports: Reports) -> None:
    capture = record(asked(replace(job, choice=RecorderChoice(INSTALLED, "found")), reports=reports))
    assert len(capture.files) == (2 if reports is Reports.PER_RANK else 1)
    assert capture.findings == ()
    counts = by_rank(count for path in capture.files for count in count_ranges(path))
    assert counts == {0: {"decode_step": 20, "fill": 20}, 1: {"decode_step": 20, "fill": 20}}
