"""The history page: what it says of a baseline's nights, and that it says the same as its JSON."""

from __future__ import annotations

import json
import re
from dataclasses import replace
from pathlib import Path

import pytest
from histories import nights
from typer.testing import CliRunner

from dflash_bench.baseline.file import write
from dflash_bench.baseline.history import courses
from dflash_bench.cli import app
from dflash_bench.errors import ExitCode
from dflash_bench.report.history import history_page
from dflash_bench.stats.history import creep


def page_of(*baselines):
    return history_page([(b, courses(b)) for b in baselines], "dflash-bench baseline history FILE -o FILE")


def answer(page):
    return re.search(r'<p class="answer (\w+)">(.*?)</p>', page).groups()


def embedded(page):
    return json.loads(re.search(r'id="document">(.*?)</script>', page, re.S)[1])["histories"]


def test_what_got_worse_is_the_answer_with_day_and_commits():
    """A change for the better that is newer stands in the table, not in its place."""
    baseline = nights(40, {("step.period", 26): 1.05, ("alloc.step_share", 33): 0.5})
    (step,) = [c for c in courses(baseline) if c.metric == "step.period"]
    (change,) = step.changes
    assert abs(change.index - 26) <= 1
    tone, words = answer(page := page_of(baseline))
    assert tone == "worse"
    assert words.startswith(f"Worse since {step.sessions[change.index].day}: step.period 9.")
    assert f"commits {step.commits[change.index - 1]} … {step.commits[change.index]}" in words
    rows = re.findall(r'<th scope="row" class="day">(.*?)</th><td class="day">(.*?)</td>', page)
    assert [metric for _, metric in rows] == ["alloc.step_share", "step.period"]
    assert sorted(rows, reverse=True) == rows


def test_what_only_got_better_is_good_news():
    tone, words = answer(page_of(nights(30, {("tokens.per_s", 12): 1.08})))
    assert (tone, "Better since" in words, "tokens.per_s" in words) == ("better", True, True)


def test_nights_alike_and_too_few_nights_say_so():
    assert answer(page_of(nights(24))) == ("same", "No change in 24 sessions")
    assert answer(page_of(nights(3)))[1].startswith("3 sessions so far: no change can be told from chance before 6")


def test_a_step_is_told_as_a_change_and_not_as_a_creep_too():
    """To a test for trends one step is a trend."""
    baseline = nights(30, {("step.period", 15): 1.1})
    (step,) = [c for c in courses(baseline) if c.metric == "step.period"]
    assert creep(step.values) is not None
    assert (len(step.changes), step.creep) == (1, None)
    assert "step.period creeps" not in page_of(baseline)


@pytest.mark.parametrize("num", [12, 16, 30])
def test_a_creep_is_told_also_where_it_looks_like_steps(num):
    baseline = nights(num, {("dp.agreement_tax", night): 1.005 for night in range(1, num)})
    (tax,) = [c for c in courses(baseline) if c.metric == "dp.agreement_tax"]
    assert tax.share(tax.creep.slope) == pytest.approx(0.005, abs=0.002)
    assert "<li>dp.agreement_tax creeps: +0." in page_of(baseline)


def test_every_session_and_its_figures_lie_in_the_page():
    baseline = nights(12)
    page = page_of(baseline)
    (history,) = embedded(page)
    assert {c["metric"] for c in history["courses"]} == {c.metric for c in courses(baseline)}
    stored = {repr(s["value"]) for c in history["courses"] for s in c["sessions"]}
    shown = set(re.findall(r'<data value="(.*?)">', page))
    assert shown == stored
    assert len(re.findall(r'<circle class="session"', page)) == 12 * len(history["courses"])
    assert len(re.findall(r'<circle class="run"', page)) == 36 * len(history["courses"])


def test_what_a_run_says_of_itself_cannot_become_markup():
    baseline = nights(8)
    bad = tuple(replace(e, commit="</svg><script>alert(1)</script>") for e in baseline.history)
    page = page_of(replace(baseline, history=bad))
    assert "<script>alert" not in page
    assert not re.search(r'(?:src|href)="(?!data:)', page)


@pytest.fixture
def folder(tmp_path):
    for arm in ("control", "topup"):
        baseline = nights(10, arm=arm)
        path = tmp_path / "baselines" / baseline.key.path
        path.parent.mkdir(parents=True, exist_ok=True)
        write(path, baseline)
    return tmp_path / "baselines"


def test_the_command_takes_a_baseline_or_all_of_a_folder(folder, tmp_path):
    one = next(folder.glob("*/*control*.json"))
    for words, titles in ((one, ["control"]), (folder, ["control", "topup"])):
        page = tmp_path / "history.html"
        found = CliRunner().invoke(app, ["baseline", "history", str(words), "-o", str(page)])
        assert found.exit_code == ExitCode.PASS, found.output
        text = page.read_text("utf-8")
        assert [arm for arm in ("control", "topup") if f"rm {arm}, workload" in text] == titles
        assert found.stdout.count("step.period") == len(titles)


def test_a_folder_without_baselines_is_refused(tmp_path):
    (tmp_path / "none").mkdir()
    found = CliRunner().invoke(app, ["baseline", "history", str(tmp_path / "none"), "-o", str(tmp_path / "x.html")])
    assert found.exit_code == ExitCode.USAGE
    assert "none holds no baseline" in found.output
    assert not Path(tmp_path / "x.html").exists()
