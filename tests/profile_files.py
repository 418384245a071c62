"""The files of a profile, byte by byte, for tests that two ways of writing one give the same."""

from __future__ import annotations

import json
from pathlib import Path

from dflash_bench.layout import RUN_FILE


def contents(profile: Path) -> dict[str, bytes]:
    """Every file below the folder by its relative path; of ``run.json`` what does not depend on the moment."""
    files = {p.relative_to(profile).as_posix(): p.read_bytes() for p in profile.rglob("*") if p.is_file()}
    return {name: timeless(name, content) for name, content in files.items()}


def timeless(name: str, content: bytes) -> bytes:
    """The content of one file, without the time of writing."""
    if name != RUN_FILE:
        return content
    return json.dumps({k: v for k, v in json.loads(content).items() if k != "created_utc"}).encode()
