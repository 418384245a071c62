"""The hook's own clock: what every range takes from before it is opened until after it is closed.

With ENGINE_TIMES=FOLDER each annotated process writes ``FOLDER/<pid>.txt``, a line ``name start_ns end_ns`` a range.
"""

import atexit
import os
import sys
from pathlib import Path
from time import perf_counter_ns

from shims import Shims


class Timed:
    """A sink around another one."""

    def __init__(self, sink, folder):
        self.sink, self.file, self.open, self.lines = sink, Path(folder) / f"{os.getpid()}.txt", [], []
        self.mark, self.forked = sink.mark, sink.forked
        atexit.register(self.write)

    def range(self, name, *, is_step):
        push, pop = self.sink.range(name, is_step=is_step)

        def timed_push():
            self.open.append(perf_counter_ns())
            push()

        def timed_pop():
            pop()
            end = perf_counter_ns()
            if self.open:
                self.lines.append(f"{name} {self.open.pop()} {end}\n")

        return timed_push, timed_pop

    def write(self):
        if self.lines:
            self.file.write_text("".join(self.lines))


def _around(process):
    make_sink = process.make_sink
    process.make_sink = lambda kind: Timed(make_sink(kind), os.environ["ENGINE_TIMES"])


def install():
    sys.meta_path.insert(0, Shims({"dflash_bench.annotate.process": _around}))
