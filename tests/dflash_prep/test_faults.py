"""Delays planted on purpose: how they are stated, where they act, and that they change no token.

Planted faults are tested where they do their damage: `test_engine.py`, `test_cuda_device.py`.
"""

from __future__ import annotations

import pytest
from decoding import decode, given

from dflash_prep import ranges
from dflash_prep.loop.faults import Delay, FaultError
from dflash_prep.state import decode_prep
from dflash_prep.state.decode_prep import busy_wait
from dflash_prep.workload import load


def test_a_delay_is_stated_as_rank_and_microseconds() -> None:
    assert Delay.parse("2:150") == Delay(rank=2, us=150)
    assert str(Delay.parse("02:0150")) == "2:150"
    for bad in ("", "2", "2:", ":150", "2:1.5", "-1:150", "2:-1", "2:150us", "2:1:", ":1:a", "²:150", " 2:150"):
        with pytest.raises(FaultError, match="is no RANK:MICROSECONDS"):
            Delay.parse(bad)


def test_a_delay_names_one_of_the_ranks_of_the_run_and_slows_no_other() -> None:
    delay = Delay(rank=2, us=150)
    delay.check(3, ["topup"])
    with pytest.raises(FaultError, match="--delay 2:150 names rank 2, and the ranks of this run are 0 to 1"):
        delay.check(2, ["topup"])
    assert [delay.us_on(rank, "topup") for rank in range(4)] == [0, 0, 150, 0]


def test_a_delay_may_name_one_arm_of_a_duet_and_slows_no_other() -> None:
    delay = Delay.parse("2:150:topup,topup_pages=4")
    assert str(delay) == "2:150:topup,topup_pages=4"
    delay.check(3, ["control", "topup,topup_pages=4"])
    with pytest.raises(FaultError, match="names arm topup,topup_pages=4, and the arms of this run are control"):
        delay.check(3, ["control", "topup"])
    assert [delay.us_on(2, arm) for arm in ("control", "topup,topup_pages=4")] == [0, 150]
    assert delay.us_on(1, "topup,topup_pages=4") == 0


def test_a_busy_wait_lasts_at_least_its_time_and_never_sleeps() -> None:
    ticks = iter(range(10_000, 1_000_000, 400))
    busy_wait(3, now=lambda: next(ticks))
    assert next(ticks) - 10_000 - 400 == 3_200  # the first look at 3 us or later


class OpenRanges(ranges.NullSink):
    """Remembers which ranges are open."""

    def __init__(self) -> None:
        self.names: list[str] = []

    def push(self, name: str) -> None:
        self.names.append(name)

    def pop(self) -> None:
        self.names.pop()


def test_it_acts_once_in_every_prepare_for_decode_of_its_rank_and_changes_no_token(monkeypatch) -> None:
    sink, waits = OpenRanges(), []
    monkeypatch.setattr(decode_prep, "busy_wait", lambda us: waits.append((us, list(sink.names))))
    ranges.use(sink)
    try:
        plain, delayed = (decode(load("kv-tight"), "control", 4, delay=delay) for delay in (None, Delay(0, us=70)))
        assert waits == [(70, ["decode_step", "prepare_for_decode"])] * 4
        decode(load("kv-tight"), "control", 4, delay=Delay(rank=1, us=70))
        assert len(waits) == 4
    finally:
        ranges.use(ranges.NullSink())
    assert given(plain) == given(delayed)
