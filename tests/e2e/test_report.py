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
from browser import axe_source, driver, in_browser
from histories import nights
from typer.testing import CliRunner

from dflash_bench.baseline.history import courses
from dflash_bench.cli import app
from dflash_bench.cli.report import parse_steps
from dflash_bench.errors import ExitCode, UsageError
from dflash_bench.report.history import history_page

H200 = Path(__file__).parents[1] / "data" / "h200"


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
    assert (folder / "report.html").stat().st_size < 1_500_000
    assert (folder / "trace.json.gz").stat().st_size > 0
    assert "rebuild_compact" in found.stdout
    assert "dp_agreement" in found.stdout
    assert "step.lead" in found.stdout
    assert "written:" in found.stderr
    assert not [p.name for p in folder.iterdir() if p.name.endswith(".partial")]


def test_one_folder_of_two_runs_is_enough(written, tmp_path):
    folder, _ = written
    found = command(H200, "-o", tmp_path / "r.html", "--profiles", folder / "profiles")
    assert found.exit_code == ExitCode.PASS


def test_one_run_has_a_page_of_its_own_and_a_folder_takes_it(written, tmp_path):
    folder, _ = written
    found = command("h200x2_sync", "-o", f"{tmp_path}/pages/", "--profiles", folder / "profiles")
    assert found.exit_code == ExitCode.PASS, found.output
    page = (tmp_path / "pages" / "report.html").read_text("utf-8")
    assert "rebuild_compact" in page
    assert "<title>h200x2_sync · dflash-bench</title>" in page
    again = command("h200x2_sync", "-o", tmp_path / "pages", "--profiles", folder / "profiles")
    assert again.exit_code == ExitCode.PASS


def test_a_folder_of_three_runs_is_refused_by_their_names(written, tmp_path):
    folder, _ = written
    for name in ("one", "two", "three"):
        shutil.copytree(folder / "profiles" / "h200x2_sync", tmp_path / "many" / name)
    found = command(tmp_path / "many", "-o", tmp_path / "r.html", "--profiles", folder / "profiles")
    assert found.exit_code == ExitCode.USAGE
    assert "compare it with what?" in found.stderr
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
    page = (repeated / "r.html").read_text("utf-8")
    assert "timelines are those of the runs with the median step.period, sync-1 and nosync-1" in page
    document = json.loads(re.search(r'id="document">(.*?)</script>', page, re.S)[1])
    assert [(r["run"], r["is_typical"]) for r in document["runs"]] == [
        ("sync-1", True), ("sync-2", False), ("nosync-1", True), ("nosync-2", False),
    ]  # fmt: skip
    assert all(f'data-run="{run["run"]}"' in page for run in document["runs"])
    judged = next(v for v in document["verdicts"] if (v["metric"], v["rank"]) == ("step.lead", None))
    assert (judged["base_runs"], judged["candidate_runs"], judged["verdict"]) == (2, 2, "improved")
    assert "dflash-bench report sync-1,sync-2 nosync-1,nosync-2 -o report.html" in page


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


@pytest.fixture(scope="module")
def pages(written):
    """One page of each kind: a comparison, a run, predictions, a history."""
    folder, _ = written
    run = command("h200x2_sync", "-o", folder / "run.html", "--profiles", folder / "profiles")
    assert run.exit_code == ExitCode.PASS
    words = ["predict", "h200x2_sync", "--ranks", "2,4,8", "--profiles", str(folder / "profiles")]
    found = CliRunner().invoke(app, [*words, "-o", str(folder / "prediction.html")])
    assert found.exit_code == ExitCode.PASS, found.output
    baseline = nights(40, {("step.period", 26): 1.05, ("cost.prepare_for_decode", 14): 0.8})
    (folder / "history.html").write_text(history_page([(baseline, courses(baseline))], "history"), "utf-8")
    return {"comparison": folder / "report.html"} | {
        kind: folder / f"{kind}.html" for kind in ("run", "prediction", "history")
    }


KINDS = pytest.mark.parametrize("kind", ["comparison", "run", "prediction", "history"])


def requests(browser):
    """Every address that the page's documents asked for since the last look."""
    for entry in browser.logs("performance"):
        message = json.loads(entry["message"])["message"]
        if message["method"] == "Network.requestWillBeSent":
            asked = message["params"]
            if asked.get("documentURL", "").startswith("file:"):
                yield asked["request"]["url"]


@in_browser
@KINDS
@pytest.mark.parametrize(("width", "is_dark"), [(1280, False), (390, True)])
def test_the_page_opens_without_a_complaint_and_fetches_nothing(browser, pages, kind, width, is_dark):
    page = pages[kind]
    browser.open(page, width, is_dark=is_dark)
    assert browser.logs("browser") == []
    others = [url for url in requests(browser) if not url.startswith(("data:", "blob:"))]
    assert set(others) <= {page.as_uri()}


@in_browser
@KINDS
@pytest.mark.parametrize("width", [390, 1280])
def test_nothing_sticks_out_sideways(browser, pages, kind, width):
    browser.open(pages[kind], width)
    assert browser.run("return document.documentElement.scrollWidth") <= width
    script = "return [...document.querySelectorAll('svg')].map(e => e.getBoundingClientRect().right)"
    assert max(browser.run(script)) <= width


@in_browser
@KINDS
def test_axe_finds_nothing(browser, pages, kind):
    """The rules of WCAG 2 A and AA, contrast included, in light and dark; everything unfolded."""
    source = axe_source()
    for is_dark in (False, True):
        browser.open(pages[kind], 1280, is_dark=is_dark)
        browser.run("document.querySelectorAll('details').forEach(d => { d.open = true; })")
        browser.run(source + ";window.axe = axe;")
        found = browser.run_async(
            "axe.run(document, { runOnly: ['wcag2a', 'wcag2aa', 'wcag21a', 'wcag21aa', 'best-practice'] })"
            ".then(r => done(r.violations.map(v => [v.id, v.nodes.map(n => n.html + n.failureSummary)])))"
        )
        assert found == []


@in_browser
def test_the_numbers_on_the_page_are_those_of_its_json(browser, page):
    """Read by the browser itself: every row of every table of changes against the embedded document."""
    browser.open(page, 1280)
    found = browser.run(
        "const doc = JSON.parse(document.getElementById('document').textContent);"
        "const known = new Map(doc.comparison.map(c => [c.metric + '|' + c.rank, c]));"
        "const wrong = []; let rows = 0;"
        "for (const tr of document.querySelectorAll('tr[data-metric]')) { rows += 1;"
        " const key = tr.dataset.metric + '|' + (tr.dataset.rank === 'all' ? 'null' : tr.dataset.rank);"
        " const c = known.get(key);"
        " const expected = [c.base, c.candidate, c.difference, c.low, c.high].filter(v => v !== null);"
        " const shown = [...tr.querySelectorAll('data')].map(d => Number(d.value));"
        " if (JSON.stringify(shown) !== JSON.stringify(expected)) wrong.push([key, shown, expected]); }"
        "return { rows, wrong }"
    )
    assert found["wrong"] == []
    assert found["rows"] > 100


PIECES = "[...document.querySelectorAll('#timeline-plot rect.piece')]"


@in_browser
def test_both_sides_lie_under_each_other_on_one_axis_and_the_dry_gpu_is_marked_with_its_cause(browser, page):
    browser.open(page, 1280)
    sides = browser.run("return [...document.querySelectorAll('#timeline-plot .side')].map(t => t.textContent)")
    assert [s.split(":")[0] for s in sides] == ["sync", "nosync"]
    edges = browser.run(
        "return [...document.querySelectorAll('#timeline-plot .edge')].map(l => Number(l.getAttribute('x1')))"
    )
    assert edges[0] == edges[2], "both steps begin at one place"
    dry = browser.run(f"return {PIECES}.map(r => r.dataset.tip).filter(t => t.includes('GPU dry'))")
    assert any("rebuild_compact" in text or "dp_agreement" in text for text in dry)


@in_browser
def test_another_step_and_another_rank_can_be_chosen(browser, page):
    browser.open(page, 1280)
    said = "return document.getElementById('timeline-words').textContent"
    texts = set()
    for rank in ("0", "1"):
        for step in ("0", "1"):
            browser.run(
                f"for (const [id, value] of [['timeline-rank', '{rank}'], ['timeline-step', '{step}']]) {{"
                " const s = document.getElementById(id); s.value = value; s.dispatchEvent(new Event('change')); }"
            )
            texts.add(browser.run(said))
    assert len(texts) == 4


@in_browser
def test_a_timeline_tells_about_a_bar_and_zooms_by_dragging(browser, page):
    browser.open(page, 1280)
    browser.run("document.getElementById('timeline-plot').scrollIntoView({block: 'center'})")
    box = browser.run(
        f"const r = {PIECES}.find(r => r.dataset.tip.includes('cudaStreamSynchronize')).getBoundingClientRect();"
        "return [r.x + r.width / 2, r.y + r.height / 2]"
    )
    x, y = (int(v) for v in box)
    move(browser, [(x, y, None)])
    browser.until("return document.getElementById('tip').textContent.includes('cudaStreamSynchronize')", seconds=20)
    before = browser.run(f"return {PIECES}[0].getBoundingClientRect().width")
    move(browser, [(x, y, "pointerDown"), (x + 120, y, None), (x + 150, y, "pointerUp")])
    browser.until("return document.querySelectorAll('#timeline-plot .select').length === 0", seconds=20)
    shown = browser.run("return [...document.querySelectorAll('#timeline-plot text')].map(t => t.textContent).join()")
    browser.run("document.querySelector('[data-zoom=\"0\"]').click()")
    whole = browser.run("return [...document.querySelectorAll('#timeline-plot text')].map(t => t.textContent).join()")
    assert shown != whole
    assert browser.run(f"return {PIECES}[0].getBoundingClientRect().width") == pytest.approx(before)


def move(browser, places):
    """Move the pointer over these places, pressing and letting go on the way."""
    actions = []
    for x, y, then in places:
        actions.append({"type": "pointerMove", "x": x, "y": y, "duration": 100})
        actions += [{"type": then, "button": 0}] if then else []
    pointer = {"type": "pointer", "id": "mouse", "parameters": {"pointerType": "mouse"}, "actions": actions}
    browser.call("POST", "/actions", {"actions": [pointer]})


@in_browser
def test_on_paper_everything_is_unfolded_and_within_the_margins(browser, page):
    browser.open(page, 1280)
    browser.run("dispatchEvent(new Event('beforeprint'))")
    assert browser.run("return document.querySelectorAll('details:not([open])').length") == 0
    assert browser.run("return document.querySelector('#timeline-plot svg').getBoundingClientRect().width") <= 680
    browser.run("dispatchEvent(new Event('afterprint'))")
    assert browser.run("return document.querySelectorAll('details:not([open])').length") > 0
    pdf = base64.b64decode(browser.devtools("Page.printToPDF", printBackground=True, preferCSSPageSize=True)["data"])
    assert pdf.startswith(b"%PDF")
