"""Samples of one process, collected window by window under the names of their metrics."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np

from dflash_bench.metrics.registry import spec
from dflash_bench.metrics.shelf import Growing, Part, Shelf, let_go, together
from dflash_bench.model import BoolArray, FloatArray, IntArray, Metric


@dataclass(frozen=True, slots=True)
class Sampled:
    """A metric of one process or rank, its samples still in parts. The fields are those of `Metric`."""

    name: str
    values: tuple[Part, ...]
    block: tuple[Part, ...] | None = None
    group: tuple[Part, ...] | None = None
    num_samples: int | None = None
    coverage: float | None = None
    num_blocks: int = 0
    """One more than the highest block."""

    @property
    def n(self) -> int:
        return sum(part.count for part in self.values) if self.num_samples is None else self.num_samples

    @staticmethod
    def of(metric: Metric) -> Sampled:
        """A metric that was made at once."""
        return Sampled(
            name=metric.name,
            values=(Part.of(metric.values),),
            block=None if metric.block is None else (Part.of(metric.block),),
            group=None if metric.group is None else (Part.of(metric.group),),
            num_samples=metric.num_samples,
            coverage=metric.coverage,
            num_blocks=0 if metric.block is None else int(metric.block.max(initial=-1)) + 1,
        )

    def metric(self, rank: int | None, shelf: Shelf | None = None) -> Metric:
        """The metric with its samples in one place: on the shelf if there is one."""
        known, gather = spec(self.name), together if shelf is None else shelf.array
        return Metric(
            name=self.name,
            rank=rank,
            unit=known.unit,
            statistic=known.statistic,
            values=gather(self.values),
            group=None if self.group is None else gather(self.group),
            block=None if self.block is None else gather(self.block),
            num_samples=self.num_samples,
            coverage=self.coverage,
        )


def in_a_row(same: Sequence[Sampled]) -> Sampled:
    """One metric of several processes or ranks as one, from the same samples: a step of one is no step of another."""
    blocks: list[Part] = []
    used = 0
    for found in same:
        blocks += [part.shifted(used) for part in found.block or ()]
        used += found.num_blocks
    covered = [(found.coverage, found.n) for found in same if found.coverage is not None]
    total = sum(n for _, n in covered)
    return Sampled(
        name=same[0].name,
        values=tuple(part for found in same for part in found.values),
        block=tuple(blocks) if all(found.block is not None for found in same) else None,
        group=tuple(part for f in same for part in f.group or ()) if all(f.group is not None for f in same) else None,
        num_samples=sum(found.n for found in same) if same[0].num_samples is not None else None,
        coverage=sum(c * n for c, n in covered) / total if total else None,
        num_blocks=used,
    )


class _Columns:
    def __init__(self, shelf: Shelf | None) -> None:
        self.values, self.block = Growing(shelf, np.float64), Growing(shelf, np.int64)
        self.group = Growing(shelf, np.bool_)
        self.has_block = self.has_group = False
        self.num_blocks = 0
        self.num_samples: int | None = None


class Collector:
    """Where the samples of a process gather. With a shelf it holds some 50 KB a metric, whatever comes.

    In the file a sample takes 1 to 8 bytes, and another 4 where its step is kept with it.
    """

    def __init__(self, shelf: Shelf | None = None) -> None:
        self.shelf = shelf
        self.columns: dict[str, _Columns] = {}
        self.causes: dict[str, dict[tuple[str, ...], Growing]] = {}

    def add(
        self,
        name: str,
        values: IntArray | FloatArray | BoolArray,
        block: IntArray | None = None,
        group: BoolArray | None = None,
    ) -> None:
        """Add samples of a metric, in order; no samples still make the metric one that was measured."""
        columns = self.columns.setdefault(name, _Columns(self.shelf))
        columns.values.add(values)
        if block is not None:
            columns.has_block = True
            columns.block.add(block)
            columns.num_blocks = max(columns.num_blocks, int(block.max(initial=-1)) + 1)
        if group is not None:
            columns.has_group = True
            columns.group.add(group)

    def add_value(self, name: str, value: float, num_samples: int | None = None) -> None:
        """Set a metric that is one value, and say how many samples it rests on."""
        self.add(name, np.array([value]))
        self.columns[name].num_samples = num_samples

    def blame(self, table: str, label: tuple[str, ...], values: IntArray) -> None:
        """Add nanoseconds to what a table blames on a label."""
        self.causes.setdefault(table, {}).setdefault(label, Growing(self.shelf, np.int64)).add(values)

    def drop(self, names: Sequence[str], table: str) -> None:
        """Forget metrics and a table that turned out not to be worth showing. A name ending in ``*`` is a family."""
        for name in list(self.columns):
            if any(name == each or (each.endswith("*") and name.startswith(each[:-1])) for each in names):
                del self.columns[name]
        self.causes.pop(table, None)

    def sampled(self) -> list[Sampled]:
        """All metrics."""
        return [
            Sampled(
                name=name,
                values=columns.values.parts(),
                block=columns.block.parts() if columns.has_block else None,
                group=columns.group.parts() if columns.has_group else None,
                num_samples=columns.num_samples,
                num_blocks=columns.num_blocks,
            )
            for name, columns in self.columns.items()
        ]


def assembled(same: Sequence[tuple[int, Sampled]], shelf: Shelf | None) -> list[Metric]:
    """A metric of several ranks as one metric each, and one of all of them (rank None), which come first in the list.

    The ranks' samples are views of the pooled ones: there can be millions.
    """
    pooled = in_a_row([found for _, found in same]).metric(None, shelf)
    metrics, at = [pooled], 0
    for rank, found in same:
        n = sum(part.count for part in found.values)
        # the steps of the first rank are numbered as in the pooled metric
        own = replace(found, values=(), group=None, block=found.block if at else None).metric(rank, shelf)
        block = pooled.block[:n] if found.block is not None and pooled.block is not None and not at else own.block
        group = None if pooled.group is None else pooled.group[at : at + n]
        metrics.append(replace(own, values=pooled.values[at : at + n], block=block, group=group))
        at += n
    let_go(pooled.values)
    return metrics
