"""Duets: blocks alternate, refills are not counted, every arm decodes the oracle's tokens; turns over a socket."""

from __future__ import annotations

import socket
import threading
from pathlib import Path

import pytest
from decoding import assert_right, decode, given, simulated_device

from dflash_prep import ranges
from dflash_prep.arms import parse_arm
from dflash_prep.errors import SettingError
from dflash_prep.kernels.sampler import SoloGroup
from dflash_prep.loop.__main__ import _build_all
from dflash_prep.loop.agreement import AgreementGroup
from dflash_prep.loop.assembly import RunSpec
from dflash_prep.loop.duet import REFILL_STEPS, Block, Duet, Turns, shuffled_blocks
from dflash_prep.loop.launch import Ranks
from dflash_prep.workload import Workload, load

WORKLOAD = """
description = "every request lives for a dozen steps"
[requests]
concurrency = 5
prompt = { low = 1, high = 60 }
output = { low = 10, high = 50 }
[kv]
page_size = 16
pool_pages = POOL
context_len = 128
[speculation]
block = 8
window = 32
accept_mean = 3.5
[device]
draft_us = 200
verify_us = 500
"""


class MarkedSteps(ranges.NullSink):
    """Marks and decode steps, in order."""

    def __init__(self) -> None:
        self.seen: list[str] = []

    def push(self, name: str) -> None:
        if name == "decode_step":
            self.seen.append("step")

    def mark(self, text: str) -> None:
        self.seen.append(text)


def workload(folder: Path, pool: int = 160) -> Workload:
    path = folder / "short-lives.toml"
    path.write_text(WORKLOAD.replace("POOL", str(pool)))
    return load(str(path))


def duet(shapes: Workload, *arms: str, on_step=lambda _done: None) -> Duet:
    specs = [RunSpec(parse_arm(arm), shapes, 0, rank=0, world=1, check=True, verify=True) for arm in arms]
    alone = Ranks(AgreementGroup(1), SoloGroup())
    return Duet(_build_all(specs, [simulated_device()] * len(arms), alone), on_step)


def test_every_pair_has_each_arm_once_in_an_order_that_the_seed_decides() -> None:
    blocks = list(shuffled_blocks(["a", "b", "c"], pairs=40, steps=20, seed=1))
    assert [block.pair for block in blocks] == [pair for pair in range(40) for _ in range(3)]
    orders = ["".join(block.arm for block in blocks[i : i + 3]) for i in range(0, 120, 3)]
    assert {"".join(sorted(order)) for order in orders} == {"abc"}
    assert len(set(orders)) == 6
    assert blocks == list(shuffled_blocks(["a", "b", "c"], pairs=40, steps=20, seed=1))
    assert blocks != list(shuffled_blocks(["a", "b", "c"], pairs=40, steps=20, seed=2))


def test_marks_enclose_the_counted_steps_and_no_refill(tmp_path) -> None:
    sink, counted = MarkedSteps(), []
    played = duet(workload(tmp_path), "control", "topup", on_step=counted.append)
    ranges.use(sink)
    try:
        assert played.run(shuffled_blocks(["control", "topup"], 3, 4, seed=0), lambda: False) is False
    finally:
        ranges.use(ranges.NullSink())
    refill, block = ["step"] * REFILL_STEPS, ["step"] * 4
    order = [(each.pair, each.arm) for each in shuffled_blocks(["control", "topup"], 3, 4, seed=0)]
    expected = []
    for pair, arm in order:
        mark = f"dflash_bench duet pair={pair} arm={arm}"
        expected += [*refill, f"{mark} open", *block, f"{mark} close"]
    assert sink.seen == expected
    assert counted == list(range(1, 25)) == list(range(1, played.num_counted + 1))
    of_rows = [(label, pair) for _, label, pair in played.rows]
    assert of_rows == [each for pair, arm in order for each in [(None, None)] * REFILL_STEPS + [(arm, pair)] * 4]
    assert [row.step for row, _, _ in played.rows] == list(range(len(of_rows)))


@pytest.mark.parametrize("pool", [160, 24], ids=["room for all", "retractions"])
def test_pauses_change_no_token_and_leave_nobody_elses_work_behind(tmp_path, pool) -> None:
    arms = ["legacy", "control", "topup"]
    played = duet(workload(tmp_path, pool), *arms)
    assert played.run(shuffled_blocks(arms, 6, 5, seed=3), lambda: False) is False
    for engine in played.engines.values():
        assert engine.in_flight is None
        engine.close()
        assert_right(engine)
        assert len(engine.rows) == 6 * (5 + REFILL_STEPS)
    plain = decode(workload(tmp_path, pool), "topup", 42)
    longest = dict(given(plain))
    for index, tokens in given(played.engines["topup"]):
        both = min(len(tokens), len(longest.get(index, [])))
        assert tokens[:both] == longest.get(index, [])[:both]


def test_a_stop_ends_the_duet_in_the_block_it_falls_into(tmp_path) -> None:
    played = duet(workload(tmp_path), "control", "topup")
    asked = iter([False] * 9 + [True] * 9)
    assert played.run(shuffled_blocks(["control", "topup"], 9, 4, seed=0), lambda: next(asked)) is True
    assert played.num_counted == 4 + 2
    for engine in played.engines.values():
        engine.close()
        assert_right(engine)


def test_pools_that_do_not_fit_together_are_refused_in_one_sentence(tmp_path) -> None:
    with pytest.raises(SettingError, match=r"^the pools of 2 arms at once do not fit into the memory of this device"):
        duet(workload(tmp_path, 2**42), "control", "topup")


# --- turns ----------------------------------------------------------------------------------------------------------


@pytest.fixture
def coordinator(tmp_path):
    """Listens where rank 0 connects; says what it is given, and keeps what it hears."""
    listener = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    listener.bind(str(tmp_path / "rank0.sock"))
    listener.listen(1)
    heard: list[str] = []

    def say(lines: list[str]) -> None:
        connection, _ = listener.accept()
        with connection, connection.makefile("rw") as stream:
            heard.append(stream.readline())
            for line in lines:
                stream.write(line)
                stream.flush()
                if line.startswith("turn"):
                    heard.append(stream.readline())

    threads: list[threading.Thread] = []

    def start(lines: list[str]) -> list[str]:
        threads.append(threading.Thread(target=say, args=(lines,)))
        threads[-1].start()
        return heard

    yield start
    for thread in threads:
        thread.join(timeout=60)
    listener.close()


def test_turns_come_one_by_one_and_each_is_answered_when_it_is_decoded(tmp_path, coordinator) -> None:
    heard = coordinator(["turn 0 candidate 5\n", "turn 1 base 4\n", "end\n"])
    played, sink = duet(workload(tmp_path), "topup"), MarkedSteps()
    ranges.use(sink)
    turns = Turns(tmp_path, 0, "topup", lambda: False)
    try:
        assert played.run(iter(turns), lambda: False) is False
    finally:
        turns.close()
        ranges.use(ranges.NullSink())
    assert heard == ["ready\n", "done\n", "done\n"]
    assert [(label, pair) for _, label, pair in played.rows if label] == [("candidate", 0)] * 5 + [("base", 1)] * 4
    assert [text for text in sink.seen if text != "step"] == [
        f"dflash_bench duet pair={pair} arm={label} {what}"
        for pair, label in ((0, "candidate"), (1, "base"))
        for what in ("open", "close")
    ]


def test_a_coordinator_that_goes_away_ends_the_run_orderly(tmp_path, coordinator) -> None:
    coordinator(["turn 0 base 2\n"])
    turns = Turns(tmp_path, 0, "topup", lambda: False)
    assert list(turns) == [Block(0, "topup", "base", 2)]
    turns.close()


def test_what_is_no_turn_is_refused_and_so_is_a_folder_where_nobody_listens(tmp_path, coordinator) -> None:
    with pytest.raises(SettingError, match=r"nobody hands out turns at .*rank1\.sock"):
        Turns(tmp_path, 1, "topup", lambda: False)
    coordinator(["go on\n"])
    turns = Turns(tmp_path, 0, "topup", lambda: False)
    with pytest.raises(SettingError, match="'go on' is no 'turn PAIR LABEL STEPS'"):
        list(turns)
    turns.close()


def test_a_rank_that_waits_for_its_turn_stops_when_it_is_told_to(tmp_path, coordinator) -> None:
    coordinator(["turn 0 base 2\n"])
    asked = iter([False, True])
    turns = Turns(tmp_path, 0, "topup", lambda: next(asked, True))
    assert len(list(turns)) <= 1
    turns.close()
