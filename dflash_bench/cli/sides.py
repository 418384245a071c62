"""The sides of a comparison, as a person names them: one run, several, a pattern, or a folder of profiles."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

from dflash_bench.errors import UsageError

if TYPE_CHECKING:
    from dflash_bench.ingest.build import Progress
    from dflash_bench.ingest.sources import IngestOptions
    from dflash_bench.metrics.reading import Reading
    from dflash_bench.model import RunMetrics
    from dflash_bench.profile import Profile


def both_sides(
    base: str, candidate: str | None, options: IngestOptions, progress: Progress | None = None
) -> tuple[tuple[Profile, ...], tuple[Profile, ...]]:
    """The runs of base and candidate. One word alone holds two runs, one a side, or one of two arms.

    Raises UsageError as `resolve_side` does, and when a run stands on both sides or a single word is not two runs.
    """
    from dflash_bench.ingest.sources import resolve

    if candidate is not None:
        old, new = resolve_side(base, options, progress), resolve_side(candidate, options, progress)
        # one run against itself is a way to see that nothing differs
        if len(old) + len(new) > 2 and (same := {(p.path, p.arm) for p in old} & {(p.path, p.arm) for p in new}):
            raise UsageError(f"{', '.join(sorted(path.name for path, _ in same))} stands on both sides")
        return old, new
    found = resolve(base, options, progress)
    if len(found) == 2:
        return found[:1], found[1:]
    if len(found) == 1 and len(arms := found[0].info.arms) == 2:
        return (found[0].of_arm(arms[0]),), (found[0].of_arm(arms[1]),)
    raise UsageError(
        f"{base} is {len(found)} run{'s' * (len(found) > 1)} ({', '.join(p.info.run for p in found)}): "
        "compare it with what?",
        hint="name base and candidate",
    )


def measured(side: tuple[Profile, ...], reading: Reading) -> tuple[Profile, tuple[RunMetrics, ...]]:
    """The median run of a side, and the figures of all its runs, the median one's first."""
    from dflash_bench.metrics.measure import measure
    from dflash_bench.report.sides import typical

    found = [measure(profile, reading) for profile in side]
    first = typical(found)
    return side[first], (found[first], *found[:first], *found[first + 1 :])


def resolve_side(words: str, options: IngestOptions, progress: Progress | None = None) -> tuple[Profile, ...]:
    """The runs of one arm behind a word of the command line, oldest first.

    A word is what `ingest.sources.resolve` takes, or several of that with commas between. Raises UsageError when
    nothing is there, or when the runs are not all of one arm.
    """
    from dflash_bench.ingest.sources import resolve

    found = {(p.path.resolve(), p.arm): p for word in _words(words, options) for p in resolve(word, options, progress)}
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
