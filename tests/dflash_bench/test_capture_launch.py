"""Launching ranks: the command lines, and what comes of ranks that succeed, fail, hang or lose ranges.

The ranks here are a stand-in for the decode loop that keeps to its contract: ranges through the sink that the
environment names (or nvtx), a ledger, a progress file. Its arm says how it behaves.
"""

from __future__ import annotations

import json
import sys
from dataclasses import replace
from pathlib import Path

import pytest

from dflash_bench.capture import launch, nsys
from dflash_bench.capture.check import by_rank, count_ranges
from dflash_bench.capture.choice import RecorderChoice
from dflash_bench.capture.failure import first_failure, said_at_end
from dflash_bench.capture.launch import Launch, Reports, launch_command
from dflash_bench.capture.ledger import read_ledger
from dflash_bench.capture.nsys import NsysTool
from dflash_bench.capture.record import record, steps_done
from dflash_bench.capture.supervise import Limits, Rung
from dflash_bench.errors import CaptureError, UsageError

BUILTIN = RecorderChoice(None, "asked for")
TOOL = NsysTool(Path("/opt/nsys"), (2025, 3, 1, 0), Path("/opt/QdstrmImporter"))
INSTALLED = nsys.find()
needs_nsys = pytest.mark.skipif(INSTALLED is None or not INSTALLED.can_convert, reason="no nsys here that can convert")

LOOP = """
import argparse, importlib, json, os, signal, sys, time
from pathlib import Path
p = argparse.ArgumentParser()
for name in ("arm", "workload", "out", "progress"): p.add_argument("--" + name)
for name in ("steps", "seed"): p.add_argument("--" + name, type=int)
o = p.parse_args()
rank, world = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])
choice = os.environ.get("DFLASH_PREP_SINK")
if choice:
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
if o.arm == "fail" and rank == 1:
    print("RuntimeError: page 17 was given out twice", file=sys.stderr)
    sys.exit(7)
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
    versions={"python": "3", "nvtx": "0.2.11"}, counters={"retracted": 0.0})
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
    return Launch("good", "smoke", 2, 20, 0, folder, BUILTIN, program=(sys.executable, str(program)))


def test_with_the_recorder_torchrun_starts_the_ranks_and_the_sink_is_named() -> None:
    command = launch_command(Launch("topup", "smoke", 2, 20, 7, Path("/x"), BUILTIN))
    line = " ".join(command.line)
    assert f"{sys.executable} -m torch.distributed.run --standalone --nproc-per-node=2 -m" in line
    assert line.endswith(
        f"dflash_bench.capture.exec_rank /x -- {sys.executable} -m dflash_prep.loop --arm topup --workload smoke "
        "--steps 20 --seed 7 --out /x --progress /x/progress"
    )
    assert command.environment["DFLASH_PREP_SINK"] == "dflash_bench.capture.recorder:sink"
    assert command.environment["DFLASH_BENCH_RECORD"] == "/x"


def test_one_report_per_rank_puts_nsys_inside_torchrun_and_one_for_all_around_it() -> None:
    each = launch_command(Launch("topup", "smoke", 2, 20, 7, Path("/x%y"), RecorderChoice(TOOL, "found")))
    whole = launch_command(replace_reports(each_launch(), Reports.ONE))
    assert each.line[:3] == (sys.executable, "-m", "torch.distributed.run")
    assert "--no-python" in each.line
    assert "/x%%y/rank%q{RANK}" in each.line, "nsys would take %y for a pattern"
    assert whole.line[:2] == ("/opt/nsys", "profile")
    assert "/x/all_ranks" in whole.line
    assert each.environment["DFLASH_PREP_SINK"] is None, "a sink from outside would keep the ranges from nsys"


def each_launch() -> Launch:
    return Launch("topup", "smoke", 2, 20, 7, Path("/x"), RecorderChoice(TOOL, "found"))


def replace_reports(one: Launch, reports: Reports) -> Launch:
    return replace(one, reports=reports)


def test_without_a_gpu_only_nvtx_is_traced(monkeypatch: pytest.MonkeyPatch) -> None:
    for has_gpu, traces in ((False, "nvtx"), (True, "cuda,nvtx")):
        monkeypatch.setattr(launch, "has_nvidia_gpu", lambda has_gpu=has_gpu: has_gpu)
        line = launch_command(each_launch()).line
        assert line[line.index("-t") + 1] == traces


def test_variables_are_added_and_taken_away(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("DFLASH_PREP_SINK", "off")
    monkeypatch.setenv("OMP_NUM_THREADS", "3")
    environment = launch_command(each_launch()).full_environment()
    assert "DFLASH_PREP_SINK" not in environment
    assert environment["OMP_NUM_THREADS"] == "3"


def test_torchs_absence_is_said_with_the_command_that_mends_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(launch.importlib.util, "find_spec", lambda name: None)
    with pytest.raises(UsageError, match="needs torch") as refusal:
        launch.require_torch()
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
    assert first_failure(report) == (1, 7)
    assert first_failure("no report") is None


def test_the_end_of_a_log_is_told_without_progress_bars(tmp_path: Path) -> None:
    log = tmp_path / "log"
    log.write_text("first\n[1/2] [0%   ] r.nsys-rep\r[1/2] [=50% ] r.nsys-rep\r[1/2] [=100%] r.nsys-rep\nlast\n\n")
    assert said_at_end(log) == ["first", "last"]
    assert said_at_end(tmp_path / "absent") == []


def test_a_ledger_of_another_version_or_without_a_key_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "rank0.json"
    for content, problem in (
        ("{", "cannot be read"),
        ('{"version": 2}', "of version 2"),
        ('{"version": 1}', "lacks rank"),
    ):
        path.write_text(content)
        with pytest.raises(CaptureError, match=problem):
            read_ledger(path)


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
        record(replace(job, arm="fail"))
    assert "RuntimeError: page 17 was given out twice" in failure.value.text
    assert failure.value.hint == f"the whole log is {job.folder / 'rank1.log'}"


def test_ranges_that_the_ledger_counts_and_the_file_lacks_are_found(job: Launch) -> None:
    capture = record(replace(job, arm="lossy"))
    (finding,) = capture.findings
    assert (finding.code, finding.rank, finding.count) == ("ranges_missing", 1, 5)
    assert "fill 5" in finding.text


class LimitsOnceHanging(Limits):
    """No limit until the rank hangs, so that a slow start is never taken for silence."""

    folder = Path()

    def of(self, rung: Rung) -> float | None:
        if rung is Rung.RUNNING:
            return self.silence_s if steps_done(self.folder) == 3 else None
        return super().of(rung)


def test_a_rank_that_hangs_is_ended_and_called_silent(job: Launch) -> None:
    LimitsOnceHanging.folder = job.folder
    with pytest.raises(CaptureError, match=r"gave no sign of life for 0\.5 s and was ended"):
        record(replace(job, arm="hang"), limits=LimitsOnceHanging(silence_s=0.5, interrupt_s=60, terminate_s=60))
    ledger = json.loads((job.folder / "rank0.json").read_text())
    assert ledger["interrupted"], "the rank was asked politely first"


@pytest.mark.nsys
@needs_nsys
@pytest.mark.parametrize("reports", list(Reports))
def test_the_installed_nsys_records_every_range_of_both_ranks(job: Launch, reports: Reports) -> None:
    capture = record(replace(job, choice=RecorderChoice(INSTALLED, "found"), reports=reports))
    assert len(capture.files) == (2 if reports is Reports.PER_RANK else 1)
    assert capture.findings == ()
    counts = by_rank(count for path in capture.files for count in count_ranges(path))
    assert counts == {0: {"decode_step": 20, "fill": 20}, 1: {"decode_step": 20, "fill": 20}}
