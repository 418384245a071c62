"""The policy: what it reads, and what it refuses."""

from __future__ import annotations

import pytest

from dflash_bench.errors import UsageError
from dflash_bench.gate.policy import DEFAULT_METRICS, MetricPolicy, OnInconclusive, Policy, RankScope, load_policy
from dflash_bench.metrics.registry import Noise, spec
from dflash_bench.model import Better, Unit
from dflash_bench.stats.noise import Allowance

WHOLE = """
repeats = 5
budget = 2
inconclusive = "fail"
drift = 0.01
false_discovery_rate = 0.1
baselines = "kept"

[metrics]
"step.period" = { relative = 0.02, absolute = 20_000, ranks = "pooled", repeats = 7 }
"range.*" = { relative = 0.05, ranks = [0, 2], inconclusive = "pass" }
"kv.topup_pages_held" = { direction = "lower" }
"step.lead" = {}
"""


def written(tmp_path, text, name="gate.toml"):
    path = tmp_path / name
    path.write_text(text)
    return path


def test_a_file_of_its_own_holds_the_keys_at_the_top(tmp_path):
    found = load_policy(written(tmp_path, WHOLE))
    assert (found.repeats, found.budget, found.inconclusive) == (5, 2, OnInconclusive.FAIL)
    assert (found.drift, found.error_rate, str(found.baselines)) == (0.01, 0.1, "kept")
    assert found.metrics["step.period"] == MetricPolicy(
        relative=0.02, absolute=20_000, ranks=RankScope.POOLED, repeats=7
    )
    assert found.metrics["kv.topup_pages_held"].direction is Better.LOWER


def test_pyproject_holds_them_in_the_table_of_the_tool(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    assert load_policy() == Policy(), "without any file the defaults hold"
    written(tmp_path, "[project]\nname = 'x'\n[tool.dflash-bench.gate]\nrepeats = 9\n", "pyproject.toml")
    assert load_policy().repeats == 9
    assert load_policy(tmp_path / "pyproject.toml").repeats == 9
    written(tmp_path, "[project]\nname = 'x'\n", "pyproject.toml")
    assert load_policy() == Policy()


def test_ranks_choose_which_figures_count(tmp_path):
    found = load_policy(written(tmp_path, WHOLE))
    assert found.is_watching("step.period", None)
    assert not found.is_watching("step.period", 0)
    assert found.is_watching("range.fill", 2)
    assert not found.is_watching("range.fill", 1)
    assert not found.is_watching("dp.wait", None)
    assert MetricPolicy(ranks=RankScope.EACH).is_watching(3)
    assert not MetricPolicy(ranks=RankScope.EACH).is_watching(None)


def test_the_larger_of_the_relative_and_the_absolute_tolerance_counts(tmp_path):
    rules = load_policy(written(tmp_path, WHOLE)).rules()
    tolerance = rules.tolerance("step.period", Noise.RELATIVE, Unit.NS)
    assert tolerance == Allowance(0.02, 20_000)
    assert (tolerance.of(1e5), tolerance.of(1e7)) == (20_000, 200_000)
    assert rules.tolerance("step.lead", Noise.LEVEL, Unit.NS).relative == 0.01, "the default stays"


@pytest.mark.parametrize(
    ("text", "told"),
    [
        ("repeat = 3", "unknown key repeat"),
        ('[metrics]\n"step.period" = { tolerance = 1 }', "unknown key tolerance"),
        ('[metrics]\n"step.perid" = {}', "no such metric"),
        ('[metrics]\n"step.period" = 0.02', "is a table"),
        ("metrics = {}", "is a table"),
        ('[metrics]\n"step.period" = { relative = 3 }', "a share from 0 to 1"),
        ('[metrics]\n"step.period" = { relative = "2 %" }', "a number from 0"),
        ('[metrics]\n"step.period" = { absolute = -1 }', "a number from 0"),
        ('[metrics]\n"step.period" = { direction = "higher" }', "cannot turn that round"),
        ('[metrics]\n"step.period" = { direction = "up" }', "lower or higher"),
        ('[metrics]\n"step.period" = { ranks = "some" }', "list of ranks"),
        ('[metrics]\n"step.period" = { ranks = [] }', "list of ranks"),
        ("repeats = -1", "whole number"),
        ("repeats = true", "whole number"),
        ('inconclusive = "shrug"', "inconclusive, pass, fail"),
        ("baselines = 3", "is a folder"),
        ("repeats = ", "is not TOML"),
    ],
)
def test_what_makes_no_sense_is_refused(tmp_path, text, told):
    with pytest.raises(UsageError, match=told):
        load_policy(written(tmp_path, text))


@pytest.mark.parametrize(("name", "near"), [("step.perid", "step.period"), ("tokens_per_s", "tokens.per_s")])
def test_an_unknown_metric_is_answered_with_the_near_one(tmp_path, name, near):
    with pytest.raises(UsageError) as told:
        load_policy(written(tmp_path, f'[metrics]\n"{name}" = {{}}'))
    assert told.value.hint == f"{near} is one"


def test_a_policy_that_is_not_there_is_named(tmp_path):
    with pytest.raises(UsageError, match=r"none\.toml cannot be read"):
        load_policy(tmp_path / "none.toml")


@pytest.mark.parametrize("name", list(DEFAULT_METRICS))
def test_the_default_metrics_have_a_direction(name):
    assert spec(name).better is not Better.NONE
