"""Range names without bound, made few: rules that shorten them, and a limit for where no rule helps."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass

MAX_NAMES = 500
"""Distinct range names of a process beyond which those that differ in numbers only become one."""
REST = "(other names)"

Rule = tuple[re.Pattern[str], str]
"""A pattern that matches from a name's beginning to its end, and what is written instead."""

_LAYER_NUMBER = re.compile(r"(?<=\.)\d+(?=\.|$)")


def short_name(name: str, rules: Sequence[Rule]) -> str:
    """The name after the first rule that matches it; unchanged where none does."""
    for pattern, replacement in rules:
        if found := pattern.fullmatch(name):
            short = found.expand(replacement)
            return _LAYER_NUMBER.sub("*", short) if "module" in pattern.groupindex else short
    return name


@dataclass(frozen=True, slots=True)
class ShortNames:
    """``values``: the names that are left. ``place``: for each original name, its position in ``values``.

    ``num_merged``: how many names became one with others because there were too many.
    """

    values: tuple[str, ...]
    place: tuple[int, ...]
    num_merged: int


def short_names(names: Sequence[str], rules: Sequence[Rule] = (), limit: int = MAX_NAMES) -> ShortNames:
    """Shorten all names of a process, and keep their number within ``limit``.

    Where too many are left, names that differ in numbers only become one (its numbers shown as 0, so that a pattern
    for the numbers still matches it); where that is not enough, the names beyond the limit become ``(other names)``.
    """
    short = [short_name(name, rules) for name in names]
    before = len(set(short))
    if before > limit:
        short = [re.sub(r"\d+", "0", name) for name in short]
        kept = set(list(dict.fromkeys(short))[: limit - 1])
        short = [name if name in kept else REST for name in short] if len(set(short)) > limit else short
    values = tuple(dict.fromkeys(short))
    position = {name: k for k, name in enumerate(values)}
    return ShortNames(values, tuple(position[name] for name in short), before - len(values))
