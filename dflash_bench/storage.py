"""Files at URLs: ``s3://…``, ``gs://…``, any protocol that fsspec knows.

fsspec and its drivers belong to the extra ``remote`` and are imported when a URL is met, not before. Credentials and
endpoints are the drivers' own matter (environment, ``~/.aws``, ``~/.config/fsspec``). What a driver says is never
repeated: it can hold signatures and keys. A URL is shown without what identifies its user.
"""

from __future__ import annotations

import errno
import re
import shutil
import sys
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path, PurePosixPath
from typing import Any
from urllib.parse import unquote, urlsplit

from dflash_bench.errors import DataError, UsageError

Transferred = Callable[[str, int, int], None]
"""Called with (name, bytes there, bytes in all; 0 where the store does not say)."""

_SCHEME = re.compile(r"(?P<scheme>[a-zA-Z][a-zA-Z0-9+.-]*)://")
_DRIVERS = {"s3": "s3fs", "s3a": "s3fs", "gs": "gcsfs", "gcs": "gcsfs", "abfs": "adlfs", "az": "adlfs"}
_WITH_FOLDERS = frozenset({"local", "sftp", "ssh", "ftp", "smb", "hdfs", "webhdfs"})
"""Where a folder must be made before a file is. (Object stores have none, and would make a bucket of a slip.)"""
_DRIVER_ERRORS = (
    ("botocore.exceptions", "BotoCoreError"),
    ("botocore.exceptions", "ClientError"),
    ("google.auth.exceptions", "GoogleAuthError"),
    ("gcsfs.retry", "HttpError"),
    ("azure.core.exceptions", "AzureError"),
    ("aiohttp", "ClientError"),
)
"""What drivers raise that is neither OSError nor ValueError: looked for only among the modules that are loaded."""


@dataclass(frozen=True, slots=True)
class Url:
    """A file or folder at a URL. ``str()`` leaves out passwords, tokens and signatures; ``text`` holds them."""

    text: str = field(repr=False)

    def __str__(self) -> str:
        scheme, _, rest = self._bare.partition("://")
        user, at, place = rest.partition("@")
        # abfs://container@account names a container there; with a password, or on the web, it is who asks
        hides = at and "/" not in user and (":" in user or scheme in ("http", "https", "ftp"))
        return f"{scheme}://{place if hides else rest}"

    @property
    def scheme(self) -> str:
        return self.text.partition("://")[0].lower()

    @property
    def name(self) -> str:
        """The last part of the path."""
        path = urlsplit(self._bare).path if self.is_web else self._bare.partition("://")[2]
        return unquote(PurePosixPath(path).name) if self.is_web else PurePosixPath(path).name

    @property
    def is_pattern(self) -> bool:
        """Whether the last part is a pattern over file names."""
        return not self.is_web and any(char in self.name for char in "*?[")

    @property
    def parent(self) -> Url:
        """The folder around it."""
        return Url(self.text.rstrip("/").rpartition("/")[0])

    @property
    def is_web(self) -> bool:
        """Whether it is a page of the web, which has no folders to list and may carry a signature."""
        return self.text.startswith(("http://", "https://"))

    @property
    def _bare(self) -> str:
        # only on the web a question mark begins a query; elsewhere it is a pattern or part of a name
        return re.split(r"[?#]", self.text)[0] if self.is_web else self.text

    def __truediv__(self, inside: str | PurePosixPath) -> Url:
        return Url(f"{self.text.rstrip('/')}/{inside}")

    def opened(self) -> tuple[Any, str]:
        """The fsspec file system and the path in it. Raises UsageError when fsspec or the driver is missing."""
        try:
            from fsspec.core import url_to_fs  # type: ignore[import-untyped, unused-ignore]
        except ImportError:
            raise UsageError(
                f"{self}: files at URLs need fsspec, which is not installed", hint="pip install 'dflash-bench[remote]'"
            ) from None
        with driver_errors(self):
            try:
                fs, path = url_to_fs(self.text)
            except ImportError:
                raise UsageError(
                    f"{self}: the driver for {self.scheme}:// is not installed",
                    hint=f"pip install {_driver(self.scheme)}",
                ) from None
            except ValueError:
                raise UsageError(f"{self}: {self.scheme}:// is no protocol that can be read or written here") from None
            fs.invalidate_cache()
        return fs, path


Listing = Mapping[str, tuple[Url, int | None]]
"""Files by their path in a folder, each with its URL and its size where the store says it."""


def is_url(word: str) -> bool:
    """Whether a word of the command line is a URL rather than a path."""
    return _SCHEME.match(word) is not None


def location(word: str) -> Path | Url:
    """A word as path or URL. ``file://`` URLs are paths, and need no fsspec."""
    if not is_url(word):
        return Path(word)
    if word.startswith("file://"):
        return Path(unquote(urlsplit(word).path))
    return Url(word)


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
            check_space(target.parent, size or 0, url)
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
    check_space(folder, sum(size or 0 for _, size in files.values()), f"what is to be fetched ({len(files)} files)")
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


def check_space(folder: Path, size: int, what: object) -> None:
    """Raises DataError when a folder's disk has no room for ``size`` bytes more."""
    free = shutil.disk_usage(folder).free
    if size > free:
        raise DataError(
            f"{what} takes {size:,} bytes, and {folder} has room for {free:,}",
            hint="set TMPDIR to a folder on a larger disk",
        )


@contextmanager
def driver_errors(url: Url, verb: str = "read") -> Iterator[None]:
    """Turn what a driver raises into one sentence without its words. FileNotFoundError and FileExistsError that the
    caller expects are his to catch inside."""
    try:
        yield
    except NotImplementedError:
        raise DataError(f"{url} cannot be {verb}: its protocol does not allow it") from None
    except _failures() as error:
        reason, hint = _reason(error)
        raise DataError(f"{url} cannot be {verb}: {reason}", hint=hint) from None


def _make_folder(scheme: str, fs: Any, path: str) -> None:
    if scheme in _WITH_FOLDERS:
        fs.makedirs(str(PurePosixPath(path).parent), exist_ok=True)


def _failures() -> tuple[type[BaseException], ...]:
    own = (getattr(sys.modules[module], name) for module, name in _DRIVER_ERRORS if module in sys.modules)
    return (OSError, ValueError, *own)


def _reason(error: BaseException) -> tuple[str, str | None]:
    """What happened, in our words, and what to try."""
    name, code = type(error).__name__, getattr(error, "code", getattr(error, "status", None))
    if isinstance(error, FileNotFoundError):
        return "there is no such file, folder or bucket", "look at the URL's spelling"
    if "Credential" in name:
        return "no credentials were found", "set them as the store's own tools want them, e.g. AWS_PROFILE"
    if isinstance(error, PermissionError) or str(code) in ("401", "403"):
        return "access is denied", "look whether the credentials in use may do this"
    if isinstance(error, ConnectionError | TimeoutError) or re.search("Connect|Timeout", name):
        return "the store does not answer", "look at the network and the endpoint"
    if isinstance(error, OSError) and error.errno in (errno.ENOSPC, errno.EDQUOT):
        return "the disk is full", "set TMPDIR to a folder on a larger disk"
    return f"the driver reports {name}", None


def _driver(scheme: str) -> str:
    return _DRIVERS.get(scheme, "aiohttp requests" if scheme.startswith("http") else "its fsspec driver")
