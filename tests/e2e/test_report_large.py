"""``dflash-bench report`` on 32 ranks: the page stays small and light however long the run was, and says how."""

from __future__ import annotations

import json
import re
import time

import pytest
from browser import driver, in_browser
from large_profiles import write_large
from typer.testing import CliRunner

from dflash_bench.cli import app

RANKS = 32
LIGHT, FULL = 250, 20_000


@pytest.fixture(scope="module", params=[LIGHT, pytest.param(FULL, marks=pytest.mark.soak)])
def page(request, tmp_path_factory):
    """The page of two runs of so many steps, and the number of steps."""
    folder = tmp_path_factory.mktemp("large")
    base = write_large(folder, "control", RANKS, request.param, prepare_us=700, alloc_share=0.4)
    new = write_large(folder, "topup", RANKS, request.param, prepare_us=500, alloc_share=0.01)
    begun, cpu = time.monotonic(), time.process_time()
    done = CliRunner().invoke(app, ["report", str(base), str(new), "-o", str(folder / "report.html")])
    assert done.exit_code == 0, done.output
    size = (folder / "report.html").stat().st_size
    spent = f"{time.monotonic() - begun:.0f} s wall, {time.process_time() - cpu:.0f} s CPU here"
    print(f"{RANKS} ranks × {request.param:,} steps: {size / 1e6:.1f} MB, {spent}")
    return folder / "report.html", request.param


def content(path, name):
    found = re.search(rf'<script type="application/json" id="{name}">(.*?)</script>', path.read_text("utf-8"), re.S)
    return json.loads(found[1])


def test_the_page_stays_under_5_megabytes(page):
    assert page[0].stat().st_size < 5_000_000


def test_the_timeline_has_every_rank_and_does_not_grow_with_the_length_of_the_run(page):
    timeline = content(page[0], "timeline-data")
    windows = [w for side in timeline["sides"] for own in side["ranks"].values() for w in own]
    assert len(windows) == 2 * 2 * RANKS
    assert sum(len(w["bars"]) for w in windows) <= 6 * 15_000


def test_what_is_put_together_is_said(page):
    path, steps = page
    width = -(-steps // 200)
    assert f"{RANKS} ranks over {steps:,} steps, {width} a column (median)" in path.read_text("utf-8")
    document = content(path, "document")
    ranks = {c["rank"] for c in document["comparison"] if c["metric"] == "range.prepare_for_decode"}
    assert ranks == {None, *range(RANKS)}, "single ranks are not in tables, but they are in the JSON"
    (pooled,) = (c for c in document["comparison"] if (c["metric"], c["rank"]) == ("range.prepare_for_decode", None))
    assert pooled["base_n"] == RANKS * steps


@in_browser
def test_it_opens_in_a_browser_without_a_complaint(page, tmp_path):
    with driver(tmp_path) as browser:
        begun = time.monotonic()
        browser.open(page[0], 1280)
        print(f"all figures drawn after {time.monotonic() - begun:.1f} s")
        assert browser.logs("browser") == []
        assert browser.run("return document.querySelectorAll('*').length") < 40_000
        widest = browser.run("return document.documentElement.scrollWidth")
        assert widest <= 1280
