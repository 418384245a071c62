"""The loop's own account of its steps: from the file beside a capture to step time by load and the cost of tracing.

Captures are written by the recorder under a clock that the test moves; step files by hand.
"""

from __future__ import annotations

import csv
from dataclasses import replace
from pathlib import Path

import pandas as pd
import pytest
from simulated_runs import compare_pair

from dflash_bench.capture.recorder import EventRecorder, Origin
from dflash_bench.errors import DataError, SchemaError
from dflash_bench.ingest.sources import IngestOptions, ingest
from dflash_bench.ingest.steps import _read_steps
from dflash_bench.layout import STEPS, StepTable
from dflash_bench.metrics.measure import measure
from dflash_bench.metrics.summary import figure
from dflash_bench.model import Sides
from dflash_bench.profile import Profile, open_profile
from dflash_bench.report.comparison import comparison_report
from dflash_bench.report.run import run_report
from dflash_bench.report.sheets import Detail, Report

REST = dict.fromkeys(("committed_tokens", "processed", "allocated_tokens", "free_tokens", "retracted"), 0)


def write_steps(path: Path, steps: list[tuple[int, int]], **more: object) -> None:
    """A step file of (running, period_ns) pairs."""
    path.parent.mkdir(exist_ok=True)
    with path.open("w", newline="") as file:
        rows = csv.DictWriter(file, list(dict.fromkeys([*STEPS.names, *more])))
        rows.writeheader()
        for k, (running, period) in enumerate(steps):
            rows.writerow({"step": k, "start_ns": k, "running": running, "period_ns": period, **REST, **more})


def write_capture(folder: Path, rank: int, world: int) -> Path:
    """A capture of one rank with one step."""
    folder.mkdir(exist_ok=True)
    ticks = iter(range(0, 100_000, 1000))
    recorder = EventRecorder(folder / f"rank{rank}.sqlite", origin=Origin(0, 0), clock=lambda: next(ticks))
    recorder.mark(f"dflash_bench rank={rank} world={world} arm=topup")
    recorder.push("decode_step")
    recorder.pop()
    recorder.close()
    return recorder.path


TRACED = [(31, 900), (32, 100), (47, 300), (48, 500), (40, 77)]


def profile_of(folder: Path, *, unprofiled: bool, run: str = "r", settings: dict[str, object] | None = None) -> Profile:
    """Two ranks with the same five steps, and when asked for the same without a tool, in half the time."""
    for rank in (0, 1):
        write_capture(folder / run, rank, 2)
        write_steps(folder / run / f"rank{rank}.steps.csv", TRACED, topup_pages=7, of_a_later_version=1)
        if unprofiled:
            halves = [(running, period // 2) for running, period in TRACED]
            write_steps(folder / run / "unprofiled" / f"rank{rank}.steps.csv", halves)
    options = IngestOptions(profiles=folder / "profiles", run=run, settings={"steps_asked": 5, **(settings or {})})
    (profile,) = ingest([folder / run], options)
    return profile


def test_steps_beside_a_capture_become_a_typed_table_of_each_rank(tmp_path: Path) -> None:
    profile = open_profile(profile_of(tmp_path, unprofiled=False).path)
    table = profile.steps(1)
    assert table.schema.equals(STEPS)
    assert table.column("period_ns").to_pylist() == [900, 100, 300, 500, 77]
    assert table.column("topup_pages").to_pylist() == [7] * 5
    assert table.column("guard_ratio").to_pylist() == [None] * 5, "not measured is no number"
    frame = profile.frame("steps")
    assert frame["rank"].tolist() == [0] * 5 + [1] * 5
    assert profile.frame(StepTable.UNPROFILED).empty
    assert pd.read_parquet(profile.path / "steps").shape == (10, len(STEPS) + 1), "readable as it is, ranks a column"


def test_step_time_is_told_by_how_many_requests_ran_and_the_last_step_has_no_successor(tmp_path: Path) -> None:
    run = measure(profile_of(tmp_path, unprofiled=False))
    found = {
        (m.name, m.rank): (m.values.tolist(), None if m.block is None else m.block.tolist())
        for m in run.metrics
        if m.name.startswith("step.period@")
    }
    assert found == {
        **{("step.period@16-31", rank): ([900], [0]) for rank in (0, 1)},
        **{("step.period@32-47", rank): ([100, 300], [1, 2]) for rank in (0, 1)},
        **{("step.period@48-63", rank): ([500], [3]) for rank in (0, 1)},
        ("step.period@16-31", None): ([900, 900], [0, 1]),
        ("step.period@32-47", None): ([100, 300, 100, 300], [1, 2, 4, 5]),
        ("step.period@48-63", None): ([500, 500], [3, 7]),
    }
    pooled = run.find("step.period@32-47", None)
    assert pooled is not None
    assert figure(pooled) == 200
    assert any(
        s.title == "Engine counters" and s.rows[0][0] == "step.period@16-31"
        for s in run_report(run, Detail(is_full=True)).sheets
    )


def test_what_tracing_cost_is_the_ratio_of_the_medians_with_and_without_a_tool(tmp_path: Path) -> None:
    run = measure(profile_of(tmp_path, unprofiled=True, settings={"range_cost_ns": 640.4}))
    (table,) = (t for t in run.tables if t.name == "tracing.cost")
    recorder = table.rows[0][1]
    assert str(recorder).startswith("built-in recorder")
    # median of 900, 100, 300, 500 against that of their halves
    assert table.rows == (
        (0, recorder, 4, 400.0, 4, 200.0, 2.0, 640.4),
        (1, recorder, 4, 400.0, 4, 200.0, 2.0, 640.4),
        (None, recorder, 8, 400.0, 8, 200.0, 2.0, 640.4),
    )


def report_of(base: Profile, candidate: Profile) -> Report:
    return comparison_report(compare_pair(measure(base), measure(candidate)), detail=Detail(is_full=True))


def test_a_comparison_shows_what_tracing_cost_each_side_or_says_that_nobody_measured_it(tmp_path: Path) -> None:
    with_, without = profile_of(tmp_path, unprofiled=True, run="a"), profile_of(tmp_path, unprofiled=False, run="b")
    both, one, none = report_of(with_, with_), report_of(with_, without), report_of(without, without)
    (sheet,) = (s for s in both.sheets if s.title == "What tracing cost")
    assert [(row[0], *row[2:]) for row in sheet.rows] == [("topup", "8", "0.4", "8", "0.2", "2.000", "–")] * 2
    assert not [line for line in both.lines if "tracing cost" in line]
    assert [line for line in one.lines if "tracing cost" in line] == [
        "tracing cost not measured for the candidate: run with --unprofiled"
    ]
    assert len(next(s for s in one.sheets if s.title == "What tracing cost").rows) == 1
    assert [line for line in none.lines if "tracing cost" in line] == [
        "tracing cost not measured: run with --unprofiled"
    ]
    assert not [s for s in none.sheets if s.title == "What tracing cost"]


def test_of_repeats_those_that_ran_without_a_tool_too_say_what_tracing_cost(tmp_path: Path) -> None:
    """The median run, which stands for its side elsewhere, need not be the one that was made both ways."""
    median, other = (measure(profile_of(tmp_path, unprofiled=own, run=run)) for own, run in ((False, "a"), (True, "b")))
    sides = Sides((median, other), (median, median))
    report = comparison_report(replace(compare_pair(median, median), sides=sides), detail=Detail(is_full=True))
    assert len(next(s for s in report.sheets if s.title == "What tracing cost").rows) == 1
    assert [line for line in report.lines if "tracing cost" in line] == [
        "tracing cost not measured for the candidate: run with --unprofiled"
    ]


def test_captures_of_other_programs_are_not_sent_to_an_option_that_cannot_help_them(tmp_path: Path) -> None:
    profile = profile_of(tmp_path, unprofiled=False)
    foreign = replace(profile, info=replace(profile.info, settings={}))
    assert "tracing cost not measured" in report_of(foreign, foreign).lines


def test_a_step_file_of_another_capture_in_the_folder_is_left_alone(tmp_path: Path) -> None:
    path = write_capture(tmp_path / "c", 0, 1)
    path.rename(path.with_name("other-rank0.sqlite"))
    write_steps(tmp_path / "c" / "rank0.steps.csv", TRACED)
    (profile,) = ingest([tmp_path / "c"], IngestOptions(profiles=tmp_path / "profiles", run="r"))
    assert profile.frame("steps").empty


@pytest.mark.parametrize(
    ("content", "kind", "problem"),
    [
        ("", DataError, "cannot be read as a table of steps"),
        ("step,period_ns\n0,1\n", SchemaError, "without start_ns, running"),
        (",".join(STEPS.names) + "\n" + ",".join(["x"] * len(STEPS.names)) + "\n", DataError, "cannot be read"),
        (",".join(STEPS.names) + "\n" + "," * (len(STEPS.names) - 1) + "\n", DataError, "step, start_ns"),
    ],
)
def test_a_damaged_step_file_is_one_sentence_with_its_name(
    tmp_path: Path, content: str, kind: type[DataError], problem: str
) -> None:
    path = tmp_path / "rank0.steps.csv"
    path.write_text(content)
    with pytest.raises(kind, match=problem) as refusal:
        _read_steps(path)
    assert str(path) in refusal.value.text
