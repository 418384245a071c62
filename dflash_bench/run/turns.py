"""Handing the turn back and forth between processes of several versions that are alive together.

Each rank of each version connects to a socket ``rank<R>.sock`` in its version's folder and says ``ready``. It is then
told ``turn PAIR LABEL STEPS``, decodes so many steps between the marks of that pair and label, and answers ``done``;
``end`` lets it finish in order. All ranks of a version have the turn together, so that they meet each other alone.
"""

from __future__ import annotations

import random
import socket
import threading
from collections.abc import Mapping, Sequence
from contextlib import ExitStack, suppress
from pathlib import Path
from typing import TextIO

from dflash_bench.errors import CaptureError

_LONGEST_PATH = 100
"""Bytes of a socket's name, which the kernel limits to 108."""


class TurnTaking:
    """The turns of several versions, told from a thread of its own.

    ``folders``: label → the folder of a version's sockets, which must exist. A context: turns are told within it. When
    a process ends early nobody is told another one; whoever started them ends the others, and then the context.
    """

    def __init__(self, folders: Mapping[str, Path], ranks: int, block: int, pairs: int, seed: int) -> None:
        self._block, self._order = block, drawn_order(list(folders), pairs, seed)
        self._listening = {
            label: [_listen(at / f"rank{r}.sock") for r in range(ranks)] for label, at in folders.items()
        }
        self._connections = ExitStack()
        self._thread = threading.Thread(target=self._tell, daemon=True)

    def __enter__(self) -> None:
        self._thread.start()

    def __exit__(self, *_exception: object) -> None:
        # the processes are gone: whoever still waits for one of them is let go
        for sockets in self._listening.values():
            for each in sockets:
                with suppress(OSError):
                    each.shutdown(socket.SHUT_RDWR)
                each.close()
        self._thread.join()
        self._connections.close()

    def _tell(self) -> None:
        # a rank that is gone shows in its exit code, which whoever started it reads
        with suppress(OSError):
            ranks = {
                label: [_answering(each, self._connections) for each in sockets]
                for label, sockets in self._listening.items()
            }
            for each in (rank for own in ranks.values() for rank in own):
                _expect(each, "ready")
            for pair, labels in enumerate(self._order):
                for label in labels:
                    _say(ranks[label], f"turn {pair} {label} {self._block}")
                    for each in ranks[label]:
                        _expect(each, "done")
            for own in ranks.values():
                _say(own, "end")


def drawn_order(labels: Sequence[str], pairs: int, seed: int) -> list[list[str]]:
    """For each pair the labels in an order of its own."""
    draw = random.Random(seed)
    return [draw.sample(list(labels), len(labels)) for _ in range(pairs)]


def _listen(path: Path) -> socket.socket:
    if len(str(path).encode()) > _LONGEST_PATH:
        raise CaptureError(f"{path} is too long a name for a socket", hint="TMPDIR=/tmp dflash-bench run …")
    found = socket.socket(socket.AF_UNIX)
    found.bind(str(path))
    found.listen(1)
    return found


def _answering(listening: socket.socket, stack: ExitStack) -> TextIO:
    connection = stack.enter_context(listening.accept()[0])
    return stack.enter_context(connection.makefile("rw", encoding="ascii", newline="\n"))


def _say(ranks: Sequence[TextIO], line: str) -> None:
    for each in ranks:
        each.write(f"{line}\n")
        each.flush()


def _expect(rank: TextIO, word: str) -> None:
    if rank.readline() != f"{word}\n":
        raise ConnectionError(f"a rank did not say {word!r}")
