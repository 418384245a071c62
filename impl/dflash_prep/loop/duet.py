"""Several arms in one process: blocks of steps in turn, so that what is compared was measured seconds apart.

Two engines that run one after the other differ by what the host did meanwhile; blocks that alternate share it. At a
block's end the step in flight is finished, so no engine works behind another's back; the steps that fill the pipeline
again are decoded before the block opens and are not counted. Marks say which steps belong to a block:

    dflash_bench duet pair=P arm=LABEL open   …   dflash_bench duet pair=P arm=LABEL close
"""

from __future__ import annotations

import socket
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from random import Random

from dflash_prep.errors import SettingError
from dflash_prep.loop.counters import StepRow
from dflash_prep.loop.engine import Engine
from dflash_prep.ranges import mark

REFILL_STEPS = 2
"""Before a block opens: the first step after a pause has no result to process, the second is like all that follow."""
_POLL_S = 0.2
"""How long a rank that waits for its turn does not notice a signal."""


@dataclass(frozen=True, slots=True)
class Block:
    """`steps` counted steps of the engine of arm `arm`, marked as `label`, the same as the arm unless turns say so."""

    pair: int
    arm: str
    label: str
    steps: int


def shuffled_blocks(arms: Sequence[str], pairs: int, steps: int, seed: int) -> Iterator[Block]:
    """All blocks of a duet in order; that of the arms is drawn anew for every pair, alike on all ranks."""
    for pair in range(pairs):
        order = list(arms)
        Random(f"{seed}/duet/{pair}").shuffle(order)
        yield from (Block(pair, arm, arm, steps) for arm in order)


@dataclass(slots=True)
class Duet:
    """Engines by arm, and the rows of their steps in order of time: row, label and pair, None and None for refills."""

    engines: dict[str, Engine]
    on_step: Callable[[int], None] = lambda _done: None
    num_counted: int = 0
    rows: list[tuple[StepRow, str | None, int | None]] = field(default_factory=list)

    def run(self, blocks: Iterator[Block], wants_stop: Callable[[], bool]) -> bool:
        """Decode block after block; True if the ranks agreed to stop before the last."""
        return any(self._is_cut_short(block, wants_stop) for block in blocks)

    def _is_cut_short(self, block: Block, wants_stop: Callable[[], bool]) -> bool:
        engine = self.engines[block.arm]
        engine.parts.device.resume()
        if self._decode(engine, REFILL_STEPS, wants_stop, None):
            return True
        mark(f"dflash_bench duet pair={block.pair} arm={block.label} open")
        is_cut_short = self._decode(engine, block.steps, wants_stop, block)
        mark(f"dflash_bench duet pair={block.pair} arm={block.label} close")
        engine.pause()
        return is_cut_short

    def _decode(self, engine: Engine, steps: int, wants_stop: Callable[[], bool], block: Block | None) -> bool:
        before = len(engine.rows)

        def on_step(_done: int) -> None:
            if block is not None:
                self.num_counted += 1
                self.on_step(self.num_counted)

        is_cut_short = engine.run(steps, wants_stop, on_step)
        label, pair = (None, None) if block is None else (block.label, block.pair)
        for row in engine.rows[before:]:
            self.rows.append((replace(row, step=len(self.rows)), label, pair))
        return is_cut_short


class Turns:
    """The blocks that somebody else hands out over a unix socket, one line each way, until ``end``.

    Sent: ``ready``, then ``done`` after every block. Received: ``turn PAIR LABEL STEPS`` or ``end``.
    """

    def __init__(self, folder: Path, rank: int, arm: str, wants_stop: Callable[[], bool]) -> None:
        """Raises SettingError when nobody listens at ``FOLDER/rank{R}.sock``."""
        self._arm, self._wants_stop = arm, wants_stop
        path = folder / f"rank{rank}.sock"
        self._socket = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        try:
            self._socket.connect(str(path))
        except OSError as error:
            self._socket.close()
            raise SettingError(f"nobody hands out turns at {path}: {error.strerror}") from error
        self._socket.settimeout(_POLL_S)
        self._unread = b""

    def __iter__(self) -> Iterator[Block]:
        self._socket.sendall(b"ready\n")
        while (line := self._line()) not in ("end", ""):
            yield self._block(line)
            self._socket.sendall(b"done\n")

    def close(self) -> None:
        self._socket.close()

    def _block(self, line: str) -> Block:
        word, *rest = line.split()
        if word != "turn" or len(rest) != 3 or not (rest[0].isdecimal() and rest[2].isdecimal()):
            raise SettingError(f"{line!r} is no 'turn PAIR LABEL STEPS'")
        return Block(int(rest[0]), self._arm, rest[1], int(rest[2]))

    def _line(self) -> str:
        """The next line; empty when the other side is gone or this rank is to stop."""
        while b"\n" not in self._unread:
            if self._wants_stop():
                return ""
            try:
                more = self._socket.recv(4096)
            except TimeoutError:
                continue
            if not more:
                return ""
            self._unread += more
        line, self._unread = self._unread.split(b"\n", 1)
        return line.decode()
