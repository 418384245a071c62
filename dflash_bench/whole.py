"""Files and folders that are whole or not there: written under a name that nobody reads, then renamed.

Folders are locked while they are written, since they take long: whoever is killed leaves one behind, without its lock,
and the next who writes beside it clears it up.
"""

from __future__ import annotations

import fcntl
import os
import secrets
import shutil
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from tempfile import gettempdir

from dflash_bench.errors import DataError


@contextmanager
def whole_file(target: Path, ending: str = "") -> Iterator[Path]:
    """A name beside the target to write a file under; the file takes the target's place when the block is done.

    ``ending``: of the name, where what writes the file looks at it. Raises DataError when it cannot be written.
    """
    partial = hidden(target, f"partial{ending}")
    try:
        target.parent.mkdir(parents=True, exist_ok=True)
        yield partial
        partial.replace(target)
    except OSError as error:
        raise DataError(f"{target} could not be written: {error.strerror or error}") from error
    finally:
        for left in (partial, partial.with_name(f"{partial.name}-journal")):
            with suppress(OSError):
                left.unlink(missing_ok=True)


def write_text(target: Path, text: str) -> None:
    """Write a text file. Raises DataError when it cannot be written."""
    with whole_file(target) as partial:
        partial.write_text(text, encoding="utf-8")


@contextmanager
def one_writer(target: Path) -> Iterator[None]:
    """Only one writer of a file at a time, on this host or through a file system that knows locks; others wait.

    Raises DataError when the lock cannot be made.
    """
    try:
        target.parent.mkdir(parents=True, exist_ok=True)
        with target.with_name(f".{target.name}.lock").open("a") as lock:
            fcntl.flock(lock, fcntl.LOCK_EX)
            yield
    except OSError as error:
        raise DataError(f"{target} could not be written: {error.strerror or error}") from error


@contextmanager
def partial_folder(target: Path) -> Iterator[Path]:
    """A folder beside the target to build it in; whoever builds renames it. It is gone afterwards if nobody did.

    Raises DataError when something there could not be written.
    """
    try:
        target.parent.mkdir(parents=True, exist_ok=True)
        with _held(target, ".*.partial") as folder:
            yield folder
    except OSError as error:
        text = f"{target} could not be written: {error.strerror or error}"
        raise DataError(text, hint="make room there, or name another folder with --profiles") from error


@contextmanager
def scratch_folder() -> Iterator[Path]:
    """A folder in the system's temporary one (``TMPDIR``), gone afterwards."""
    with _held(Path(gettempdir(), "dflash-bench"), ".dflash-bench.*.partial") as folder:
        folder.chmod(0o700)
        yield folder


def hidden(target: Path, ending: str) -> Path:
    """A new hidden name beside the target, of less than 255 bytes."""
    return target.parent / f".{target.name[:100]}.{os.getpid()}-{secrets.token_hex(4)}.{ending}"


@contextmanager
def _held(target: Path, others: str) -> Iterator[Path]:
    """A locked folder beside the target. ``others``: the names of such folders there, to be cleared up."""
    born = hidden(target, "new")
    folder = born.with_suffix(".partial")
    try:
        born.mkdir()
        with locked(born):
            # under the name that others clear up only once it is locked
            born.rename(folder)
            _clear_up(target.parent, others)
            yield folder
    finally:
        for left in (born, folder):
            shutil.rmtree(left, ignore_errors=True)


def _clear_up(place: Path, pattern: str) -> None:
    """Remove what a killed writer of ours left: folders being written whose lock nobody holds."""
    for left in place.glob(pattern):
        # one that is gone or another user's is not ours to see to; a link might lead anywhere
        with suppress(FileNotFoundError, NotADirectoryError, PermissionError):
            if left.is_symlink() or not left.is_dir() or left.stat().st_uid != os.getuid():
                continue
            with locked(left) as is_ours:
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
