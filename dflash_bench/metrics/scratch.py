"""The folder in which the samples of a large run lie while it is measured, among the system's temporary files.

Whoever is killed leaves it behind, without its lock; the next who needs one clears it up.
"""

from __future__ import annotations

import os
import shutil
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from tempfile import gettempdir, mkdtemp

from dflash_bench.whole import locked

PREFIX = "dflash-bench-samples-"
_NEW = ".dflash-bench-new-"


@contextmanager
def sample_folder() -> Iterator[Path]:
    """A new folder. What is mapped from files in it stays there when the folder is gone, as it is after the block."""
    born = Path(mkdtemp(prefix=_NEW))
    folder = born.with_name(PREFIX + born.name.removeprefix(_NEW))
    try:
        with locked(born):
            # under the name that others clear up only once it is locked
            born.rename(folder)
            clear_up(folder.parent)
            yield folder
    finally:
        for left in (born, folder):
            shutil.rmtree(left, ignore_errors=True)


def clear_up(place: Path | None = None) -> None:
    """Remove such folders of this user's that nobody holds: whoever made them was killed."""
    for left in (place or Path(gettempdir())).glob(f"{PREFIX}*"):
        # one that is gone or another user's is not ours to see to; a link might lead anywhere
        with suppress(FileNotFoundError, NotADirectoryError, PermissionError):
            if left.is_symlink() or left.stat().st_uid != os.getuid():
                continue
            with locked(left) as is_ours:
                if is_ours:
                    shutil.rmtree(left, ignore_errors=True)
