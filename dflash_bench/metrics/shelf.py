"""Samples that grow part by part, in memory or, where there are millions, in a temporary file.

A file's pages are the system's to drop and read again, so that samples on a shelf take memory only while they are
looked at. Parts also travel between processes: those on a shelf as a place in its file.
"""

from __future__ import annotations

import mmap
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

Array = npt.NDArray[Any]

SMALL_BYTES = 1 << 16
"""Up to here an array stays in memory: a place in a file costs about as much."""
FLUSH_BYTES = 1 << 17
"""Parts are gathered in memory up to this size before they go to the shelf."""
CHUNK = 1 << 18


@dataclass(frozen=True, slots=True)
class Part:
    """Some samples in order: an array, or where it lies in a shelf's file. ``shift`` is added to each on reading."""

    count: int
    dtype: np.dtype[Any]
    array: Array | None = None
    path: Path | None = None
    offset: int = 0
    shift: int = 0

    @staticmethod
    def of(array: Array) -> Part:
        return Part(len(array), array.dtype, array)

    def shifted(self, by: int) -> Part:
        """The same with a number added to each sample."""
        return replace(self, shift=self.shift + by) if by else self

    def chunks(self) -> Iterator[Array]:
        """The samples, a bounded number at a time."""
        for at in range(0, self.count, CHUNK):
            count = min(CHUNK, self.count - at)
            if self.array is not None:
                found = self.array[at : at + count]
            else:
                assert self.path is not None
                found = np.fromfile(self.path, self.dtype, count, offset=self.offset + at * self.dtype.itemsize)
            yield found + self.shift if self.shift else found


class Shelf:
    """A temporary file that arrays are put into, one behind another."""

    def __init__(self, path: Path) -> None:
        self.path, self.size = path, 0

    def put(self, parts: Sequence[Part]) -> Part:
        """Several parts of one type as one in the file."""
        offset = self.size = -(-self.size // mmap.ALLOCATIONGRANULARITY) * mmap.ALLOCATIONGRANULARITY
        with self.path.open("r+b" if self.path.exists() else "wb") as file:
            file.seek(offset)
            for part in parts:
                for chunk in part.chunks():
                    file.write(np.ascontiguousarray(chunk).data)
            self.size = file.tell()
        dtype = parts[0].dtype
        return Part((self.size - offset) // dtype.itemsize, dtype, path=self.path, offset=offset)

    def array(self, parts: Sequence[Part]) -> Array:
        """Several parts of one type as one array, read-only where it is large."""
        if sum(part.count * part.dtype.itemsize for part in parts) <= SMALL_BYTES:
            return together(parts)
        placed = self.put(parts)
        with self.path.open("rb") as file:
            length = placed.count * placed.dtype.itemsize
            mapped = mmap.mmap(file.fileno(), length, access=mmap.ACCESS_READ, offset=placed.offset)
        return np.frombuffer(mapped, placed.dtype)


def together(parts: Sequence[Part]) -> Array:
    """Several parts as one array in memory."""
    arrays = [chunk for part in parts for chunk in part.chunks()]
    if len(arrays) == 1:
        return arrays[0]
    return np.concatenate(arrays) if arrays else np.zeros(0)


def let_go(array: Array) -> None:
    """Tell the system that an array is not needed for now: from a shelf it then takes no memory until it is read."""
    base: Any = array
    while isinstance(base, np.ndarray):
        base = base.base
    if isinstance(base, memoryview):
        base = base.obj
    if isinstance(base, mmap.mmap):
        base.madvise(mmap.MADV_DONTNEED)


class Growing:
    """One column of samples, added to part by part; what has gathered goes to the shelf, if there is one."""

    def __init__(self, shelf: Shelf | None) -> None:
        self.shelf = shelf
        self.done: list[Part] = []
        self.near: list[Part] = []
        self.near_bytes = 0

    def add(self, values: Array) -> None:
        """Add samples, of the type of the first."""
        if len(values):
            self.near.append(Part.of(values))
            self.near_bytes += values.nbytes
            if self.shelf is not None and self.near_bytes > FLUSH_BYTES:
                self._flush(self.shelf)

    def parts(self) -> tuple[Part, ...]:
        """All that was added, in order."""
        if self.shelf is not None and self.near_bytes > SMALL_BYTES:
            self._flush(self.shelf)
        return (*self.done, *self.near)

    def _flush(self, shelf: Shelf) -> None:
        self.done.append(shelf.put(self.near))
        self.near, self.near_bytes = [], 0
