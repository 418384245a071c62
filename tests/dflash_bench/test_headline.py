"""The headline never says more than the verdicts: faster, slower, alike, or that it cannot tell and what would."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from simulated_runs import STEP_NS, Truth, compare_both, side

from dflash_bench.metrics.measurements import metric
from dflash_bench.model import Finding, Metric, RunInfo, RunMetrics, Statistic, Table, Unit
from dflash_bench.report.changes import Tone
from dflash_bench.report.comparison import comparison_report
from dflash_bench.report.headline import run_headline, sides_headline
from dflash_bench.report.run import run_report
from dflash_bench.report.units import percent

QUIET = Truth("step.period", STEP_NS, drift=0.002 * STEP_NS, jitter=0.02 * STEP_NS)


def headed(found, judgements):
    return sides_headline(found.sides, judgements, found.findings)


def headline(shift, num=5, spread=QUIET):
    rng = np.random.default_rng(3)
    found, judgements = compare_both(side(rng, spread, num), side(rng, spread, num, shift * STEP_NS))
    return sides_headline(found.sides, judgements, found.findings), judgements


@pytest.mark.parametrize(("shift", "word", "tone"), [(-0.1, "Faster", "better"), (0.1, "Slower", "worse")])
def test_a_shown_change_is_said_with_size_percent_and_interval(shift, word, tone):
    found, judgements = headline(shift)
    (judged,) = judgements.each
    assert found.tone == tone
    assert found.what.startswith(f"{word}: step ")
    assert f"({percent(judged.shift / judged.base)}, 95 % " in found.what
    assert found.remedy == ""


def test_alike_is_said_only_where_it_is_shown():
    found, _ = headline(0.0, num=8)
    assert found.what.startswith("As fast as before: step ")
    assert found.tone is Tone.SAME


def test_what_cannot_be_told_comes_first_with_what_would_decide():
    wild = replace(QUIET, drift=0.08 * STEP_NS)
    found, judgements = headline(-0.02, num=3, spread=wild)
    (judged,) = judgements.each
    assert judged.verdict == "inconclusive"
    assert found.lines[0].startswith("Cannot tell yet: step ")
    assert found.lines[1] == found.remedy != ""
    assert found.tone is Tone.OPEN


def run(*metrics, tables=(), arm="a", device="cpu", ranks=(0,)):
    from dflash_bench.model import ProcessInfo, RankSource

    processes = tuple(ProcessInfo(k + 1, k + 1, 0, k, RankSource.MARK, len(ranks), arm, 1, 1, 1) for k in ranks)
    info = RunInfo(f"run-{arm}", arm, "steady", device, (device,), 1, "2026-01-01", "0", (), processes, ())
    return RunMetrics(info, tuple(metrics), tuple(tables), ())


def steps(period, busy, dry, tables=(), arm="a"):
    values = (("step.period", period), ("host.busy_per_step", busy), ("gpu.dry_per_step", dry))
    found = (Metric(n, 0, Unit.NS, Statistic.MEDIAN, np.full(99, v) + np.arange(99)) for n, v in values)
    return run(*found, tables=tables, arm=arm)


DRY = ("rank", "cause", "steps", "total_ns", "share")
DRY_TIME = metric("gpu.dry_per_step", 0, np.full(99, 1e3))
WAITS = ("rank", "path", "api", "count", "total_ns", "p50_ns")


def test_runs_that_cannot_be_compared_are_called_that():
    period = metric("step.period", 0, np.full(99, 5e6))
    found, judgements = compare_both([run(period)], [run(period, device="H200")])
    assert sides_headline(found.sides, judgements, found.findings).what == (
        "Not comparable: the runs differ in device: cpu against H200; no verdicts are drawn from them"
    )


def test_causes_that_went_and_came_are_named_by_their_range_with_their_share():
    period = metric("step.period", 0, np.full(99, 5e6))
    old = run(
        period,
        DRY_TIME,
        tables=[
            Table("dry.by_cause", DRY, ((None, "fill · -", 9, 900, 1.0), (None, "- · -", 1, 100, 1.0))),
            Table("sync.by_range", WAITS, ((None, "decode_step > resolve", "cudaStreamSynchronize", 9, 99, 1.0),)),
        ],
    )
    new = run(
        period,
        DRY_TIME,
        arm="b",
        tables=[
            Table("dry.by_cause", DRY, ((None, "- · -", 1, 100, 1.0),)),
            Table(
                "sync.by_range", WAITS, ((None, "decode_step > process_result", "cudaEventSynchronize", 9, 9**9, 1.0),)
            ),
        ],
    )
    found, judgements = compare_both([old], [new])
    assert sides_headline(found.sides, judgements, found.findings).why == (
        "gone: the GPU running dry in fill (90 % of dry time)",
        "gone: the wait in resolve (100 % of waits)",
    ), "a host that runs ahead waits longer: that is no news"


def test_a_cause_that_came_is_named_only_where_the_whole_grew():
    period = metric("step.period", 0, np.full(99, 5e6))
    less, more = (
        run(period, DRY_TIME, arm=arm, tables=[Table("dry.by_cause", DRY, ((None, f"{arm} · -", 9, total, 1.0),))])
        for arm, total in (("less", 100), ("more", 900))
    )
    both = [headed(*compare_both([a], [b])).why for a, b in ((less, more), (more, less))]
    assert both[0] == (
        "gone: the GPU running dry in less (100 % of dry time)",
        "new: the GPU running dry in more (100 % of dry time)",
    )
    assert both[1] == ("gone: the GPU running dry in more (100 % of dry time)",)


def test_a_wait_that_grew_while_the_gpu_is_dry_for_less_time_is_no_news():
    """On a GPU that is never dry, copies on a side stream are launched late behind a wait that costs nothing."""
    period, columns = metric("step.period", 0, np.full(99, 5e6)), (*WAITS, "exposed_ns")

    def made(arm, dry, wait):
        rows = ((None, "decode_step > process_result", "cudaEventSynchronize", 9, wait, 1.0, wait // 2),)
        tables = [Table("dry.by_cause", DRY, ((None, "fill · -", 9, dry, 1.0),))]
        return run(period, DRY_TIME, arm=arm, tables=[*tables, Table("sync.by_range", columns, rows)])

    found, judgements = compare_both([made("a", 900, 10)], [made("b", 90, 9_000)])
    assert headed(found, judgements).why == ("gone: the GPU running dry in fill (100 % of dry time)",)
    assert not [
        row for sheet in comparison_report(found, judgements).sheets for row in sheet.rows if "wait in" in row[0]
    ]
    worse, verdicts = compare_both([made("a", 90, 10)], [made("b", 900, 9_000)])
    assert "new: the wait in process_result (100 % of waits)" in headed(worse, verdicts).why


def test_dry_time_that_is_withheld_is_not_gone():
    period = metric("step.period", 0, np.full(99, 5e6))
    table = Table("dry.by_cause", DRY, ((None, "fill · -", 9, 900, 1.0),))
    found, judgements = compare_both([run(period, DRY_TIME, tables=[table])], [run(period, arm="b")])
    assert headed(found, judgements).why == ()
    (row,) = [r for sheet in comparison_report(found, judgements).sheets for r in sheet.rows if "gpu.dry" in r[0]]
    assert row[-1] == "one side only"
    found, judgements = compare_both([run(period, DRY_TIME, tables=[table])], [run(period, DRY_TIME, arm="b")])
    assert headed(found, judgements).why == ("gone: the GPU running dry in fill (100 % of dry time)",)


def test_what_befell_one_step_in_a_hundred_is_no_news_and_says_how_often_it_was():
    period = metric("step.period", 0, np.full(999, 5e6))
    rows = ((None, "loop · cuModuleLoadData", 2, 9_000_000, 1.0), (None, "fill · -", 900, 1_000_000, 1.0))
    found, judgements = compare_both(
        [run(period, DRY_TIME, tables=[Table("dry.by_cause", DRY, rows)])], [run(period, DRY_TIME, arm="b")]
    )
    assert headed(found, judgements).why == ("gone: the GPU running dry in fill (100 % of dry time)",)
    names = [row[0] for sheet in comparison_report(found, judgements).sheets for row in sheet.rows]
    assert "GPU dry in loop · cuModuleLoadData (2 times)" in names
    assert "GPU dry in fill · CPU work" in names


def test_the_basis_names_device_workload_runs_and_steps():
    period = metric("step.period", 0, np.full(99, 5e6))
    found, judgements = compare_both([run(period)] * 3, [run(period, arm="b")] * 2)
    assert (
        sides_headline(found.sides, judgements, found.findings).basis
        == "on cpu × 1, steady, 3 + 2 runs, 100 steps each"
    )


# ── on one screen ────────────────────────────────────────────────────────────────────────────────────────────────────


def test_the_short_form_fits_a_screen_whatever_the_number_of_ranks_and_warnings():
    """25 lines of 100 columns, with 16 ranks, many warnings and many causes."""
    import io

    from rich.console import Console

    from dflash_bench.report.console import show

    names = ("step.period", "step.lead", "alloc.step_share", "dp.agreement_tax", "tokens.per_s", "accept.length")
    scales = {"alloc.step_share": 1, "tokens.per_s": 9e4, "accept.length": 8}
    rng = np.random.default_rng(1)
    causes = tuple((None, f"some_range_{k} · cudaLaunchKernel", 9, 10**6 - k, 1.0) for k in range(40))
    waits = tuple((None, f"decode_step > range_{k}", "cudaStreamSynchronize", 9, 10**6 - k, 1.0) for k in range(40))
    tables = (Table("dry.by_cause", DRY, causes), Table("sync.by_range", WAITS, waits))
    findings = tuple(
        Finding(f"code_{k}", None, 1, f"something is odd here, namely {k}; " + "more " * 50) for k in range(9)
    )

    def made(arm):
        metrics = [metric(n, r, rng.random(99) * scales.get(n, 5e6)) for n in names for r in (None, *range(16))]
        return replace(run(*metrics, tables=tables, arm=arm, ranks=tuple(range(16))), findings=findings)

    base, candidate = made("a"), made("b")
    found, judgements = compare_both([base], [candidate])
    for report in (comparison_report(found, judgements), run_report(base)):
        out = io.StringIO()
        show(report, Console(file=out, width=100, highlight=False))
        lines = out.getvalue().splitlines()
        assert len(lines) <= 25, out.getvalue()
        assert max(len(line.rstrip()) for line in lines) <= 100


# ── one run ──────────────────────────────────────────────────────────────────────────────────────────────────────────


def test_a_host_that_waits_because_it_is_ahead_is_healthy():
    rows = ((None, "decode_step > process_result", "cudaEventSynchronize", 99, 99 * 10**6, 1e6),)
    found = run_headline(steps(5e6, 1e6, 1e3, [Table("sync.by_range", WAITS, rows)]))
    assert found.tone is Tone.SAME
    assert found.what.startswith("The host runs ahead of the GPU: step 5.00 ms; host busy 1.00 ms; GPU dry")
    assert found.why == ("it waits in process_result (100 % of its waits) because it is ahead: that costs nothing",)


def test_a_gpu_that_waits_for_the_host_is_told_with_what_the_host_did():
    rows = ((None, "fill · -", 99, 900, 1.0), (None, "prepare · cudaLaunchKernel", 9, 100, 1.0))
    found = run_headline(steps(5e6, 4e6, 2e6, [Table("dry.by_cause", DRY, rows)]))
    assert found.tone is Tone.WORSE
    assert "GPU dry 2.00 ms a step (40 %)" in found.what
    assert found.why == (
        "while it was dry the host was in fill · CPU work (90 %), in prepare · cudaLaunchKernel (10 %)",
    )
    assert found.basis == "arm a, workload steady, cpu × 1, a step is the range decode_step, 100 of them"


def test_without_steps_or_gpu_work_that_is_said():
    assert run_headline(run()).what == "No steps: no range is named 'decode_step'"
    dry = metric("gpu.dry_per_s", 0, np.array([422e6]))
    rows = ((None, "- · -", 9, 900, 1.0),)
    found = run_headline(run(dry, tables=[Table("dry.by_cause", DRY, rows)]))
    assert found.what.endswith("; over the whole capture the GPU was dry 42 % of the time")
    assert found.why == ("while it was dry the host was outside any range · CPU work (100 %)",)
    assert "no GPU work" in run_headline(run(metric("step.period", 0, np.full(9, 5e6)))).what


def test_a_mean_far_from_the_median_is_said_to_be_one():
    """Two long steps of thirty: no step is shorter than its host time."""
    found = run_headline(
        run(
            metric("step.period", 0, np.array([66e6, 20e6] + 28 * [1.3e6])),
            metric("host.busy_per_step", 0, np.full(30, 4.3e6)),
        )
    )
    assert found.what.startswith("step 4.08 ms on average (median 1.30 ms); host busy 4.30 ms")


def test_without_steps_the_screen_shows_the_whole_capture_and_what_to_type():
    dry = (None, "- · -", 9, 900_000, 0.9), (None, "load > fill · cudaMalloc", 1, 60_000, 0.1)
    waits = (
        (None, "run > item, op = *", "cudaStreamSynchronize", 2, 700_000, 0),
        (None, "item, op = *", "cudaStreamSynchronize", 1, 300_000, 0),
    )
    found = replace(
        run(
            metric("launch.calls_per_s", 0, np.array([2.9])),
            metric("range.a b", 0, np.full(5, 2e6)),
            tables=[Table("dry.by_cause", DRY, dry), Table("sync.by_range", WAITS, waits)],
        ),
        findings=(
            *(
                Finding("no_steps", k, 1, "no range named 'decode_step'", f"--step-range {s}")
                for k, s in ((0, "'a b'"), (1, "c"))
            ),
            *(Finding("warm_up_steps", k, 1, "warm-up", f"--skip-steps {n}") for k, n in enumerate((2, 11, 3))),
        ),
    )
    report = run_report(found)
    figures, causes = report.sheets
    assert [row[0] for row in figures.rows] == ["launch.calls_per_s", "range.a b"]
    assert causes.columns[1] == "in all"
    assert list(causes.rows[0][:2]) == ["GPU dry outside any range · CPU work", "900 µs"]
    # what is called the same is one row
    assert [row[1] for row in causes.rows if row[0].startswith("wait")] == ["1.00 ms"]
    assert report.following[:2] == (
        "dflash-bench metrics run-a --step-range 'a b'",
        "dflash-bench metrics run-a --skip-steps 11",
    )
