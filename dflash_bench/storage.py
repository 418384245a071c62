"""Files at URLs: listed, fetched, written and removed, whole or not at all."""

from __future__ import annotations

import shutil
from collections.abc import Callable, Mapping
from contextlib import suppress
from pathlib import Path, PurePosixPath
from typing import Any

from dflash_bench.errors import DataError
from dflash_bench.url import Url, driver_errors

Transferred = Callable[[str, int, int], None]
"""Called with (name, bytes there, bytes in all; 0 where the store does not say)."""
Listing = Mapping[str, tuple[Url, int | None]]
"""Files by their path in a folder, each with its URL and its size where the store says it."""

_WITH_FOLDERS = frozenset({"local", "sftp", "ssh", "ftp", "smb", "hdfs", "webhdfs"})
"""Where a folder must be made before a file is. (Object stores have none, and would make a bucket of a slip.)"""


def list_files(url: Url) -> Listing:
    """The files below a URL, by their path in it; of a pattern those that match. Empty when there are none.

    Raises UsageError or DataError when the store cannot be asked.
    """
    fs, path = url.opened()
    with driver_errors(url):
        try:
            found = fs.glob(path, detail=True) if url.is_pattern else fs.find(path, detail=True)
        except FileNotFoundError:
            return {}
        # what is no name but a way out of the folder is left where it is
        folder = f"{PurePosixPath(path).parent if url.is_pattern else path}".rstrip("/") + "/"
        inside = {p.removeprefix(folder): p for p, info in found.items() if info.get("type") != "directory"}
        return {
            name: (Url(fs.unstrip_protocol(p)), found[p].get("size"))
            for name, p in inside.items()
            if name and not name.startswith("/") and ".." not in PurePosixPath(name).parts
        }


def is_file(url: Url) -> bool:
    """Whether a single file is at a URL. Raises UsageError or DataError when the store cannot be asked."""
    fs, path = url.opened()
    with driver_errors(url):
        found: bool = fs.isfile(path)
    return found


def fetch(url: Url, target: Path, progress: Transferred | None = None) -> None:
    """Copy a file to ``target``, piece by piece.

    Raises DataError when it does not fit there or does not arrive whole; then nothing is left.
    """
    from fsspec.callbacks import Callback  # type: ignore[import-untyped, unused-ignore]

    fs, path = url.opened()

    def on_bytes(size: int | None, value: int, **_: object) -> None:
        if progress is not None:
            progress(url.name, value, size or 0)

    is_whole = False
    try:
        with driver_errors(url):
            target.parent.mkdir(parents=True, exist_ok=True)
            size = fs.info(path).get("size")
            _check_space(target.parent, size or 0, url)
            fs.get_file(path, str(target), callback=Callback(hooks={"bytes": on_bytes}))
        there = target.stat().st_size if target.exists() else 0
        if size is not None and there != size:
            raise DataError(f"{url}: {there:,} of {size:,} bytes arrived", hint="try again; it may be being written")
        is_whole = True
    finally:
        if not is_whole:
            target.unlink(missing_ok=True)


def fetch_all(files: Listing, folder: Path, progress: Transferred | None = None) -> None:
    """Copy files into a local folder under their names. Raises as `fetch` does, and at once when there is no room."""
    folder.mkdir(parents=True, exist_ok=True)
    _check_space(folder, sum(size or 0 for _, size in files.values()), f"what is to be fetched ({len(files)} files)")
    for name, (url, _) in files.items():
        fetch(url, folder / name, progress)


def read_in_folders(url: Url, name: str) -> dict[str, bytes]:
    """The content of one small file in each folder at a URL, by folder; folders without it are left out."""
    fs, path = url.opened()
    with driver_errors(url):
        try:
            folders = [f["name"].rstrip("/") for f in fs.ls(path, detail=True) if f["type"] == "directory"]
        except FileNotFoundError:
            return {}
        found = fs.cat([f"{folder}/{name}" for folder in folders], on_error="return") if folders else {}
        for error in (e for e in found.values() if isinstance(e, BaseException)):
            if not isinstance(error, FileNotFoundError):
                raise error
    return {PurePosixPath(p).parent.name: content for p, content in found.items() if isinstance(content, bytes)}


def read_bytes(url: Url) -> bytes | None:
    """A small file's content, None when there is no such file."""
    fs, path = url.opened()
    with driver_errors(url):
        try:
            content: bytes = fs.cat_file(path)
        except FileNotFoundError:
            return None
        return content


def put(source: Path, url: Url, progress: Transferred | None = None) -> None:
    """Copy a local file to a URL. Raises DataError when it cannot be written whole."""
    from fsspec.callbacks import Callback  # type: ignore[import-untyped, unused-ignore]

    fs, path = url.opened()

    def on_bytes(size: int | None, value: int, **_: object) -> None:
        if progress is not None:
            progress(url.name, value, size or 0)

    with driver_errors(url, "written"):
        _make_folder(url.scheme, fs, path)
        fs.put_file(str(source), path, callback=Callback(hooks={"bytes": on_bytes}))
        fs.invalidate_cache()
        there = fs.info(path).get("size")
    if there is not None and there != source.stat().st_size:
        raise DataError(f"{url}: {there:,} of {source.stat().st_size:,} bytes arrived", hint="try again")


def create(url: Url, content: bytes) -> bool:
    """Write a small file that must not be there yet. False when it is, and then it is left as it is.

    Of two writers at once one gets False, where the store knows conditional writes (S3, Google Cloud Storage, Azure,
    memory); elsewhere the check and the write are two steps.
    """
    fs, path = url.opened()
    with driver_errors(url, "written"):
        try:
            if fs.exists(path):
                return False
            _make_folder(url.scheme, fs, path)
            fs.pipe_file(path, content, mode="create")
        except FileExistsError:
            return False
    return True


def remove(url: Url) -> None:
    """Delete a file if it is there."""
    fs, path = url.opened()
    with driver_errors(url, "written"), suppress(FileNotFoundError):
        fs.rm_file(path)


def remove_folder(url: Url) -> None:
    """Delete all files below a URL."""
    fs, path = url.opened()
    with driver_errors(url, "written"), suppress(FileNotFoundError):
        fs.rm(path, recursive=True)


def _check_space(folder: Path, size: int, what: object) -> None:
    """Raises DataError when a folder's disk has no room for ``size`` bytes more."""
    free = shutil.disk_usage(folder).free
    if size > free:
        raise DataError(
            f"{what} takes {size:,} bytes, and {folder} has room for {free:,}",
            hint="set TMPDIR to a folder on a larger disk",
        )


def _make_folder(scheme: str, fs: Any, path: str) -> None:
    if scheme in _WITH_FOLDERS:
        fs.makedirs(str(PurePosixPath(path).parent), exist_ok=True)
