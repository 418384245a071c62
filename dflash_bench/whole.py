"""Folders that are being written: under a name that nobody reads, locked, and gone afterwards however that ends.

Whoever is killed leaves its folder behind, without the lock; the next ingest beside it clears it up.
"""

from __future__ import annotations

import fcntl
import os
import secrets
import shutil
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from dflash_bench.errors import DataError


@contextmanager
def partial_folder(target: Path) -> Iterator[Path]:
    """A folder beside the target to build it in. Raises DataError when something there could not be written."""
    born = unpublished(target, "new")
    folder = born.with_suffix(".partial")
    try:
        born.mkdir(parents=True)
        with locked(born):
            # under the name that others clear up only once it is locked
            born.rename(folder)
            clear_up(target.parent)
            yield folder
    except OSError as error:
        raise DataError(f"{target} could not be written: {error.strerror or error}") from error
    finally:
        for left in (born, folder):
            shutil.rmtree(left, ignore_errors=True)


def unpublished(target: Path, suffix: str) -> Path:
    """A new hidden name beside the target, of less than 255 bytes."""
    return target.parent / f".{target.name[:100]}.{os.getpid()}-{secrets.token_hex(4)}.{suffix}"


def clear_up(profiles: Path) -> None:
    """Remove what a killed ingest left: folders being written whose lock nobody holds."""
    for left in profiles.glob(".*.partial"):
        with suppress(FileNotFoundError), locked(left) as is_ours:
            if is_ours:
                shutil.rmtree(left, ignore_errors=True)


@contextmanager
def locked(folder: Path) -> Iterator[bool]:
    """Hold the folder's lock if it is free. The system lets go of it when its holder ends, however that ends."""
    handle = os.open(folder, os.O_RDONLY)
    try:
        try:
            fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            yield False
        else:
            yield True
    finally:
        os.close(handle)
