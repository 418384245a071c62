"""Registry, summaries and pooling: what every metric has in common."""

from __future__ import annotations

import json

import numpy as np
import pytest
from generator import Fault, Mode, Schema, Spec, write_export
from hypothesis import given
from hypothesis import strategies as st

from dflash_bench.findings import CODES
from dflash_bench.metrics.measure import _RULES, pool
from dflash_bench.metrics.measurements import metric
from dflash_bench.metrics.registry import SPECS, Pool, position, spec
from dflash_bench.metrics.summary import figure, summarise
from dflash_bench.model import Better, Statistic, Unit

DIRECTIONS = {
    "step.period": "lower", "step.lead": "higher", "range.prepare_for_decode": "lower", "alloc.step_share": "lower",
    "alloc.step_cost": "lower", "launch.lead": "higher", "launch.run_ahead_fraction": "higher",
    "launch.backpressure": "none", "graph.lead": "higher", "graph.lead@draft": "higher",
    "graph.run_ahead_fraction": "higher", "stall.total_per_step": "lower", "sync.total_per_step": "lower",
    "sync.cudaStreamSynchronize": "lower", "tokens.per_s": "higher", "accept.length": "higher", "retracted": "lower",
    "consistency.bad": "lower", "topup.guard_ratio_min": "higher",
}  # fmt: skip
"""The better direction, as the metric definitions give it."""


@pytest.mark.parametrize("name", DIRECTIONS)
def test_the_better_direction_is_that_of_the_definitions(name):
    assert spec(name).better == DIRECTIONS[name]


def test_names_are_unique_and_every_entry_finds_itself():
    assert len({s.name for s in SPECS}) == len(SPECS)
    for entry in SPECS:
        name = entry.name.replace("[0-9]", "7").replace("*", "x")
        assert spec(name) is entry
        assert SPECS[position(name)] is entry
        assert spec(name).is_family == ("*" in entry.name)


def test_a_range_of_any_name_is_a_range_metric_whatever_it_looks_like():
    for name in ("range.step.period", "range.*", "range.sync.x", "range.[red]x|y</td>", "range. "):
        assert spec(name).name == "range.*"


@pytest.mark.parametrize("name", ["", "range.", "sync.", "nonsense", "step.perio", "graph.lead@"])
def test_a_name_that_no_entry_covers_is_refused(name):
    with pytest.raises(KeyError):
        spec(name)


def test_every_value_without_samples_has_a_rule_for_pooling_or_is_not_pooled():
    for entry in SPECS:
        if entry.statistic is Statistic.VALUE:
            assert entry.pool is Pool.NONE or entry.pool in _RULES, entry.name
        else:
            assert entry.pool in (Pool.SAMPLES, Pool.NONE), entry.name
        assert isinstance(entry.better, Better)
        assert isinstance(entry.unit, Unit)
        assert entry.meaning


# ── summaries ───────────────────────────────────────────────────────────────────────────────────────────────────────


def test_quantiles_interpolate_between_order_statistics():
    found = summarise(metric("step.period", 0, np.array([40, 10, 30, 20])))
    assert (found.n, found.p50, found.p90, found.mean, found.total) == (4, 25, 37, 25, 100)
    assert found.p99 == pytest.approx(39.7)


def test_of_one_sample_every_quantile_is_that_sample_and_of_none_there_is_no_summary():
    found = summarise(metric("step.period", 0, np.array([7])))
    assert (found.p50, found.p90, found.p99, found.mean) == (7, 7, 7, 7)
    assert summarise(metric("step.period", 0, np.zeros(0))) is None
    assert figure(metric("step.period", 0, np.zeros(0))) is None


def test_the_figure_of_a_share_is_its_mean_and_of_a_cost_the_difference_of_medians():
    assert figure(metric("alloc.step_share", 0, np.array([True, False, False, False]))) == 0.25
    values, group = np.array([10, 100, 20, 120, 15]), np.array([False, True, False, True, False])
    assert figure(metric("alloc.step_cost", 0, values, group=group)) == 110 - 15
    assert figure(metric("alloc.step_cost", 0, values, group=np.ones(5, bool))) is None


# ── pooling ─────────────────────────────────────────────────────────────────────────────────────────────────────────

SAMPLES = st.lists(st.lists(st.integers(-(10**9), 10**9), min_size=1, max_size=20), min_size=1, max_size=4)


@given(SAMPLES)
def test_pooled_samples_are_the_ranks_samples_one_after_another(ranks):
    parts = [metric("launch.lead", r, np.array(v), block=np.arange(len(v))) for r, v in enumerate(ranks)]
    pooled = pool(parts, rank=None)
    together = [value for own in ranks for value in own]
    assert summarise(pooled) == summarise(metric("launch.lead", None, np.array(together)))
    assert len(np.unique(pooled.block)) == len(together), "a step of one rank is no step of another"


def test_pooling_pooled_processes_keeps_their_steps_apart():
    def part(n):
        return metric("launch.lead", 0, np.zeros(n), block=np.arange(n))

    rank_0, rank_1 = pool([part(3), part(2)], rank=0), pool([part(4), part(1)], rank=1)
    assert len(np.unique(pool([rank_0, rank_1], rank=None).block)) == 10


@pytest.mark.parametrize(
    ("name", "expected"),
    [
        ("retracted", 7),
        ("launch.backpressure", 7),
        ("accept.length", 3.5),
        ("kv.usage_max", 5),
        ("topup.guard_ratio_min", 2),
        ("tokens.per_s", 7),
    ],
)
def test_counters_are_pooled_by_the_rule_of_their_entry(name, expected):
    parts = [metric(name, rank, np.array([value])) for rank, value in enumerate((2, 5))]
    assert figure(pool(parts, rank=None)) == expected


def test_coverage_is_pooled_by_the_number_of_samples_and_groups_stay_with_them():
    parts = [
        metric("launch.lead", 0, np.zeros(30), coverage=1.0),
        metric("launch.lead", 1, np.zeros(10), coverage=0.6),
    ]
    assert pool(parts, rank=None).coverage == pytest.approx(0.9)
    costs = [metric("alloc.step_cost", r, np.array([1.0, 5.0]), group=np.array([False, True])) for r in (0, 1)]
    assert pool(costs, rank=None).group.tolist() == [False, True, False, True]


# ── any export at all ───────────────────────────────────────────────────────────────────────────────────────────────


def check(cli, tmp_path, spec):
    """Metrics of a generated export: an answer in the documented shape, or a refusal in one sentence."""
    path = write_export(tmp_path / "made.sqlite", spec)
    found = cli("metrics", path, "--json", "--profiles", tmp_path / "profiles")
    if found.exit_code == 5:
        assert found.stderr.startswith(f"error: {path}: ")
        return None
    assert found.exit_code == 0, found.output
    document = json.loads(found.stdout)
    for row in document["metrics"]:
        keys = {"run", "arm", "rank", "metric", "unit", "n"}
        assert keys <= row.keys()
        rest = row.keys() - keys - {"coverage"}
        assert rest in (
            {"value"},
            {"p50", "p90", "p99", "mean", "total"},
            {"value", "p50", "p90", "p99", "mean", "total"},
        )
        assert row["unit"] == spec_unit(row["metric"])
    known = {entry.code for entry in CODES}
    for row in document["warnings"]:
        assert {"code", "rank", "count", "text"} <= row.keys()
        assert row["code"] in known
    return document


def spec_unit(name):
    return spec(name).unit


@pytest.mark.parametrize("fault", Fault)
def test_no_fault_of_an_export_is_met_with_a_crash(cli, tmp_path, fault):
    check(cli, tmp_path, Spec(rows=1200, faults=frozenset([fault])))


@pytest.mark.parametrize(
    ("schema", "mode"),
    [*((schema, Mode.GRAPH) for schema in Schema), (Schema.V2_9, Mode.NODE), (Schema.V3_24, Mode.NODE)],
)
def test_every_schema_family_gives_steps_and_waits(cli, tmp_path, schema, mode):
    document = check(cli, tmp_path, Spec(rows=1200, schema=schema, mode=mode, is_sync=True))
    names = {m["metric"] for m in document["metrics"]}
    assert {"step.period", "range.prepare_for_decode", "sync.cudaStreamSynchronize"} <= names
