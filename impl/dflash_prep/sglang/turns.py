"""Upstream and an arm in turns on live traffic: which of them prepares a step, and the marks that tell a capture.

A block is first refilled, which no figure counts: pages taken in advance must be used up before the engine's own code
shows what it costs, and taken before the arm does. Then the counted steps follow. Everything is told by the number of
the step, so ranks that decode in step with each other change over together.
"""

from __future__ import annotations

from collections.abc import Callable
from random import Random

from dflash_prep.sglang.preparation import PlugArm

UPSTREAM = "upstream"


def default_refill(topup_pages: int, page_size: int) -> int:
    """Steps after which pages in advance are used up, by requests that commit three tokens a step; and some more."""
    return (topup_pages + 1) * page_size // 3 + 8


class LiveTurns:
    """Whose turn it is: ``block`` counted steps behind ``refill`` uncounted ones.

    Each pair's order is drawn from ``seed``; ``mark`` puts a text into the capture.
    """

    def __init__(self, arm: PlugArm, block: int, refill: int, mark: Callable[[str], None], seed: int = 0) -> None:
        self.arm, self.block, self.refill, self.mark = arm, block, refill, mark
        self._random = Random(seed)
        self._step = 0
        self._order = self._draw()

    @property
    def pair(self) -> int:
        """Number of the pair of blocks, from 0."""
        return self._step // (2 * (self.block + self.refill))

    @property
    def label(self) -> str:
        """Who prepares the step that comes: the arm's name or ``upstream``."""
        return self._order[self._step // (self.block + self.refill) % 2]

    def is_arms(self) -> bool:
        """Whether the arm prepares the step that comes."""
        return self.label != UPSTREAM

    @property
    def is_counted(self) -> bool:
        """Whether the step that comes belongs to the counted part of its block."""
        return self._step % (self.block + self.refill) >= self.refill

    def advance(self) -> None:
        """A step has been prepared. Marks come behind it, so that the steps that start between them are the counted."""
        length = self.block + self.refill
        at = self._step % length
        if at == self.refill - 1:
            self.mark(f"dflash_bench duet pair={self.pair} arm={self.label} open")
        if at == length - 1:
            self.mark(f"dflash_bench duet pair={self.pair} arm={self.label} close")
        self._step += 1
        if self._step % (2 * length) == 0:
            self._order = self._draw()

    def _draw(self) -> list[str]:
        order = [UPSTREAM, str(self.arm)]
        self._random.shuffle(order)
        return order
