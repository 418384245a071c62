"""Captures sorted into runs, one arm and each rank once, and a name for each run."""

from __future__ import annotations

import itertools
import re
from collections.abc import Sequence
from pathlib import Path

from dflash_bench.ingest.build import MAX_NAME_BYTES
from dflash_bench.ingest.nsys.reports import export_stem
from dflash_bench.ingest.ranks import rank_in_name, run_folder
from dflash_bench.ingest.source import Source
from dflash_bench.ingest.torch.trace import looks_like_trace, trace_stem


def into_runs(exports: Sequence[Source], pattern: re.Pattern[str]) -> list[list[Source]]:
    """Exports by run. ``pattern`` finds the rank in a file's name."""
    if len(exports) == 1:
        return [list(exports)]
    marks = {export.path: export.rank_marks() for export in exports}
    by_arm: dict[tuple[Path, str], list[Source]] = {}
    for export in exports:
        arms = sorted({mark.arm or "" for mark in marks[export.path]})
        key = run_folder(export.path), arms[0] if arms else f"\0{_stem(export.path, pattern)}"
        by_arm.setdefault(key, []).append(export)
    groups = []
    for group in by_arm.values():
        ranks = [mark.rank for export in group for mark in marks[export.path]]
        if len(ranks) == len(set(ranks)):
            groups.append(group)
            continue
        # repeats of one arm in one folder: their file names tell them apart
        by_stem: dict[str, list[Source]] = {}
        for export in group:
            by_stem.setdefault(_stem(export.path, pattern), []).append(export)
        groups += list(by_stem.values())
    return groups


def _stem(path: Path, pattern: re.Pattern[str]) -> str:
    """The file's name without suffix and rank."""
    if looks_like_trace(path):
        return trace_stem(path)
    stem = export_stem(path)
    return pattern.sub("", stem).strip("-_. ") if rank_in_name(stem, pattern) is not None else stem


def run_names(groups: Sequence[Sequence[Source]], pattern: re.Pattern[str]) -> list[str]:
    """A name for each run, no two alike: runs whose files are called the same take their folder's name in front, and
    where the folders are called the same too, a number.
    """
    names = [_run_name(group, pattern) for group in groups]
    folders = [run_folder(group[0].path.resolve()).name for group in groups]
    found: list[str] = []
    for name, folder in zip(names, folders, strict=True):
        wanted = _as_name(f"{folder}-{name}") if names.count(name) > 1 else name
        others = (suffixed(wanted, f"-{k}") for k in itertools.count(2))
        found.append(next(own for own in itertools.chain([wanted], others) if own not in found))
    return found


def _run_name(group: Sequence[Source], pattern: re.Pattern[str]) -> str:
    stems = list(dict.fromkeys(_stem(export.path, pattern) for export in group))
    name = stems[0] if len(stems) == 1 or not stems[0] else f"{stems[0]}-and-{len(stems) - 1}-more"
    return _as_name(name or run_folder(group[0].path.resolve()).name) or "run"


def suffixed(name: str, suffix: str) -> str:
    """A run's name with something behind it, cut so that both together are a name still."""
    return _cut(name, MAX_NAME_BYTES - len(suffix.encode())) + suffix


def _as_name(text: str) -> str:
    return _cut(re.sub(r"[^\w.+-]+", "-", text).strip("-."), MAX_NAME_BYTES)


def _cut(text: str, num_bytes: int) -> str:
    return text.encode()[:num_bytes].decode("utf-8", "ignore")
