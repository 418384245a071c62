"""The page: its numbers are the JSON's, names cannot break out, it fetches nothing, and big runs stay small."""

from __future__ import annotations

import json
from dataclasses import replace
from html.parser import HTMLParser

import numpy as np
import pytest
from simulated_runs import compare_both, compare_pair

from dflash_bench.compare import compare
from dflash_bench.metrics.measurements import metric
from dflash_bench.metrics.registry import spec
from dflash_bench.metrics.summary import figure
from dflash_bench.model import Change, Comparison, Finding, Interval, RunInfo, RunMetrics, Sides, Table
from dflash_bench.report.as_json import comparison_json, metrics_json
from dflash_bench.report.comparison import comparison_report
from dflash_bench.report.headline import sides_headline
from dflash_bench.report.page import _MAX_TABLE_ROWS, _script_json, comparison_page, run_page
from dflash_bench.report.page_parts import commands, heat_rows, settings, straggler
from dflash_bench.report.sheets import Detail
from dflash_bench.report.sides import runs_note, typical
from dflash_bench.report.timeline import _MAX_BARS, Bar, BarKind, _StepWindow, window_document

SYNC = ("rank", "path", "api", "count", "total_ns", "p50_ns")
HOSTILE = "</script><script>alert(1)</script><img src=x onerror=alert(2)>{{7*7}}%{x}\u2028'\""
VOID = {"meta", "link", "img", "br", "hr", "input", "wbr"}


class Page(HTMLParser):
    """What a browser makes of the file: elements with their attributes, texts, table rows and scripts."""

    def __init__(self, text):
        super().__init__()
        self.elements, self.rows, self.runs, self.scripts, self.words = [], {}, {}, {}, []
        self._row, self._script, self._open, self._is_after_wbr = None, None, [], False
        self.feed(text)
        self.close()

    def handle_starttag(self, tag, attrs):
        found = dict(attrs)
        self._is_after_wbr = tag == "wbr"
        self.elements.append((tag, found))
        if tag not in VOID:
            self._open.append(tag)
        if tag == "script":
            self._script = found.get("id", "")
            self.scripts[self._script] = ""
        elif "data-metric" in found:
            self._row = []
            self.rows.setdefault((found["data-metric"], found["data-rank"]), []).append(self._row)
        elif "data-run" in found:
            self._row = self.runs.setdefault(found["data-run"], [])
        elif tag == "data":
            self._row.append(float(found["value"])) if self._row is not None else None

    def handle_endtag(self, tag):
        assert self._open.pop() == tag, f"</{tag}> closes something else"
        if tag == "script":
            self._script = None
        if tag == "tr":
            self._row = None

    def handle_data(self, data):
        if self._script is not None:
            self.scripts[self._script] += data
        elif self._is_after_wbr:
            self.words[-1] += data
        elif self._open[-1:] != ["style"]:
            self.words.append(data)
        self._is_after_wbr = False

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
    return compare_pair(two_ranks(1, 0, "base"), two_ranks(2, 3e5, "new"))


def page_of(comparison, judgements=None, timeline=None):
    return Page(comparison_page(comparison, judgements, timeline, "dflash-bench report base new"))


def test_every_number_in_the_tables_is_the_number_in_the_json(comparison):
    """Base, candidate, difference and interval of every row of every table, to the last digit, against the JSON."""
    page = page_of(comparison)
    expected = {(c["metric"], c["rank"]): c for c in json.loads(comparison_json(comparison))["comparison"]}
    assert len(page.rows) == len(expected) == 11
    for (name, rank), change in expected.items():
        fields = [change[k] for k in ("base", "candidate", "difference", "low", "high")]
        for values in page.rows[name, "all" if rank is None else str(rank)]:
            assert values == [f for f in fields if f is not None]


def test_the_key_figures_come_first_in_their_order(comparison):
    keys = [k["data-metric"] for tag, k in page_of(comparison).elements if tag == "tr" and "data-metric" in k][:2]
    assert keys == ["step.period", "step.lead"]


def test_the_page_holds_the_document_that_compare_prints(comparison):
    found = json.loads(page_of(comparison).scripts["document"])
    assert found.pop("table_rows_left_out") == {}
    assert found == json.loads(comparison_json(comparison))


def test_the_page_of_one_run_holds_the_document_of_metrics_and_its_numbers():
    own = two_ranks(1, 0, "base")
    page = Page(run_page(own, None))
    document = json.loads(page.scripts["document"])
    assert document.pop("table_rows_left_out") == {}
    assert document == json.loads(metrics_json([own]))
    for m in document["metrics"]:
        fields = [m[k] for k in (("p50", "p90", "p99", "mean") if "p50" in m else ("value",))]
        for values in page.rows[m["metric"], "all" if m["rank"] is None else str(m["rank"])]:
            assert values == fields


def test_nothing_is_fetched(comparison):
    """No element names another place, the security policy forbids all requests, and no base or frame is there."""
    page = page_of(comparison)
    for tag, attributes in page.elements:
        assert tag not in {"iframe", "base", "object", "embed", "form"}
        for name in ("src", "href", "action", "data"):
            value = attributes.get(name, "#")
            assert value.startswith(("#", "data:")), f"<{tag} {name}={value!r}>"
    (policy,) = (a["content"] for t, a in page.elements if a.get("http-equiv") == "Content-Security-Policy")
    assert policy.startswith("default-src 'none';")
    assert "http" not in policy


def test_every_chart_of_distributions_says_its_numbers_in_words(comparison):
    page = page_of(comparison)
    assert sum(tag == "figcaption" for tag, _ in page.elements) >= 2
    assert "base: half of 400 up to 1" in page.text
    assert all(a.get("aria-hidden") == "true" for tag, a in page.elements if tag == "svg")


def test_hostile_names_stay_text_everywhere():
    """A range name that closes scripts and opens images: in tables, headline, JSON, settings, timeline and warnings."""
    table = Table("sync.by_range", SYNC, ((None, f"decode_step > {HOSTILE}", HOSTILE, 3, 9_000_000, 3e6),))
    columns = ("rank", "cause", "steps", "total_ns", "share")
    stalls = Table("dry.by_cause", columns, ((None, HOSTILE, 3, 9_000_000, 3e6),))
    samples = metric(f"range.{HOSTILE}", None, np.arange(50.0))
    finding = Finding("odd", 0, 1, HOSTILE)
    base = run(samples, tables=[table, stalls], findings=[finding], arm=HOSTILE, settings={HOSTILE: HOSTILE})
    bars = (Bar(BarKind.RANGE, 0, HOSTILE, 0, 9, HOSTILE),)
    names = {}
    window = window_document(_StepWindow("median step", 0, 0, 1, 9, (HOSTILE,), bars, (), 0), names)
    timeline = {"sides": [{"name": HOSTILE, "ranks": {0: [window]}}], "first": 0, "kinds": [], "names": list(names)}
    for page in (page_of(compare_pair(base, run(samples, arm="new")), None, timeline), Page(run_page(base, timeline))):
        assert not [a for tag, a in page.elements if tag == "img" and not a["src"].startswith("data:")]
        assert sum(tag == "script" for tag, _ in page.elements) == 3
        assert json.loads(page.scripts["document"])["tables"]["sync.by_range"][0]["api"] == HOSTILE
        assert json.loads(page.scripts["timeline-data"])["names"][0] == HOSTILE
        assert " ".join(HOSTILE.split()) in page.text


def test_script_json_cannot_end_its_element_and_reads_back():
    text = _script_json(json.dumps({"a": "</script><!-- & \u2028"}, ensure_ascii=False))
    assert not set("<>&\u2028") & set(text)
    assert json.loads(text) == {"a": "</script><!-- & \u2028"}


def test_the_code_that_made_the_host_wait_has_its_table_per_step():
    rows = ((None, "decode_step > rebuild_compact", "cudaStreamSynchronize", 1200, 1_225_000_000, 1e6),)
    period = metric("step.period", 0, np.full(399, 9e6))
    found = compare_pair(run(period, tables=[Table("sync.by_range", SYNC, rows)]), run(period, arm="new"))
    page = page_of(found)
    assert "decode_step > rebuild_compact · cudaStreamSynchronize 3.07 ms" in page.text
    assert "1225000000" in [a["value"] for tag, a in page.elements if tag == "data"]


def test_the_answer_heads_the_page_in_the_colour_of_its_verdict():
    found, judgements = compare_both([two_ranks(1, 0, "base")], [two_ranks(1, 3e7, "new")])
    page = page_of(found, judgements)
    (answer,) = (a for tag, a in page.elements if a.get("class", "").startswith("answer"))
    assert answer["class"] == "answer worse"
    assert sides_headline(found.sides, judgements, found.findings).what in page.text
    judged = judgements.find("step.period", None)
    (row,) = (
        v
        for v in json.loads(page.scripts["document"])["verdicts"]
        if v["metric"] == "step.period" and v["rank"] is None
    )
    assert (row["verdict"], row["low"]) == ("regressed", judged.interval.low)
    assert page.rows["step.period", "all"][0][-2:] == [judged.interval.low, judged.interval.high]


def test_without_verdicts_nothing_is_better_or_worse(comparison):
    page = page_of(comparison)
    rows = {a["class"] for tag, a in page.elements if tag == "tr" and "data-metric" in a}
    assert rows == {"open"}
    assert "No verdicts: the runs are too unlike" in page.text


def test_runs_on_different_devices_are_called_that():
    found, judgements = compare_both([run()], [run(arm="new", device="NVIDIA H200")])
    assert "Not comparable: the runs differ in device: cpu against NVIDIA H200" in page_of(found, judgements).text


def test_a_run_with_next_to_nothing_still_makes_a_page():
    """One rank, one metric of one sample on one side: no figure is drawn from nothing."""
    page = page_of(compare_pair(run(metric("step.period", 0, np.array([5.0]))), run(arm="new")))
    assert "base → new" in page.text
    assert page.rows["step.period", "0"] == [[5.0], [5.0]], "in the key figures and among all numbers"
    assert "No steps" in Page(run_page(run(), None)).text


def one_each(base, candidate):
    """One run of each arm, of which only the circumstances matter."""
    return Sides((RunMetrics(base, (), (), ()),), (RunMetrics(candidate, (), (), ()),))


def test_circumstances_that_differ_are_marked_and_come_first():
    found = settings(one_each(info("a", settings={"seed": 1}), info("a", settings={"seed": 2})))
    rows = {s.name: s for s in found}
    assert found[0].name == "seed"
    assert rows["seed"].is_different
    assert not rows["workload"].is_different
    assert not rows["run"].is_different, "two runs never share a name"


def test_what_was_captured_is_shown_not_what_the_loop_was_asked_for():
    """A setting of the loop with the name of a fact of the capture does not hide it."""
    own = info("a", devices=("NVIDIA H200",), settings={"device": "cuda"})
    assert {s.name: s.base for s in settings(one_each(own, own))}["device"] == "NVIDIA H200"


def test_two_arms_of_one_workload_are_made_by_one_command_in_turns():
    own = {"ranks": 2, "steps_asked": 400, "seed": 1}
    pair = one_each(info("a", settings=own, run="x y"), info("b", settings=own))
    found = commands(pair)
    assert found[0] == "dflash-bench run --arm a --workload steady --ranks 2 --steps 400 --seed 1 --arm b"
    assert found[-1] == "dflash-bench report 'x y' run-b -o report.html"
    repeated = Sides(pair.base * 3, pair.candidate)
    assert commands(repeated)[0].endswith(" --repeats 3")
    assert commands(repeated)[-1] == "dflash-bench report 'x y,x y,x y' run-b -o report.html"


def test_runs_that_were_asked_for_differently_have_a_command_each():
    own = {"ranks": 2, "steps_asked": 400, "seed": 1}
    found = commands(one_each(info("a", settings=own), info("a", settings=own | {"delay": "1:150"})))
    assert found[:2] == [
        "dflash-bench run --arm a --workload steady --ranks 2 --steps 400 --seed 1",
        "dflash-bench run --arm a --workload steady --ranks 2 --steps 400 --seed 1 --delay 1:150",
    ]


def test_captures_from_elsewhere_are_ingested_again():
    assert commands(one_each(info("a"), info("b")))[0] == "dflash-bench ingest FOLDER_OF_CAPTURES"


# ── several runs a side ──────────────────────────────────────────────────────────────────────────────────────────────


def repeated(shift, arm, count=3):
    """Runs of an arm, each a little slower than the one before, the middle one first as the command has it."""
    runs = [two_ranks(k, shift + 1e4 * k, arm) for k in range(count)]
    runs = [
        replace(r, info=replace(r.info, run=f"{arm}-{k}", created_utc=f"2026-01-0{k + 1}")) for k, r in enumerate(runs)
    ]
    middle = typical(runs)
    return (runs[middle], *runs[:middle], *runs[middle + 1 :])


@pytest.fixture(scope="module")
def sides():
    return Sides(repeated(0, "base"), repeated(3e6, "new"))


def test_the_typical_run_is_the_one_with_the_median_step():
    runs = [run(metric("step.period", None, np.full(9, v))) for v in (5.0, 1.0, 3.0)]
    assert typical(runs) == 2
    assert typical(runs[:2]) == 1, "of two the faster"
    assert typical([run(), run()]) == 0, "without steps the first"
    assert typical([run(), runs[0]]) == 1


def test_page_json_and_terminal_agree_on_every_run(sides):
    """Each run's own step period, which run is the median one, and the note on what rests on what."""
    found = compare(sides)
    judgements = found.judgements
    page = page_of(found, judgements)
    document = json.loads(page.scripts["document"])
    rows = {r["run"]: r for r in document["runs"]}
    own = {r.info.run: figure(r.find("step.period", None)) for r in (*sides.base, *sides.candidate)}
    assert {name: r["figures"]["step.period"] for name, r in rows.items()} == own
    assert [name for name, r in rows.items() if r["is_typical"]] == ["base-1", "new-1"]
    assert page.runs == {name: [v for v in r["figures"].values() if v is not None] for name, r in rows.items()}
    report = comparison_report(found, judgements, Detail(is_full=True))
    (sheet,) = (s for s in report.sheets if s.title == "Runs")
    place = sheet.columns.index("step.period µs")
    assert {row[1]: row[place] for row in sheet.rows} == {name: f"{v / 1000:,.1f}" for name, v in own.items()}
    assert [row[1] for row in sheet.rows if row[2]] == ["base-1", "new-1"]
    assert report.title == "base (3 runs) → new (3 runs)"
    assert runs_note(sides) in report.lines
    assert f"{runs_note(sides)}." in page.text


def test_figures_of_several_runs_are_those_of_the_verdicts(sides):
    found = compare(sides)
    judgements = found.judgements
    page = page_of(found, judgements)
    judged = judgements.find("step.period", None)
    assert (judged.base_runs, judged.candidate_runs) == (3, 3)
    low, high = judged.interval.low, judged.interval.high
    assert page.rows["step.period", "all"][0] == [judged.base, judged.candidate, judged.shift, low, high]
    on_rank = judgements.find("step.period", 1)
    (cell,) = (c for name, cells in heat_rows(found, judgements) if name == "step.period" for c in cells[1:])
    assert (cell.tone, cell.words.endswith(", regressed")) == ("worse", True)
    assert f"{on_rank.shift / on_rank.base:+.0%}".replace("%", " %") == cell.change


def test_warnings_of_every_run_are_said_with_its_name():
    odd = Finding("odd", 0, 1, "something")
    runs = [run(findings=[odd] if k == 2 else [], run=f"base-{k}") for k in range(3)]
    found, _ = compare_both(runs, [run(arm="new")])
    page = page_of(found)
    assert "base base-2: rank 0: something [odd]" in page.text
    assert [w["run"] for w in json.loads(page.scripts["document"])["warnings"] if w["code"] == "odd"] == ["base-2"]
    assert "base base-2: rank 0: something [odd]" in comparison_report(found).warnings


def test_one_run_a_side_has_no_table_of_runs(comparison):
    page = page_of(comparison)
    assert page.runs == {}
    assert [r["side"] for r in json.loads(page.scripts["document"])["runs"]] == ["base", "candidate"]


def test_the_straggler_is_who_most_often_came_last_in_the_base():
    shares = [metric("dp.straggler_share", k, np.arange(10) < n) for k, n in enumerate((2, 7, 1))]
    assert straggler(run(*shares)) == 1


# ── kinds of steps ───────────────────────────────────────────────────────────────────────────────────────────────────


def steps_of(arm, **kinds):
    """A run with so many steps of each kind on its only rank, and the period of its decode steps."""
    counts = [metric(f"steps@{kind}", 0, np.array([count])) for kind, count in kinds.items()]
    return run(*counts, metric("step.period@decode", 0, np.arange(1e6, 1e6 + 99)), arm=arm)


def test_the_composition_is_said_in_page_and_terminal():
    found, _ = compare_both([steps_of("base", decode=392, mixed=8)], [steps_of("new", decode=390, mixed=10)])
    text = page_of(found).text
    assert "Kinds of steps: base 98.0 % decode, 2.0 % mixed; new 97.5 % decode, 2.5 % mixed." in text
    assert "compare unlike work" not in text
    lines = comparison_report(found, detail=Detail(is_full=True)).lines
    assert "kinds of steps: base 98.0 % decode, 2.0 % mixed; candidate 97.5 % decode, 2.5 % mixed" in lines


def test_of_differently_composed_runs_the_steps_of_one_kind_are_shown_apart():
    """A tenth of prefill steps against none: page and terminal warn, and both open the figures of one kind."""
    found, judgements = compare_both([steps_of("base", decode=360, prefill=40)], [steps_of("new", decode=400)])
    page = page_of(found, judgements)
    assert "They differ, so figures over all steps compare unlike work; see those of one kind ." in page.text
    assert [a for tag, a in page.elements if tag == "details" and "open" in a]
    assert ("step.period@decode", "0") in page.rows
    lines = comparison_report(found, judgements).lines
    assert any(line.startswith("kinds of steps: base 90.0 % decode, 10.0 % prefill") for line in lines)
    alike, _ = compare_both([steps_of("base", decode=400)], [steps_of("new", decode=400)])
    assert not [line for line in comparison_report(alike).lines if line.startswith("kinds of steps")]


def test_runs_of_one_kind_of_steps_say_nothing_of_kinds():
    found, _ = compare_both([steps_of("base", decode=400)], [steps_of("new", decode=400)])
    assert "Kinds of steps:" not in page_of(found).text


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
    return Comparison(Sides((base,), (candidate,)), tuple(changes), ())


def test_32_ranks_of_20000_steps_make_a_page_under_5_megabytes():
    """With a full timeline of every rank: as many bars as `timeline_document` lets 32 ranks of two sides have."""
    num = 15_000 // (4 * 2 * RANKS)
    bars = tuple(
        Bar(kind, 0, "cudaLaunchKernel", 9_000 * k, 9_000 * k + 5_000, "lead 5.0 µs")
        for kind in BarKind
        for k in range(num)
    )
    window = window_document(_StepWindow("median step", 0, 0, STEPS, 9 * _MAX_BARS, ("a",), bars, (), 0), {})
    side = {"name": "a", "ranks": {rank: [window, window] for rank in range(RANKS)}}
    timeline = {"sides": [side, side], "first": 0, "kinds": list(BarKind), "names": ["cudaLaunchKernel", "lead"]}
    found = compared(big_run("base"), big_run("new"))
    text = comparison_page(found, None, timeline)
    size = len(text.encode())
    assert size < 5_000_000
    print(f"{size / 1e6:.1f} MB")
    page = Page(text)
    assert len(page.rows) < 200, (
        "single ranks of 32 are in the heat map and the JSON, not in a table of thousands of rows"
    )
    changes = json.loads(page.scripts["document"])["comparison"]
    assert len(changes) == len(found.changes), "the JSON has all of them"


def test_table_rows_beyond_the_limit_are_counted_in_the_json():
    rows = tuple((k % 4 if k % 2 else None, f"step {k}", "x", 1, 10**6 - k, 5e5) for k in range(_MAX_TABLE_ROWS + 50))
    found = json.loads(
        page_of(compare_pair(run(tables=[Table("sync.by_range", SYNC, rows)]), run(arm="new"))).scripts["document"]
    )
    assert found["table_rows_left_out"] == {"sync.by_range": 50}
    kept = found["tables"]["sync.by_range"]
    assert len(kept) == _MAX_TABLE_ROWS
    assert sum(row["rank"] is None for row in kept) == _MAX_TABLE_ROWS // 2 + 25, "the pooled rows are all there"
