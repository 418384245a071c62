"""The sides of a comparison, as a person names them: one run, several, a pattern, or a folder of profiles."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from datetime import datetime
from pathlib import Path
from typing import TYPE_CHECKING

from dflash_bench.cli.console import working
from dflash_bench.errors import DataError, UsageError

if TYPE_CHECKING:
    from dflash_bench.ingest.build import Progress
    from dflash_bench.ingest.sources import IngestOptions
    from dflash_bench.metrics.reading import Reading
    from dflash_bench.model import Comparison, RunMetrics
    from dflash_bench.profile import Profile


def both_sides(
    base: str | None, candidate: str | None, options: IngestOptions, progress: Progress | None = None
) -> tuple[tuple[Profile, ...], tuple[Profile, ...]]:
    """The runs of base and candidate. One word alone holds two runs, one a side, or runs of two arms; none: the newest.

    Raises UsageError as `resolve_side` does, and when a run stands on both sides or a single word is not two runs.
    """
    from dflash_bench.ingest.sources import resolve

    if base is None:
        return newest_sides(options.profiles)
    if candidate is not None:
        old, new = resolve_side(base, options, progress), resolve_side(candidate, options, progress)
        # one run against itself is a way to see that nothing differs
        if len(old) + len(new) > 2 and (same := {(p.path, p.arm) for p in old} & {(p.path, p.arm) for p in new}):
            raise UsageError(f"{', '.join(sorted(path.name for path, _ in same))} stands on both sides")
        return old, new
    found = [p for word in _words(base, options) for p in resolve(word, options, progress)]
    arms = found[0].info.arms
    if len(arms) == 2 and all(p.info.arms == arms and p.arm is None for p in found):
        return tuple(p.of_arm(arms[0]) for p in found), tuple(p.of_arm(arms[1]) for p in found)
    if len(found) == 2:
        first, second = in_order(*found)
        return (first,), (second,)
    raise UsageError(
        f"{base} is {len(found)} run{'s' * (len(found) > 1)} ({', '.join(p.info.run for p in found)}): "
        "compare it with what?",
        hint="name base and candidate",
    )


def newest_sides(folder: Path) -> tuple[tuple[Profile, ...], tuple[Profile, ...]]:
    """Base and candidate when nobody names them: the two newest arms of the newest workload, with all their repeats.

    Raises UsageError when there are no two such arms.
    """
    from dflash_bench.ingest.sources import profiles_in

    found = profiles_in(folder)
    for newest in found:
        if len(arms := newest.info.arms) == 2:
            runs = _repeats(newest, [p for p in found if p.info.arms == arms and _is_alike(p, newest)])
            return tuple(p.of_arm(arms[0]) for p in runs), tuple(p.of_arm(arms[1]) for p in runs)
        alike = [p for p in found if _is_alike(p, newest) and p.info.arm is not None]
        others = [p for p in alike if p.info.arm != newest.info.arm]
        if others and newest.info.arm is not None:
            old, _ = in_order(others[0], newest)
            sides = [_repeats(first, alike) for first in (others[0], newest)]
            return (sides[0], sides[1]) if old is others[0] else (sides[1], sides[0])
    raise UsageError(
        f"{folder} holds no two arms of one workload to compare",
        hint="dflash-bench run --arm control --arm topup, or name base and candidate",
    )


def _is_alike(one: Profile, other: Profile) -> bool:
    return one.info.workload == other.info.workload


def _repeats(newest: Profile, found: Sequence[Profile]) -> tuple[Profile, ...]:
    """The runs that one command made of the newest one's arm, oldest first. ``found``: the newest first."""
    own = [p for p in found if p.info.arm == newest.info.arm]
    runs = [newest]
    for p in own[own.index(newest) + 1 :]:
        if _repeat(p) != _repeat(runs[-1]) - 1 or _repeat(p) < 1:
            break
        runs.append(p)
    return tuple(reversed(runs))


def _repeat(profile: Profile) -> int:
    value = profile.info.settings.get("repeat")
    return value if isinstance(value, int) else 1


def in_order(one: Profile, other: Profile) -> tuple[Profile, Profile]:
    """Base and candidate of two runs that nobody put in order: of two arms of the ladder the earlier one is the base,
    whichever ran first; else what was captured first."""
    from dflash_prep.arms import ARMS

    ladder = list(ARMS)
    arms = one.info.arm, other.info.arm
    if arms[0] != arms[1] and all(arm in ladder for arm in arms):
        key = [ladder.index(str(arm)) for arm in arms]
        return (one, other) if key[0] < key[1] else (other, one)
    return (one, other) if _captured_at(one) <= _captured_at(other) else (other, one)


def _captured_at(profile: Profile) -> float:
    """When a run was captured, seconds since 1970; where the capture does not say, when it was read."""
    known = [c.session_start_utc_ns for c in profile.info.captures if c.session_start_utc_ns is not None]
    return min(known) / 1e9 if known else datetime.fromisoformat(profile.info.created_utc).timestamp()


def describe_sides(old: Sequence[Profile], new: Sequence[Profile], *, is_chosen: bool) -> str:
    """Which runs are compared, and, where nobody put them in order, what their order is."""
    names = [", ".join(f"{p.info.run}:{p.arm}" if p.arm else p.info.run for p in side) for side in (old, new)]
    order = (
        "" if is_chosen or old[0].arm else " (by arm, else by time of capture; name BASE CANDIDATE for another order)"
    )
    return f"base {names[0]}, candidate {names[1]}{order}"


def measure_all(profiles: Sequence[Profile], reading: Reading) -> tuple[RunMetrics, ...]:
    """The figures of each, saying meanwhile which is measured."""
    from dflash_bench.metrics.measure import measure

    found = []
    for profile in profiles:
        arm = f":{profile.arm}" if profile.arm else ""
        with working(f"measuring {profile.info.run}{arm}"):
            found.append(measure(profile, reading))
    return tuple(found)


def measured(side: Sequence[Profile], reading: Reading) -> tuple[Profile, tuple[RunMetrics, ...]]:
    """The median run of a side, and the figures of all its runs, the median one's first."""
    from dflash_bench.report.sides import typical

    found = measure_all(side, reading)
    first = typical(found)
    return side[first], (found[first], *found[:first], *found[first + 1 :])


def check_common(comparison: Comparison) -> None:
    """Raises DataError where both sides have no figure in common: nothing was compared."""
    if not any(c.difference is not None and not c.metric.startswith("coverage.") for c in comparison.changes):
        runs = [run.info.run for run in (comparison.base, comparison.candidate)]
        raise DataError(
            f"{' and '.join(runs)} have no figure in common: nothing can be compared",
            hint=f"dflash-bench metrics {runs[0]}, or name the step with --step-range or --preset",
        )


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
