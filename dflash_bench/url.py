"""A file or folder at a URL: ``s3://…``, ``gs://…``, any protocol that fsspec knows.

fsspec and its drivers belong to the extra ``remote`` and are imported when a URL is met, not before. Credentials and
endpoints are the drivers' own matter (environment, ``~/.aws``, ``~/.config/fsspec``). What a driver says is never
repeated: it can hold signatures and keys. A URL is shown without what identifies its user.
"""

from __future__ import annotations

import errno
import re
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path, PurePosixPath
from typing import Any
from urllib.parse import unquote, urlsplit

from dflash_bench.errors import DataError, UsageError

_SCHEME = re.compile(r"(?P<scheme>[a-zA-Z][a-zA-Z0-9+.-]*)://")
_DRIVERS = {"s3": "s3fs", "s3a": "s3fs", "gs": "gcsfs", "gcs": "gcsfs", "abfs": "adlfs", "az": "adlfs"}
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
