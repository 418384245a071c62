"""Where a capture is written until it is whole."""

from __future__ import annotations

import os
import re
import secrets
import shutil
from datetime import UTC, datetime
from pathlib import Path

from dflash_bench.errors import UsageError


def run_name(*parts: str, at: datetime | None = None) -> str:
    """``smoke``, ``control,topup_pages=4`` → ``smoke-control-topup_pages-4-20261129T231500Z``: fit for a folder."""
    stamp = (at or datetime.now(UTC)).strftime("%Y%m%dT%H%M%SZ")
    return "-".join([*map(folder_word, parts), stamp])


def folder_word(text: str) -> str:
    """A text with everything that does not belong into a folder's name turned into dashes."""
    return re.sub(r"[^\w.]+", "-", text).strip("-.")


def free_name(profiles: Path, name: str) -> str:
    """The name, or the name with a number when a profile has it already: two runs can start within one second."""
    taken = (profiles / name).exists()
    numbered = (f"{name}-{k}" for k in range(2, 1_000_000))
    return next(n for n in numbered if not (profiles / n).exists()) if taken else name


def new_capture_folder(profiles: Path, run: str) -> Path:
    """A new empty hidden folder in `profiles`, for the captures of one run; moved into the profile with it.

    Raises UsageError when it cannot be made.
    """
    return _made(profiles / f".{run[:100]}.{os.getpid()}-{secrets.token_hex(4)}.capturing")


def shared_capture_folder(profiles: Path, run: str) -> Path:
    """The folder in which all ranks of one run put their captures. Raises UsageError when it cannot be made."""
    return _made(profiles / f"{run}.ranks", is_shared=True)


def _made(folder: Path, *, is_shared: bool = False) -> Path:
    try:
        folder.mkdir(parents=True, exist_ok=is_shared)
    except OSError as error:
        text = f"{folder.parent} cannot be written: {error.strerror}"
        raise UsageError(text, hint="--profiles FOLDER names another one") from None
    return folder


def set_aside(folder: Path, profiles: Path, run: str) -> Path | None:
    """Keep what a failed run left as ``profiles/<run>.failed``, visible; None when it left nothing to keep."""
    if not folder.is_dir():
        return None
    if not any(p.stat().st_size for p in folder.iterdir()):
        shutil.rmtree(folder)
        return None
    return folder.rename(profiles / free_name(profiles, f"{run}.failed"))
