"""How a capture is read: which ranges play which part."""

from __future__ import annotations

import re
from dataclasses import dataclass

from dflash_bench.errors import UsageError, quoted
from dflash_bench.metrics.events.names import Rule


@dataclass(frozen=True, slots=True)
class Reading:
    """Which ranges play which part. ``step`` is a regular expression that must match the whole name.

    ``rules`` shorten names that engines write counts into, before anything looks at them (`presets`). ``prefill``, a
    regular expression too, matches the ranges that prefill where they do not lie inside ``prepare``; ``composition``
    matches a step's whole name before it is shortened, with the groups ``prefill``, ``decode`` (how many of each) or
    ``mixed``.

    ``arm``: of a run in which arms take turns, only that one's blocks of steps count. ``first``, ``last``: only steps
    number first … last − 1 of each process count, from 0, ``None`` for no end.
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

    def composition_of(self, name: str) -> tuple[bool, bool] | None:
        """Whether a step of this whole name prefills, and whether it decodes; None where the name does not say."""
        if self.composition is None or (found := self.composition.fullmatch(name)) is None:
            return None
        prefill, decode, mixed = (found.groupdict().get(part) for part in ("prefill", "decode", "mixed"))
        has_prefill, has_decode = (text is not None and text.strip("0") != "" for text in (prefill, decode))
        return mixed is not None or has_prefill, mixed is not None or has_decode

    def prefill_pattern(self) -> re.Pattern[str]:
        return re.compile(self.prefill)

    def step_pattern(self) -> re.Pattern[str]:
        """Raises UsageError when ``step`` does not compile."""
        try:
            return re.compile(self.step)
        except re.error as error:
            raise UsageError(f"--step-range {quoted(self.step)} is no regular expression: {error}") from None
