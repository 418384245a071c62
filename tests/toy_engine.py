"""A small program that knows nothing of us, a table for it, and what annotated runs of it leave."""

from __future__ import annotations

import os
import sqlite3
import subprocess
import sys
from collections import Counter
from contextlib import closing
from pathlib import Path
from typing import Any

from dflash_bench.annotate.environment import annotating
from dflash_bench.annotate.sinks import SinkKind
from dflash_bench.capture.recorder import FOLDER_VARIABLE

ENGINE = """
import asyncio

__version__ = "2.5.1"


def taken(pages, *, free=8):
    return pages


class Pool:
    size = 4

    @staticmethod
    def first(page):
        return page

    @classmethod
    def make(cls):
        return cls()

    def take(self, pages):
        return taken(pages)


class Loop:
    def __init__(self, rank=0, world=1):
        self.rank, self.world, self.pool, self.left = rank, world, Pool.make(), 0

    def next_batch(self):
        self.left -= 1
        return self.left >= 0

    def prepare(self, pages):
        return self.pool.take(pages)

    def forward(self):
        return None if self.left > 0 else "done"

    def sample(self):
        return 1

    async def talk(self):
        await asyncio.sleep(0)
        await asyncio.sleep(0)
        return 3

    def tokens(self):
        got = yield 1
        yield got

    async def stream(self):
        yield 1
        await asyncio.sleep(0)
        yield 2

    def run(self, steps):
        self.left = steps
        while self.next_batch():
            self.prepare(self.left % 2)
            self.forward()
            self.sample()
"""

TABLE = """
engine = "toy"
package = "toy"
step = "decode_step"

[[range]]
name = "decode_step"
target = "toy.engine:Loop.next_batch"
when = "self.left > 1"
until = "next call"

[[range]]
name = "schedule"
target = "toy.engine:Loop.next_batch"

[[range]]
name = "prepare_for_decode"
target = "toy.engine:Loop.prepare"

[[range]]
name = "kv_alloc"
target = "toy.engine:taken"
when = "pages > 0 and free == 8"

[[range]]
name = "first"
target = "toy.engine:Pool.first"

[[range]]
name = "make"
target = "toy.engine:Pool.make"
when = "cls.size == 4"

[[range]]
name = "talk"
target = "toy.engine:Loop.talk"

[[range]]
name = "tokens"
target = "toy.engine:Loop.tokens"

[[range]]
name = "stream"
target = "toy.engine:Loop.stream"

[[rank]]
after = "toy.engine:Loop.__init__"
rank = "rank"
world = "world"
"""


class Toy:
    """A folder with the package toy in ``lib``, and ``out`` for what a recorder writes."""

    def __init__(self, folder: Path) -> None:
        self.folder, self.out = folder, folder / "out"
        (folder / "lib" / "toy").mkdir(parents=True)
        (folder / "lib" / "toy" / "__init__.py").write_text('__version__ = "2.5.1"\n')
        (folder / "lib" / "toy" / "engine.py").write_text(ENGINE)
        self.out.mkdir()

    def environment(self, table: str, sink: SinkKind = SinkKind.RECORDER) -> dict[str, str]:
        file = self.folder / "table.toml"
        file.write_text(table)
        variables = annotating(file, sink)
        path = os.pathsep.join([variables["PYTHONPATH"].split(os.pathsep)[0], str(self.folder / "lib")])
        return {**os.environ, **variables, "PYTHONPATH": path, FOLDER_VARIABLE: str(self.out)}

    def run(self, program: str, table: str = TABLE, *, command: tuple[str, ...] = (), **more: Any):
        (self.folder / "program.py").write_text(program)
        line = [sys.executable, *command, str(self.folder / "program.py")]
        environment = more.pop("environment", None) or self.environment(table)
        done = subprocess.run(line, env=environment, capture_output=True, text=True, check=False, **more)
        assert done.returncode == 0, done.stderr
        return done

    def processes(self) -> list[Counter[str]]:
        """Ranges by name of each process that left any, the one with most first."""
        counts = [Counter(name for name, _, _ in ranges(file)) for file in sorted(self.out.glob("*.sqlite"))]
        return sorted(counts, key=lambda count: -count.total())

    def marks(self) -> list[str]:
        found = []
        for file in sorted(self.out.glob("*.sqlite")):
            with closing(sqlite3.connect(file)) as database:
                rows = database.execute(
                    "SELECT coalesce(text, value) FROM NVTX_EVENTS LEFT JOIN StringIds ON textId = id "
                    "WHERE eventType = 34"
                )
                found += [text for (text,) in rows]
        return found


def ranges(file: Path) -> list[tuple[str, int, int]]:
    with closing(sqlite3.connect(file)) as database:
        return database.execute(
            "SELECT coalesce(text, value), start, end FROM NVTX_EVENTS LEFT JOIN StringIds ON textId = id "
            "WHERE eventType = 59 ORDER BY start, end DESC"
        ).fetchall()


def only_file(toy: Toy) -> Path:
    (file,) = toy.out.glob("*.sqlite")
    return file
