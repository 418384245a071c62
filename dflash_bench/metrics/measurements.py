"""What was measured of one process: samples under the names of their metrics, samples behind tables, warnings."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np

from dflash_bench.findings import finding
from dflash_bench.metrics.events.arrays import by_code, changes
from dflash_bench.metrics.registry import spec
from dflash_bench.model import BoolArray, Finding, FloatArray, IntArray, Metric, Value

_Label = tuple[str, ...]
Causes = dict[_Label, list[IntArray]]
"""The nanoseconds, int [n], that each label takes the blame for."""

_FITS = 1 << 31


@dataclass(frozen=True, slots=True)
class Samples:
    """The samples of one metric; the fields are those of `Metric`. Whole numbers lie in four bytes where they fit."""

    values: IntArray | FloatArray | BoolArray
    step: IntArray | None = None
    group: BoolArray | None = None
    num_samples: int | None = None
    coverage: float | None = None
    pair: IntArray | None = None

    @property
    def n(self) -> int:
        return len(self.values) if self.num_samples is None else self.num_samples


@dataclass(frozen=True, slots=True)
class Coverage:
    """The share that figures could see of what they rest on; None: they are withheld.

    ``launches``: leads, stalls, dry time, of graph launches no more than of the others among which they are. ``calls``:
    waits, costs, counts.
    """

    launches: float | None = None
    calls: float | None = None


@dataclass(frozen=True, slots=True)
class Measurements:
    """What the meters of one process fill in. ``pair_of_step`` int [steps]: in a duet, the pair that each is from.

    ``causes`` are samples behind tables, ``rows`` whole rows of tables, without the rank.
    """

    rank: int | None
    pair_of_step: IntArray | None = None
    coverage: Coverage = Coverage()
    metrics: dict[str, Samples] = field(default_factory=dict)
    causes: dict[str, Causes] = field(default_factory=dict)
    rows: dict[str, list[tuple[Value, ...]]] = field(default_factory=dict)
    findings: list[Finding] = field(default_factory=list)

    def add(
        self,
        name: str,
        values: IntArray | FloatArray | BoolArray,
        step: IntArray | None = None,
        group: BoolArray | None = None,
        coverage: float | None = None,
        pair: IntArray | None = None,
    ) -> None:
        """Add the samples of a metric, each with the step it belongs to, or else its pair."""
        if step is not None and self.pair_of_step is not None:
            pair = self.pair_of_step[step]
        step = None if step is None else _small(step)
        self.metrics[name] = Samples(_small(values), step, group, None, coverage, pair)

    def add_value(self, name: str, value: float, num_samples: int | None = None, coverage: float | None = None) -> None:
        """Add a metric that is one value, and say how many samples it rests on."""
        self.metrics[name] = Samples(np.array([value], np.float64), num_samples=num_samples, coverage=coverage)

    def blame(
        self, table: str, keys: Sequence[tuple[Sequence[str], IntArray]], ns: IntArray, separator: str | None = None
    ) -> None:
        """Add nanoseconds to what a table blames on labels.

        Each key is (names, code int [n]), one for each part of a label; code −1 means ``-``. ``separator`` makes one
        part of several.
        """
        combined = np.zeros(len(ns), np.int64)
        for names, code in keys:
            combined = combined * (len(names) + 1) + code + 1
        order = by_code(combined)
        combined = combined[order]
        first = np.flatnonzero(changes(combined)) if len(combined) else combined
        causes = self.causes.setdefault(table, {})
        parts = np.split(_small(ns)[order], first[1:]) if len(first) else []
        for key, part in zip(combined[first].tolist(), parts, strict=True):
            label: list[str] = []
            for names, _ in reversed(keys):
                key, own = divmod(key, len(names) + 1)
                label.insert(0, "-" if own == 0 else names[own - 1])
            whole = tuple(label) if separator is None else (separator.join(label),)
            causes.setdefault(whole, []).append(part)

    def warn(self, code: str, count: int, **facts: object) -> None:
        """Add a warning: its sentence stands in `findings`."""
        self.findings.append(finding(code, self.rank, count, **facts))


def _small(values: Any) -> Any:
    if values.dtype != np.int64 or not len(values):
        return values
    return values.astype(np.int32) if values.min() >= -_FITS and values.max() < _FITS else values


def metric(
    name: str,
    rank: int | None,
    values: IntArray | FloatArray | BoolArray,
    *,
    block: IntArray | None = None,
    group: BoolArray | None = None,
    num_samples: int | None = None,
    coverage: float | None = None,
    pair: IntArray | None = None,
) -> Metric:
    """A metric with the unit and statistic of its registry entry."""
    known = spec(name)
    return Metric(
        name, rank, known.unit, known.statistic, np.asarray(values, np.float64), group,
        None if block is None else np.asarray(block, np.int64), num_samples, coverage, pair,
    )  # fmt: skip


def metric_of(name: str, rank: int | None, samples: Samples) -> Metric:
    """The metric of some samples."""
    return metric(
        name, rank, samples.values, block=samples.step, group=samples.group, num_samples=samples.num_samples,
        coverage=samples.coverage, pair=samples.pair,
    )  # fmt: skip


def in_a_row(same: Sequence[Samples]) -> Samples:
    """One metric of several processes or ranks as one, from the same samples: a step of one is no step of another."""
    if len(same) == 1:
        return same[0]
    steps, used = [], 0
    for found in same:
        if found.step is not None:
            steps.append(found.step.astype(np.int64) + used)
            used += int(found.step.max(initial=-1)) + 1
    covered = [(found.coverage, found.n) for found in same if found.coverage is not None]
    total = sum(n for _, n in covered)
    return Samples(
        values=np.concatenate([found.values for found in same]),
        step=np.concatenate(steps) if len(steps) == len(same) else None,
        group=_all_or_none([found.group for found in same]),
        num_samples=sum(found.n for found in same) if same[0].num_samples is not None else None,
        coverage=sum(c * n for c, n in covered) / total if total else None,
        pair=_all_or_none([found.pair for found in same]),
    )


def _all_or_none(parts: Sequence[Any]) -> Any:
    return None if any(part is None for part in parts) else np.concatenate(parts)


def merged(parts: Sequence[Causes]) -> Causes:
    """The samples behind a table of several processes or ranks as one."""
    samples: Causes = {}
    for part in parts:
        for label, values in part.items():
            samples.setdefault(label, []).extend(values)
    return samples


def blame_rows(causes: Causes, rank: int | None) -> list[tuple[Value, ...]]:
    """(rank, *label, count, total, p50) of each label, the largest total first."""
    rows: list[tuple[int, tuple[Value, ...]]] = []
    for label, parts in causes.items():
        values = np.concatenate(parts)
        total = int(values.sum(dtype=np.int64))
        rows.append((total, (rank, *label, len(values), total, float(np.median(values)))))
    return [row for _, row in sorted(rows, key=lambda item: (-item[0], str(item[1])))]


def with_value(samples: Samples, value: float) -> Samples:
    """The same with one value in place of several."""
    return replace(samples, values=np.array([value]))
