"""The page: its numbers are the JSON's, names cannot break out, it fetches nothing, and big runs stay small."""

from __future__ import annotations

import json
from html.parser import HTMLParser

import numpy as np
import pytest

from dflash_bench.compare import compare
from dflash_bench.metrics.rank import metric
from dflash_bench.metrics.registry import spec
from dflash_bench.metrics.summary import figure
from dflash_bench.model import Change, Comparison, Finding, Interval, RunInfo, RunMetrics, Table
from dflash_bench.report.as_json import comparison_json
from dflash_bench.report.html import MAX_TABLE_ROWS, Timelines, embedded, html_report, script_json, straggler
from dflash_bench.report.html_tables import change_row, commands, key_changes, largest, settings, verdict_lines
from dflash_bench.report.timeline import MAX_BARS, Bar, BarKind, Flow, StepWindow
from dflash_bench.stats.judgement import Verdict
from dflash_bench.stats.verdict import judge

SYNC = ("rank", "path", "api", "count", "total_ns", "p50_ns")
HOSTILE = "</script><script>alert(1)</script><img src=x onerror=alert(2)>{{7*7}}%{x}\u2028'\""
VOID = {"meta", "link", "img", "br", "hr", "input"}


class Page(HTMLParser):
    """What a browser makes of the file: elements with their attributes, texts, table rows and scripts."""

    def __init__(self, text):
        super().__init__()
        self.elements, self.rows, self.scripts, self.words = [], {}, {}, []
        self._row, self._script, self._open = None, None, []
        self.feed(text)
        self.close()

    def handle_starttag(self, tag, attrs):
        found = dict(attrs)
        self.elements.append((tag, found))
        if tag not in VOID:
            self._open.append(tag)
        if tag == "script":
            self._script = found.get("id", "")
            self.scripts[self._script] = ""
        elif "data-metric" in found:
            self._row = self.rows.setdefault((tag, found["data-metric"], found["data-rank"]), [])
        elif tag == "data":
            self._row.append(float(found["value"])) if self._row is not None else None

    def handle_endtag(self, tag):
        assert self._open.pop() == tag, f"</{tag}> closes something else"
        if tag == "script":
            self._script = None
        if tag in ("tr", "div", "section"):
            self._row = None if tag != "div" else self._row

    def handle_data(self, data):
        if self._script is not None:
            self.scripts[self._script] += data
        elif self._open[-1:] != ["style"]:
            self.words.append(data)

    @property
    def text(self):
        return " ".join(" ".join(self.words).split())


def info(arm="base", **more):
    values = {"run": f"run-{arm}", "arm": arm, "workload": "steady", "device": "cpu", "devices": ("cpu",), "world": 2}
    values |= {"created_utc": "2026-01-01", "tool_version": "0", "captures": (), "processes": (), "findings": ()}
    return RunInfo(**(values | more))


def run(*metrics, arm="base", tables=(), findings=(), **more):
    return RunMetrics(info(arm, **more), tuple(metrics), tuple(tables), tuple(findings))


def two_ranks(seed, shift, arm, tables=()):
    """Four metrics of two ranks and pooled, a few hundred samples each."""
    rng = np.random.default_rng(seed)
    found = []
    for name, scale in (("step.period", 1e7), ("range.prepare_for_decode", 1e6), ("step.lead", -5e4)):
        samples = [rng.normal(scale + shift, abs(scale) / 50, 200) for _ in range(2)]
        found += [metric(name, k, s) for k, s in enumerate(samples)] + [metric(name, None, np.concatenate(samples))]
    found += [metric("alloc.step_share", k, rng.random(200) < 0.3) for k in range(2)]
    return run(*found, arm=arm, tables=tables)


@pytest.fixture(scope="module")
def comparison():
    return compare(two_ranks(1, 0, "base"), two_ranks(2, 3e5, "new"))


def test_every_number_in_the_tables_is_the_number_in_the_json(comparison):
    """Base, candidate, difference, ratio and interval of every row, to the last digit, against ``compare --json``."""
    page = Page(html_report(comparison, None))
    expected = {(c["metric"], c["rank"]): c for c in json.loads(comparison_json(comparison))["comparison"]}
    shown = {key[1:]: values for key, values in page.rows.items() if key[0] == "tr"}
    assert len(shown) == len(expected) == 11
    for (name, rank), change in expected.items():
        fields = [change[k] for k in ("base", "candidate", "difference", "ratio", "low", "high")]
        assert shown[name, "all" if rank is None else str(rank)] == [f for f in fields if f is not None]


def test_the_key_figures_are_the_json_numbers_too(comparison):
    page = Page(html_report(comparison, None))
    expected = {c["metric"]: c for c in json.loads(comparison_json(comparison))["comparison"] if c["rank"] is None}
    tiles = {key[1]: values for key, values in page.rows.items() if key[0] == "div"}
    assert list(tiles) == ["range.prepare_for_decode", "step.period", "step.lead"]
    for name, values in tiles.items():
        assert values == [expected[name][k] for k in ("base", "candidate", "difference", "low", "high")]


def test_the_page_holds_the_document_that_compare_prints(comparison):
    found = json.loads(Page(html_report(comparison, None)).scripts["comparison"])
    assert found.pop("table_rows_left_out") == {}
    assert found == json.loads(comparison_json(comparison))


def test_nothing_is_fetched(comparison):
    """No element names another place, the security policy forbids all requests, and no base or frame is there."""
    page = Page(html_report(comparison, None))
    for tag, attributes in page.elements:
        assert tag not in {"iframe", "base", "object", "embed", "form"}
        for name in ("src", "href", "action", "data"):
            value = attributes.get(name, "#")
            assert value.startswith(("#", "data:")), f"<{tag} {name}={value!r}>"
    (policy,) = (a["content"] for t, a in page.elements if a.get("http-equiv") == "Content-Security-Policy")
    assert policy.startswith("default-src 'none';")
    assert "http" not in policy


def test_every_figure_has_a_text_alternative_with_its_key_numbers(comparison):
    page = Page(html_report(comparison, None))
    plots = [a for _, a in page.elements if "data-figure" in a]
    assert len(plots) >= 4
    for plot in plots:
        assert plot["role"] == "img"
        assert any(c.isdigit() for c in plot["aria-label"])
    assert sum(tag == "figcaption" for tag, _ in page.elements) == len(plots)
    assert set(json.loads(page.scripts["figures"])) == {plot["data-figure"] for plot in plots}


def test_hostile_names_stay_text_everywhere():
    """A range name that closes scripts and opens images: in tables, captions, figures, JSON, settings and warnings."""
    table = Table("sync.by_range", SYNC, ((None, f"decode_step > {HOSTILE}", HOSTILE, 3, 9_000_000, 3e6),))
    stalls = Table("stall.by_cause", ("rank", "cause", "launches", "t", "p"), ((None, HOSTILE, 3, 9_000_000, 3e6),))
    samples = metric(f"range.{HOSTILE}", None, np.arange(50.0))
    finding = Finding("odd", 0, 1, HOSTILE)
    base = run(samples, tables=[table, stalls], findings=[finding], arm=HOSTILE, settings={HOSTILE: HOSTILE})
    bars = (Bar(BarKind.RANGE, 0, HOSTILE, 0, 9, HOSTILE),)
    window = StepWindow("median step", 0, 0, 1, 9, (HOSTILE,), bars, (), 0)
    found = compare(base, run(samples, arm="new"))
    text = html_report(found, Timelines(0, (window,), ()))
    plain = html_report(compare(run(samples, arm="x", tables=[table, stalls]), run(samples, arm="new")), None)
    page = Page(text)
    assert not [tag for tag, _ in page.elements if tag == "img"]
    assert (
        sum(tag == "script" for tag, _ in page.elements) == sum(tag == "script" for tag, _ in Page(plain).elements) == 4
    )
    assert json.loads(page.scripts["comparison"])["tables"]["sync.by_range"][0]["api"] == HOSTILE
    assert " ".join(HOSTILE.split()) in page.text
    assert "&lt;img src=x" in json.loads(page.scripts["figures"])["waits"]["layout"]["annotations"][0]["text"]


def test_script_json_cannot_end_its_element_and_reads_back():
    text = script_json(json.dumps({"a": "</script><!-- & \u2028"}, ensure_ascii=False))
    assert not set("<>&\u2028") & set(text)
    assert json.loads(text) == {"a": "</script><!-- & \u2028"}


def test_the_code_that_made_the_host_wait_heads_the_page_and_has_its_table():
    rows = ((None, "decode_step > rebuild_compact", "cudaStreamSynchronize", 1200, 1_225_000_000, 1e6),)
    found = compare(run(tables=[Table("sync.by_range", SYNC, rows)]), run(arm="new"))
    page = Page(html_report(found, None))
    assert "base: the host waited in rebuild_compact (1,225.0 ms in 1,200 cudaStreamSynchronize, 100%)." in page.text
    assert "new: no host wait was captured." in page.text
    values = [a["value"] for tag, a in page.elements if tag == "data"]
    assert values == ["1200", "1225000000"]


def test_with_verdicts_they_head_the_page_worst_first():
    base, slower = two_ranks(1, 0, "base"), two_ranks(1, 3e6, "new")
    judgements = judge([base], [slower])
    lines = verdict_lines(judgements)
    assert lines[0].verdict is Verdict.REGRESSED
    assert lines[0].names.startswith("range.prepare_for_decode, step.period")
    assert sum(len(line.names.split(", ")) + line.num_ranked for line in lines) == len(judgements.each)
    page = Page(html_report(compare(base, slower), None, judgements))
    assert "regressed : range.prepare_for_decode, step.period" in page.text
    embedded_verdicts = json.loads(page.scripts["comparison"])["verdicts"]
    judged = judgements.find("step.period", None)
    (row,) = (v for v in embedded_verdicts if v["metric"] == "step.period" and v["rank"] is None)
    assert (row["verdict"], row["low"]) == ("regressed", judged.interval.low)
    assert page.rows["div", "step.period", "all"][-2:] == [judged.interval.low, judged.interval.high]


def test_without_verdicts_the_clearest_differences_do(comparison):
    text = Page(html_report(comparison, None)).text
    first = largest(key_changes(comparison))[0]
    assert f"Clearest differences: {first.metric} " in text
    assert "regressed" not in text
    assert "improved" not in text


def test_the_clearest_difference_is_the_largest_in_widths_of_its_interval(comparison):
    found = largest(key_changes(comparison))
    widths = [abs(c.difference) / (c.interval.high - c.interval.low) for c in found]
    assert widths == sorted(widths, reverse=True)
    assert all(c.interval.low > 0 or c.interval.high < 0 for c in found)


def test_runs_on_different_devices_are_called_that():
    found = compare(run(), run(arm="new", device="NVIDIA H200"))
    text = Page(html_report(found, None)).text
    assert "Not like with like: the runs differ in device: cpu against NVIDIA H200" in text


def test_a_run_with_next_to_nothing_still_makes_a_page():
    """One rank, one metric of one sample on one side: no figure is drawn from nothing."""
    page = Page(html_report(compare(run(metric("step.period", 0, np.array([5.0]))), run(arm="new")), None))
    assert "base → new" in page.text
    assert {a["data-figure"] for _, a in page.elements if "data-figure" in a} == set()


def test_circumstances_that_differ_are_marked():
    rows = {s.name: s for s in settings(info("a", settings={"seed": 1}), info("b", settings={"seed": 2}))}
    assert rows["seed"].is_different
    assert not rows["workload"].is_different
    assert not rows["run"].is_different, "two runs never share a name"


def test_commands_are_quoted_and_begin_with_the_run_where_the_loop_made_it():
    own = {"ranks": 2, "steps_asked": 400, "seed": 1}
    found = commands(info("a", settings=own, run="x y"), info("b", settings=own))
    assert found[0] == "dflash-bench run --arm a --workload steady --name 'x y' --ranks 2 --steps 400 --seed 1"
    assert found[-1] == "dflash-bench report 'x y' run-b -o report.html"
    assert commands(info("a"), info("b"))[0] == "dflash-bench ingest FOLDER_OF_CAPTURES"


def test_the_straggler_is_who_most_often_came_last_in_the_base():
    shares = [metric("dp.straggler_share", k, np.arange(10) < n) for k, n in enumerate((2, 7, 1))]
    assert straggler(compare(run(*shares), run())) == 1


# ── big runs ─────────────────────────────────────────────────────────────────────────────────────────────────────────

RANKS, STEPS = 32, 20_000
BIG = (
    "step.period",
    "range.prepare_for_decode",
    "step.lead",
    "launch.lead",
    "dp.lateness",
    "dp.wait",
    "sync.total_per_step",
)


def big_run(arm):
    """32 ranks × 20,000 steps of seven metrics, a hundred range names, and cause tables with names that count."""
    rng = np.random.default_rng(0)
    found = []
    for name in BIG:
        values = [rng.lognormal(14, 0.5, STEPS) for _ in range(RANKS)]
        found += [metric(name, k, v, block=np.arange(STEPS)) for k, v in enumerate(values)]
        found.append(metric(name, None, np.concatenate(values)))
    found += [metric("dp.straggler_share", k, rng.random(STEPS) < 1 / RANKS) for k in range(RANKS)]
    few = rng.lognormal(10, 0.5, 50)
    found += [metric(f"range.phase_{n}", k, few) for n in range(100) for k in (*range(RANKS), None)]
    rows = [
        (r, f"decode_step > step {k}", "cudaStreamSynchronize", 1, 10**6 - k, 5e5)
        for r in (None, *range(RANKS))
        for k in range(500)
    ]
    return run(*found, arm=arm, tables=[Table("sync.by_range", SYNC, tuple(rows))])


def compared(base, candidate):
    """As `compare`, with intervals that cost nothing: this is about the page."""
    changes = []
    for old, new in zip(base.metrics, candidate.metrics, strict=True):
        a, b = figure(old), figure(new)
        span = Interval(b - a - 1.25, b - a + 1.25, 0.95)
        known = (old.name, old.rank, old.unit, spec(old.name).better, old.statistic)
        changes.append(Change(*known, a, b, old.n, new.n, b - a, b / a if a else None, span))
    return Comparison(base, candidate, tuple(changes), ())


def test_32_ranks_of_20000_steps_make_a_page_under_15_megabytes():
    bars = tuple(
        Bar(kind, 0, "cudaLaunchKernel", 9 * k, 9 * k + 5, "lead 5.0 µs") for kind in BarKind for k in range(MAX_BARS)
    )
    flows = tuple(Flow(0, k, 0, k + 5) for k in range(MAX_BARS))
    windows = tuple(
        StepWindow(t, 0, 0, STEPS, 9 * MAX_BARS, ("a",), bars, flows, 0) for t in ("median step", "longest step")
    )
    found = compared(big_run("base"), big_run("new"))
    page = html_report(found, Timelines(0, windows, windows))
    size = len(page.encode())
    assert size < 15_000_000
    print(f"{size / 1e6:.1f} MB")
    rows = [key for key in Page(page).rows if key[0] == "tr"]
    assert len(rows) < 200, "single ranks of 32 are in the heat map and the JSON, not in a table of thousands of rows"
    changes = json.loads(Page(page).scripts["comparison"])["comparison"]
    assert len(changes) == len(found.changes), "the JSON has all of them"


def test_table_rows_beyond_the_limit_are_counted_in_the_json():
    rows = tuple((k % 4 if k % 2 else None, f"step {k}", "x", 1, 10**6 - k, 5e5) for k in range(MAX_TABLE_ROWS + 50))
    found = json.loads(embedded(compare(run(tables=[Table("sync.by_range", SYNC, rows)]), run(arm="new"))))
    assert found["table_rows_left_out"] == {"sync.by_range": 50}
    kept = found["tables"]["sync.by_range"]
    assert len(kept) == MAX_TABLE_ROWS
    assert sum(row["rank"] is None for row in kept) == MAX_TABLE_ROWS // 2 + 25, "the pooled rows are all there"


def test_a_row_without_data_shows_a_dash_and_no_number():
    (change,) = compare(run(metric("step.period", 0, np.array([5.0]))), run(arm="new")).changes
    row = change_row(change)
    assert (row.candidate.text, row.candidate.value, row.base.value) == ("–", None, "5.0")
