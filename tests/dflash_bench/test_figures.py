"""The figures: curves keep their ends, names are harmless, places and colours follow the numbers."""

from __future__ import annotations

import json
from dataclasses import replace

import numpy as np
import plotly.graph_objects as go
import pytest
from hypothesis import given
from hypothesis import strategies as st
from simulated_runs import compare_both

from dflash_bench.compare import compare
from dflash_bench.metrics.measurements import metric
from dflash_bench.model import Better, RunInfo, RunMetrics, Table
from dflash_bench.report.changes import Tone, direction, excludes_zero, tone
from dflash_bench.report.figures import MAX_POINTS, built, ecdf, ecdf_figure, label, worst_rank
from dflash_bench.report.figures_code import Cause, allocation_figure, cause_figures, host_waits, wait_sentence
from dflash_bench.report.figures_forest import WINDOWS, forest_figures
from dflash_bench.report.figures_ranks import MAX_BINS, arrival_figures, binned, heat_map
from dflash_bench.report.figures_timeline import timeline_figure
from dflash_bench.report.timeline import Bar, BarKind, Flow, StepWindow


def run(*metrics, arm="base", tables=()):
    info = RunInfo(f"run-{arm}", arm, "steady", "cpu", ("cpu",), 2, "2026-01-01", "0", (), (), ())
    return RunMetrics(info, tuple(metrics), tuple(tables), ())


def pair(base, candidate, name="range.prepare_for_decode", rank=None):
    """A comparison of one metric."""
    return compare(run(metric(name, rank, np.array(base))), run(metric(name, rank, np.array(candidate)), arm="new"))


def drawn(figure):
    """A figure's specification as Plotly has it, held against Plotly's own schema on the way."""
    return go.Figure(json.loads(figure.spec)).to_plotly_json()


# ── curves ───────────────────────────────────────────────────────────────────────────────────────────────────────────


@given(st.lists(st.integers(-(10**9), 10**9), min_size=1, max_size=MAX_POINTS))
def test_few_samples_give_their_exact_distribution(values):
    x, y = ecdf(np.array(values, float))
    assert x.tolist() == sorted(values)
    for value in values:
        assert y[np.flatnonzero(x == value)[-1]] == pytest.approx(sum(v <= value for v in values) / len(values))


def test_many_samples_are_read_at_quantiles_and_keep_both_ends():
    values = np.random.default_rng(1).lognormal(size=640_000)
    x, y = ecdf(values)
    assert len(x) <= MAX_POINTS
    assert (x[0], x[-1], y[0], y[-1]) == (values.min(), values.max(), 0, 1)
    assert (np.diff(x) >= 0).all()
    assert x[np.abs(y - 0.5).argmin()] == pytest.approx(np.median(values))


def test_a_curve_tells_in_words_what_it_shows():
    found = ecdf_figure(pair(np.full(9, 1_000_000), np.full(9, 2_000_000)), "range.prepare_for_decode")
    assert "base: half of 9 up to 1,000.0 µs, 90 % up to 1,000.0 µs, 99 % up to 1,000.0 µs" in found.text
    assert "new: half of 9 up to 2,000.0 µs" in found.text
    assert [(e.name, e.line) for e in found.legend] == [("base (n = 9)", "solid"), ("new (n = 9)", "solid")]


def test_the_axis_is_logarithmic_only_over_decades_and_opens_at_the_bulk_of_the_samples():
    """One sample of a thousand far below the others must not squeeze them against the edge."""
    close = np.concatenate([[1e3], np.linspace(8e6, 9e6, 999)])
    axis = drawn(ecdf_figure(pair(close, close), "range.prepare_for_decode"))["layout"]["xaxis"]
    assert "type" not in axis
    assert 7_900 < axis["range"][0] < 8_010
    wide = drawn(ecdf_figure(pair(close, 100 * close), "range.prepare_for_decode"))["layout"]["xaxis"]
    assert wide["type"] == "log"
    assert 10 ** wide["range"][1] == pytest.approx(9e5, rel=0.01)


def test_the_other_runs_of_a_side_are_thin_lines_beside_its_median_run():
    runs = [run(metric("step.period", None, np.arange(9.0) + k), arm="base") for k in range(3)]
    new = run(metric("step.period", None, np.arange(9.0)), arm="new")
    found = ecdf_figure(compare_both(runs, [new])[0], "step.period")
    lines = [(t.get("name"), t["line"]["dash"]) for t in drawn(found)["data"]]
    assert lines == [
        ("base, other runs", "dot"), (None, "dot"), ("base (n = 9)", "solid"), ("new (n = 9)", "solid"),
    ]  # fmt: skip
    assert [e.name for e in found.legend] == ["base, other runs", "base (n = 9)", "new (n = 9)"]


def test_a_run_without_the_metric_says_so_and_two_without_it_give_no_figure():
    comparison = compare(run(metric("step.lead", None, np.array([5.0]))), run(arm="new"))
    assert "new: no data" in ecdf_figure(comparison, "step.lead").text
    assert ecdf_figure(comparison, "launch.lead") is None


def test_the_worst_rank_is_the_slowest_and_for_leads_the_lowest():
    ranks = [
        metric(name, k, np.array([v])) for name in ("step.period", "step.lead") for k, v in enumerate((3.0, 9.0, 1.0))
    ]
    found = run(*ranks)
    assert worst_rank(found, "step.period", Better.LOWER).rank == 1
    assert worst_rank(found, "step.lead", Better.HIGHER).rank == 2
    assert worst_rank(run(ranks[0]), "step.period", Better.LOWER) is None, "one rank is not the worst of anything"


@pytest.mark.parametrize(
    ("name", "expected"),
    [
        ("<b>x</b>", "&lt;b&gt;x&lt;/b&gt;"),
        ("a\x00b\nc", "a b c"),
        ("%{x}", "%{x}"),
        ("x" * 100, "x" * 47 + "…"),
    ],
)
def test_names_of_the_profiled_program_are_plain_text_in_figures(name, expected):
    assert label(name) == expected


# ── many metrics ─────────────────────────────────────────────────────────────────────────────────────────────────────


def test_a_forest_puts_each_change_and_its_interval_where_they_belong():
    rng = np.random.default_rng(0)
    comparison = pair(rng.normal(1000, 10, 300), rng.normal(1500, 10, 300), "step.period", rank=0)
    (change,) = comparison.changes
    (found,) = forest_figures(comparison)
    dots, hollow, beyond = drawn(found)["data"]
    assert dots["x"] == [pytest.approx(100 * (change.ratio - 1))]
    low, high = dots["error_x"]["arrayminus"][0], dots["error_x"]["array"][0]
    assert (dots["x"][0] - low) / 100 * change.base == pytest.approx(change.interval.low)
    assert (dots["x"][0] + high) / 100 * change.base == pytest.approx(change.interval.high)
    assert (hollow["x"], beyond["x"]) == ([], [])
    assert "step.period 1.0 → 1.5 µs (worse)" in found.text
    assert drawn(found)["layout"]["annotations"][0]["text"] == "step.period 1.0 → 1.5 µs · worse"


def test_with_verdicts_their_words_and_colours_are_the_forests():
    """Twice as long is beyond all drift: regressed. A tenth of a percent is told by the interval alone, not by them."""
    rng = np.random.default_rng(0)
    base = [metric("step.period", 0, rng.normal(1e7, 1e3, 300)), metric("range.fill", 0, rng.normal(1e6, 10, 300))]
    other = [metric("step.period", 0, rng.normal(2e7, 1e3, 300)), metric("range.fill", 0, rng.normal(1.001e6, 10, 300))]
    found, judgements = compare_both([run(*base)], [run(*other, arm="new")])
    assert [tone(c, judgements) for c in found.changes] == [Tone.WORSE, Tone.SAME]
    (forest,) = forest_figures(found, judgements)
    first, second = (a["text"] for a in drawn(forest)["layout"]["annotations"])
    assert first.startswith("step.period ")
    assert first.endswith(" · regressed")
    assert second.endswith(" µs")
    assert tone(compare(run(*base), run(*other, arm="new")).changes[1]) is Tone.WORSE


def test_what_got_worse_comes_first_then_what_got_better():
    rng = np.random.default_rng(0)
    shifts = {"range.a": 1.0, "range.b": 0.5, "range.c": 2.0}
    base = [metric(name, None, rng.normal(1000, 1, 99)) for name in shifts]
    other = [metric(name, None, rng.normal(1000, 1, 99) * shift) for name, shift in shifts.items()]
    (found,) = forest_figures(compare(run(*base), run(*other, arm="new")))
    assert [a["text"].split()[0] for a in drawn(found)["layout"]["annotations"]] == ["range.c", "range.b", "range.a"]


def test_a_change_far_beyond_the_others_is_a_triangle_at_the_edge():
    """Four changes of 3 % and one to 1/50: the axis ends at 5 %, and the caption says what a triangle is."""
    names = [f"range.r{k}" for k in range(5)]
    base = [metric(name, None, np.full(9, 100.0)) for name in names]
    other = [metric(name, None, np.full(9, 2.0 if k == 0 else 103.0)) for k, name in enumerate(names)]
    (found,) = forest_figures(compare(run(*base), run(*other, arm="new")))
    dots, _, beyond = drawn(found)["data"]
    assert dots["x"] == [pytest.approx(3.0)] * 4
    assert (beyond["x"], beyond["marker"]["symbol"]) == ([-WINDOWS[0]], ["triangle-left"])
    assert "range.r0 0.1 → 0.0 µs" in found.text
    assert "triangle at an edge lies beyond it" in found.text


def test_a_lead_that_changes_sign_is_shown_as_a_difference():
    rng = np.random.default_rng(0)
    comparison = pair(rng.normal(-51_000, 5, 100), rng.normal(19_100_000, 5, 100), "step.lead")
    (found,) = forest_figures(comparison)
    assert found.key == "forest-absolute"
    assert drawn(found)["data"][0]["x"][0] == pytest.approx(19_151, rel=1e-3)
    assert "step.lead −51.0 → 19,100.0 µs (better)" in found.text


def test_a_metric_without_interval_is_a_hollow_dot_and_the_caption_says_why():
    (found,) = forest_figures(pair([100.0], [150.0]))
    filled, hollow, _ = drawn(found)["data"]
    assert (filled["x"], hollow["x"], hollow["marker"]["symbol"]) == ([], [50.0], "circle-open")
    assert "hollow dot has no interval" in found.text


def test_a_forest_that_is_too_long_says_how_many_rows_it_leaves_to_the_table():
    metrics = [metric(f"range.r{k}", None, np.array([100.0 + k])) for k in range(30)]
    others = [metric(f"range.r{k}", None, np.array([200.0 + 9 * k])) for k in range(30)]
    (found,) = forest_figures(compare(run(*metrics), run(*others, arm="new")))
    assert "12 more are left to the table" in found.text


def test_a_number_that_is_none_never_reaches_the_page():
    with pytest.raises(ValueError, match="not JSON compliant"):
        built("k", "t", "w", [{"type": "scatter", "x": np.array([np.nan])}], {})


def test_direction_and_certainty_of_a_change():
    rng = np.random.default_rng(3)
    up = pair(rng.normal(100, 1, 50), rng.normal(120, 1, 50), "step.lead").changes[0]
    slower = pair(rng.normal(100, 1, 50), rng.normal(120, 1, 50), "step.period").changes[0]
    same = pair(np.arange(50.0), np.arange(50.0), "step.period").changes[0]
    assert (direction(up), direction(slower)) == (1, -1)
    assert excludes_zero(up)
    assert not excludes_zero(same)
    assert not excludes_zero(replace(up, interval=None))


def test_the_heat_map_names_the_rank_that_got_worse():
    def ranks(*values, arm):
        return run(*(metric("step.period", k, np.full(9, v)) for k, v in enumerate(values)), arm=arm)

    found = heat_map(compare(ranks(100, 100, 100, arm="base"), ranks(100, 300, 50, arm="new")))
    (heat,) = drawn(found)["data"]
    assert heat["z"] == [[0, -0.5, pytest.approx(1 / 3, abs=1e-3)]]
    assert "step.period on rank 1 0.1 → 0.3 µs" in found.text


def test_one_rank_has_no_heat_map():
    assert heat_map(pair([1.0], [2.0], "step.period", rank=0)) is None


# ── ranks ────────────────────────────────────────────────────────────────────────────────────────────────────────────


def test_arrivals_name_the_latest_rank_and_bins_are_medians():
    def ranks(late, arm):
        rng = np.random.default_rng(2)
        found = [metric("dp.lateness", k, rng.normal(late if k == 3 else 0, 100, 1000)) for k in range(4)]
        found += [metric("dp.straggler_share", k, np.full(1000, k == 3)) for k in range(4)]
        return run(*found, metric("dp.agreement_tax", None, np.full(1000, late)), arm=arm)

    comparison = compare(ranks(500_000, "base"), ranks(1_000, "new"))
    boxes, shares, before, after = arrival_figures(comparison)
    assert "base: rank 3 comes latest" in boxes.text
    assert "costs the others 500.0 µs a step" in boxes.text
    assert "base: rank 3 is last in 100.00 % of 1,000 steps" in shares.text
    assert "4 ranks over 1,000 steps, 5 a column" in before.text
    scales = [drawn(f)["data"][0]["zmax"] for f in (before, after)]
    assert scales[0] == scales[1], "both runs on one scale"


def test_a_bin_holds_the_median_of_its_steps():
    metrics = [metric("dp.lateness", k, np.arange(450.0) * (k + 1)) for k in range(2)]
    grid, width = binned(metrics)
    assert (width, grid.shape) == (3, (2, 150))
    assert grid.shape[1] <= MAX_BINS
    assert grid[1, :2].tolist() == [2, 8]


def test_runs_whose_ranks_never_met_have_no_arrivals():
    assert arrival_figures(pair([1.0], [2.0])) == []


# ── code ─────────────────────────────────────────────────────────────────────────────────────────────────────────────

WAITS = Table(
    "sync.by_range",
    ("rank", "path", "api", "count", "total_ns", "p50_ns"),
    (
        (0, "decode_step > a", "cudaStreamSynchronize", 2, 9_000_000, 4_500_000.0),
        (None, "decode_step > a", "cudaStreamSynchronize", 4, 30_000_000, 7_000_000.0),
        (None, "decode_step > b > c", "cudaEventSynchronize", 4, 69_000_000, 7_000_000.0),
        (None, "decode_step > d", "cudaStreamSynchronize", 4, 1_000_000, 200_000.0),
    ),
)


def test_the_sentence_names_the_code_with_at_least_a_tenth_of_the_waiting():
    """Over all ranks, the longest first: c with 69 and a with 30 of 100 ms, not d with 1."""
    assert [c.code for c in host_waits(run(tables=[WAITS]))] == ["c", "a", "d"]
    assert wait_sentence("sync", run(tables=[WAITS])) == (
        "sync: the host waited in c (69.0 ms in 4 cudaEventSynchronize, 69%)"
        " and a (30.0 ms in 4 cudaStreamSynchronize, 30%)."
    )
    assert wait_sentence("sync", run()) == "sync: no host wait was captured."


def test_causes_are_named_as_people_say_them():
    names = [Cause(where, call, 1, 1).name for where, call in (
        ("admit · -", ""), ("- · -", ""), ("- · cudaEventSynchronize", ""), ("decode_step > fill", "cudaMemcpy"),
    )]  # fmt: skip
    assert names == [
        "admit · CPU work", "outside steps · CPU work", "outside steps · cudaEventSynchronize", "fill · cudaMemcpy",
    ]  # fmt: skip


def test_waits_of_both_runs_stand_side_by_side():
    (found,) = cause_figures(compare(run(tables=[WAITS]), run(arm="new")))
    base, candidate = drawn(found)["data"]
    assert (base["x"], candidate["x"]) == ([69.0, 30.0, 1.0], [0, 0, 0])
    assert drawn(found)["layout"]["annotations"][0]["text"] == "c · cudaEventSynchronize"


def test_allocation_steps_and_the_others_have_curves_of_their_own():
    group = np.arange(100) % 4 == 0
    cost = metric("alloc.step_cost", None, np.where(group, 900_000, 100_000), group=group)
    found = allocation_figure(compare(run(metric("alloc.step_share", None, group), cost), run(arm="new")))
    assert "base: 25.00 % of 100 steps allocate, which costs such a step 800.0 µs" in found.text
    assert [e.name for e in found.legend] == ["base, allocating (n = 25)", "base, other (n = 75)"]


# ── timeline ─────────────────────────────────────────────────────────────────────────────────────────────────────────


def test_the_timeline_draws_each_bar_where_it_was_and_counts_what_it_leaves_out():
    bars = (
        Bar(BarKind.RANGE, 0, "<i>step", 0, 9_000),
        Bar(BarKind.WAIT, 1, "cudaStreamSynchronize", 2_000, 5_000),
        Bar(BarKind.GPU, 2, "k", -1_000, 4_000, "launched at −7.0 µs"),
    )
    tracks = ("host ranges 1", "calls", "GPU")
    window = StepWindow("median step", 3, 17, 200, 9_000, tracks, bars, (Flow(1, 1, 2, 2),), 4, bars[1:2], 5)
    found = timeline_figure("t", "sync", window)
    arrows, ranges, waits, gpu = drawn(found)["data"]
    assert (ranges["base"], ranges["x"], ranges["y"]) == ([0.0], [9.0], [0])
    assert (gpu["base"], gpu["x"], gpu["y"]) == ([-1.0], [5.0], [2])
    assert ranges["text"] == ["&lt;i&gt;step"]
    assert arrows["x"] == [0.001, 0.002, None]
    assert found.title == "sync: median step of rank 3"
    assert "Step 17 of 200" in found.text
    assert "One host wait, cudaStreamSynchronize of 3.0 µs" in found.text
    assert "pieces of GPU work: 5" in found.text
    assert "The 4 shortest bars are not drawn" in found.text
    assert waits["name"] == "host wait"


def test_tracks_of_a_timeline_bear_short_names():
    """What all of a kind share is left out; nested ranges have their name once."""
    tracks = (
        "host ranges 1",
        "host ranges 2",
        "host CUDA calls",
        "host 2 ranges 1",
        "GPU 0 stream 7",
        "GPU 0 stream 13",
    )
    window = StepWindow("median step", 0, 0, 1, 9, tracks, (Bar(BarKind.RANGE, 0, "r", 0, 9),), (), 0)
    labels = drawn(timeline_figure("t", "sync", window))["layout"]["yaxis"]["ticktext"]
    assert list(labels) == ["ranges", "", "CUDA calls", "host 2 ranges", "stream 7", "stream 13"]
    both = replace(window, tracks=("GPU 0 stream 7", "GPU 1 stream 7"))
    assert list(drawn(timeline_figure("t", "sync", both))["layout"]["yaxis"]["ticktext"]) == list(both.tracks)
