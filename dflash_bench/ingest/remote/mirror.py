"""Captures and profiles at URLs, seen as local ones: fetched before they are read, published whole once they are made.

All else works on local files and knows of no URL. A profile at a URL is the same folder as on a disk. Object stores
rename nothing, so what is a rename there is an order here:

1. ``_claim`` says which profile is being written, and is created only where none is: another run finds it and stops,
   another writer of the same run joins in, since both write the same bytes;
2. all files but ``run.json``;
3. ``run.json``, again only where none is. A folder without it is not a profile, and no reader takes it for one.

A writer that is killed leaves a folder without ``run.json``; the same ingest again goes over it.
"""

from __future__ import annotations

import hashlib
import json
import re
import secrets
from collections.abc import Iterable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from fnmatch import fnmatchcase
from pathlib import Path, PurePosixPath

from dflash_bench.errors import BenchError, DataError, UsageError
from dflash_bench.ingest.fingerprint import fingerprint
from dflash_bench.ingest.nsys.folder_tables import FOLDER_ENDINGS, SUFFIXES
from dflash_bench.ingest.nsys.reports import CAPTURE_SUFFIXES
from dflash_bench.ingest.sources import expand, profiles_in
from dflash_bench.ingest.steps import UNPROFILED_FOLDER
from dflash_bench.ingest.torch.trace import ENGINE_SUFFIXES
from dflash_bench.layout import FIGURES, RUN_FILE
from dflash_bench.profile import is_profile
from dflash_bench.storage import (
    Listing,
    Transferred,
    create,
    fetch_all,
    is_file,
    list_files,
    put,
    read_bytes,
    read_in_folders,
    remove,
)
from dflash_bench.url import Url, is_url, location
from dflash_bench.whole import scratch_folder

_CLAIM = "_claim"
_CAPTURES = (*CAPTURE_SUFFIXES, *ENGINE_SUFFIXES)
_BESIDE = (".sqlite-wal", ".sqlite-journal", ".steps.csv")
"""What belongs to a capture that lies beside it: a log that is part of its content, the steps of the built-in loop."""


@dataclass(frozen=True, slots=True)
class Mirror:
    """What words and ``--profiles`` of a command line mean, as local paths (`mirrored`).

    ``profiles`` is the folder of the profiles. Of those at a URL it holds only ``run.json`` until they are completed.
    """

    profiles: Path
    url: Url | None = None
    scratch: Path | None = None
    known: dict[str, bytes] = field(default_factory=dict)
    shown: dict[Path, str] = field(default_factory=dict)
    origins: dict[Path, Url] = field(default_factory=dict)
    """Where each fetched file came from."""

    def near(self, words: str, progress: Transferred | None = None) -> str:
        """The words (with commas between) with a local copy of what each means, where that lies at a URL.

        Raises UsageError or DataError.
        """
        return ",".join(self._near(word, progress) for word in re.split(r",(?=[a-zA-Z][a-zA-Z0-9+.-]*://)", words))

    def complete(self, names: Iterable[str], progress: Transferred | None = None) -> None:
        """Fetch the tables of profiles that lie at the URL."""
        for name in names:
            if self.url is not None and name in self.known:
                files = list_files(self.url / name)
                fetch_all({n: f for n, f in files.items() if _is_table(n)}, self.profiles / name, progress)

    def publish(self, progress: Transferred | None = None, *, is_replace: bool = False) -> None:
        """Copy the profiles that are new to the URL. Raises UsageError when another run has such a name by now."""
        if self.url is None:
            return
        for run in sorted(self.profiles.glob(f"*/{RUN_FILE}")):
            name = run.parent.name
            if not name.startswith(".") and run.read_bytes() != self.known.get(name):
                publish(run.parent, self.url / name, is_replace=is_replace, progress=progress)

    def say(self, text: str) -> str:
        """A text with URLs in place of the local copies."""
        for path in sorted(self.shown, key=lambda p: -len(str(p))):
            text = text.replace(str(path), self.shown[path])
        return text

    def staging(self) -> Url | None:
        """A new folder at the URL for what is not yet part of a profile; None where profiles lie on a disk."""
        return None if self.url is None else self.url / f".staging-{secrets.token_hex(8)}"

    def _near(self, word: str, progress: Transferred | None) -> str:
        place = location(word)
        if isinstance(place, Url):
            near = self._fetched(place, progress)
        else:
            near = str(place) if is_url(word) else word
            pieces = [piece.strip() for piece in word.split(",")]
            named = [name for name in self.known if name == word or any(fnmatchcase(name, p) for p in pieces)]
            self.complete(named, progress)
        self.complete(self._made_of(Path(near)), progress)
        return near

    def _fetched(self, place: Url, progress: Transferred | None) -> str:
        assert self.scratch is not None, "mirrored was told of no URL"
        is_single = place.is_pattern or is_file(place)
        above, _, name = str(place).rstrip("/").rpartition("/")
        shown = above if is_single else f"{above}/{name}"
        folder = self.scratch / str(len(self.shown)) / (PurePosixPath(shown).name or "captures")
        files = _captures(place) if is_single else _wanted(place)
        fetch_all(files, folder, progress)
        self.shown[folder] = shown
        self.origins.update({folder / name: url for name, (url, _) in files.items()})
        return str(folder if place.is_pattern or not is_single else folder / place.name)

    def _made_of(self, captures: Path) -> list[str]:
        """The profiles at the URL that were made of these captures: a command reads such a one instead of making it."""
        if not self.known or not captures.exists() or is_profile(captures):
            return []
        # where there are no captures, or none that can be read, the command itself says so
        with suppress(UsageError, OSError):
            prints = {fingerprint(path) for path in expand([captures], self.profiles)}
            found = [p for p in profiles_in(self.profiles) if prints & {c.fingerprint for c in p.info.captures}]
            return [p.path.name for p in found]
        return []


@contextmanager
def mirrored(place: Path | Url, words: Iterable[str] = ()) -> Iterator[Mirror]:
    """See the folder of the profiles and a command line's words as local ones; where no URL is among them, as they are.

    Fetched copies lie in the system's temporary folder (``TMPDIR``) and are gone afterwards. Errors raised inside name
    URLs, not copies.
    """
    if isinstance(place, Path) and not any("://" in word for word in words):
        yield Mirror(place)
        return
    with scratch_folder() as scratch:
        folder = place if isinstance(place, Path) else scratch / "profiles"
        mirror = Mirror(folder, place if isinstance(place, Url) else None, scratch)
        if mirror.url is not None:
            mirror.shown[folder] = str(mirror.url)
            mirror.known.update(read_in_folders(mirror.url, RUN_FILE))
            _lay_out(mirror.known, folder)
        try:
            yield mirror
        except BenchError as error:
            error.text = mirror.say(error.text)
            error.hint = mirror.say(error.hint) if error.hint else None
            error.args = (error.text,)
            raise


def publish(folder: Path, target: Url, *, is_replace: bool = False, progress: Transferred | None = None) -> None:
    """Copy a whole profile to a URL, so that it is there whole or is no profile (see the head of this module).

    A profile that is there already stays when it is the same run. Raises UsageError when it is another one and
    ``is_replace`` is off, DataError when the store cannot be written.
    """
    run = (folder / RUN_FILE).read_bytes()
    if not is_replace and _is_there(target, run):
        return
    within = (p.relative_to(folder) for p in sorted(folder.rglob("*")) if p.is_file() and p.name != RUN_FILE)
    files = [p.as_posix() for p in within if p.parts[0] != FIGURES]
    if is_replace:
        _take_down(target)
    if not create(target / _CLAIM, _identity(run)) and read_bytes(target / _CLAIM) != _identity(run):
        raise UsageError(
            f"{target}: another run is being written there, or was begun and never finished",
            hint="choose another name with --run NAME, or pass --replace",
        )
    for name in files:
        put(folder / name, target / name, progress)
    if read_bytes(target / _CLAIM) != _identity(run):
        raise DataError(f"{target} was replaced by another run meanwhile", hint="choose another name with --run NAME")
    if not create(target / RUN_FILE, run):
        _is_there(target, run)


def _is_there(target: Url, run: bytes) -> bool:
    """Whether the same run is at the URL already. Raises UsageError when another one is."""
    there = read_bytes(target / RUN_FILE)
    if there is not None and _identity(there) != _identity(run):
        raise UsageError(
            f"{target} already holds another run", hint="choose another name with --run NAME, or pass --replace"
        )
    return there is not None


def _take_down(target: Url) -> None:
    """Delete a profile: first what makes it one."""
    files = list_files(target)
    for name in (RUN_FILE, _CLAIM, *(n for n in files if n not in (RUN_FILE, _CLAIM))):
        if name in files:
            remove(files[name][0])


def _identity(run: bytes) -> bytes:
    """What two writers of one profile agree on: all that ``run.json`` says but when it was written."""
    try:
        content = json.loads(run)
        content.pop("created_utc", None)
        text = json.dumps(content, sort_keys=True)
    except (ValueError, AttributeError):
        # no run.json of ours: the same only as itself
        text = repr(run)
    return hashlib.sha256(text.encode()).hexdigest().encode()


def _lay_out(known: dict[str, bytes], folder: Path) -> None:
    folder.mkdir(parents=True)
    for name, content in known.items():
        (folder / name).mkdir()
        (folder / name / RUN_FILE).write_bytes(content)


def _is_table(name: str) -> bool:
    """Whether a file of a profile is one of those that are read: no raw capture that a run keeps with it."""
    return name.endswith(".parquet") and not name.startswith("captures/")


def _wanted(place: Url) -> Listing:
    """Of the files in a folder those that are needed: of profiles, or captures and what belongs to them."""
    files = list_files(place)
    profiles = {path.parent for path in map(PurePosixPath, files) if path.name == RUN_FILE and len(path.parts) <= 2}
    if profiles:
        inside = {p: [n for n in files if PurePosixPath(n).is_relative_to(p)] for p in profiles}
        names = {n for p, own in inside.items() for n in own if _is_table(_within(n, p)) or _within(n, p) == RUN_FILE}
        return {name: files[name] for name in sorted(names)}
    tables = {name: file for name, file in files.items() if _is_exported(place, name)}
    found = {name: file for name, file in files.items() if name.endswith((*_CAPTURES, *_BESIDE))}
    if tables or any(name.endswith(_CAPTURES) for name in found):
        return found | tables
    if any(name.endswith(".parquet") for name in files):
        hint = "wait until its writer is done, or ingest the captures again"
        raise DataError(f"{place} is no whole profile: it has no {RUN_FILE}", hint=hint)
    what = f"no captures in this folder ({', '.join(_CAPTURES)})" if files else "no such profile, file or folder"
    raise UsageError(f"{place}: {what}", hint="dflash-bench ingest URL --profiles FOLDER-OR-URL")


def _is_exported(place: Url, name: str) -> bool:
    """Whether a file lies in a folder of tables that nsys exported."""
    folder = PurePosixPath(str(place).rstrip("/").rpartition("/")[2], name).parent
    return folder.name.endswith(FOLDER_ENDINGS) and name.endswith(SUFFIXES)


def _captures(place: Url) -> Listing:
    """A single file or what matches a pattern, and what belongs to these files."""
    files = list_files(place) if place.is_pattern else {place.name: (place, None)}
    if not files:
        raise UsageError(f"{place}: no file there matches")
    if place.is_web:
        return files
    logs = {n: f for n, f in list_files(place.parent / "*.sqlite-*").items() if n.rpartition("-")[0] in files}
    folders = place.parent, place.parent / UNPROFILED_FOLDER
    steps, unprofiled = (list_files(folder / "rank*.steps.csv") for folder in folders)
    return {**files, **logs, **steps, **{f"{UNPROFILED_FOLDER}/{name}": file for name, file in unprofiled.items()}}


def _within(name: str, folder: PurePosixPath) -> str:
    return PurePosixPath(name).relative_to(folder).as_posix()
