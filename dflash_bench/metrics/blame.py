"""Nanoseconds grouped by what they are blamed on: the samples behind every cause table."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np

from dflash_bench.metrics.quantiles import median
from dflash_bench.metrics.shelf import Part
from dflash_bench.metrics.work import by_code, changes
from dflash_bench.model import IntArray, Value

Label = tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Blame:
    """The nanoseconds, int64, that each label takes the blame for. 8 bytes a sample."""

    samples: dict[Label, tuple[Part, ...]]

    def rows(self, rank: int | None) -> list[tuple[Value, ...]]:
        """(rank, *label, count, total, p50) of each label, the largest total first."""
        rows: list[tuple[int, tuple[Value, ...]]] = []
        for label, parts in self.samples.items():
            total = sum(int(chunk.sum()) for part in parts for chunk in part.chunks())
            rows.append((total, (rank, *label, sum(part.count for part in parts), total, median(parts))))
        return [row for _, row in sorted(rows, key=lambda item: (-item[0], str(item[1])))]


def blamed(keys: Sequence[tuple[Sequence[str], IntArray]], value: IntArray) -> Iterator[tuple[Label, IntArray]]:
    """Each label that occurs, and the values blamed on it. Each key is (names, code int64 [n]); −1 means ``-``."""
    combined = np.zeros(len(value), np.int64)
    for names, code in keys:
        combined = combined * (len(names) + 1) + code + 1
    order = by_code(combined)
    combined = combined[order]
    first = np.flatnonzero(changes(combined))
    parts = np.split(value[order], first[1:]) if len(first) else []
    for key, part in zip(combined[first].tolist(), parts, strict=True):
        label: list[str] = []
        for names, _ in reversed(keys):
            key, own = divmod(key, len(names) + 1)
            label.insert(0, "-" if own == 0 else names[own - 1])
        yield tuple(label), part


def merged(parts: Sequence[Blame]) -> Blame:
    """Several as one; equal labels become one label."""
    samples: dict[Label, tuple[Part, ...]] = {}
    for part in parts:
        for label, values in part.samples.items():
            samples[label] = samples.get(label, ()) + values
    return Blame(samples)
