"""What a gate's decision looks like to a person, to CI and to GitHub."""

from __future__ import annotations

import json
from dataclasses import replace
from xml.etree import ElementTree

import numpy as np
import pytest
from simulated_runs import KINDS, STEP_NS, Truth, metric, run

from dflash_bench.gate.as_json import gate_json
from dflash_bench.gate.decision import Answer, run_gate
from dflash_bench.gate.github import MARKER, annotation_lines, comment
from dflash_bench.gate.junit import junit
from dflash_bench.gate.policy import MetricPolicy, OnInconclusive, Policy
from dflash_bench.gate.sheets import gate_report
from dflash_bench.model import Sides
from dflash_bench.report.headline import sides_headline
from dflash_bench.report.markdown import escaped

QUIET = Truth("step.period", STEP_NS, drift=0.002 * STEP_NS, jitter=0.02 * STEP_NS)
PREPARE = Truth("cost.prepare_for_decode", 6e5, drift=1_000.0, jitter=9_000.0)
WATCHED = Policy(metrics={"step.period": MetricPolicy(), "cost.prepare_for_decode": MetricPolicy()}, repeats=2)


def arm(name, num=5, slow=0.0, ranks=(0, 1)):
    rng = np.random.default_rng(sum(map(ord, name)))
    return tuple(
        run(
            [metric(rng, QUIET, rank=r, shift=slow) for r in ranks]
            + [metric(rng, PREPARE, rank=r, shift=slow if r == 1 else 0.0) for r in ranks],
            f"{name}-{k}",
        )
        for k in range(num)
    )


@pytest.fixture(scope="module")
def decisions():
    base = arm("base")
    return {
        "pass": run_gate(Sides(base, arm("same"), is_baseline=True), WATCHED),
        "fail": run_gate(Sides(base, arm("slow", slow=0.1 * STEP_NS), is_baseline=True), WATCHED),
        "open": run_gate(Sides(base[:1], arm("one", 1), is_baseline=True), WATCHED),
    }


def test_the_outcomes_are_what_their_names_say(decisions):
    assert [d.outcome for d in decisions.values()] == [Answer.PASS, Answer.FAIL, Answer.INCONCLUSIVE]


def test_the_cause_is_the_rank_and_range_that_got_slower(decisions):
    (culprit,) = decisions["fail"].culprits
    assert (culprit.range, culprit.ranks, culprit.num_ranks) == ("prepare_for_decode", (1,), 2)
    assert culprit.text.endswith("on rank 1 of 2")
    assert decisions["pass"].culprits == ()


def test_a_metric_that_no_run_has_is_told_with_the_near_one():
    """A pattern of names takes any: a letter too few there is found only in the runs."""
    policy = Policy(metrics={"step.period": MetricPolicy(), "cost.prepare_for_decod": MetricPolicy()}, repeats=2)
    found = run_gate(Sides(arm("base"), arm("same"), is_baseline=True), policy)
    words = "no run has cost.prepare_for_decod, which the policy names; cost.prepare_for_decode is there"
    assert found.missing == (("cost.prepare_for_decod", None),)
    assert words in gate_report(found).warnings
    assert words in junit(found)


def test_a_metric_that_one_side_has_is_told_with_that_side():
    policy = Policy(metrics={"step.period": MetricPolicy(), "cost.prepare_for_decode": MetricPolicy()}, repeats=2)
    without = tuple(
        replace(r, metrics=tuple(m for m in r.metrics if m.name == "step.period")) for r in arm("same", ranks=(0,))
    )
    found = run_gate(Sides(without, arm("other", ranks=(0,)), is_baseline=True), policy)
    assert (
        "cost.prepare_for_decode of rank 0 is in the candidate only: it was not judged" in gate_report(found).warnings
    )


def test_the_report_says_verdict_cause_method_and_power(decisions):
    report = gate_report(decisions["fail"])
    assert report.title.startswith("FAIL")
    assert any(line.startswith("cause: prepare_for_decode takes") for line in report.lines)
    assert any("any false verdict at most 5%" in line for line in report.lines)
    (sheet,) = report.sheets
    power = sheet.columns.index("power")
    assert all("5 repeats see ≥ " in row[power] for row in sheet.rows)
    open_power = [row[power] for row in gate_report(decisions["open"]).sheets[0].rows]
    assert len(open_power) == 4


def test_json_says_the_same_in_base_units(decisions):
    found = json.loads(gate_json(decisions["fail"]))
    assert (found["outcome"], found["exit_code"]) == ("fail", 3)
    assert found["culprits"][0]["ranks"] == [1]
    for row, check in zip(found["checks"], decisions["fail"].checks, strict=True):
        j = check.judgement
        assert (row["metric"], row["rank"], row["verdict"]) == (j.metric, j.rank, j.verdict)
        assert (row["shift"], row["low"], row["high"]) == (j.shift, j.interval.low, j.interval.high)
    assert found["num_tests"] == 2, "each metric with its ranks is one"


def test_junit_has_a_case_for_each_check_and_counts_them(decisions):
    for name, tag, attribute in (("fail", "failure", "failures"), ("open", "error", "errors")):
        suite = ElementTree.fromstring(junit(decisions[name]))
        assert int(suite.get("tests")) == len(decisions[name].checks) == len(suite.findall("testcase"))
        assert int(suite.get(attribute)) == len(suite.findall(f"testcase/{tag}")) > 0
    suite = ElementTree.fromstring(junit(decisions["pass"]))
    assert (suite.get("failures"), suite.get("errors"), suite.get("skipped")) == ("0", "0", "0")


def test_junit_cases_of_times_carry_the_candidates_time(decisions):
    suite = ElementTree.fromstring(junit(decisions["pass"]))
    times = {case.get("classname"): float(case.get("time")) for case in suite.findall("testcase")}
    assert times["step.period"] == pytest.approx(STEP_NS / 1e9, rel=0.02)


def test_what_only_the_policy_lets_pass_is_skipped_in_junit():
    lenient = Policy(metrics=WATCHED.metrics, inconclusive=OnInconclusive.PASS)
    found = run_gate(Sides(arm("base", 1), arm("one", 1), is_baseline=True), lenient)
    suite = ElementTree.fromstring(junit(found))
    assert found.outcome is Answer.PASS
    assert int(suite.get("skipped")) == len(suite.findall("testcase/skipped")) > 0


def test_a_comment_begins_with_the_verdict_and_folds_the_figures(decisions):
    lines = comment(decisions["fail"]).splitlines()
    assert lines[0] == MARKER
    assert lines[1].startswith("### ")
    assert "FAIL" in lines[1]
    assert "rank 1 of 2" in lines[3]
    folded = lines.index("<details>")
    assert not any(line.startswith("|") for line in lines[:folded]), "no table before the fold"
    assert any(line.startswith("|") for line in lines[folded:])
    assert lines[-1] == "</details>"


def test_a_metric_that_got_worse_on_all_ranks_is_said_per_rank_only_without_a_pooled_figure(decisions):
    said = [line for line in comment(decisions["fail"]).splitlines() if line.startswith("- step.period")]
    assert len(said) == 2


def test_annotations_are_one_line_each_and_escaped(decisions):
    lines = list(annotation_lines(decisions["fail"]))
    assert all(line.startswith(("::error title=", "::warning title=")) for line in lines)
    assert not any("\n" in line for line in lines)
    assert any("+10.0 %25" in line or "%25" in line for line in lines)
    assert all("%3A" in line.split("::")[1] for line in lines)
    assert [line for line in annotation_lines(decisions["pass"]) if line.startswith("::error")] == []
    assert all(line.startswith("::warning") for line in annotation_lines(decisions["open"]))


def test_on_many_ranks_what_passes_is_shown_pooled_and_counted():
    from dflash_bench.metrics.measure import pool

    def with_pool(found):
        return tuple(
            type(r)(r.info, (*r.metrics, pool([m for m in r.metrics if m.name == "step.period"], None)), (), ())
            for r in found
        )

    ranks = tuple(range(8))
    sides = (with_pool(arm(name, ranks=ranks)) for name in ("base", "same"))
    found = run_gate(Sides(*sides, is_baseline=True), Policy(metrics={"step.period": MetricPolicy()}))
    (sheet,) = gate_report(found).sheets
    assert len(sheet.rows) == 1
    assert "8 more checks" in sheet.note


def test_rates_are_shown_as_shares_and_leads_in_time():
    from dflash_bench.report.verdicts import _size

    rng = np.random.default_rng(0)
    both = [tuple(run([metric(rng, KINDS[k]) for k in ("rate", "lead")], f"{n}{j}") for j in range(5)) for n in "ab"]
    watched = Policy(metrics={"tokens.per_s": MetricPolicy(), "step.lead": MetricPolicy()})
    found = {c.judgement.metric: c.judgement for c in run_gate(Sides(*both, is_baseline=True), watched).checks}
    assert _size(found["tokens.per_s"], 0.021 * found["tokens.per_s"].base) == "2.1 %"
    assert _size(found["step.lead"], 1_500_000.0) == "1,500.0 µs"


def test_the_comment_and_the_report_begin_with_the_headline_of_the_comparison():
    both = Sides(arm("base"), arm("slow", slow=0.2 * STEP_NS))
    found = run_gate(both, Policy(metrics={"step.period": MetricPolicy()}))
    headline = sides_headline(found.sides, found.judgements, found.findings)
    assert headline.what.startswith("Slower: step on rank ")
    assert escaped(headline.what) in comment(found)
    assert gate_report(found).lines[0] == headline.what
