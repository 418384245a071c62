"""The hook's own clock: what every range takes from before it is opened until after it is closed.

With ENGINE_TIMES=FOLDER each annotated process writes ``FOLDER/<pid>.txt``, a line ``name start_ns end_ns`` a range.
"""

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
            if not self.open:  # after each step, since a process may be killed
                self.write()

        return timed_push, timed_pop

    def write(self):
        with self.file.open("a") as file:
            file.writelines(self.lines)
        self.lines.clear()


def _around(process):
    make_sink = process.make_sink
    process.make_sink = lambda kind: Timed(make_sink(kind), os.environ["ENGINE_TIMES"])


def install():
    sys.meta_path.insert(0, Shims({"dflash_bench.annotate.process": _around}))
