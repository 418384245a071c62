"""Nanoseconds grouped by what they are blamed on: the samples behind every cause table."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from dflash_bench.model import IntArray, Value


@dataclass(frozen=True, slots=True)
class Blame:
    """``value`` int64 [n] in ns, each blamed on ``labels[code]``, a tuple of texts. ``code`` int64 [n]."""

    labels: tuple[tuple[str, ...], ...]
    code: IntArray
    value: IntArray

    def rows(self, rank: int | None) -> list[tuple[Value, ...]]:
        """(rank, *label, count, total, p50) of each label that occurs, the largest total first."""
        order = np.argsort(self.code, kind="stable")
        code, first = np.unique(self.code[order], return_index=True)
        parts = np.split(self.value[order], first[1:]) if len(code) else []
        rows: list[tuple[int, tuple[Value, ...]]] = []
        for k, part in zip(code, parts, strict=True):
            total = int(part.sum())
            rows.append((total, (rank, *self.labels[k], len(part), total, float(np.percentile(part, 50)))))
        return [row for _, row in sorted(rows, key=lambda item: (-item[0], str(item[1])))]


def blame(keys: Sequence[tuple[Sequence[str], IntArray]], value: IntArray) -> Blame:
    """Blame each value on a tuple of names. Each key is (names, code int64 [n]); a code of −1 means ``-``."""
    combined = np.zeros(len(value), np.int64)
    for names, code in keys:
        combined = combined * (len(names) + 1) + code + 1
    used, place = np.unique(combined, return_inverse=True)
    labels = []
    for key in used.tolist():
        label: list[str] = []
        for names, _ in reversed(keys):
            key, own = divmod(key, len(names) + 1)
            label.insert(0, "-" if own == 0 else names[own - 1])
        labels.append(tuple(label))
    return merged([Blame(tuple(labels), place.astype(np.int64), value)])


def merged(parts: Sequence[Blame]) -> Blame:
    """Several as one; equal labels become one label."""
    position: dict[tuple[str, ...], int] = {}
    codes = []
    for part in parts:
        place = [position.setdefault(label, len(position)) for label in part.labels]
        codes.append(np.asarray(place, np.int64)[part.code] if place else part.code)
    nothing = [np.zeros(0, np.int64)]
    return Blame(tuple(position), np.concatenate(codes or nothing), np.concatenate([p.value for p in parts] or nothing))
