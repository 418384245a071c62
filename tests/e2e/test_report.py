"""``dflash-bench report`` on the H200 captures: the command, and its page in a real browser.

The browser is Chromium driven by its own driver over HTTP (WebDriver); without the two these tests are skipped.
"""

from __future__ import annotations

import base64
import json
import re
import shutil
from pathlib import Path

import pytest
import typer
from browser import driver, in_browser
from typer.testing import CliRunner

from dflash_bench.cli import Commands
from dflash_bench.cli.report import parse_steps, report
from dflash_bench.errors import ExitCode, UsageError

H200 = Path(__file__).parents[1] / "data" / "h200"

app = typer.Typer(cls=Commands, pretty_exceptions_enable=False)
app.callback()(lambda: None)
app.command()(report)


def command(*words):
    found = CliRunner().invoke(app, ["report", *map(str, words)])
    if found.exception is not None and not isinstance(found.exception, SystemExit):
        raise found.exception
    return found


@pytest.fixture(scope="module")
def written(tmp_path_factory):
    """Folder with the page and the trace of sync → nosync, and what the command said."""
    folder = tmp_path_factory.mktemp("report")
    for arm in ("sync", "nosync"):
        (folder / arm).mkdir()
        for file in H200.glob(f"h200x2_{arm}_rank*.sqlite"):
            (folder / arm / file.name).symlink_to(file)
    options = ("-o", folder / "report.html", "--perfetto", folder / "trace.json.gz", "--profiles", folder / "profiles")
    found = command(folder / "sync", folder / "nosync", *options)
    assert found.exit_code == ExitCode.PASS, found.output
    return folder, found


def test_the_command_writes_page_and_trace_and_says_the_same_in_short(written):
    folder, found = written
    assert (folder / "report.html").stat().st_size < 15_000_000
    assert (folder / "trace.json.gz").stat().st_size > 0
    assert "rebuild_compact" in found.stdout
    assert "get_last_loc" in found.stdout
    assert "step.lead" in found.stdout
    assert "written:" in found.stderr
    assert not [p.name for p in folder.iterdir() if p.name.endswith(".partial")]


def test_one_folder_of_two_runs_is_enough(written, tmp_path):
    folder, _ = written
    found = command(H200, "-o", tmp_path / "r.html", "--profiles", folder / "profiles")
    assert found.exit_code == ExitCode.PASS


def test_anything_but_two_runs_is_refused_by_their_names(written, tmp_path):
    folder, _ = written
    found = command("h200x2_sync", "-o", tmp_path / "r.html", "--profiles", folder / "profiles")
    assert found.exit_code == ExitCode.USAGE
    assert "h200x2_sync is 1 run (h200x2_sync): compare it with what?" in found.stderr
    assert not (tmp_path / "r.html").exists()


@pytest.fixture
def repeated(written, tmp_path):
    """A folder of profiles with two runs of each arm."""
    for arm in ("sync", "nosync"):
        for k in (1, 2):
            path = tmp_path / f"{arm}-{k}"
            shutil.copytree(written[0] / "profiles" / f"h200x2_{arm}", path)
            content = json.loads((path / "run.json").read_text("utf-8")) | {"run": path.name}
            (path / "run.json").write_text(json.dumps(content), "utf-8")
    return tmp_path


def test_several_runs_a_side_are_named_by_pattern_or_list(repeated):
    """Page, JSON and terminal speak of all four, and of the one of each side that is looked at step by step."""
    found = command("sync-*", "nosync-1,nosync-2", "-o", repeated / "r.html", "--profiles", repeated)
    assert found.exit_code == ExitCode.PASS, found.output
    assert "sync (2 runs) → nosync (2 runs)" in found.stdout
    assert "timelines are those of the runs with the median step.period, sync-1 and nosync-1" in " ".join(
        found.stdout.split()
    )
    page = (repeated / "r.html").read_text("utf-8")
    document = json.loads(re.search(r'id="comparison">(.*?)</script>', page, re.S)[1])
    assert [(r["run"], r["is_typical"]) for r in document["runs"]] == [
        ("sync-1", True), ("sync-2", False), ("nosync-1", True), ("nosync-2", False),
    ]  # fmt: skip
    assert all(f'data-run="{run["run"]}"' in page for run in document["runs"])
    judged = next(v for v in document["verdicts"] if (v["metric"], v["rank"]) == ("step.lead", None))
    assert (judged["base_runs"], judged["candidate_runs"], judged["verdict"]) == (2, 2, "improved")
    assert "dflash-bench report sync-1,sync-2 nosync-1,nosync-2 -o report.html" in re.sub("</?span>", "", page)


def test_a_run_on_both_sides_is_refused(repeated):
    found = command("sync-*", "sync-2", "-o", repeated / "r.html", "--profiles", repeated)
    assert found.exit_code == ExitCode.USAGE
    assert "sync-2 stands on both sides" in found.stderr


@pytest.mark.parametrize("text", ["5", "5:5", "9:3", "a:b", "-1:4"])
def test_a_span_of_steps_that_is_none_is_refused(text):
    with pytest.raises(UsageError, match="FIRST:LAST"):
        parse_steps(text)


def test_a_span_of_steps_is_two_numbers():
    assert parse_steps("0:100") == (0, 100)
    assert parse_steps(None) is None


# ── browser ──────────────────────────────────────────────────────────────────────────────────────────────────────────


@pytest.fixture(scope="module")
def browser(tmp_path_factory):
    with driver(tmp_path_factory.mktemp("chromium")) as found:
        yield found


@pytest.fixture(scope="module")
def page(written):
    return written[0] / "report.html"


def requests(browser):
    """Every address that the page's documents asked for since the last look."""
    for entry in browser.logs("performance"):
        message = json.loads(entry["message"])["message"]
        if message["method"] == "Network.requestWillBeSent":
            asked = message["params"]
            if asked.get("documentURL", "").startswith("file:"):
                yield asked["request"]["url"]


@in_browser
@pytest.mark.parametrize(("width", "is_dark"), [(1280, False), (1280, True), (390, False)])
def test_the_page_opens_without_a_complaint_and_fetches_nothing(browser, page, width, is_dark):
    browser.open(page, width, is_dark=is_dark)
    assert browser.logs("browser") == []
    others = [url for url in requests(browser) if not url.startswith(("data:", "blob:"))]
    assert set(others) <= {page.as_uri()}


@in_browser
@pytest.mark.parametrize("width", [390, 1280])
def test_nothing_sticks_out_sideways(browser, page, width):
    browser.open(page, width)
    assert browser.run("return document.documentElement.scrollWidth") <= width
    sizes = browser.run(
        "return [...document.querySelectorAll('[data-figure] .main-svg')].map(e => e.getBoundingClientRect().right)"
    )
    assert max(sizes) <= width


@in_browser
def test_every_figure_is_drawn_and_says_in_words_what_it_shows(browser, page):
    browser.open(page, 1280)
    figures = browser.run(
        "return [...document.querySelectorAll('figure')].map(f => ({"
        " key: f.querySelector('[data-figure]').dataset.figure,"
        " drawn: f.querySelectorAll('.main-svg').length > 0,"
        " alternative: f.querySelector('[role=img]').getAttribute('aria-label'),"
        " caption: f.querySelector('figcaption').textContent }))"
    )
    keys = [f["key"] for f in figures]
    for needed in ("waits", "stalls", "forest-relative", "heat-ranks", "arrivals", "stragglers", "allocation"):
        assert needed in keys
    for needed in ("range.prepare_for_decode", "step.lead", "launch.lead"):
        assert f"ecdf-{needed}" in keys
    timelines = {f"timeline-{side}-{which}" for side in ("base", "candidate") for which in ("median", "longest")}
    assert timelines <= set(keys)
    for found in figures:
        assert found["drawn"], found["key"]
        assert found["caption"] in found["alternative"]
        assert any(c.isdigit() for c in found["caption"]), found["key"]


@in_browser
def test_the_numbers_on_the_page_are_those_of_its_json(browser, page):
    """Read by the browser itself: every row of every table of changes against the embedded document."""
    browser.open(page, 1280)
    found = browser.run(
        "const doc = JSON.parse(document.getElementById('comparison').textContent);"
        "const judged = new Map(doc.verdicts.map(v => [v.metric + '|' + v.rank, v]));"
        "const known = new Map(doc.comparison.map(c => [c.metric + '|' + c.rank, c]));"
        "const wrong = []; let rows = 0;"
        "for (const tr of document.querySelectorAll('tr[data-metric]')) { rows += 1;"
        " const key = tr.dataset.metric + '|' + (tr.dataset.rank === 'all' ? 'null' : tr.dataset.rank);"
        " const c = known.get(key), span = judged.has(key) ? judged.get(key) : c;"
        " const expected = [c.base, c.candidate, c.difference, c.ratio, span?.low ?? null, span?.high ?? null]"
        "  .filter(v => v !== null);"
        " const shown = [...tr.querySelectorAll('data')].map(d => Number(d.value));"
        " if (JSON.stringify(shown) !== JSON.stringify(expected)) wrong.push([key, shown, expected]); }"
        "return { rows, wrong }"
    )
    assert found["wrong"] == []
    assert found["rows"] > 100


@in_browser
def test_the_page_names_the_code_that_made_the_host_wait(browser, page):
    browser.open(page, 1280)
    (sentence,) = browser.run(
        "return [...document.querySelectorAll('header .lead')].map(p => p.textContent)"
        ".filter(t => t.startsWith('sync: the host waited'))"
    )
    assert "rebuild_compact (1,225.0 ms in 1,200 cudaStreamSynchronize" in sentence
    assert "get_last_loc (848.5 ms in 159 cudaStreamSynchronize" in sentence
    assert browser.run("return document.querySelector('.verdicts').textContent.includes('step.lead')")


@in_browser
def test_a_timeline_tells_about_a_bar_and_zooms_by_dragging(browser, page):
    browser.open(page, 1280)
    plot = "document.querySelector('[data-figure=timeline-base-median]')"
    browser.run(f"{plot}.scrollIntoView({{block: 'center'}})")
    browser.run(
        f"const p = {plot}; const k = p.data.findIndex(t => t.name === 'host wait');"
        "Plotly.Fx.hover(p, [{curveNumber: k, pointNumber: 0}])"
    )
    browser.until(f"return {plot}.querySelector('.hoverlayer').textContent.includes('cudaStreamSynchronize')")
    before = browser.run(f"return {plot}.layout.xaxis.range")
    box = browser.run(
        f"const b = {plot}.querySelector('.nsewdrag').getBoundingClientRect(); return [b.x, b.y, b.width]"
    )
    x, y, width = (int(v) for v in box)
    moves = [(0.3, "pointerDown"), (0.5, None), (0.6, "pointerUp")]
    actions = []
    for share, then in moves:
        actions.append({"type": "pointerMove", "x": x + int(share * width), "y": y + 20, "duration": 150})
        actions += [{"type": then, "button": 0}] if then else []
    pointer = {"type": "pointer", "id": "mouse", "parameters": {"pointerType": "mouse"}, "actions": actions}
    browser.call("POST", "/actions", {"actions": [pointer]})
    browser.until(
        f"const r = {plot}.layout.xaxis.range; return r[1] - r[0] < 0.5 * ({before[1]} - {before[0]})", seconds=20
    )


@in_browser
def test_texts_in_figures_follow_light_and_dark(browser, page):
    colours = []
    for is_dark in (False, True):
        browser.open(page, 1280, is_dark=is_dark)
        colours.append(
            browser.run("return getComputedStyle(document.querySelector('[data-figure=waits] .xtick text')).fill")
        )
    assert colours == ["rgb(29, 33, 38)", "rgb(228, 231, 235)"]


@in_browser
def test_on_paper_everything_is_unfolded_and_within_the_margins(browser, page):
    browser.open(page, 1280)
    browser.run("dispatchEvent(new Event('beforeprint'))")
    assert browser.run("return document.querySelectorAll('details:not([open])').length") == 0
    widths = browser.run("return [...document.querySelectorAll('.main-svg')].map(e => e.getBoundingClientRect().width)")
    assert max(widths) <= 680
    browser.run("dispatchEvent(new Event('afterprint'))")
    assert browser.run("return document.querySelectorAll('details:not([open])').length") > 0
    pdf = base64.b64decode(browser.devtools("Page.printToPDF", printBackground=True, preferCSSPageSize=True)["data"])
    assert pdf.startswith(b"%PDF")
