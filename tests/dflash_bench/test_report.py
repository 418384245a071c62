"""Reports: sheets for eyes, JSON for scripts, and names that are no markup whatever they look like."""

from __future__ import annotations

import csv
import io
import json
import re

import numpy as np
import pytest
from handmade import Range, write
from rich.console import Console

from dflash_bench.ingest.sources import IngestOptions, ingest
from dflash_bench.metrics import cache
from dflash_bench.metrics.measurements import metric
from dflash_bench.model import Finding, RunInfo, RunMetrics, Table, Unit
from dflash_bench.report.as_json import metrics_json
from dflash_bench.report.console import show
from dflash_bench.report.markdown import markdown
from dflash_bench.report.run import run_report
from dflash_bench.report.sheets import _MAX_RANGES_SHOWN, MAX_CAUSES, Detail, Report, cut, warning_lines
from dflash_bench.report.sheets import Sheet as SheetOf
from dflash_bench.report.units import plain, text

HOSTILE = "[red]x|y</td>**b** `c` $d$ &lt; \x1b[31m\x07\n\u202eend"


FULL = Detail(is_full=True)


def run_of(*metrics, tables=(), findings=(), ranks=(0,)):
    info = RunInfo(
        run="r", arm="a", workload=None, device="GPU", devices=("GPU",), world=None, created_utc="", tool_version="0",
        captures=(), processes=(), findings=(),
    )  # fmt: skip
    return RunMetrics(info, tuple(metrics), tuple(tables), tuple(findings))


def terminal(report, width=200):
    out = io.StringIO()
    show(report, Console(file=out, width=width, highlight=False, force_terminal=False))
    return out.getvalue()


# ── units ───────────────────────────────────────────────────────────────────────────────────────────────────────────


@pytest.mark.parametrize(
    ("value", "unit", "signed", "shown"),
    [
        (687_400, Unit.NS, False, "687.4"),
        (-550_149, Unit.NS, False, "−550.1"),
        (6_770_449, Unit.NS, True, "+6,770.4"),
        (0.2769, Unit.FRACTION, False, "27.69"),
        (3211, Unit.COUNT, False, "3,211"),
        (3.5, Unit.TOKENS, False, "3.50"),
        (None, Unit.NS, False, "–"),
        (0, Unit.NS, True, "+0.0"),
    ],
)
def test_figures_are_formatted_at_the_edge(value, unit, signed, shown):
    assert text(value, unit, is_signed=signed) == shown


def test_a_name_is_one_line_and_steers_no_terminal():
    assert plain("a\n b\tc") == "a b c"
    assert plain("\x1b[31mred") == "\\x1b[31mred"
    assert plain("\u202eback") == "\\u202eback"
    assert plain("größe · ✓ 漢字") == "größe · ✓ 漢字"


# ── hostile names ───────────────────────────────────────────────────────────────────────────────────────────────────


def test_in_the_terminal_a_name_is_shown_as_it_is_and_never_obeyed():
    shown = terminal(run_report(run_of(metric(f"range.{HOSTILE}", 0, np.array([1.0]))), FULL))
    assert "[red]x|y</td>" in shown
    assert "\x1b" not in shown
    assert "\x07" not in shown
    assert "\\x1b[31m\\x07 \\u202eend" in shown


WIDE = SheetOf(
    "Verdicts",
    ("metric", "rank", "shift", "95 % interval", "reason"),
    (
        (
            "range.prepare_for_decode",
            "0",
            "−1,234,567.8",
            "−2,345,678.9 … +3,456,789.0",
            "two runs of one arm may differ",
        ),
        ("range.prepare_for_decode", "1", "+0.1", "–", "beyond the tolerance and beyond the drift of both sides"),
        ("", "2", "+7.5", "+1.0 … +14.0", ""),
    ),
    ("metric", "reason"),
)


def shown_sheet(sheet, width):
    return terminal(Report("t", (), (sheet,)), width)


@pytest.mark.parametrize("width", [50, 60, 80, 100, 120, 160])
def test_no_figure_is_cut_however_narrow_the_terminal(width):
    """Every figure stands whole in one line, every word is there, and no line is wider than the terminal."""
    lines = shown_sheet(WIDE, width).splitlines()
    assert max(map(len, lines)) <= width
    for row in WIDE.rows:
        for figure in row[1:4]:
            assert any(figure in line for line in lines), figure
        for word in row[4].split():
            assert any(word in line for line in lines), word
    assert any("range.prepare_for_decode" in line for line in lines)


def test_a_table_too_wide_for_the_terminal_becomes_a_paragraph_a_row():
    assert [line.rstrip() for line in shown_sheet(WIDE, 80).splitlines()[2:]] == [
        "Verdicts",
        "range.prepare_for_decode",
        "  rank 0  shift −1,234,567.8  95 % interval −2,345,678.9 … +3,456,789.0",
        "  reason two runs of one arm may differ",
        "  rank 1  shift +0.1  95 % interval –",
        "  reason beyond the tolerance and beyond the drift of both sides",
        "  rank 2  shift +7.5  95 % interval +1.0 … +14.0",
    ]


def test_a_title_longer_than_its_table_stays_one_line():
    sheet = SheetOf("A title that is longer than all four columns", ("a", "b", "c", "d"), (("1", "2", "3", "4"),))
    assert "A title that is longer than all four columns" in shown_sheet(sheet, 100)


def test_in_markdown_a_name_is_one_cell():
    page = markdown(run_report(run_of(metric(f"range.{HOSTILE}", 0, np.array([1.0]))), FULL))
    (row,) = [line for line in page.splitlines() if line.startswith("| range")]
    assert "\\[red\\]x\\|y\\</td\\>\\*\\*b\\*\\* \\`c\\` \\$d\\$ \\&lt;" in row
    head = next(line for line in page.splitlines() if line.startswith("| metric"))
    assert row.replace("\\|", "").count("|") == head.count("|")


def test_in_json_a_name_comes_back_byte_for_byte(cli, tmp_path):
    name = HOSTILE.replace("\x07", "")
    path = write(tmp_path / "a.sqlite", [Range(name, 0, 5), Range("decode_step", 0, 10)])
    found = cli("metrics", path, "--json", "--profiles", tmp_path / "profiles")
    assert f"range.{name}" in {m["metric"] for m in json.loads(found.stdout)["metrics"]}
    shown = cli("metrics", path, "--profiles", tmp_path / "profiles")
    assert "\x1b" not in shown.stdout


# ── what is shown, and what is said to be left out ──────────────────────────────────────────────────────────────────


def test_of_very_many_ranges_those_with_most_time_are_shown_and_the_rest_counted():
    many = [metric(f"range.r{k:03}", 0, np.array([float(k)])) for k in range(_MAX_RANGES_SHOWN + 7)]
    (sheet,) = run_report(run_of(*many), FULL).sheets
    assert len(sheet.rows) == _MAX_RANGES_SHOWN
    assert sheet.rows[0][0] == "range.r007"
    assert sheet.note == "… and 7 more ranges with less time in them; all of them with --json"


def test_a_usual_number_of_ranges_is_shown_whole():
    few = [metric(f"range.r{k}", 0, np.array([float(k)])) for k in range(20)]
    (sheet,) = run_report(run_of(*few), FULL).sheets
    assert (len(sheet.rows), sheet.note) == (20, "")


def test_a_cut_table_says_how_many_rows_are_left_out():
    rows = tuple((str(k),) for k in range(MAX_CAUSES + 3))
    assert cut(SheetOf("t", ("c",), rows)).note == "… and 3 more rows; all of them with --json"
    assert cut(SheetOf("t", ("c",), rows[:MAX_CAUSES])).note == ""


def test_pooled_cause_rows_are_shown_and_those_of_ranks_left_to_json():
    columns = ("rank", "cause", "launches", "lost_total_ns", "lost_p50_ns")
    table = Table("stall.by_cause", columns, ((0, "a", 1, 10, 10.0), (1, "a", 2, 20, 10.0), (None, "a", 3, 30, 10.0)))
    (sheet,) = run_report(run_of(tables=[table]), FULL).sheets
    assert [row[:2] for row in sheet.rows] == [("a", "3")]


def test_every_table_that_is_measured_has_a_way_to_be_shown():
    from dflash_bench.metrics.measure import COLUMNS
    from dflash_bench.report.table_sheets import _LAYOUTS

    assert set(_LAYOUTS) == set(COLUMNS)
    for name, columns in COLUMNS.items():
        assert set(_LAYOUTS[name].columns) <= set(columns)


def test_a_warning_of_a_few_ranks_is_said_for_each():
    findings = [Finding("no_steps", rank, 1, "no steps") for rank in range(4)]
    assert warning_lines(findings) == [f"rank {rank}: no steps [no_steps]" for rank in range(4)]


def test_a_warning_of_many_ranks_is_said_once_for_the_worst():
    findings = [Finding("no_steps", rank, rank % 7, f"{rank % 7} ranges") for rank in range(64)]
    assert warning_lines(findings) == ["rank 6: 6 ranges [no_steps], and 63 more like it; all of them with --json"]


# ── JSON ────────────────────────────────────────────────────────────────────────────────────────────────────────────


def test_a_distribution_has_quantiles_and_a_scalar_a_value():
    document = json.loads(
        metrics_json([run_of(metric("step.period", 0, np.array([1, 3])), metric("retracted", None, np.array([2])))])
    )
    assert document["metrics"] == [
        {"run": "r", "arm": "a", "rank": 0, "metric": "step.period", "unit": "ns", "n": 2,
         "p50": 2.0, "p90": 2.8, "p99": 2.98, "mean": 2.0, "total": 4.0},
        {"run": "r", "arm": "a", "rank": None, "metric": "retracted", "unit": "count", "n": 1, "value": 2.0},
    ]  # fmt: skip


def test_as_csv_a_metric_and_rank_is_a_line_with_the_numbers_of_the_json(cli, tmp_path):
    path = write(tmp_path / "a.sqlite", [Range('a, "quoted"', 0, 5), Range("decode_step", 0, 10)])
    place = ("--profiles", tmp_path / "profiles")
    rows = list(csv.DictReader(io.StringIO(cli("metrics", path, "--csv", *place).stdout)))
    for row, m in zip(rows, json.loads(cli("metrics", path, "--json", *place).stdout)["metrics"], strict=True):
        assert {name: row[name] for name in m} == {name: "" if v is None else str(v) for name, v in m.items()}


def test_tables_that_have_no_rows_are_empty_lists():
    document = json.loads(metrics_json([run_of()]))
    assert document["tables"]["stall.by_cause"] == []
    assert document["tables"]["sync.by_range"] == []


def test_a_warning_keeps_its_code_rank_count_text_and_option():
    document = json.loads(metrics_json([run_of(findings=[Finding("no_steps", 3, 7, "words")])]))
    assert document["warnings"] == [
        {"code": "no_steps", "rank": 3, "count": 7, "text": "words", "option": "", "run": "r"}
    ]


# ── what a screen leaves out ─────────────────────────────────────────────────────────────────────────────────────────


@pytest.fixture(scope="module")
def h200_profiles(tmp_path_factory, h200):
    folder = tmp_path_factory.mktemp("profiles")
    for arm in ("sync", "nosync"):
        ingest(sorted(h200.glob(f"h200x2_{arm}_rank*.sqlite")), IngestOptions(profiles=folder))
    return folder


@pytest.mark.parametrize("words", [("metrics", "h200x2_sync"), ("compare", "h200x2_sync", "h200x2_nosync")])
def test_what_the_terminal_leaves_out_is_one_option_away_and_in_the_json(cli, h200_profiles, words, monkeypatch):
    """Every metric of both ranks, every warning, every table: with --full; closer by --rank and by --metric."""
    monkeypatch.setattr(cache, "LEAST_ROWS", 0)  # each look but the first is quick
    at = ("--profiles", h200_profiles)
    document = json.loads(cli(*words, "--json", *at).stdout)
    short, full = (cli(*words, *more, *at).stdout for more in ((), ("--full",)))
    rows = document["metrics" if words[0] == "metrics" else "comparison"]
    names = {row["metric"] for row in rows}
    shown = {name for name in names if re.search(rf"(?m)^{re.escape(name)} ", short)}
    assert len(shown) < len(names) / 3
    left = {name for name in names if not re.search(rf"(?m)^{re.escape(name)} ", full)}
    # of a comparison: coverage that is whole on both sides
    assert left == set() or (
        words[0] == "compare" and all(name.startswith(("coverage.", "gpu_work_")) for name in left)
    )
    assert all(
        re.search(rf"(?m)^{re.escape(name)} ", cli(*words, "--metric", name, *at).stdout) for name in sorted(left)[:1]
    )
    flat = " ".join(full.split())
    assert [w["text"] for w in document["warnings"] if " ".join(w["text"].split()) not in flat] == []
    for table, kept in document["tables"].items():
        longest = max((row for row in kept if row["rank"] is None), key=lambda r: r.get("total_ns", 0), default=None)
        if longest is not None and "cause" in longest:
            assert longest["cause"].rpartition(" > ")[2].split(" · ")[0] in flat, table
    of_one = cli(*words, "--rank", "1", *at).stdout
    assert {
        r["metric"] for r in rows if r["rank"] == 1 and not re.search(rf"{re.escape(r['metric'])} ", of_one)
    } == set()
    close = cli(*words, "--metric", "sync.exposed_per_step", *at).stdout
    assert {"all", "0", "1"} <= set(re.findall(r"(?m)^(?:sync\.exposed_per_step)?[ ↓]+(all|0|1) ", close))
