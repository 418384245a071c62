"""Turns handed back and forth between the processes of two versions: nobody works out of turn, nobody waits for ever.

The ranks are a stand-in for the decode loop that says when it began and ended each turn.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest

from dflash_bench.capture.choice import RecorderChoice
from dflash_bench.errors import CaptureError
from dflash_bench.run.launch import Launch, launch_command
from dflash_bench.run.record import RunCapture, record_together
from dflash_bench.run.request import RunRequest
from dflash_bench.run.turns import TurnTaking, drawn_order
from dflash_bench.run.versions import CodeVersion

PROGRAM = """
import json, os, socket, sys, time
from pathlib import Path
from dflash_bench.capture.recorder import sink
value = lambda name: sys.argv[sys.argv.index(name) + 1]
rank, world, out = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"]), Path(value("--out"))
events, log, done = sink(rank=rank, world=world), [], 0
events.mark(f"dflash_bench rank={rank} world={world}")
turns = socket.socket(socket.AF_UNIX)
turns.connect(value("--turns") + f"/rank{rank}.sock")
lines = turns.makefile("rw")
print("ready", file=lines, flush=True)
for line in lines:
    if line == "end\\n": break
    _, pair, label, steps = line.split()
    if os.environ.get("DIES_IN") == f"{label} {pair}" and rank == world - 1: sys.exit("RuntimeError: page 17 is gone")
    log.append((int(pair), label, int(steps), time.monotonic_ns()))
    events.mark(f"dflash_bench duet pair={pair} arm={label} open")
    for _ in range(int(steps)):
        events.push("decode_step"); events.pop(); done += 1
    events.mark(f"dflash_bench duet pair={pair} arm={label} close")
    if rank == 0: open(value("--progress"), "ab").write(b"." * int(steps))
    log[-1] += (time.monotonic_ns(),)
    print("done", file=lines, flush=True)
else:
    sys.exit("nobody said the end")
(out / f"turns{rank}.json").write_text(json.dumps(log))
ledger = dict(version=1, rank=rank, world=world, arm=value("--arm"), switches={}, workload="smoke", seed=0, steps=done,
    interrupted=False, device="cpu", domain="dflash", ranges={"decode_step": done}, marks=1 + 2 * len(log),
    versions={}, counters={})
(out / f"rank{rank}.json").write_text(json.dumps(ledger))
events.close()
"""
PAIRS, BLOCK = 6, 3


@pytest.fixture
def together(tmp_path: Path) -> Callable[..., RunCapture]:
    """Runs the stand-in as two versions on so many ranks."""
    program = tmp_path / "loop.py"
    program.write_text(PROGRAM)

    def run(ranks: int = 1, on_progress: Callable[[int], None] | None = None) -> RunCapture:
        request = RunRequest(("control",), ranks=ranks, against="HEAD~1", pairs=PAIRS, block=BLOCK)
        sockets = {label: tmp_path / f"s-{label}" for label in request.labels}
        plain = Launch(request, ("control",), tmp_path, RecorderChoice(None, "asked for"), program=(str(program),))
        launches = [
            replace(plain, folder=tmp_path / label, turns=sockets[label], version=CodeVersion(label, "some code"))
            for label in request.labels
        ]
        for folder in (*sockets.values(), *(each.folder for each in launches)):
            folder.mkdir()
        return record_together(launches, lambda: TurnTaking(sockets, ranks, BLOCK, PAIRS, 5), on_progress)

    return run


def test_every_pair_has_each_version_once_in_an_order_of_its_own_that_the_seed_decides() -> None:
    order = drawn_order(["base", "candidate"], 200, seed=3)
    assert {tuple(sorted(pair)) for pair in order} == {("base", "candidate")}
    assert 60 < sum(pair[0] == "base" for pair in order) < 140
    assert order == drawn_order(["base", "candidate"], 200, seed=3) != drawn_order(["base", "candidate"], 200, seed=4)


def test_no_version_works_while_the_other_has_the_turn_and_all_ranks_of_one_have_it_together(
    together: Callable[..., RunCapture], tmp_path: Path
) -> None:
    told: list[int] = []
    capture = together(2, told.append)
    logs = {
        (v, r): json.loads((tmp_path / v / f"turns{r}.json").read_text()) for v in ("base", "candidate") for r in (0, 1)
    }
    spans = {}
    for (version, _), log in logs.items():
        assert [(pair, label, steps) for pair, label, steps, *_ in log] == [(p, version, BLOCK) for p in range(PAIRS)]
        for pair, label, _, begun, ended in log:
            early, late = spans.get((pair, label), (begun, ended))
            spans[pair, label] = min(begun, early), max(ended, late)
    in_time = sorted(spans, key=lambda turn: spans[turn])
    assert in_time == [
        (p, label) for p, pair in enumerate(drawn_order(["base", "candidate"], PAIRS, 5)) for label in pair
    ]
    ends = [spans[turn][1] for turn in in_time]
    assert all(end <= spans[turn][0] for end, turn in zip(ends, in_time[1:], strict=False))
    assert told[-1] == 2 * PAIRS * BLOCK
    assert [path.relative_to(tmp_path).as_posix() for path in capture.files] == [
        "base/rank0.sqlite", "base/rank1.sqlite", "candidate/rank0.sqlite", "candidate/rank1.sqlite",
    ]  # fmt: skip
    assert capture.is_whole


@pytest.mark.parametrize("version", ["base", "candidate"])
def test_a_version_that_dies_is_named_and_the_other_is_not_left_waiting(
    together: Callable[..., RunCapture], monkeypatch: pytest.MonkeyPatch, version: str
) -> None:
    monkeypatch.setenv("DIES_IN", f"{version} 2")
    with pytest.raises(CaptureError, match=f"{version} \\(some code\\), arm control: rank 0 of 1 ended") as failure:
        together()
    assert "page 17 is gone" in failure.value.text


def test_a_version_runs_with_its_own_python_and_its_own_modules_in_front(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PYTHONPATH", "/mine")
    request = RunRequest(("control",), ranks=2, against="main")
    other = CodeVersion("base", "abc", python="/other/bin/python", folder=Path("/tree/impl"))
    launch = Launch(
        request, ("control",), Path("/x"), RecorderChoice(None, "asked for"), version=other, turns=Path("/s")
    )
    command = launch_command(launch)
    assert command.line[:3] == ("/other/bin/python", "-m", "torch.distributed.run")
    assert "-- /other/bin/python -m dflash_prep.loop --arm control --turns /s --workload smoke" in " ".join(
        command.line
    )
    assert command.environment["PYTHONPATH"] == "/tree/impl:/mine"
    assert "--steps" not in command.line
    assert sys.executable not in command.line
