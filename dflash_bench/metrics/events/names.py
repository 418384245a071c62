"""Range names without bound, made few: rules that shorten them, numbers left out, and a limit where neither helps."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass

_MAX_NAMES = 500
_MAX_NUMBERED = 20
"""Names of a process that differ only in a number that is part of a word, up to which they stay apart: ``stage1``,
``stage2`` mean something, ``step_1`` to ``step_400`` do not."""
REST = "(other names)"

Rule = tuple[re.Pattern[str], str]
"""A pattern that matches from a name's beginning to its end, and what is written instead."""

_LAYER_NUMBER = re.compile(r"(?<=\.)\d+(?=\.|$)")
_NUMBER = re.compile(r"(?<![A-Za-z_\d])\d+(?:\.\d+)*(?![A-Za-z_\d])")
_DIGITS = re.compile(r"\d+")


def short_name(name: str, rules: Sequence[Rule]) -> str:
    """The name after the first rule that matches it; unchanged where none does."""
    for pattern, replacement in rules:
        if found := pattern.fullmatch(name):
            short = found.expand(replacement)
            return _LAYER_NUMBER.sub("*", short) if "module" in pattern.groupindex else short
    return name


def without_numbers(name: str) -> str:
    """The name with ``*`` for every number in it that stands by itself: ``aten::mul, op_id = *``."""
    return _NUMBER.sub("*", name)


@dataclass(frozen=True, slots=True)
class ShortNames:
    """``values``: the names that are left. ``place``: for each original name, its position in ``values``.

    ``num_merged``: how many names became one with others because there were too many.
    """

    values: tuple[str, ...]
    place: tuple[int, ...]
    num_merged: int


def short_names(names: Sequence[str], rules: Sequence[Rule] = (), limit: int = _MAX_NAMES) -> ShortNames:
    """Shorten all names of a process, and keep their number within ``limit``.

    Names that differ only in numbers become one, with ``*`` for the numbers; names beyond the limit become ``(other
    names)``.
    """
    short = _merged([short_name(name, rules) for name in names], without_numbers, 1)
    short = _merged(short, lambda name: _DIGITS.sub("*", name), _MAX_NUMBERED)
    before = len(set(short))
    if before > limit:
        kept = set(list(dict.fromkeys(short))[: limit - 1])
        short = [name if name in kept else REST for name in short]
    values = tuple(dict.fromkeys(short))
    position = {name: k for k, name in enumerate(values)}
    return ShortNames(values, tuple(position[name] for name in short), before - len(values))


def _merged(names: Sequence[str], form: Callable[[str], str], limit: int) -> list[str]:
    """The names, those of one form under it where more than ``limit`` share it."""
    forms = {name: form(name) for name in dict.fromkeys(names)}
    count = Counter(forms.values())
    return [forms[name] if count[forms[name]] > limit else name for name in names]
