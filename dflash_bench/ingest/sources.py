"""What a person names on the command line, as profiles: a profile's name or folder, a capture, a folder of captures.

Captures are sorted into runs (one arm, each rank once) and ingested on the way; a capture that some profile holds
already is not read again.
"""

from __future__ import annotations

import logging
from collections.abc import Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import replace
from glob import glob
from pathlib import Path

from dflash_bench.errors import BenchError, CaptureError, DataError, UsageError
from dflash_bench.ingest.build import IngestOptions as IngestOptions
from dflash_bench.ingest.build import Progress, build_profile, is_read_so
from dflash_bench.ingest.fingerprint import fingerprint
from dflash_bench.ingest.grouping import into_runs, run_names, suffixed
from dflash_bench.ingest.nsys.folder_tables import FOLDER_ENDINGS, is_folder_export
from dflash_bench.ingest.nsys.reports import CAPTURE_SUFFIXES, is_superseded, to_export
from dflash_bench.ingest.nsys.source import open_export
from dflash_bench.ingest.ranks import RankRule, natural, run_folder
from dflash_bench.ingest.source import Source
from dflash_bench.ingest.torch.trace import ENGINE_SUFFIXES, is_trace, looks_like_trace, open_trace
from dflash_bench.profile import Profile, is_profile, open_profile
from dflash_bench.whole import partial_folder

_log = logging.getLogger(__name__)


def resolve(source: str, options: IngestOptions, progress: Progress | None = None) -> tuple[Profile, ...]:
    """The profiles that a word on the command line means: a profile's name or folder, a folder that holds profiles, a
    capture, a folder of captures, or a pattern over names of profiles or over paths (``smoke-*``, ``old/smoke-*``).
    ``RUN:ARM`` is one arm of a run in which several take turns.

    Raises UsageError when there is no such thing, DataError when a capture cannot be read.
    """
    path = Path(source)
    if _is_pattern(source):
        return _matching(source, options, progress)
    if "/" not in source and is_profile(options.profiles / source):
        return (open_profile(options.profiles / source),)
    if path.is_dir() and is_profile(path):
        return (open_profile(path),)
    if inside := profiles_in(path):
        return tuple(reversed(inside))
    if path.exists():
        return ingest([path], replace(options, is_implicit=True), progress)
    run, colon, arm = source.rpartition(":")
    if colon and run and "/" not in arm:
        return tuple(profile.of_arm(arm) for profile in resolve(run, options, progress))
    known = ", ".join(p.info.run for p in profiles_in(options.profiles)[:5])
    where = f"; profiles in {options.profiles}: {known}" if known else ""
    raise UsageError(f"{source}: no such profile, file or folder{where}", hint="dflash-bench ingest PATH")


def _is_pattern(source: str) -> bool:
    return any(char in source for char in "*?[") and not Path(source).exists()


def _matching(pattern: str, options: IngestOptions, progress: Progress | None) -> tuple[Profile, ...]:
    """The profiles of that name; else those at that path; else those that the captures there make."""
    # Path.glob raises for absolute patterns, and for some that a shell takes
    named, here = ([place / p for p in sorted(glob(pattern, root_dir=place))] for place in (options.profiles, Path()))  # noqa: PTH207
    for matched in (named, here):
        if paths := [path for path in matched if is_profile(path)]:
            return tuple(open_profile(path) for path in paths)
    if here:
        return ingest(here, replace(options, is_implicit=True), progress)
    runs, _, arm = pattern.rpartition(":")
    if runs and not any(char in arm for char in "*?[/"):
        return tuple(profile.of_arm(arm) for profile in _matching(runs, options, progress))
    raise UsageError(f"no profile in {options.profiles} matches {pattern}", hint=f"ls {options.profiles}")


def resolve_all(sources: Sequence[str], options: IngestOptions, progress: Progress | None = None) -> list[Profile]:
    """The profiles that several words mean. Captures among them are sorted into runs together: ranks meet."""
    captures = [s for s in sources if _is_capture(s, options)]
    found: dict[Path, Profile] = {}
    for source in sources:
        if source not in captures:
            own = resolve(source, options, progress)
        elif source == captures[0]:
            own = ingest([Path(s) for s in captures], replace(options, is_implicit=True), progress)
        else:
            own = ()
        found |= {profile.path.resolve(): profile for profile in own}
    return list(found.values())


def _is_capture(source: str, options: IngestOptions) -> bool:
    is_name = "/" not in source and is_profile(options.profiles / source)
    path = Path(source)
    # profiles are opened, and what is wrong with them is told, once: by `resolve`
    return not is_name and path.exists() and not is_profile(path) and not _profile_folders(path)


def ingest(paths: Sequence[Path], options: IngestOptions, progress: Progress | None = None) -> tuple[Profile, ...]:
    """Make profiles of captures, one for each run among them.

    Raises as `resolve` and `build_profile` do; PartlyReadError, with the profiles that were made, when some captures or
    runs could not be read and others could.
    """
    rule = RankRule.of(options.rank_pattern, options.ranks)
    files = expand(paths, options.profiles)
    if options.run is None and not options.is_replace:
        # a file that cannot be looked at is told of when it is opened
        with suppress(DataError):
            if found := _already({fingerprint(path) for path in files}, options):
                return found
    # beside the profiles: there the next ingest clears up what a killed one leaves
    with partial_folder(options.profiles / "scratch") as scratch:
        opened, unread = _opened(files, scratch, options)
        # a name for all makes them one run
        groups = [opened] if options.run is not None else into_runs(opened, rule.pattern)
        names = run_names(groups, rule.pattern) if options.run is None else [options.run]
        made: list[Profile] = []
        for group, run in zip(groups, names, strict=True):
            folders = {run_folder(source.path) for source in group}
            beside = [path for path in unread if options.run is not None or run_folder(path) in folders]
            try:
                made.append(_build(group, run, options, progress, beside))
            except DataError as error:
                if len(groups) == 1 and not unread:
                    raise
                unread |= {source.path: error for source in group}
    if unread:
        raise _partly_read(made, unread)
    return tuple(made)


def _opened(
    files: Sequence[Path], scratch: Path, options: IngestOptions
) -> tuple[list[Source], dict[Path, BenchError]]:
    """The captures that can be opened, and why the others cannot. Raises where it is all of them."""
    found: list[Source] = []
    failed: dict[Path, BenchError] = {}
    for k, path in enumerate(files):
        # two reports of one name, in two folders, must not become one file
        own = scratch / str(k)
        own.mkdir()
        try:
            found.append(open_capture(path, own, options.nsys))
        except (DataError, CaptureError) as error:
            failed[path] = error
    if failed and not found:
        raise next(iter(failed.values())) if len(failed) == 1 else _partly_read((), failed)
    return found, failed


def _partly_read(made: Sequence[Profile], failed: Mapping[Path, BenchError]) -> PartlyReadError:
    reasons = "\n".join(f"  {error.text}" for error in dict.fromkeys(failed.values()))
    text = f"{len(failed)} of the captures could not be read:\n{reasons}"
    if made:
        text += f"\nread and kept: {', '.join(profile.info.run for profile in made)}"
    return PartlyReadError(text, tuple(made), hint=next((e.hint for e in failed.values() if e.hint), None))


class PartlyReadError(DataError):
    """Some captures could not be read. ``profiles``: what was made of the others."""

    def __init__(self, text: str, profiles: tuple[Profile, ...], *, hint: str | None = None) -> None:
        super().__init__(text, hint=hint)
        self.profiles = profiles


def open_capture(path: Path, scratch: Path, nsys: Path | None = None) -> Source:
    """A capture of whatever kind. ``scratch``: an empty folder, for what must be converted, with the ``nsys`` given.

    Raises CaptureError or DataError when it cannot be read or converted.
    """
    return open_trace(path) if looks_like_trace(path) else open_export(to_export(path, scratch, nsys), path)


def expand(paths: Iterable[Path], profiles: Path | None = None) -> list[Path]:
    """Captures, folders opened up, each once. An export stands for the report beside it that it was made of.

    A folder of tables that nsys exported is one capture.

    ``profiles``: where profiles lie; what they keep of their own captures is not found in a folder around them. Raises
    UsageError for a path that is not there and for a folder without captures.
    """
    files: dict[Path, Path] = {}
    for path in paths:
        if not path.exists():
            raise UsageError(f"{path}: no such file or folder")
        found = _captures_in(path, profiles) if path.is_dir() and not is_folder_export(path) else [path]
        if not found:
            raise _without_captures(path)
        for file in found:
            files.setdefault(file.resolve(), file)
    return list(files.values())


def _without_captures(folder: Path) -> UsageError:
    if is_profile(folder):
        return UsageError(
            f"{folder} is a profile already, and keeps no captures", hint=f"dflash-bench metrics {folder}"
        )
    known = ", ".join((*CAPTURE_SUFFIXES, *FOLDER_ENDINGS, *ENGINE_SUFFIXES))
    return UsageError(
        f"{folder}: no captures in this folder ({known})",
        hint="name a capture, or a folder that holds some; dflash-bench capture -- CMD makes one",
    )


def _captures_in(folder: Path, profiles: Path | None) -> list[Path]:
    known = (*CAPTURE_SUFFIXES, *ENGINE_SUFFIXES)
    within = sorted(folder.rglob("*"), key=natural)
    found = [p for p in within if (p.name.endswith(known) and p.is_file()) or is_folder_export(p) or is_trace(p)]
    found = [p for p in found if not is_superseded(p)]
    if profiles is None or folder.resolve().is_relative_to(profiles.resolve()):
        return found
    return [p for p in found if not p.resolve().is_relative_to(profiles.resolve())]


def profiles_in(folder: Path) -> list[Profile]:
    """The readable profiles in a folder, newest first."""
    found = []
    for path in _profile_folders(folder):
        try:
            found.append(open_profile(path))
        except BenchError as error:
            _log.warning("%s", error)
    return sorted(found, key=lambda p: (p.info.created_utc, p.info.run), reverse=True)


def _profile_folders(folder: Path) -> list[Path]:
    """The folders in it that are profiles, readable or not; one whose name begins with a dot is not whole yet."""
    found = [run.parent for run in folder.glob("*/run.json")] if folder.is_dir() else []
    return [path for path in found if not path.name.startswith(".")]


def _already(wanted: set[str], options: IngestOptions) -> tuple[Profile, ...]:
    """Profiles that hold exactly the captures of these fingerprints, read the same way; empty where one is in none."""
    found = []
    for profile in profiles_in(options.profiles):
        own = {c.fingerprint for c in profile.info.captures}
        if own <= wanted and is_read_so(profile.info, options):
            found.append(profile)
            wanted -= own
    return tuple(reversed(found)) if not wanted else ()


def _build(
    group: Sequence[Source], run: str, options: IngestOptions, progress: Progress | None, unread: Sequence[Path]
) -> Profile:
    try:
        return build_profile(group, run, options, progress, unread)
    except UsageError:
        if not options.is_implicit:
            raise
        return build_profile(group, suffixed(run, f"-{group[0].info.fingerprint[:8]}"), options, progress, unread)
