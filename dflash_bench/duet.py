"""Duets: runs in which arms take turns, block by block, and the marks that tell the blocks.

A process marks where a block of steps opens and closes: ``dflash_bench duet pair=3 arm=topup open``, later ``… close``.
Steps that start between belong to that arm and pair; those outside (refilling, draining) belong to none.
"""

from __future__ import annotations

import re
from dataclasses import dataclass

_MARK = re.compile(r"dflash_bench duet pair=(?P<pair>\d+) arm=(?P<arm>.*) (?P<what>open|close)", re.DOTALL)


@dataclass(frozen=True, slots=True)
class DuetMark:
    """One end of a block."""

    pair: int
    arm: str
    is_open: bool


def duet_mark(text: str) -> DuetMark | None:
    """The mark in a text, or None when the text is another one."""
    found = _MARK.fullmatch(text)
    return None if found is None else DuetMark(int(found["pair"]), found["arm"], found["what"] == "open")
