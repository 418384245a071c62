"""Samples that grow part by part, in memory or, where there are millions, in a temporary file.

A file's pages are the system's to drop and read again, so that samples on a shelf take memory only while they are
looked at. Parts also travel between processes: those on a shelf as a place in its file.
"""

from __future__ import annotations

import ctypes
import mmap
from collections.abc import Iterable, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa

Array = npt.NDArray[Any]

SMALL_BYTES = 1 << 14
"""Up to here an array stays in memory: a place in a file costs a part of that."""
FLUSH_BYTES = 1 << 16
"""Parts are gathered in memory up to this size before they go to the shelf."""
CHUNK = 1 << 18
_FITS = 1 << 31


@dataclass(frozen=True, slots=True)
class Part:
    """Some samples in order: an array, or where it lies in a shelf's file. ``shift`` is added to each on reading.

    ``dtype`` is that of the samples, ``kept`` the type of the array or in the file, which may be narrower.
    """

    count: int
    dtype: np.dtype[Any]
    kept: np.dtype[Any]
    array: Array | None = None
    path: Path | None = None
    offset: int = 0
    shift: int = 0

    @staticmethod
    def of(array: Array, dtype: np.dtype[Any] | None = None) -> Part:
        """An array; ``dtype``: of another type on reading."""
        return Part(len(array), array.dtype if dtype is None else dtype, array.dtype, array)

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
                found = np.fromfile(self.path, self.kept, count, offset=self.offset + at * self.kept.itemsize)
            found = found.astype(self.dtype, copy=False)
            yield found + self.shift if self.shift else found

    def mapped(self) -> Array:
        """The samples as one array: from a file they are mapped, read-only, and so they must lie there as they are."""
        if self.path is None:
            return together([self])
        assert self.kept == self.dtype
        assert self.shift == 0
        with self.path.open("rb") as file:
            length = self.count * self.kept.itemsize
            found = mmap.mmap(file.fileno(), length, access=mmap.ACCESS_READ, offset=self.offset)
        return np.frombuffer(found, self.kept)


class Shelf:
    """A temporary file that arrays are put into, one behind another."""

    def __init__(self, path: Path) -> None:
        self.path, self.size = path, 0

    def put(self, parts: Sequence[Part]) -> Part:
        """Several parts of one type as one in the file."""
        dtype = parts[0].dtype
        return self._put((chunk for part in parts for chunk in part.chunks()), dtype, dtype)

    def put_arrays(self, arrays: Sequence[Array], dtype: npt.DTypeLike) -> Part:
        """Several arrays of one type as one part in the file, whole numbers in four bytes each where they fit."""
        kept = np.result_type(*(array.dtype for array in arrays))
        if kept == np.int64 and all(array.min() >= -_FITS and array.max() < _FITS for array in arrays):
            kept = np.dtype(np.int32)
        return self._put(arrays, np.dtype(dtype), kept)

    def _put(self, arrays: Iterable[Array], dtype: np.dtype[Any], kept: np.dtype[Any]) -> Part:
        offset = self.size = -(-self.size // mmap.ALLOCATIONGRANULARITY) * mmap.ALLOCATIONGRANULARITY
        with self.path.open("r+b" if self.path.exists() else "wb") as file:
            file.seek(offset)
            for array in arrays:
                file.write(np.ascontiguousarray(array, kept).data)
            self.size = file.tell()
        return Part((self.size - offset) // kept.itemsize, dtype, kept, path=self.path, offset=offset)

    def array(self, parts: Sequence[Part]) -> Array:
        """Several parts of one type as one array, read-only where it is large."""
        if sum(part.count * part.dtype.itemsize for part in parts) <= SMALL_BYTES:
            return together(parts)
        return self.put(parts).mapped()


def stored(array: Array, shelf: Shelf | None) -> Part:
    """An array as a part: on the shelf, if there is one and the array is large."""
    part = Part.of(array)
    return part if shelf is None or array.nbytes <= SMALL_BYTES else shelf.put([part])


def gathered(parts: Sequence[Part], shelf: Shelf | None) -> Array:
    """Several parts of one type as one array: on the shelf, if there is one and they are large."""
    return together(parts) if shelf is None else shelf.array(parts)


def together(parts: Sequence[Part]) -> Array:
    """Several parts as one array in memory."""
    arrays = [chunk for part in parts for chunk in part.chunks()]
    if len(arrays) == 1:
        return arrays[0]
    return np.concatenate(arrays) if arrays else np.zeros(0)


def chunks(parts: Sequence[Part]) -> Iterator[Array]:
    """Several parts as arrays of one length, `CHUNK` samples, but for the last."""
    rest: list[Array] = []
    num = 0
    for chunk in (chunk for part in parts for chunk in part.chunks()):
        rest.append(chunk)
        num += len(chunk)
        while num >= CHUNK:
            whole = np.concatenate(rest)
            yield whole[:CHUNK]
            rest, num = [whole[CHUNK:]], num - CHUNK
    if num:
        yield np.concatenate(rest)


def let_go(array: Array) -> None:
    """Tell the system that an array is not needed for now: from a shelf it then takes no memory until it is read."""
    base: Any = array
    while isinstance(base, np.ndarray):
        base = base.base
    if isinstance(base, memoryview):
        base = base.obj
    if isinstance(base, mmap.mmap):
        base.madvise(mmap.MADV_DONTNEED)


def give_back() -> None:
    """Return freed memory to the system, as far as the C library knows how: what comes next may need less of it."""
    pa.default_memory_pool().release_unused()
    with suppress(OSError, AttributeError):
        ctypes.CDLL(None).malloc_trim(0)


class Growing:
    """One column of samples, added to part by part; what has gathered goes to the shelf, if there is one.

    ``dtype``: of the samples on reading, wherever they are added as another type, all as the same.
    """

    def __init__(self, shelf: Shelf | None, dtype: npt.DTypeLike) -> None:
        self.shelf, self.dtype = shelf, np.dtype(dtype)
        self.done: list[Part] = []
        self.near: list[Array] = []
        self.near_bytes = 0

    def add(self, values: Array) -> None:
        """Add samples."""
        if len(values):
            # a view would hold all that it is a part of
            self.near.append(values if values.base is None else values.copy())
            self.near_bytes += values.nbytes
            if self.shelf is not None and self.near_bytes > FLUSH_BYTES:
                self._flush(self.shelf)

    def parts(self) -> tuple[Part, ...]:
        """All that was added, in order."""
        if self.shelf is not None and self.near_bytes > SMALL_BYTES:
            self._flush(self.shelf)
        return (*self.done, *(Part.of(array, self.dtype) for array in self.near))

    def array(self) -> Array:
        """All that was added as one array: mapped, and so read-only, where it is large and there is a shelf."""
        return gathered(self.parts(), self.shelf) if self.done or self.near else np.zeros(0, self.dtype)

    def _flush(self, shelf: Shelf) -> None:
        self.done.append(shelf.put_arrays(self.near, self.dtype))
        self.near, self.near_bytes = [], 0
