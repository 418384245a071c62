"""How a capture is read: which ranges play which part."""

from __future__ import annotations

import re
from dataclasses import dataclass

from dflash_bench.errors import UsageError
from dflash_bench.metrics.events.host import Ranges
from dflash_bench.metrics.events.names import Rule, without_numbers
from dflash_bench.model import BoolArray

PATTERN, CALL = "re:", "call:"
"""What a step's name begins with that is a regular expression, or the name of an API call that recurs."""


@dataclass(frozen=True, slots=True)
class Reading:
    """Which ranges play which part. ``step`` is a name, or after ``re:`` a pattern that must match a whole name, or
    after ``call:`` the API call with which each step begins. ``core``: the steps of an engine's core, which schedules
    for the ranks.

    ``rules`` shorten names that engines write counts into, before anything looks at them (`presets`). ``prefill``, a
    regular expression too, matches the ranges that prefill where they do not lie inside ``prepare``; ``composition``
    matches a step's whole name before it is shortened, with the groups ``prefill``, ``decode`` (how many of each) or
    ``mixed``.

    ``arm``: of a run in which arms take turns, only that one's blocks of steps count. ``first``, ``last``: only steps
    number first … last − 1 of each process count, from 0, ``None`` for no end. ``is_open``: nobody chose the step's
    name, so that a known engine's is taken where a capture has that instead.
    """

    step: str = "decode_step"
    agreement: str = "dp_agreement"
    prepare: str = "prepare_for_decode"
    alloc: str = "kv_alloc"
    rules: tuple[Rule, ...] = ()
    prefill: str = "prefill|alloc_extend"
    composition: re.Pattern[str] | None = None
    arm: str | None = None
    first: int = 0
    last: int | None = None
    is_open: bool = False
    core: str = f"{PATTERN}engine_step|decode_step"

    def composition_of(self, name: str) -> tuple[bool, bool] | None:
        """Whether a step of this whole name prefills, and whether it decodes; None where the name does not say."""
        if self.composition is None or (found := self.composition.fullmatch(name)) is None:
            return None
        prefill, decode, mixed = (found.groupdict().get(part) for part in ("prefill", "decode", "mixed"))
        has_prefill, has_decode = (text is not None and text.strip("0") != "" for text in (prefill, decode))
        return mixed is not None or has_prefill, mixed is not None or has_decode

    def prefill_pattern(self) -> re.Pattern[str]:
        return re.compile(self.prefill)

    def is_step(self, ranges: Ranges) -> BoolArray:
        """bool [n]: which ranges have the step's name, in full or shortened. Raises as `check` does."""
        names = ranges.name, ranges.full_name
        if pattern := self._pattern():
            short, full = (name.matching(pattern) for name in names)
        else:
            short, full = (name.among({self.step, without_numbers(self.step)}) for name in names)
        return short | full

    def check(self) -> None:
        """Raises UsageError when ``step`` is a pattern that does not compile."""
        self._pattern()

    def _pattern(self) -> re.Pattern[str] | None:
        if not self.step.startswith(PATTERN):
            return None
        try:
            return re.compile(self.step.removeprefix(PATTERN))
        except re.error as error:
            raise UsageError(f"--step-range {self.step!r} is no regular expression: {error}") from None
