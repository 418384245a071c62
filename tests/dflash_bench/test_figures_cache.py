"""Figures kept beside a profile: the same as measured anew, and never those of another profile, reading or code."""

from __future__ import annotations

import json
import os
import shutil
from dataclasses import replace

import numpy as np
import pytest
from handmade import Call, Range, Work, mark, write

from dflash_bench.compare import compare
from dflash_bench.gate.as_json import gate_json
from dflash_bench.gate.decision import run_gate
from dflash_bench.gate.policy import MetricPolicy, Policy
from dflash_bench.ingest.sources import IngestOptions, ingest
from dflash_bench.metrics import cache, measure
from dflash_bench.metrics.reading import Reading
from dflash_bench.metrics.summary import figure, summarise
from dflash_bench.model import Sides
from dflash_bench.profile import open_profile
from dflash_bench.report import timeline
from dflash_bench.report.as_json import comparison_json
from dflash_bench.report.page import comparison_page, run_page
from dflash_bench.stats import bootstrap, verdict


@pytest.fixture
def real(tmp_path, h200, monkeypatch):
    monkeypatch.setattr(cache, "LEAST_ROWS", 0)
    (found,) = ingest([h200 / f"h200x2_nosync_rank{k}.sqlite" for k in (0, 1)], IngestOptions(tmp_path / "p", run="x"))
    return found


@pytest.fixture
def pair(tmp_path, monkeypatch):
    """Two runs of 40 uneven steps: the host fills, launches and waits; in the second it fills faster."""
    monkeypatch.setattr(cache, "LEAST_ROWS", 0)
    found = []
    for name, fill in (("slow", 600_000), ("fast", 300_000)):
        ranges, calls, work, at, rng = [mark(0, 1)], [], [], 10_000_000, np.random.default_rng(fill)
        for k in range(40):
            launch = at + int(fill * rng.uniform(0.7, 1.3))
            end = launch + int(rng.uniform(200_000, 400_000))
            ranges += [Range("decode_step", at, end + 5000), Range("fill", at + 1000, launch)]
            calls += [Call("cudaLaunchKernel", launch, launch + 9000, k + 1)]
            calls += [Call("cudaStreamSynchronize", launch + 20_000, end, 1000 + k)]
            work.append(Work(launch + 15_000, end, k + 1))
            at = end + 10_000
        path = write(tmp_path / f"{name}.sqlite", ranges, calls, work)
        found += ingest([path], IngestOptions(tmp_path / "p"))
    return found


@pytest.fixture
def profile(pair):
    return pair[0]


@pytest.fixture
def times(monkeypatch):
    """How often a profile was measured."""
    count = []
    whole = measure._measure

    def counted(*args):
        count.append(args)
        return whole(*args)

    monkeypatch.setattr(measure, "_measure", counted)
    return count


def same(one, other):
    assert [(m.name, m.rank) for m in one.metrics] == [(m.name, m.rank) for m in other.metrics]
    for a, b in zip(one.metrics, other.metrics, strict=True):
        for name in ("values", "group", "block", "pair"):
            left, right = getattr(a, name), getattr(b, name)
            assert (left is None) == (right is None)
            assert left is None or (left.dtype == right.dtype and np.array_equal(left, right))
        assert (a.unit, a.statistic, a.num_samples, a.coverage) == (b.unit, b.statistic, b.num_samples, b.coverage)
        assert figure(a) == figure(b)
    assert (one.tables, one.findings, one.info) == (other.tables, other.findings, other.info)


def test_a_second_look_is_the_same_to_the_last_digit_and_measures_nothing(real, times):
    first = measure.measure(real)
    second = measure.measure(open_profile(str(real.path)))
    assert len(times) == 1
    same(first, second)
    for metric in second.metrics:
        anew = summarise(replace(metric, known=None))
        known = summarise(metric)
        assert (known.p50, known.p90, known.p99, known.mean, known.total) == (
            anew.p50, anew.p90, anew.p99, anew.mean, anew.total,
        )  # fmt: skip


def test_samples_that_were_changed_have_no_summary_of_others(profile):
    measure.measure(profile)
    found = measure.measure(profile).find("step.period", 0)
    assert figure(replace(found, values=found.values * 2)) == 2 * figure(found)


@pytest.mark.parametrize("change", ["bytes", "same size and time", "file gone", "run.json"])
def test_a_change_of_the_profile_is_measured_anew(profile, times, change):
    measure.measure(profile)
    path = next(profile.path.glob("marks/*/*.parquet"))
    before = path.stat()
    content = path.read_bytes()
    if change == "file gone":
        path.unlink()
    elif change == "run.json":
        run = json.loads((profile.path / "run.json").read_text())
        (profile.path / "run.json").write_text(json.dumps({**run, "workload": "other"}))
    else:
        path.write_bytes(content)
        if change == "same size and time":
            os.utime(path, ns=(before.st_atime_ns, before.st_mtime_ns))
    measure.measure(open_profile(profile.path))
    assert len(times) == 2


@pytest.mark.parametrize(
    "reading",
    [
        Reading(step="re:decode_.*"),
        Reading(agreement="x"),
        Reading(first=3),
        Reading(prepare="verify"),
        Reading(last=9),
    ],
)
def test_another_reading_is_measured_anew(profile, times, reading):
    measure.measure(profile)
    measure.measure(profile, reading)
    assert len(times) == 2
    measure.measure(profile, reading)
    measure.measure(profile)
    assert len(times) == 2


def test_other_code_measures_anew(profile, times, monkeypatch):
    measure.measure(profile)
    monkeypatch.setattr(cache, "_code", lambda: "of another version")
    measure.measure(profile)
    assert len(times) == 2


@pytest.mark.parametrize("damage", [b"", b"dflash-bench figures 1\n", b"\x00" * 4000])
def test_a_damaged_file_is_as_none(profile, times, damage):
    first = measure.measure(profile)
    (path,) = (profile.path / "figures").iterdir()
    path.write_bytes(damage)
    same(first, measure.measure(profile))
    assert len(times) == 2
    path.write_bytes(path.read_bytes()[:-100])
    same(first, measure.measure(profile))
    assert len(times) == 3


def test_a_folder_that_cannot_be_written_is_measured_each_time(profile, times):
    (profile.path / "figures").write_text("in the way")
    same(measure.measure(profile), measure.measure(profile))
    assert len(times) == 2
    assert [p.name for p in profile.path.glob(".*")] == []


def test_only_the_newest_readings_are_kept(profile):
    for k in range(12):
        measure.measure(profile, Reading(first=k))
    assert len(list((profile.path / "figures").iterdir())) == 8


def test_small_runs_leave_nothing_beside_them(profile, monkeypatch):
    monkeypatch.setattr(cache, "LEAST_ROWS", 10**9)
    measure.measure(profile)
    assert not (profile.path / "figures").exists()


# ── answers ──────────────────────────────────────────────────────────────────────────────────────────────────────────

WORK = [(bootstrap, "difference_interval"), (verdict, "difference_interval"), (timeline, "_step_windows")]


def look(pair, reading=None, policy=None):
    """What `compare`, `report` of both and of one, and `gate` say."""
    profiles = [open_profile(profile.path) for profile in pair]
    reading = reading or Reading(is_open=True)
    base, candidate = runs = [measure.measure(profile, reading) for profile in profiles]
    sides = Sides((base,), (candidate,))
    found = compare(sides)
    shown = [(name, p, run) for name, p, run in zip("ab", profiles, runs, strict=True)]
    steps = timeline.timeline_document(shown, base.info.ranks, 0, reading)
    decision = run_gate(sides, policy or Policy(), None, reading)
    pages = comparison_page(found, found.judgements, steps), run_page(base, steps, "", reading)
    return comparison_json(found), *pages, gate_json(decision)


def test_a_second_look_works_nothing_out_and_says_the_same(pair, monkeypatch):
    first = look(pair)
    for place, name in WORK:
        monkeypatch.setattr(place, name, None)
    assert look(pair) == first


@pytest.mark.parametrize("change", ["profile", "other side", "option", "policy", "code"])
def test_after_any_change_the_answer_is_that_of_runs_of_which_nothing_is_kept(pair, monkeypatch, change):
    first, asked = look(pair), {}
    if change == "profile":
        for table in ("ranges", "api_calls", "gpu_work"):
            shutil.copytree(pair[1].path / table, pair[0].path / table, dirs_exist_ok=True)
    elif change == "other side":
        pair = pair[::-1]
    elif change == "option":
        asked["reading"] = Reading(first=10, is_open=True)
    elif change == "policy":
        asked["policy"] = Policy(metrics={"gpu.dry_per_step": MetricPolicy(relative=0.5)})
    else:
        monkeypatch.setattr(cache, "_code", lambda: "of another version")
        monkeypatch.setattr(bootstrap, "_MAX_RESAMPLES", 250)
        monkeypatch.setattr(timeline, "_MAX_BARS", 1)
    warm = look(pair, **asked)
    for profile in pair:
        shutil.rmtree(profile.path / "figures")
    monkeypatch.setattr(cache, "LEAST_ROWS", 10**9)
    assert warm == look(pair, **asked)
    assert [a == b for a, b in zip(warm, first, strict=True)] == [change == "policy"] * 3 + [False]


def test_figures_that_were_changed_have_no_answer_of_others(pair):
    runs = [measure.measure(profile) for profile in pair]
    compare(Sides((runs[0],), (runs[1],)))
    worse = tuple(replace(m, values=m.values * 3, known=None) for m in runs[1].metrics)
    both = [compare(Sides((runs[0],), (replace(runs[1], metrics=worse, file=file),))) for file in (runs[1].file, None)]
    assert comparison_json(both[0]) == comparison_json(both[1])


@pytest.mark.parametrize("damage", [b"", b"12\n{}", b"\x00" * 400])
def test_a_damaged_answer_is_as_none(pair, damage):
    first = look(pair)
    answers = list((pair[0].path / "figures").glob("*.json"))
    for path in answers:
        path.write_bytes(damage)
    assert look(pair) == first
    assert all(path.read_bytes() != damage for path in answers)


def test_what_other_source_made_goes_when_something_is_written(pair, monkeypatch):
    look(pair)
    folder = pair[0].path / "figures"
    before = {path.name for path in folder.iterdir()}
    monkeypatch.setattr(cache, "_code", lambda: "another version of the source")
    look(pair)
    after = {path.name for path in folder.iterdir()}
    assert len(after) == len(before)
    assert not before & after


def test_only_the_newest_answers_are_kept(pair):
    runs = [measure.measure(pair[0])]
    for k in range(70):
        assert cache.answer(runs, ("question", k), lambda k=k: k) == k
    assert len(list((pair[0].path / "figures").glob("*.json"))) == 64
    assert measure.measure(pair[0]).file is not None
