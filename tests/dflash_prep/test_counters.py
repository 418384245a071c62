"""Engine counters: the summary of hand-made steps, and the file."""

from __future__ import annotations

import csv

import pytest

from dflash_prep.loop.counters import PoolTokens, StepRow, summarise, write_steps

ROWS = [
    StepRow(0, 0, 500_000_000, 2, 0, 0, 512, 600, 80, 4, 3.0, 0),
    StepRow(1, 500_000_000, 500_000_000, 2, 7, 2, 0, 600, 60, None, None, 1),
    StepRow(2, 1_000_000_000, 500_000_000, 2, 5, 2, 256, 350, 70, 6, 1.5, 0),
]


def test_rates_count_over_the_time_of_all_steps() -> None:
    found = summarise(ROWS, PoolTokens(1000, 100), checks=(2, 0))
    assert found["tokens.committed"] == 12
    assert found["tokens.per_s"] == pytest.approx(8)
    assert found["tokens.per_s_per_request"] == pytest.approx(4)
    assert found["accept.length"] == 3
    assert found["kv.usage_max"] == pytest.approx(0.65)
    assert found["swa.usage_max"] == pytest.approx(0.4)
    assert (found["kv.topup_pages_held"], found["topup.guard_ratio_min"]) == (6, 1.5)
    assert (found["retracted"], found["alloc.steps"]) == (1, 2)
    assert (found["consistency.checks"], found["consistency.bad"]) == (2, 0)


def test_what_does_not_exist_in_a_run_is_left_out_not_zero() -> None:
    found = summarise([StepRow(0, 0, 0, 0, 0, 0, 0, 1000, None, None, None, 0)], PoolTokens(1000, None), checks=(0, 0))
    absent = {"tokens.per_s", "tokens.per_s_per_request", "accept.length", "topup.guard_ratio_min", "swa.usage_max"}
    assert not absent & found.keys()
    assert found["kv.usage_max"] == 0


def test_the_file_has_a_header_and_leaves_unmeasured_fields_empty(tmp_path) -> None:
    write_steps(ROWS, tmp_path / "rank0.steps.csv")
    assert [path.name for path in tmp_path.iterdir()] == ["rank0.steps.csv"]
    with (tmp_path / "rank0.steps.csv").open(newline="") as file:
        read = list(csv.DictReader(file))
    assert [row["step"] for row in read] == ["0", "1", "2"]
    assert (read[1]["guard_ratio"], read[0]["guard_ratio"], read[1]["swa_free_tokens"]) == ("", "3.0", "60")
