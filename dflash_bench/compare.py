"""Compare two runs, metric by metric and rank by rank. No verdicts: figures, differences and their intervals."""

from __future__ import annotations

from collections.abc import Iterator

from dflash_bench.metrics.registry import position, spec
from dflash_bench.metrics.summary import figure
from dflash_bench.model import Change, Comparison, Finding, Metric, RunInfo, RunMetrics
from dflash_bench.stats.bootstrap import difference_interval


def compare(base: RunMetrics, candidate: RunMetrics) -> Comparison:
    """Everything that at least one of the runs has, side by side; what differs in their circumstances, as findings."""
    ours = {(m.name, m.rank): m for m in base.metrics}
    theirs = {(m.name, m.rank): m for m in candidate.metrics}
    keys = sorted({*ours, *theirs}, key=lambda k: (position(k[0]), k[0], -1 if k[1] is None else k[1]))
    changes = tuple(change(ours.get(key), theirs.get(key)) for key in keys)
    return Comparison(base, candidate, changes, tuple(_circumstances(base.info, candidate.info)))


def change(base: Metric | None, candidate: Metric | None) -> Change:
    """Base against candidate; one of the two may be missing."""
    either = base or candidate
    assert either is not None
    old = figure(base) if base else None
    new = figure(candidate) if candidate else None
    both = base is not None and candidate is not None and old is not None and new is not None
    return Change(
        metric=either.name,
        rank=either.rank,
        unit=either.unit,
        better=spec(either.name).better,
        statistic=either.statistic,
        base=old,
        candidate=new,
        base_n=base.n if base else 0,
        candidate_n=candidate.n if candidate else 0,
        difference=new - old if old is not None and new is not None else None,
        ratio=_ratio(old, new),
        interval=difference_interval(base, candidate) if both and base and candidate else None,
    )


def _ratio(old: float | None, new: float | None) -> float | None:
    # a ratio of a negative to a positive lead means nothing
    if old is None or new is None or old == 0 or (old < 0) != (new < 0):
        return None
    return new / old


def _circumstances(base: RunInfo, candidate: RunInfo) -> Iterator[Finding]:
    pairs = {
        "workload": (base.workload, candidate.workload),
        "device": (base.device, candidate.device),
        "world": (base.world or len(base.ranks), candidate.world or len(candidate.ranks)),
        "recorder": tuple(" and ".join(sorted({c.recorder for c in r.captures})) for r in (base, candidate)),
        "nsys version": tuple(
            " and ".join(sorted({str(c.exporter_version) for c in r.captures})) for r in (base, candidate)
        ),
    }
    for what, (old, new) in pairs.items():
        if old != new:
            text = f"the runs differ in {what}: {old or 'not stated'} against {new or 'not stated'}"
            yield Finding(f"different_{what.replace(' ', '_')}", None, 1, text)
