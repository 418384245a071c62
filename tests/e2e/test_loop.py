"""The decode loop as a program: alone and as two ranks, its files, its exit codes, and how it stops."""

from __future__ import annotations

import csv
import json
import os
import signal
import socket
import subprocess
import sys
import time
from pathlib import Path

import pytest

from dflash_prep.loop.__main__ import main

SMALL = """
description = "two steps of work on every page size in a few seconds"
[requests]
concurrency = 6
prompt = { low = 20, high = 60 }
output = { low = 60, high = 120 }
[kv]
page_size = 16
pool_pages = 200
context_len = 192
[speculation]
block = 8
window = 32
accept_mean = 3.5
[device]
draft_us = 200
verify_us = 500
"""


def command(*arguments: str) -> list[str]:
    """Verified always: no test here passes with a token that is not the oracle's."""
    return [sys.executable, "-m", "dflash_prep.loop", "--verify", *arguments]


def environment(**extra: str) -> dict[str, str]:
    return os.environ | {"OMP_NUM_THREADS": "1", "DFLASH_PREP_SINK": "off"} | extra


def loop(*arguments: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(command(*arguments), capture_output=True, text=True, env=environment(), timeout=240)


@pytest.fixture
def small(tmp_path) -> str:
    path = tmp_path / "small.toml"
    path.write_text(SMALL)
    return str(path)


def ledger(folder: Path, rank: int = 0) -> dict:
    return json.loads((folder / f"rank{rank}.json").read_text())


def start_ranks(world: int, *arguments: str) -> list[subprocess.Popen[str]]:
    """What torchrun does, with the processes at hand: a signal can go to one of them."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = str(free.getsockname()[1])
    place = {"WORLD_SIZE": str(world), "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": port}
    return [
        subprocess.Popen(
            command(*arguments),
            env=environment(RANK=str(rank), LOCAL_RANK=str(rank), **place),
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )
        for rank in range(world)
    ]


def finish(processes: list[subprocess.Popen[str]]) -> list[tuple[int, str]]:
    ends = [process.communicate(timeout=240) for process in processes]
    return [(process.returncode, err) for process, (_, err) in zip(processes, ends, strict=True)]


def test_the_list_of_arms_and_workloads_comes_without_torch() -> None:
    code = "import sys; from dflash_prep.loop.__main__ import main; main(['--list']); sys.exit('torch' in sys.modules)"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60)
    assert done.returncode == 0
    listing = json.loads(done.stdout)
    assert listing["arms"]["topup"]["topup_pages"] == 2
    assert listing["workloads"]["smoke"]


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        (("--arm", "fast"), "unknown arm 'fast'"),
        (("--workload", "fast"), "unknown workload 'fast'"),
        (("--steps", "0"), "--steps"),
        (("--plant", "page@soon"), "'page@soon' is no KIND@STEP"),
        (("--device", "simulated", "--model", "triton"), "--model triton needs a GPU and triton"),
        (("--delay", "0:soon"), "'0:soon' is no RANK:MICROSECONDS"),
        (("--delay", "1:150"), "--delay 1:150 names rank 1, and the ranks of this run are 0 to 0"),
    ],
)
def test_an_unknown_name_is_one_sentence_and_exit_code_2(tmp_path, capsys, arguments, says) -> None:
    assert main(["--verify", *arguments, "--out", str(tmp_path / "out")]) == 2
    said = capsys.readouterr().err
    assert says in said
    assert said.count("\n") == 1
    assert not (tmp_path / "out").exists()


def test_the_program_ends_with_that_exit_code(tmp_path) -> None:
    done = loop("--arm", "fast", "--out", str(tmp_path / "out"))
    assert (done.returncode, done.stderr.count("\n")) == (2, 1)


def test_one_rank_runs_its_steps_and_accounts_for_every_range(tmp_path, small) -> None:
    out, progress = tmp_path / "out", tmp_path / "progress"
    arguments = ("--arm", "topup", "--workload", small, "--steps", "40", "--check")
    done = loop(*arguments, "--out", str(out), "--progress", str(progress))
    assert (done.returncode, done.stderr) == (0, "")
    read = ledger(out)
    assert (read["steps"], read["interrupted"], read["device"]) == (40, False, "simulated")
    assert (read["arm"], read["workload"], read["switches"]["topup_pages"]) == ("topup", "small", 2)
    always = ("decode_step", "prepare_for_decode", "fill", "h2d", "dp_agreement", "draft", "verify", "rebuild_compact")
    assert {name: read["ranges"][name] for name in always} == dict.fromkeys(always, 40)
    assert read["ranges"]["process_result"] == 40  # the last one after the last step
    assert read["ranges"]["kv_alloc"] == read["counters"]["alloc.steps"] == read["counters"]["consistency.checks"]
    assert read["marks"] == 1
    assert read["delay"] is None
    assert read["checks"]["mismatch"] is None
    assert read["checks"]["verified_tokens"] > 0
    assert progress.stat().st_size == 40


def test_a_run_that_decoded_wrongly_says_where_and_exits_with_5(tmp_path, small) -> None:
    arguments = ("--workload", small, "--steps", "12", "--plant", "length@6", "--out", str(tmp_path))
    done = loop(*arguments)
    assert done.returncode == 5
    assert done.stderr.startswith("rank 0 left the oracle at step 6, request 0, position ")
    assert ledger(tmp_path)["checks"]["mismatch"].startswith("step 6, request 0, position ")


def test_a_result_that_comes_into_the_slot_of_another_step_exits_with_5(tmp_path, small) -> None:
    done = loop("--arm", "floor", "--workload", small, "--steps", "12", "--plant", "ring@6", "--out", str(tmp_path))
    assert done.returncode == 5
    assert done.stderr.startswith("the result of step 6 with block ")
    assert done.stderr.count("\n") == 1


@pytest.mark.parametrize("arm", ["topup", pytest.param("floor", marks=pytest.mark.soak)])
def test_with_the_triton_kernels_in_their_interpreter_it_decodes_the_same(tmp_path, small, arm) -> None:
    pytest.importorskip("triton")
    arguments = ("--arm", arm, "--workload", small, "--steps", "5", "--check", "--out", str(tmp_path))
    interpreted = environment(TRITON_INTERPRET="1", DFLASH_PREP_FORCE_TRITON="1")
    done = subprocess.run(command(*arguments), capture_output=True, text=True, env=interpreted, timeout=240)
    assert done.returncode == 0, done.stderr
    assert ledger(tmp_path)["checks"]["verified_tokens"] > 0
    assert ledger(tmp_path)["settings"]["model"] == "triton"


def test_two_ranks_agree_and_each_decodes_its_own_requests_right(tmp_path, small) -> None:
    arguments = ("--arm", "control", "--workload", small, "--steps", "30", "--out", str(tmp_path))
    assert finish(start_ranks(2, *arguments)) == [(0, ""), (0, "")]
    first, second = ledger(tmp_path, 0), ledger(tmp_path, 1)
    assert (first["world"], second["rank"]) == (2, 1)
    assert first["steps"] == second["steps"] == 30
    assert first["ranges"]["dp_agreement"] == second["ranges"]["dp_agreement"] == 30
    assert first["counters"]["tokens.committed"] != second["counters"]["tokens.committed"]


@pytest.mark.parametrize(
    ("arm", "world"),
    [
        pytest.param("legacy", 2, id="eager"),
        pytest.param("topup", 2, id="folded"),
        pytest.param("topup", 4, id="two groups", marks=pytest.mark.soak),
    ],
)
def test_ranks_that_share_the_drafts_vocabulary_run_the_same_requests_right(tmp_path, arm, world) -> None:
    """Each rank holds half of the head, so a right token can only come out of the collective."""
    shared = tmp_path / "shared.toml"
    shared.write_text(SMALL.replace("block = 8", "block = 8\nsampler_tp = 2"))
    arguments = ("--arm", arm, "--workload", str(shared), "--steps", "12", "--check", "--out", str(tmp_path))
    assert finish(start_ranks(world, *arguments)) == [(0, "")] * world
    ranks = [ledger(tmp_path, rank) for rank in range(world)]
    assert {each["settings"]["sampler_vocab"] for each in ranks} == {256}
    assert all(each["checks"]["verified_tokens"] > 0 for each in ranks)
    committed = [each["counters"]["tokens.committed"] for each in ranks]
    assert committed[::2] == committed[1::2]
    assert len(set(committed)) == world // 2


def test_a_delay_makes_every_step_last_at_least_as_long_and_stands_in_the_ledger(tmp_path, small) -> None:
    done = loop("--workload", small, "--steps", "10", "--delay", "0:30000", "--out", str(tmp_path))
    assert (done.returncode, done.stderr) == (0, "")
    assert ledger(tmp_path)["delay"] == "0:30000"
    with (tmp_path / "rank0.steps.csv").open(newline="") as file:
        assert min(int(row["period_ns"]) for row in csv.DictReader(file)) >= 30_000_000


def test_torchrun_starts_it(tmp_path, small) -> None:
    launcher = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2", "-m"]
    arguments = ("--arm", "legacy", "--workload", small, "--steps", "10", "--out", str(tmp_path / "out"))
    whole = [*launcher, *command(*arguments)[2:]]
    done = subprocess.run(whole, capture_output=True, text=True, env=environment(), timeout=180)
    assert done.returncode == 0, done.stderr
    assert [ledger(tmp_path / "out", rank)["steps"] for rank in (0, 1)] == [10, 10]


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_a_signal_to_one_rank_stops_both_after_the_same_step(tmp_path, small, number) -> None:
    progress = tmp_path / "progress"
    arguments = ("--workload", small, "--steps", "100000", "--out", str(tmp_path))
    processes = start_ranks(2, *arguments, "--progress", str(progress))
    deadline = time.monotonic() + 90
    while not (progress.exists() and progress.stat().st_size) and time.monotonic() < deadline:
        time.sleep(0.05)
    processes[1].send_signal(number)
    assert finish(processes) == [(0, ""), (0, "")]
    first, second = ledger(tmp_path, 0), ledger(tmp_path, 1)
    assert first["interrupted"]
    assert second["interrupted"]
    assert first["steps"] == second["steps"] == progress.stat().st_size > 0
    assert first["checks"]["mismatch"] is None


def test_a_duet_of_two_ranks_counts_the_steps_of_its_blocks_and_checks_every_arm(tmp_path, small) -> None:
    duet = ("--arm", "control", "--arm", "topup", "--block", "4", "--pairs", "3", "--check")
    progress = tmp_path / "progress"
    arguments = (*duet, "--workload", small, "--out", str(tmp_path), "--progress", str(progress))
    assert finish(start_ranks(2, *arguments)) == [(0, ""), (0, "")]
    first = ledger(tmp_path)
    assert (first["arm"], first["arms"], first["steps"]) == (None, ["control", "topup"], 2 * 3 * (4 + 2))
    assert first["switches"]["topup"]["topup_pages"] == 2
    assert first["marks"] == 1 + 2 * 2 * 3
    assert progress.stat().st_size == 2 * 3 * 4
    checks = [first["counters"][arm]["consistency.checks"] for arm in ("control", "topup")]
    assert first["ranges"]["kv_alloc"] == sum(checks)
    assert min(checks) > 0
    blocks = []
    for rank in (0, 1):
        with (tmp_path / f"rank{rank}.steps.csv").open(newline="") as file:
            rows = list(csv.DictReader(file))
        assert [int(row["step"]) for row in rows] == list(range(36))
        blocks.append([(row["arm"], row["pair"]) for row in rows])
    assert blocks[0] == blocks[1], "all ranks decode the same arm at the same time"
    assert blocks[0].count(("", "")) == 2 * 3 * 2
    assert all(blocks[0].count((arm, str(pair))) == 4 for arm in ("control", "topup") for pair in range(3))


def test_a_duet_that_decoded_wrongly_names_the_arm(tmp_path, small) -> None:
    duet = ("--arm", "control", "--arm", "topup", "--block", "6", "--pairs", "1")
    done = loop(*duet, "--workload", small, "--plant", "length@5", "--out", str(tmp_path))
    assert done.returncode == 5
    assert done.stderr.startswith("rank 0 left the oracle at arm control, step 5, request 0, position ")


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        (("--arm", "topup", "--arm", "topup"), "different names"),
        (("--arm", "topup", "--arm", "control", "--steps", "20"), "--steps is for a run of one arm"),
        (("--arm", "topup", "--arm", "control", "--turns", "."), "--turns hands out blocks of one arm"),
        (("--arm", "topup", "--arm", "control", "--block", "0"), "--block and --pairs must be at least 1"),
        (("--turns", "nowhere"), "nobody hands out turns at nowhere/rank0.sock"),
    ],
)
def test_a_duet_that_cannot_be_is_one_sentence_and_exit_code_2(tmp_path, capsys, small, arguments, says) -> None:
    assert main([*arguments, "--workload", small, "--out", str(tmp_path / "out")]) == 2
    said = capsys.readouterr().err
    assert said.count("\n") == 1
    assert says in said
