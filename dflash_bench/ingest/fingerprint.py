"""Which capture a file is: the identity of its content, which its name is not."""

from __future__ import annotations

import hashlib
from pathlib import Path

from dflash_bench.errors import DataError
from dflash_bench.ingest.nsys.folder_tables import table_files
from dflash_bench.ingest.nsys.sqlite_tables import logs_beside


def fingerprint(path: Path) -> str:
    """Identity of a capture's content, with that of a log beside it; of a folder, that of its tables' files.

    Raises DataError when it cannot be read.
    """
    digest = hashlib.sha256()
    try:
        if path.is_dir():
            for file in table_files(path):
                digest.update(file.name.encode("utf-8", "surrogateescape"))
                _sample(file, digest)
        else:
            for file in (path, *logs_beside(path)):
                _sample(file, digest)
    except OSError as error:
        raise DataError(f"{path}: cannot be read: {error.strerror}") from None
    return digest.hexdigest()[:32]


def _sample(path: Path, digest: hashlib._Hash) -> None:
    """Hash a file's size, its first and last MiB and 64 samples in between.

    Hashing gigabytes whole would cost as much as reading them. Any change that SQLite makes alters the first page.
    """
    size = path.stat().st_size
    digest.update(str(size).encode())
    edge, piece = 1 << 20, 1 << 14
    with path.open("rb") as file:
        digest.update(file.read(edge))
        if size > 2 * edge:
            for k in range(64):
                file.seek(edge + (size - 2 * edge) * k // 64)
                digest.update(file.read(piece))
        if size > edge:
            file.seek(max(edge, size - edge))
            digest.update(file.read())
