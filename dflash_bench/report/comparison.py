"""The sheets of a comparison: base beside candidate."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import groupby

from dflash_bench.metrics.registry import Chapter, spec
from dflash_bench.metrics.summary import figure
from dflash_bench.model import Better, Change, Comparison, Interval, RunMetrics, Sides, Statistic, Unit, Value
from dflash_bench.report.changes import KEY_METRICS, key_changes, pooled_changes
from dflash_bench.report.sheets import (
    MAX_RANKS_SHOWN,
    Report,
    Sheet,
    by_section,
    captured,
    cut,
    identity,
    left_out,
    main_ranges,
    warning_lines,
)
from dflash_bench.report.sides import run_metrics, run_rows, runs_note
from dflash_bench.report.table_sheets import TRACING_COLUMNS, tracing_rows
from dflash_bench.report.units import MISSING, milliseconds, rank_text, symbol, text
from dflash_bench.report.verdicts import verdict_lines, verdict_sheet
from dflash_bench.stats.composition import composition
from dflash_bench.stats.judgement import Judgements

_ARROW = {Better.LOWER: "↓", Better.HIGHER: "↑", Better.NONE: ""}
_CHANGE_COLUMNS = ("metric", "better", "base", "candidate", "difference", "ratio", "95 % interval", "unit", "n")
_BY_RANK = (
    "range.prepare_for_decode",
    "step.period",
    "step.lead",
    "alloc.step_share",
    "sync.total_per_step",
    "dp.straggler_share",
)


def comparison_report(
    comparison: Comparison,
    *,
    is_per_rank: bool | None = None,
    is_brief: bool = False,
    judgements: Judgements | None = None,
) -> Report:
    """Base against candidate.

    ``is_per_rank``: None shows single ranks where there are at most four. ``is_brief``: the first sheets and what the
    host was doing, without every metric.
    """
    base, candidate = comparison.base.info, comparison.candidate.info
    num_ranks = len({*base.ranks, *candidate.ranks})
    per_rank = num_ranks <= MAX_RANKS_SHOWN if is_per_rank is None else is_per_rank
    chosen = comparison.changes if per_rank and num_ranks > 1 else pooled_changes(comparison)
    changes = [c for c in chosen if not _is_full_coverage(c)]
    sheets = {title: _changes_sheet(title, own) for title, own in by_section(changes, lambda c: c.metric)}
    watched = KEY_METRICS if is_brief else None
    verdicts = [] if judgements is None else [verdict_sheet(judgements, is_per_rank=per_rank, watched=watched)]
    sides = comparison.sides
    first = (_glance_sheet(comparison), _runs_sheet(sides), _ranks_sheet(comparison), *_cause_sheets(comparison))
    # of runs with different kinds of steps, those of one kind are what can be compared
    apart = (sheets[Chapter.KINDS],) if are_steps_unlike(comparison) else ()
    last = (*verdicts, *(apart if is_brief else sheets.values()), _tracing_sheet(sides))
    return Report(
        title=" → ".join(_side(runs) for _, runs in sides.named),
        lines=(
            f"base: {identity(base)}; {captured(base)}",
            f"candidate: {identity(candidate)}; {captured(candidate)}",
            *([note] if (note := runs_note(sides)) else []),
            *kinds_lines(sides, ("base", "candidate")),
            *(verdict_lines(judgements) if judgements else ()),
            *_straggler_lines(comparison),
            *_tracing_lines(sides),
        ),
        sheets=tuple(s for s in (*first, *last) if s.rows),
        warnings=tuple(warning_texts(comparison)),
    )


def are_steps_unlike(comparison: Comparison) -> bool:
    """Whether the sides consist of different kinds of steps, so that figures over all steps compare unlike work."""
    return any(f.code == "different_composition" for f in comparison.findings)


def kinds_lines(sides: Sides, names: tuple[str, str]) -> Iterator[str]:
    """Of which kinds of steps each side consists; nothing where all steps of both are of one kind."""
    shares = [composition(runs) for _, runs in sides.named]
    if len({*shares[0], *shares[1]}) < 2:
        return
    told = (", ".join(f"{share:.1%} {kind}" for kind, share in side.items()).replace("%", " %") for side in shares)
    yield "kinds of steps: " + "; ".join(f"{n} {each or 'not told'}" for n, each in zip(names, told, strict=True))


def _glance_sheet(comparison: Comparison) -> Sheet:
    """The figures that matter most."""
    rows = [(c.metric, _ARROW[c.better], *_figures(c)) for c in key_changes(comparison)]
    return Sheet("At a glance", _CHANGE_COLUMNS, tuple(rows), left=("metric", "unit"))


def _is_full_coverage(change: Change) -> bool:
    """Whether it only says that nothing is missing on either side."""
    full = 0.0 if change.statistic is Statistic.VALUE else 1.0
    is_coverage = change.metric.startswith(("coverage.", "gpu_work_without_launch"))
    return is_coverage and change.base in (full, None) and change.candidate in (full, None)


def warning_texts(comparison: Comparison) -> Iterator[str]:
    """Everything a reader must know of the comparison and of every run, as lines."""
    yield from warning_lines(comparison.findings)
    for side, runs in comparison.sides.named:
        for run in runs:
            where = f"{side} {run.info.run}" if len(runs) > 1 else side
            yield from (f"{where}: {line}" for line in warning_lines(run.findings))


def _side(runs: Sequence[RunMetrics]) -> str:
    info = runs[0].info
    if len(runs) > 1:
        return f"{info.arm or info.run} ({len(runs)} runs)"
    return info.run if info.arm is None or info.arm in info.run else f"{info.run} ({info.arm})"


def _changes_sheet(title: str, changes: Sequence[Change]) -> Sheet:
    ranges = [c for c in changes if c.metric.startswith("range.")]
    weight = dict[str, float]()
    for c in ranges:
        weight[c.metric] = max(weight.get(c.metric, 0.0), _weight(c))
    longest = main_ranges(weight)
    shown = [c for c in changes if not c.metric.startswith("range.") or c.metric in longest]
    rows = [
        (name if k == 0 else "", _ARROW[c.better] if k == 0 else "", rank_text(c.rank), *_figures(c))
        for name, same in groupby(shown, lambda c: c.metric)
        for k, c in enumerate(same)
    ]
    columns = ("metric", "better", "rank", "base", "candidate", "difference", "ratio", "95 % interval", "unit", "n")
    rest = len({c.metric for c in changes}) - len({c.metric for c in shown})
    return Sheet(title, columns, tuple(rows), left=("metric", "unit"), note=left_out(rest))


def _weight(c: Change) -> float:
    """About how much time a range took, on the side where it took more."""
    return max((c.base or 0.0) * c.base_n, (c.candidate or 0.0) * c.candidate_n)


def _figures(c: Change) -> tuple[str, ...]:
    return (
        text(c.base, c.unit),
        text(c.candidate, c.unit),
        text(c.difference, c.unit, is_signed=True),
        MISSING if c.ratio is None else f"{c.ratio:,.3f}",
        _interval(c.interval, c.unit),
        symbol(c.unit),
        f"{c.base_n:,}" if c.base_n == c.candidate_n else f"{c.base_n:,} / {c.candidate_n:,}",
    )


def _interval(found: Interval | None, unit: Unit) -> str:
    if found is None:
        return MISSING
    return f"{text(found.low, unit, is_signed=True)} … {text(found.high, unit, is_signed=True)}"


def _runs_sheet(sides: Sides) -> Sheet:
    """Every run with its own figures, where there are repeats."""
    if not sides.is_repeated:
        return Sheet("", (), ())
    names = run_metrics(sides)
    rows = [
        (
            row.side,
            row.run,
            "✓" if row.is_typical else "",
            *(text(value, spec(name).unit) for name, value in zip(names, row.figures, strict=True)),
        )
        for row in run_rows(sides)
    ]
    columns = ("side", "run", "median", *(_heading(name) for name in names))
    return Sheet("Runs", columns, tuple(rows), left=("side", "run"))


def _heading(name: str) -> str:
    return f"{name} {symbol(spec(name).unit)}".strip()


def _ranks_sheet(comparison: Comparison) -> Sheet:
    """Ranks side by side, base → candidate in each cell."""
    found = {(c.metric, c.rank): c for c in comparison.changes if c.rank is not None}
    ranks = sorted({rank for _, rank in found if rank is not None})
    names = [name for name in _BY_RANK if any((name, rank) in found for rank in ranks)]
    if len(ranks) < 2:
        return Sheet("", (), ())
    rows = [(str(rank), *(_cell(found.get((name, rank))) for name in names)) for rank in ranks]
    columns = ("rank", *(_heading(name) for name in names))
    return Sheet("Ranks side by side (base → candidate)", columns, tuple(rows))


def _cell(change: Change | None) -> str:
    if change is None:
        return MISSING
    return f"{text(change.base, change.unit)} → {text(change.candidate, change.unit)}"


def _straggler_lines(comparison: Comparison) -> Iterator[str]:
    for run, side in ((comparison.base, "base"), (comparison.candidate, "candidate")):
        shares = [(figure(m) or 0.0, m.rank) for m in run.metrics if m.name == "dp.straggler_share"]
        alloc, tax = run.find("dp.alloc_on_critical_path", None), run.find("dp.agreement_tax", None)
        if not shares or alloc is None or tax is None:
            continue
        share, rank = max(shares, key=lambda s: s[0])
        yield (
            f"{side} straggler: rank {rank}, last in {share:.1%} of {alloc.n:,} steps; in {figure(alloc):.1%} the last"
            f" rank had allocated; it costs the others {text(figure(tax), Unit.NS)} µs a step (median)"
        )


def _tracing_sheet(sides: Sides) -> Sheet:
    """Step p50 with the recorder and without any, of all runs that were made both ways, by the loop's own clock."""
    rows = [row for _, runs in sides.named for run in runs for row in tracing_rows(run)]
    note = "each from one pair of runs: the drift of the machine between them is in the ratio"
    return Sheet("What tracing cost", TRACING_COLUMNS, tuple(rows), left=("arm", "recorder"), note=note)


def _tracing_lines(sides: Sides) -> Iterator[str]:
    """Where there is nothing to say about the cost of tracing, that."""
    without = {side: runs for side, runs in sides.named if not any(tracing_rows(run) for run in runs)}
    # only the built-in loop can be run again without a tool
    is_own = any("steps_asked" in run.info.settings for runs in without.values() for run in runs)
    if without:
        whose = "" if len(without) == 2 else f" for the {next(iter(without))}"
        yield f"tracing cost not measured{whose}" + (": run with --unprofiled" if is_own else "")


def _cause_sheets(comparison: Comparison) -> Iterator[Sheet]:
    """The cause tables of both runs side by side, pooled over ranks, in order of the larger total."""
    for name, words, title in (
        ("stall.by_cause", ("cause",), "What the host did when the GPU ran dry"),
        ("sync.by_range", ("range path", "call"), "Which code made the host wait"),
    ):
        sides = [_totals(run, name, len(words)) for run in (comparison.base, comparison.candidate)]
        keys = sorted({*sides[0], *sides[1]}, key=lambda k: (-max(side.get(k, (0, 0))[1] for side in sides), k))
        rows = tuple((*key, *(cell for side in sides for cell in _pair(side.get(key)))) for key in keys)
        columns = (*words, "base count", "base ms", "candidate count", "candidate ms")
        yield cut(Sheet(f"{title} ({name})", columns, rows, words))


def _totals(run: RunMetrics, name: str, width: int) -> dict[tuple[str, ...], tuple[int, int]]:
    """Pooled rows of a cause table: label → (count, total ns)."""
    rows = [row for table in run.tables if table.name == name for row in table.rows if row[0] is None]
    return {tuple(str(v) for v in row[1 : 1 + width]): (_int(row[1 + width]), _int(row[2 + width])) for row in rows}


def _int(value: Value) -> int:
    assert isinstance(value, int)
    return value


def _pair(found: tuple[int, int] | None) -> tuple[str, str]:
    return (MISSING, MISSING) if found is None else (f"{found[0]:,}", milliseconds(found[1]))
