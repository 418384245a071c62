"""One side of a comparison, as a person names it: one run, several, a pattern, or a folder of profiles."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

from dflash_bench.errors import UsageError

if TYPE_CHECKING:
    from dflash_bench.ingest.build import Progress
    from dflash_bench.ingest.sources import IngestOptions
    from dflash_bench.profile import Profile


def resolve_side(words: str, options: IngestOptions, progress: Progress | None = None) -> tuple[Profile, ...]:
    """The runs of one arm behind a word of the command line, oldest first.

    A word is what every command takes (a profile, a capture, a folder of captures), several of them with commas
    between, a pattern over the names of profiles (``smoke-control-r*``), or a folder that holds profiles. Raises
    UsageError when nothing is there, or when the runs are not all of one arm.
    """
    found = {p.path.resolve(): p for word in _words(words, options) for p in _resolved(word, options, progress)}
    runs = sorted(found.values(), key=lambda p: (p.info.created_utc, p.info.run))
    arms = sorted({p.info.arm or "not stated" for p in runs})
    if len(arms) > 1:
        raise UsageError(f"{words} holds runs of several arms: {', '.join(arms)}", hint="name the runs of one arm")
    return tuple(runs)


def _words(words: str, options: IngestOptions) -> Iterator[str]:
    # an arm such as control,topup_pages=4 can be in a file's name
    if "," not in words or Path(words).exists() or (options.profiles / words).exists():
        yield words
        return
    yield from (word for part in words.split(",") if (word := part.strip()))


def _resolved(word: str, options: IngestOptions, progress: Progress | None) -> tuple[Profile, ...]:
    from dflash_bench.ingest.sources import profiles_in, resolve
    from dflash_bench.profile import is_profile, open_profile

    if any(char in word for char in "*?[") and not Path(word).exists():
        paths = [p for p in sorted(options.profiles.glob(word)) if is_profile(p)]
        if not paths:
            raise UsageError(f"no profile in {options.profiles} matches {word}", hint=f"ls {options.profiles}")
        return tuple(open_profile(p) for p in paths)
    if Path(word).is_dir() and not is_profile(Path(word)) and (inside := profiles_in(Path(word))):
        return tuple(inside)
    return resolve(word, options, progress)
