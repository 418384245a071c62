"""Lost ranges are noticed, named and explained."""

from __future__ import annotations

import sqlite3
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dflash_bench.capture.check import (
    Circumstances,
    ProcessRanges,
    by_rank,
    compare_counts,
    count_ranges,
    nvtx_problem,
    require_whole,
    says_incomplete,
    silent_domains,
)
from dflash_bench.capture.recorder import EventRecorder, Origin
from dflash_bench.errors import CaptureError, DataError

EMITTED = {0: {"decode_step": 100, "fill": 100}, 1: {"decode_step": 100, "fill": 100}}
PROCESS = 0x1000000000000 | 77 << 24


def capture(path: Path, rows: list[tuple[int, int, str | bytes | None, int | None]], strings: dict[int, str]) -> Path:
    """A minimal export: rows of (eventType, domainId, text, textId)."""
    database = sqlite3.connect(path)
    database.execute("CREATE TABLE StringIds (id INTEGER, value TEXT)")
    database.executemany("INSERT INTO StringIds VALUES (?, ?)", strings.items())
    database.execute("CREATE TABLE NVTX_EVENTS (eventType, globalTid, domainId, text, textId)")
    made = [(kind, PROCESS | 78, domain, text, text_id) for kind, domain, text, text_id in rows]
    database.executemany("INSERT INTO NVTX_EVENTS VALUES (?, ?, ?, ?, ?)", made)
    database.commit()
    database.close()
    return path


@pytest.mark.parametrize(
    ("nvtx", "nsys", "loses"),
    [
        ("0.2.11", (2022, 4, 2, 1), False),
        ("0.2.12", (2022, 4, 2, 1), True),
        ("0.2.17", (2023, 4, 4, 54), True),
        ("0.2.17", (2024, 1, 1), False),
        ("0.2.17", (2025, 3, 1, 0), False),
        ("0.2.10", (2025, 3, 1, 0), False),
        ("0.3.0", (2023, 4), True),
        (None, (2025, 3, 1, 0), True),
    ],
)
def test_the_pairs_of_nvtx_and_nsys_that_lose_every_range(nvtx: str | None, nsys: tuple[int, ...], loses: bool) -> None:
    assert (nvtx_problem(nvtx, nsys) is not None) is loses


def test_a_whole_capture_has_nothing_to_say() -> None:
    assert compare_counts(EMITTED, EMITTED) == ()


def test_missing_ranges_are_counted_per_rank_and_named() -> None:
    recorded = {0: {"decode_step": 100, "fill": 100}, 1: {"decode_step": 90}}
    (finding,) = compare_counts(EMITTED, recorded)
    assert (finding.code, finding.rank, finding.count) == ("ranges_missing", 1, 110)
    assert "110 of 200 ranges (fill 100, decode_step 10)" in finding.text
    assert "the cause is not known" in finding.text


@pytest.mark.parametrize(
    ("circumstances", "there", "why"),
    [
        (Circumstances((2022, 4, 2, 1), "0.2.17"), {}, 'pip install "nvtx<0.2.12"'),
        (Circumstances((2025, 3), "0.2.17"), {}, "no process of the capture carries this rank's mark"),
        (Circumstances((2022, 4), "0.2.17"), {"fill": 1}, "the cause is not known"),
        (Circumstances(has_window=True), {"fill": 1}, "covered only a part"),
        (Circumstances(interrupted=frozenset({0})), {"fill": 1}, "was interrupted"),
        (Circumstances(interrupted=frozenset({1})), {"fill": 1}, "the cause is not known"),
        (Circumstances(says_incomplete=True), {"fill": 1}, "nsys itself says"),
    ],
)
def test_the_reason_is_given_as_far_as_it_is_known(
    circumstances: Circumstances, there: dict[str, int], why: str
) -> None:
    (finding,) = compare_counts({0: {"fill": 5}}, {0: there}, circumstances)
    assert why in finding.text


def test_more_ranges_than_were_emitted_are_noticed_too() -> None:
    (finding,) = compare_counts({0: {"fill": 5}}, {0: {"fill": 7}})
    assert (finding.code, finding.count) == ("ranges_unaccounted", 2)


def test_lost_ranges_fail_the_capture_unless_allowed() -> None:
    findings = compare_counts({0: {"fill": 5}}, {})
    with pytest.raises(CaptureError, match="5 emitted ranges are not in the capture"):
        require_whole(findings, allow_missing=False)
    require_whole(findings, allow_missing=True)
    require_whole(compare_counts({0: {"fill": 5}}, {0: {"fill": 7}}), allow_missing=False)


def test_many_names_are_cut_short() -> None:
    (finding,) = compare_counts({0: {f"name{k}": 1 for k in range(9)}}, {})
    assert "and 3 more" in finding.text


counts = st.dictionaries(st.integers(0, 3), st.dictionaries(st.sampled_from("abc"), st.integers(1, 9), max_size=3))


@given(counts, counts)
def test_the_differences_always_add_up(emitted: dict[int, dict[str, int]], recorded: dict[int, dict[str, int]]) -> None:
    findings = compare_counts(emitted, recorded)
    for rank, names in emitted.items():
        lost = sum(f.count for f in findings if f.rank == rank and f.code == "ranges_missing")
        extra = sum(f.count for f in findings if f.rank == rank and f.code == "ranges_unaccounted")
        assert sum(names.values()) - lost + extra == sum(recorded.get(rank, {}).values())


def test_ranges_are_counted_by_process_name_and_domain(tmp_path: Path) -> None:
    rows = [
        (75, 1, "dflash", None),
        (75, 2, "CCCL", None),
        (34, 1, None, 1),
        (59, 1, None, 2),
        (59, 1, None, 2),
        (60, 1, "fill", None),
        (59, 2, "cub::Scan", None),
        (59, 0, "default", None),
    ]
    path = capture(tmp_path / "c.sqlite", rows, {1: "dflash_bench rank=3 world=4 arm=topup", 2: "decode_step"})
    (process,) = count_ranges(path)
    assert process == ProcessRanges(PROCESS >> 24, 3, {"decode_step": 2, "fill": 1}, 1, True)
    assert by_rank([process]) == {3: {"decode_step": 2, "fill": 1}}
    (everything,) = count_ranges(path, None)
    assert everything.num_ranges == 5


def test_what_the_trap_leaves_behind_is_recognised(tmp_path: Path) -> None:
    path = capture(tmp_path / "c.sqlite", [(75, 1, "dflash", None), (76, 1, None, None)], {})
    (process,) = count_ranges(path)
    assert (process.rank, process.num_ranges, process.has_domain_rows) == (None, 0, True)
    (finding,) = silent_domains([process])
    assert "nvtx<0.2.12" in finding.text
    speaking = ProcessRanges(1, None, {"a": 1}, 0, True)
    assert silent_domains([speaking]) == ()
    assert silent_domains([process, speaking]) == ()  # the same package: the first had nothing to say


def test_a_recorders_file_is_counted_like_an_nsys_one(tmp_path: Path) -> None:
    recorder = EventRecorder(tmp_path / "rank2.sqlite", origin=Origin(0, 0))
    recorder.mark("dflash_bench rank=2 world=4 arm=x")
    for _ in range(3):
        recorder.push("fill")
        recorder.pop()
    recorder.push("open at the end")
    recorder.close()
    (process,) = count_ranges(recorder.path)
    assert process.rank == 2
    assert process.ranges == {"fill": 3, "open at the end": 1}


def test_a_capture_without_nvtx_counts_nothing(tmp_path: Path) -> None:
    sqlite3.connect(tmp_path / "c.sqlite").execute("CREATE TABLE StringIds (id, value)").connection.close()
    assert count_ranges(tmp_path / "c.sqlite") == ()
    assert not says_incomplete(tmp_path / "c.sqlite")


def test_nsys_own_word_that_ranges_are_missing_is_read(tmp_path: Path) -> None:
    path = capture(tmp_path / "c.sqlite", [(75, 1, "dflash", None)], {})
    database = sqlite3.connect(path)
    database.execute("CREATE TABLE DIAGNOSTIC_EVENT (text TEXT)")
    database.execute("INSERT INTO DIAGNOSTIC_EVENT VALUES ('Not all NVTX events might have been collected.')")
    database.commit()
    database.close()
    assert says_incomplete(path)


def test_names_in_another_encoding_do_not_stop_the_check(tmp_path: Path) -> None:
    path = capture(tmp_path / "c.sqlite", [(75, 1, "dflash", None), (59, 1, "x", None)], {})
    database = sqlite3.connect(path)
    database.execute("UPDATE NVTX_EVENTS SET text = CAST(X'E9E8' AS TEXT) WHERE eventType = 59")
    database.commit()
    database.close()
    assert count_ranges(path)[0].num_ranges == 1


def test_a_file_that_is_no_database_is_refused(tmp_path: Path) -> None:
    (tmp_path / "c.sqlite").write_text("<html>" * 200)
    with pytest.raises(DataError, match="cannot be read as a capture"):
        count_ranges(tmp_path / "c.sqlite")
