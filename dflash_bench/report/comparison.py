"""The report of a comparison: base beside candidate, on one screen, or in full."""

from __future__ import annotations

import re
import shlex
from collections.abc import Iterator, Sequence
from itertools import groupby, zip_longest

from dflash_bench.metrics.registry import spec
from dflash_bench.metrics.summary import figure
from dflash_bench.model import (
    Better,
    Change,
    Comparison,
    Interval,
    Judgements,
    RunMetrics,
    Sides,
    Statistic,
    Unit,
    Verdict,
)
from dflash_bench.report.causes import CausePair, dry_causes, dry_pairs, host_waits, late_wait_pairs, paired
from dflash_bench.report.changes import Tone, change_texts, key_changes, pair_text, pooled_changes, tone
from dflash_bench.report.headline import sides_headline
from dflash_bench.report.sheets import (
    MAX_CAUSES,
    Detail,
    Report,
    Sheet,
    by_section,
    captured,
    cut,
    first_warnings,
    fitted,
    identity,
    left_out,
    main_ranges,
    warning_lines,
)
from dflash_bench.report.sides import run_metrics, run_rows, runs_note
from dflash_bench.report.table_sheets import tracing_sheet
from dflash_bench.report.units import MISSING, milliseconds, rank_text, readable, symbol, text
from dflash_bench.report.verdicts import verdict_line, verdict_sheet
from dflash_bench.stats.composition import composition

_ARROW = {Better.LOWER: "↓", Better.HIGHER: "↑", Better.NONE: ""}
_BY_RANK = (
    "step.period",
    "host.busy_per_step",
    "gpu.dry_per_step",
    "step.lead",
    "alloc.step_share",
    "dp.straggler_share",
)
_CAUSES_ON_SCREEN = 3


def comparison_report(
    comparison: Comparison, judgements: Judgements | None = None, detail: Detail | None = None
) -> Report:
    """Base against candidate as closely as asked; verdicts are shown where there are any."""
    sides, detail = comparison.sides, detail or Detail()
    headline = sides_headline(comparison.sides, judgements, comparison.findings)
    warnings = list(warning_texts(comparison))
    title = " → ".join(_names(sides))
    if detail.is_full:
        return _full_report(comparison, judgements, detail, Report(title, headline.lines, (), tuple(warnings)))
    if detail.is_close:
        changes = [c for c in comparison.changes if detail.shows(c.metric, c.rank)]
        sheets = [_changes_sheet(name, own) for name, own in by_section(changes, lambda c: c.metric)]
        verdicts = [] if judgements is None else [verdict_sheet(judgements, detail)]
        return Report(title, headline.lines, tuple(s for s in (*sheets, *verdicts) if s.rows))
    lines = [*headline.lines, *_ranks_lines(comparison, judgements)]
    if are_steps_unlike(comparison):
        lines += kinds_lines(sides, ("base", "candidate"))
    short = (_screen_sheet(comparison, judgements), _screen_causes(sides))
    words = shlex.join(named_sides(sides))
    following = (f"dflash-bench report {words}",)
    shown = tuple(s for s in short if s.rows)
    return fitted(Report(title, tuple(lines), shown, first_warnings(warnings), following))


# ── one screen ───────────────────────────────────────────────────────────────────────────────────────────────────────


def _screen_sheet(comparison: Comparison, judgements: Judgements | None) -> Sheet:
    """The figures that answer first."""
    rows = []
    judged_changes = [(c, judgements.find(c.metric, c.rank) if judgements else None) for c in key_changes(comparison)]
    # a small screen shows the first rows: what moved is among them, behind what a comparison is about
    first, others = judged_changes[:1], judged_changes[1:]
    others.sort(key=lambda each: tone(each[1]) not in (Tone.BETTER, Tone.WORSE))
    for change, judged in (*first, *others):
        difference, span = change_texts(change)
        name = f"{change.metric} {_ARROW[change.better]}".strip()
        verdict = judged.verdict.value if judged else ""
        if verdict in (Verdict.REMOVED, Verdict.NEW) and not spec(change.metric).is_family:
            # a range can go; a figure of every run is only unknown
            verdict = "one side only"
        rows.append((name, pair_text(change), difference or MISSING, span or MISSING, verdict))
    columns = ("metric (better ↑↓)", "base → candidate", "change", "95 % interval", "verdict")
    return Sheet("", columns, tuple(rows), (columns[0], "verdict"))


def _screen_causes(sides: Sides) -> Sheet:
    """The first rows of both cause tables, per step; of waits what made launches late, where that is told."""
    rows = [
        [(f"{what} {p.place}", *_per_step(p)) for p in pairs[:_CAUSES_ON_SCREEN]]
        for what, pairs in (("GPU dry", dry_pairs(sides)), ("wait", late_wait_pairs(sides)))
    ]
    # in turns, so that a small screen has the first of both
    mixed = tuple(row for both in zip_longest(*rows) for row in both if row)
    return Sheet("", ("which code", "base a step", "candidate a step"), mixed, ("which code",))


def _per_step(pair: CausePair) -> tuple[str, str]:
    base, candidate, unit = readable(pair.base_ns, pair.candidate_ns, unit=Unit.NS)
    return tuple(MISSING if not own else f"{own_text} {unit}" for own, own_text in (  # type: ignore[return-value]
        (pair.base_ns, base), (pair.candidate_ns, candidate)
    ))  # fmt: skip


def _ranks_lines(comparison: Comparison, judgements: Judgements | None) -> Iterator[str]:
    """How the ranks share in it, and who keeps the others waiting."""
    ranked = [c for c in comparison.changes if c.metric == "step.period" and c.rank is not None and c.ratio is not None]
    if len(ranked) < 2:
        return
    if judgements is not None:
        verdicts = [j.verdict.value for c in ranked if (j := judgements.find(c.metric, c.rank)) is not None]
        counts = ", ".join(f"{verdicts.count(v)} {v}" for v in dict.fromkeys(verdicts))
        worst = max(ranked, key=lambda c: c.ratio or 0.0)
        yield f"step by rank: {counts}; rank {worst.rank} gained least, {pair_text(worst)} ({change_texts(worst)[0]})"
    told = [line for run in (comparison.base, comparison.candidate) if (line := _straggler(run))]
    if told:
        yield f"last to agree: {' → '.join(told)}"


def _straggler(run: RunMetrics) -> str:
    shares = [(figure(m) or 0.0, m.rank) for m in run.metrics if m.name == "dp.straggler_share"]
    tax = run.find("dp.agreement_tax", None)
    if not shares:
        return ""
    share, rank = max(shares, key=lambda s: s[0])
    cost = "" if tax is None else " ({} {} a step)".format(*readable(figure(tax), unit=Unit.NS))
    return f"rank {rank} in {share:.0%}{cost}".replace("%", " %")


# ── in full ──────────────────────────────────────────────────────────────────────────────────────────────────────────


def _full_report(comparison: Comparison, judgements: Judgements | None, detail: Detail, short: Report) -> Report:
    sides = comparison.sides
    infos = comparison.base.info, comparison.candidate.info
    num_ranks = len({rank for info in infos for rank in info.ranks})
    is_ranked = detail.is_ranked(num_ranks)
    chosen = comparison.changes if is_ranked and num_ranks > 1 else pooled_changes(comparison)
    changes = [c for c in chosen if not _is_full_coverage(c)]
    verdicts = [] if judgements is None else [verdict_sheet(judgements, detail, is_per_rank=is_ranked)]
    sheets = (
        _screen_sheet(comparison, judgements),
        _runs_sheet(sides),
        _ranks_sheet(comparison),
        *_cause_sheets(sides),
        *verdicts,
        *(_changes_sheet(title, own) for title, own in by_section(changes, lambda c: c.metric)),
        tracing_sheet([run for _, runs in sides.named for run in runs]),
    )
    lines = (
        *short.lines,
        *(f"{side}: {identity(i)}; {captured(i)}" for side, i in zip(("base", "candidate"), infos, strict=True)),
        *([note] if (note := runs_note(sides)) else []),
        *kinds_lines(sides, ("base", "candidate")),
        *([verdict_line(judgements)] if judgements else []),
        *_ranks_lines(comparison, judgements),
        *_tracing_lines(sides),
    )
    return Report(short.title, lines, tuple(s for s in sheets if s.rows), short.warnings)


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


def _is_full_coverage(change: Change) -> bool:
    """Whether it only says that nothing is missing on either side."""
    full = 0.0 if change.statistic is Statistic.VALUE else 1.0
    is_coverage = change.metric.startswith(("coverage.", "gpu_work_without_launch"))
    return is_coverage and change.base in (full, None) and change.candidate in (full, None)


def warning_texts(comparison: Comparison) -> Iterator[str]:
    """Everything a reader must know of the comparison and of every run, as lines, the comparison's first."""
    yield from warning_lines(comparison.findings)
    for side, runs in comparison.sides.named:
        for run in runs:
            where = f"{side} {run.info.run}" if len(runs) > 1 else side
            yield from (f"{where}: {line}" for line in warning_lines(run.findings))


def named_sides(sides: Sides) -> list[str]:
    """The sides as words of the command line; one word where both are the two arms of the same runs."""
    if _is_duet(sides):
        return [",".join(_runs(sides.base))]
    return [
        ",".join(f"{r.info.run}:{r.info.arm}" if r.info.arms else r.info.run for r in runs) for _, runs in sides.named
    ]


def _is_duet(sides: Sides) -> bool:
    return len(sides.base[0].info.arms) == 2 and _runs(sides.base) == _runs(sides.candidate)


def _runs(runs: Sequence[RunMetrics]) -> list[str]:
    return sorted(run.info.run for run in runs)


def _names(sides: Sides) -> list[str]:
    if not _is_duet(sides):
        return [_name(runs) for _, runs in sides.named]
    names, (base, candidate) = _runs(sides.base), (sides.base[0].info, sides.candidate[0].info)
    stem = names[0] if len(names) == 1 else re.sub(r"-r\d+$", "", names[0])
    return [f"{stem}: {base.arm}", str(candidate.arm)]


def _name(runs: Sequence[RunMetrics]) -> str:
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
    columns = ("metric", "better", "rank", "base", "candidate", "unit", "difference", "change", "95 % interval", "n")
    rest = len({c.metric for c in changes}) - len({c.metric for c in shown})
    return Sheet(title, columns, tuple(rows), left=("metric", "unit"), note=left_out(rest))


def _weight(c: Change) -> float:
    """About how much time a range took, on the side where it took more."""
    return max((c.base or 0.0) * c.base_n, (c.candidate or 0.0) * c.candidate_n)


def _figures(c: Change) -> tuple[str, ...]:
    difference = text(c.difference, c.unit, is_signed=True)
    share, _ = change_texts(c)
    return (
        text(c.base, c.unit),
        text(c.candidate, c.unit),
        symbol(c.unit),
        f"{difference} points" if c.unit is Unit.FRACTION and c.difference is not None else difference,
        share if share.endswith("%") else MISSING,
        _interval(c.interval, c.unit),
        f"{c.base_n:,}" if c.base_n == c.candidate_n else f"{c.base_n:,} / {c.candidate_n:,}",
    )


def _interval(found: Interval | None, unit: Unit) -> str:
    """An interval of a difference, in the display unit."""
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
    rows = [
        (str(rank), *(pair_text(c) if (c := found.get((name, rank))) else MISSING for name in names)) for rank in ranks
    ]
    return Sheet("Ranks side by side (base → candidate)", ("rank", *names), tuple(rows))


def _tracing_lines(sides: Sides) -> Iterator[str]:
    """Where there is nothing to say about the cost of tracing, that."""
    without = {
        side: runs
        for side, runs in sides.named
        if not any(table.name == "tracing.cost" and table.rows for run in runs for table in run.tables)
    }
    # only the built-in loop can be run again without a tool
    is_own = any("steps_asked" in run.info.settings for runs in without.values() for run in runs)
    if without:
        whose = "" if len(without) == 2 else f" for the {next(iter(without))}"
        yield f"tracing cost not measured{whose}" + (": run with --unprofiled" if is_own else "")


def _cause_sheets(sides: Sides) -> Iterator[Sheet]:
    """The cause tables of both sides beside each other, over all ranks, in order of the larger total."""
    for title, table, words in (
        ("What the host did while the GPU was dry", dry_causes, ("cause",)),
        ("Which code made the host wait", host_waits, ("range path", "call")),
    ):
        both = [(table(runs[0]), 1) for _, runs in sides.named]
        rows = []
        for pair in paired(both[0], both[1]):
            names = (pair.cause.where, pair.cause.call)[: len(words)]
            cells = [
                cell
                for c in (pair.base, pair.candidate)
                for cell in ((MISSING, MISSING) if c is None else (f"{c.count:,}", milliseconds(c.total_ns)))
            ]
            late = [
                MISSING if c is None or c.late_ns is None else milliseconds(c.late_ns)
                for c in (pair.base, pair.candidate)
            ]
            rows.append((*names, *cells, *(late if len(words) == 2 else [])))
        columns = (*words, "base count", "base ms", "candidate count", "candidate ms")
        columns += ("base late ms", "candidate late ms") if len(words) == 2 else ()
        yield cut(Sheet(title, columns, tuple(rows), words), MAX_CAUSES)
