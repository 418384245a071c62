"""What was cached of a profile, beside it: a second look at a large run reads figures instead of events.

A file's name is a digest of everything that its content depends on: of figures the files of the profile (name, size,
times of change), how it is read, and the source of this package; of an answer (what a comparison or a page works out)
the figures of the runs, and what was asked. A change of any of them makes another name, and the old file is never read
again: the newest few stay, and none that other source made. No file holds objects: figures are a header in JSON, then
arrays, which are mapped and read when they are used; answers are JSON.
"""

from __future__ import annotations

import dataclasses
import hashlib
import json
import logging
import re
import zlib
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from functools import cache
from importlib.metadata import version
from pathlib import Path
from typing import Any

import numpy as np

import dflash_bench
from dflash_bench.errors import DataError
from dflash_bench.layout import FIGURES
from dflash_bench.metrics.reading import Reading
from dflash_bench.metrics.summary import figure, summarise
from dflash_bench.model import FiguresFile, Finding, Metric, RunMetrics, SampleFigures, Statistic, Summary, Table, Unit
from dflash_bench.profile import Profile
from dflash_bench.whole import whole_file

LEAST_ROWS = 100_000
"""Of a run: fewer are cached about as fast as their figures are read."""
_MAX_FILES, _MAX_ANSWERS = 8, 64
"""Ways to read a profile whose figures are kept, and answers: the newest ones."""
_MAGIC = b"dflash-bench figures 1\n"
_ALIGN = 64
_FIELDS = ("values", "group", "block", "pair")
_ANSWER = ".json"
_OF_CODE = 16
"""Characters of a name that stand for the source."""

_log = logging.getLogger(__name__)


def cached(profile: Profile, reading: Reading, measure: Callable[[], RunMetrics]) -> RunMetrics:
    """What ``measure`` gives for a profile, read from beside it where that was kept, else made and kept."""
    rows = sum(p.num_ranges + p.num_api_calls + p.num_gpu_work for p in profile.info.processes)
    if rows < LEAST_ROWS:
        return measure()
    path = profile.path / FIGURES / _name(profile, reading)
    if (known := _read(path, profile)) is not None:
        return known
    found = measure()
    # a profile that cannot be written to is cached anew each time
    with suppress(DataError, OSError):
        _write(path, found)
        _drop_oldest(path.parent)
        return replace(found, file=FiguresFile(path, found.metrics))
    return found


def answer(runs: Sequence[RunMetrics], question: Sequence[Any], make: Callable[[], Any]) -> Any:
    """What ``make`` works out of the figures and the events of runs, kept beside the first of them where the figures of
    all are.

    It is given as JSON gives it back, also the first time: no tuples, and keys are text. ``question`` is everything
    else that it depends on.
    """
    files = [run.file for run in runs if run.file is not None and run.file.metrics is run.metrics]
    if len(files) < len(runs):
        return json.loads(json.dumps(make()))
    path = files[0].path.parent / f"{_digest([[file.path.name for file in files], question])}{_ANSWER}"
    try:
        text = path.read_bytes()
        path.touch()
        check, _, content = text.partition(b"\n")
        if int(check) == zlib.crc32(content):
            return json.loads(content)
    except (OSError, ValueError):
        pass
    content = json.dumps(make(), ensure_ascii=False).encode()
    with suppress(DataError, OSError):
        with whole_file(path) as partial:
            partial.write_bytes(b"%d\n%s" % (zlib.crc32(content), content))
        _drop_oldest(path.parent)
    return json.loads(content)


def _name(profile: Profile, reading: Reading) -> str:
    return _digest([list(_files(profile.path)), profile.arm, reading])


def _digest(parts: Sequence[Any]) -> str:
    """A file's name: the source's digest, then that of everything else."""
    return f"{_code()[:_OF_CODE]}-{hashlib.sha256(json.dumps(parts, default=_plain).encode()).hexdigest()[:24]}"


def _files(folder: Path) -> Iterator[tuple[str, int, int, int]]:
    """The files of a profile. Whatever writes to one, or puts another in its place, changes one of these numbers."""
    for path in sorted(folder.rglob("*")):
        name = path.relative_to(folder)
        if name.parts[0] not in (FIGURES, "captures") and path.is_file():
            about = path.stat()
            yield name.as_posix(), about.st_size, about.st_mtime_ns, about.st_ctime_ns


@cache
def _code() -> str:
    """A digest of the source of this package, and of the libraries that it computes with."""
    root = Path(dflash_bench.__file__).parent
    digest = hashlib.sha256(f"{np.__version__} {version('scipy')}".encode())
    for path in sorted(root.rglob("*.py")):
        digest.update(path.relative_to(root).as_posix().encode() + b"\0" + path.read_bytes())
    return digest.hexdigest()


def _plain(value: object) -> Any:
    """What JSON does not know by itself."""
    if isinstance(value, re.Pattern):
        return [value.pattern, value.flags]
    if dataclasses.is_dataclass(value):
        return {each.name: getattr(value, each.name) for each in dataclasses.fields(value)}
    raise TypeError(f"{value!r} is in no digest")


@dataclass
class _Blob:
    """Arrays one behind another. One that is part of another (a rank's of the pooled) is stored once."""

    arrays: list[np.ndarray[Any, Any]] = dataclasses.field(default_factory=list)
    places: dict[tuple[int, int, str], int] = dataclasses.field(default_factory=dict)
    size: int = 0

    def add(self, array: np.ndarray[Any, Any] | None) -> list[Any] | None:
        """Where an array lies: its place, length and type."""
        if array is None:
            return None
        array = np.ascontiguousarray(array)
        kind, begin = array.dtype.str, array.__array_interface__["data"][0]
        for (first, size, other), place in self.places.items():
            if other == kind and first <= begin and begin + array.nbytes <= first + size and array.nbytes:
                return [place + begin - first, len(array), kind]
        place = self.size
        self.arrays.append(array)
        self.places[begin, array.nbytes, kind] = place
        self.size += -(-array.nbytes // _ALIGN) * _ALIGN
        return [place, len(array), kind]


def _write(path: Path, found: RunMetrics) -> None:
    blob = _Blob()
    # the pooled ones first: those of the ranks are parts of them
    order = sorted(range(len(found.metrics)), key=lambda k: found.metrics[k].rank is not None)
    places = {k: [blob.add(getattr(found.metrics[k], field)) for field in _FIELDS] for k in order}
    header = {
        "metrics": [[*_about(m), *places[k]] for k, m in enumerate(found.metrics)],
        "tables": [[t.name, t.columns, t.rows] for t in found.tables],
        "findings": [dataclasses.astuple(f) for f in found.findings],
        "step": found.step,
    }
    text = json.dumps(header).encode()
    begin = len(_MAGIC) + 24 + len(text)
    padding = -begin % _ALIGN
    numbers = (len(text) + padding, zlib.crc32(text), begin + padding + blob.size)
    with whole_file(path) as partial, partial.open("wb") as file:
        file.write(_MAGIC + b"".join(n.to_bytes(8, "little") for n in numbers) + text + b" " * padding)
        for array in blob.arrays:
            file.write(array.tobytes())
            file.write(bytes(-array.nbytes % _ALIGN))


def _about(metric: Metric) -> list[Any]:
    known = summarise(metric)
    figures = None if known is None else [figure(metric), *dataclasses.astuple(known)]
    return [metric.name, metric.rank, metric.unit, metric.statistic, metric.num_samples, metric.coverage, figures]


def _read(path: Path, profile: Profile) -> RunMetrics | None:
    """What a file holds; None where there is none, or it is not whole."""
    try:
        with path.open("rb") as file:
            head = file.read(len(_MAGIC) + 24)
            length, check, size = (int.from_bytes(head[len(_MAGIC) + 8 * k :][:8], "little") for k in range(3))
            if not head.startswith(_MAGIC) or path.stat().st_size != size:
                return None
            text = file.read(length).rstrip(b" ")
        if zlib.crc32(text) != check:
            return None
        raw: Any = json.loads(text)
        whole = np.memmap(path, np.uint8, "r", offset=len(_MAGIC) + 24 + length) if size > len(head) + length else None
        path.touch()
    except (OSError, ValueError):
        return None
    metrics = tuple(_metric(each, whole) for each in raw["metrics"])
    return RunMetrics(
        info=profile.info,
        metrics=metrics,
        tables=tuple(Table(name, tuple(columns), tuple(map(tuple, rows))) for name, columns, rows in raw["tables"]),
        findings=tuple(Finding(*each) for each in raw["findings"]),
        step=raw["step"],
        file=FiguresFile(path, metrics),
    )


def _metric(raw: Sequence[Any], whole: np.ndarray[Any, Any] | None) -> Metric:
    name, rank, unit, statistic, num_samples, coverage, figures, *places = raw
    values, group, block, pair = (_array(place, whole) for place in places)
    assert values is not None
    known = None
    if figures is not None:
        known = SampleFigures(Summary(*figures[1:]), figures[0], values, group)
    return Metric(
        name, rank, Unit(unit), Statistic(statistic), values, group, block, num_samples, coverage, pair, known
    )


def _array(place: list[Any] | None, whole: np.ndarray[Any, Any] | None) -> Any:
    if place is None:
        return None
    begin, length, kind = place
    if not length or whole is None:
        return np.zeros(0, kind)
    size = length * np.dtype(kind).itemsize
    return np.asarray(whole[begin : begin + size]).view(kind)


def _drop_oldest(folder: Path) -> None:
    files = sorted(folder.iterdir(), key=lambda path: path.stat().st_mtime_ns, reverse=True)
    own = [path for path in files if path.name.startswith(_code()[:_OF_CODE])]
    answers = [path for path in own if path.suffix == _ANSWER]
    figures = [path for path in own if path.suffix != _ANSWER]
    of_others = [path for path in files if path not in own and not path.name.startswith(".")]
    for path in (*figures[_MAX_FILES:], *answers[_MAX_ANSWERS:], *of_others):
        path.unlink(missing_ok=True)
