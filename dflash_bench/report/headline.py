"""The answer first: what changed, how much, how sure, on what, and why, in three lines made from the verdicts.

`sides_headline` speaks of two sides, `run_headline` of one run. Terminal, page, Markdown and the gate's comment
show the same lines.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np

from dflash_bench.errors import quoted
from dflash_bench.metrics.reading import Reading
from dflash_bench.metrics.summary import figure
from dflash_bench.model import Finding, Judgement, Judgements, RunInfo, RunMetrics, Sides, Unit
from dflash_bench.report.causes import (
    GONE,
    WORTH_NAMING,
    Cause,
    CausePair,
    by_line,
    dry_causes,
    dry_pairs,
    host_waits,
    late_wait_pairs,
)
from dflash_bench.report.changes import Tone, change_texts, pair_text, tone
from dflash_bench.report.sides import pooled
from dflash_bench.report.units import percent, readable
from dflash_bench.run.request import is_repeatable

_LEADING = ("step.period", "tokens.per_s")
"""What a comparison is about, the first that there is a verdict on."""
_EXPLAINING = ("host.busy_per_step", "gpu.dry_per_step", "cost.prepare_for_decode", "step.lead", "alloc.step_share")
"""What is said behind it, where it moved; the first two of them."""
_NAMES = {
    "step.period": "step",
    "tokens.per_s": "decoding",
    "host.busy_per_step": "host busy",
    "gpu.dry_per_step": "GPU dry",
    "cost.prepare_for_decode": "prepare_for_decode",
    "step.lead": "launch lead",
    "alloc.step_share": "steps that allocate",
    "dp.agreement_tax": "slowest rank costs",
}
"""Metrics as a sentence calls them."""


@dataclass(frozen=True, slots=True)
class Headline:
    """``what`` answers, ``why`` names the code, ``basis`` says on what it rests, ``remedy`` what would decide."""

    tone: Tone
    what: str
    why: tuple[str, ...]
    basis: str
    remedy: str = ""

    @property
    def lines(self) -> tuple[str, ...]:
        """All of it, in the order in which it is read."""
        return tuple(line for line in (self.what, self.remedy, *self.why, self.basis) if line)


def sides_headline(sides: Sides, judgements: Judgements | None, findings: Sequence[Finding] = ()) -> Headline:
    """The answer to what changed between two sides. It never says more than the verdicts do.

    ``judgements`` None: the sides are too unlike for any, and ``findings`` say in what.
    """
    basis = _basis(sides)
    if judgements is None:
        refusal = next((f.text for f in findings if "no verdicts" in f.text), "the runs are too unlike")
        return Headline(Tone.OPEN, f"Not comparable: {refusal}", (), basis)
    judged = _over_all_ranks(judgements)
    leading = next((judged[name] for name in (*_LEADING, *_EXPLAINING) if name in judged), None)
    if leading is None:
        return Headline(Tone.OPEN, "Nothing to compare: the runs have no judged figure in common", (), basis)
    is_one_rank = len({j.rank for j in judgements.each}) == 1
    found, moved = tone(leading), _moved_besides(judged, leading)
    first, others = f"{_opening(leading)} {_full(leading, is_one_rank=is_one_rank)}", _short_texts(moved, found)
    remedy = _remedy(leading, sides) if found is Tone.OPEN else ""
    if leading.verdict == "described" and moved:
        # what was judged comes first
        found = tone(moved[0])
        first, others = f"{_opening(moved[0])} {others[0]}", [*others[1:], f"{first[0].lower()}{first[1:]}"]
    what = "; ".join([first, *others])
    why = () if sides.is_baseline else tuple(_reasons(sides))
    return Headline(found, what, why, basis, remedy)


def _over_all_ranks(judgements: Judgements) -> dict[str, Judgement]:
    """Metric → the verdict over all ranks; where there is none, that of the rank that is worst off."""
    order = (Tone.SAME, Tone.OPEN, Tone.BETTER, Tone.WORSE)
    ranked = sorted((j for j in judgements.each if j.rank is not None), key=lambda j: order.index(tone(j)))
    return {j.metric: j for j in (*ranked, *(j for j in judgements.each if j.rank is None))}


_OPENINGS = {
    ("step.period", Tone.BETTER): "Faster:",
    ("step.period", Tone.WORSE): "Slower:",
    ("tokens.per_s", Tone.BETTER): "Faster:",
    ("tokens.per_s", Tone.WORSE): "Slower:",
}


def _opening(leading: Judgement) -> str:
    found = tone(leading)
    if found is Tone.OPEN:
        return "Described, not judged:" if leading.verdict == "described" else "Cannot tell yet:"
    plain = {Tone.BETTER: "Better:", Tone.WORSE: "Worse:", Tone.SAME: "As fast as before:"}
    return _OPENINGS.get((leading.metric, found), plain[found])


def _full(judged: Judgement, *, is_one_rank: bool) -> str:
    """A figure with its change and its interval."""
    where = "" if judged.rank is None or is_one_rank else f" on rank {judged.rank}"
    difference, span = change_texts(judged)
    sure = f", 95 % {span}" if span else ", exact" if judged.is_exact else ""
    return f"{_NAMES.get(judged.metric, judged.metric)}{where} {pair_text(judged)} ({difference}{sure})"


def _moved_besides(judged: dict[str, Judgement], leading: Judgement) -> list[Judgement]:
    """What moved besides and explains it, at most two figures."""
    return [
        judged[name]
        for name in _EXPLAINING
        if name in judged and name != leading.metric and tone(judged[name]) in (Tone.BETTER, Tone.WORSE)
    ][:2]


def _short_texts(moved: Sequence[Judgement], led: Tone) -> list[str]:
    """What moved, in short; ``led``: the tone of what was said before."""
    return [_short(j, is_but=tone(j) is Tone.WORSE and led in (Tone.BETTER, Tone.SAME)) for j in moved]


def _short(judged: Judgement, *, is_but: bool) -> str:
    per = " a step" if judged.metric.endswith("_per_step") else ""
    return f"{'but ' * is_but}{_NAMES[judged.metric]} {pair_text(judged)}{per}"


def _remedy(leading: Judgement, sides: Sides) -> str:
    """What would decide."""
    base, candidate = sides.base[0].info, sides.candidate[0].info
    is_own = is_repeatable(base) and is_repeatable(candidate)
    if leading.further is not None:
        many = leading.further != 1
        more = f"process{'es' * many}" if base.arms else f"run{'s' * many} a side"
        repeats = leading.base_runs + leading.further
        return f"{leading.further} more {more} would decide: dflash-bench run --repeats {repeats}"
    if min(leading.base_runs, leading.candidate_runs) < 2:
        how = "several of each, in turns"
        if is_own and base.arm != candidate.arm:
            how = f"dflash-bench run --arm {base.arm} --arm {candidate.arm} --workload {base.workload}"
        elif is_own:
            how = "dflash-bench run --repeats 5"
        return f"one run a side cannot tell a change from drift; what would decide: {how}"
    more, longer = ("processes", "--pairs") if base.arms else ("runs", "--steps")
    return (
        f"{leading.reason}; more {more} of this length would hardly decide, longer ones may: dflash-bench run {longer}"
    )


def _reasons(sides: Sides) -> Iterator[str]:
    """What the host no longer waits for, or newly does, and what the GPU no longer, or newly, runs dry for."""
    yield from _moved(dry_pairs(sides), "the GPU running dry in", "dry time")
    yield from _moved(late_wait_pairs(sides), "the wait in", "waits")


def _moved(pairs: Sequence[CausePair], what: str, of_all: str) -> Iterator[str]:
    pairs = [p for p in pairs if not p.is_rare]
    totals = sum(p.base_ns for p in pairs), sum(p.candidate_ns for p in pairs)
    gone = [p for p in pairs if p.base_ns >= WORTH_NAMING * totals[0] > 0 and p.candidate_ns <= GONE * p.base_ns]
    new = [p for p in pairs if p.candidate_ns >= WORTH_NAMING * totals[1] > 0 and p.base_ns <= GONE * p.candidate_ns]
    if gone:
        share = percent(sum(p.base_ns for p in gone) / totals[0], is_signed=False)
        yield f"gone: {what} {_listed([p.cause.range_name for p in gone])} ({share} of {of_all})"
    if new and totals[1] > totals[0]:
        share = percent(sum(p.candidate_ns for p in new) / totals[1], is_signed=False)
        yield f"new: {what} {_listed([p.cause.range_name for p in new])} ({share} of {of_all})"


def _listed(names: Sequence[str], limit: int = 3) -> str:
    own = list(dict.fromkeys(names))
    rest = len(own) - limit
    shown = own[:limit] + ([f"{rest} more"] if rest > 0 else [])
    return shown[0] if len(shown) == 1 else f"{', '.join(shown[:-1])} and {shown[-1]}"


def _basis(sides: Sides) -> str:
    """Device, ranks, workload, how many runs, and what tracing cost."""
    base, candidate = sides.base[0].info, sides.candidate[0].info
    num = len(sides.base), len(sides.candidate)
    pairs = {found for run in sides.base if (found := _num_pairs(run))}
    if pairs:
        runs = f"{num[0]} process{'es' * (num[0] != 1)} × {' and '.join(map(str, sorted(pairs)))} pairs of blocks"
    else:
        runs = "one run a side" if num == (1, 1) else f"{num[0]} + {num[1]} runs"
    engine = _same(*(_engine_name(info) for info in (base, candidate) if _engine(info)[0]))
    parts = [engine, _machine(base, candidate), _same(base.workload, candidate.workload)]
    parts += [runs, _steps(sides), _tracing(sides)]
    return "on " + ", ".join(p for p in parts if p)


def _num_pairs(run: RunMetrics) -> int:
    """How many pairs of blocks a run in which arms take turns consists of; 0 for a run of one arm."""
    found = (m.pair for m in run.metrics if m.pair is not None and m.rank is not None)
    return max((len(np.unique(pair)) for pair in found), default=0)


def _machine(base: RunInfo, candidate: RunInfo) -> str:
    device = _same(base.device, candidate.device) or "an unknown device"
    num = {len(base.ranks), len(candidate.ranks)}
    return f"{device} × {' and '.join(str(n) for n in sorted(num))}"


def _same(*values: str | None) -> str:
    return " and ".join(dict.fromkeys(value for value in values if value))


_ENGINES = {"sglang": "SGLang", "vllm": "vLLM"}


def _engine_name(info: RunInfo) -> str:
    """What ran, with its version, as far as the capture says so."""
    if "steps_asked" in info.settings:
        return "the built-in loop"
    name, version = _engine(info)
    return f"{_ENGINES.get(name, name)} {version}".strip()


def _engine(info: RunInfo) -> tuple[str, str]:
    name, _, version = str(info.settings.get("engine", "")).partition(" ")
    return name, version.removeprefix("unknown")


def _steps(sides: Sides) -> str:
    runs = (*sides.base, *sides.candidate)
    # of each block of steps the last has no period
    found = {
        m.n + (_num_pairs(run) or 1)
        for run in runs
        for m in run.metrics
        if m.name == "step.period" and m.rank is not None
    }
    if not found:
        return ""
    few, most = min(found), max(found)
    what = f"{few:,} steps each" if few == most else f"{few:,} to {most:,} steps each"
    ranges = {run.step for run in runs if _engine(run.info)[0]}
    return f"{what} (the range {_same(*ranges)})" if ranges else what


def _tracing(sides: Sides) -> str:
    """By how much the recorder made steps longer, where runs were made with and without it: the largest of them."""
    ratios = [
        float(row[table.columns.index("ratio")] or 1.0)
        for run in (*sides.base, *sides.candidate)
        for table in run.tables
        if table.name == "tracing.cost"
        for row in table.rows
        if row[0] is None
    ]
    return f"tracing {percent(max(ratios) - 1)}" if ratios else ""


# ── one run ──────────────────────────────────────────────────────────────────────────────────────────────────────────

_AHEAD = 0.05
"""Dry share of a step up to which the GPU counts as fed."""
_APART = 0.05
"""How far a median may lie from the mean that stands for it."""


def run_headline(run: RunMetrics, reading: Reading | None = None) -> Headline:
    """Whether the GPU waits for the host, for what, and what engine and what step that is about."""
    info, reading = run.info, reading or Reading()
    step = pooled(run, "step.period")
    basis = _about(info, run.step or reading.step, 0 if step is None else step.n + max(len(info.ranks), 1))
    if step is None:
        return Headline(Tone.OPEN, _without_steps(run, reading), tuple(_dry_for(run)), basis)
    period = float(step.values.mean())
    busy, dry = (_mean(run, name) for name in ("host.busy_per_step", "gpu.dry_per_step"))
    (length, unit) = readable(period, unit=Unit.NS)
    parts = [f"step {length} {unit}{_median(figure(step), period)}"]
    if busy is not None:
        (shown, unit) = readable(busy, unit=Unit.NS)
        parts.append(f"host busy {shown} {unit}")
    if dry is None:
        return Headline(Tone.OPEN, f"{'; '.join(parts)}; no GPU work to hold it against", (), basis)
    (shown, unit) = readable(dry, unit=Unit.NS)
    parts.append(f"GPU dry {shown} {unit} a step ({percent(dry / period, is_signed=False)})")
    if dry <= _AHEAD * period:
        return Headline(
            Tone.SAME, f"The host runs ahead of the GPU: {'; '.join(parts)}", tuple(_affordable(run)), basis
        )
    return Headline(Tone.WORSE, f"The GPU waits for the host: {'; '.join(parts)}", tuple(_dry_for(run)), basis)


def _median(median: float | None, mean: float) -> str:
    """Said where it is far from the mean, which the other figures of the sentence are."""
    if median is None or abs(median - mean) <= _APART * mean:
        return ""
    (shown, unit) = readable(median, unit=Unit.NS)
    return f" on average (median {shown} {unit})"


def _without_steps(run: RunMetrics, reading: Reading) -> str:
    """What can be said of a capture as a whole."""
    found = f"No steps: no range is named {quoted(reading.step)}"
    dry = pooled(run, "gpu.dry_per_s")
    if dry is None:
        return found
    share = percent(float(dry.values.mean()) / 1e9, is_signed=False)
    return f"{found}; over the whole capture the GPU was dry {share} of the time"


def proposed_options(run: RunMetrics) -> list[str]:
    """What the warnings of a run propose to type, one of a kind: the first, of numbers the largest of all ranks."""
    found: dict[str, str] = {}
    for option in (f.option for f in run.findings if f.option):
        kind, value = option.split(maxsplit=1)
        if kind not in found or (value.isdigit() and int(value) > int(found[kind])):
            found[kind] = value
    return [f"{kind} {value}" for kind, value in found.items()]


def _mean(run: RunMetrics, name: str) -> float | None:
    found = pooled(run, name)
    return None if found is None else float(found.values.mean())


def _about(info: RunInfo, step_range: str, num_steps: int) -> str:
    engine = _engine_name(info)
    arm = f"arm {info.arm}" if info.arm and info.arm != _engine(info)[0] else ""
    named = (arm, f"workload {info.workload}" if info.workload else "")
    ranks = len(info.ranks)
    step = f"a step is the range {step_range}, {num_steps:,} of them" if num_steps else ""
    machine = f"{info.device or 'an unknown device'} × {ranks}"
    return ", ".join(p for p in (engine, *named, machine, step) if p)


def _affordable(run: RunMetrics) -> Iterator[str]:
    """Where a host that is ahead spends its waiting: good, and said so."""
    waits = host_waits(run)
    total = sum(c.total_ns for c in waits)
    if total:
        most = max(waits, key=lambda c: c.total_ns)
        share = percent(most.total_ns / total, is_signed=False)
        yield f"it waits in {most.code} ({share} of its waits) because it is ahead: that costs nothing"


def _dry_for(run: RunMetrics) -> Iterator[str]:
    causes = dry_causes(run)
    total = sum(c.total_ns for c in causes)
    if total:
        named = [c for c in causes if c.total_ns >= WORTH_NAMING * total][:3] or causes[:1]
        shares = [f"{c.place} ({_share(c, total)}{_line(run, c) if c is named[0] else ''})" for c in named]
        yield f"while it was dry the host was {', '.join(shares)}"


def _line(run: RunMetrics, cause: Cause) -> str:
    """The line of code that most of a cause lies in, where the capture tells."""
    first = next(iter(by_line(run, [cause])), cause)
    return f", above all {first.line}" if first.line else ""


def _share(cause: Cause, total: int) -> str:
    return percent(cause.total_ns / total, is_signed=False)
