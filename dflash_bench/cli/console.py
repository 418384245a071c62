"""The two consoles: results on stdout, everything else on stderr, so that ``--json`` can be piped."""

from __future__ import annotations

import shutil
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

from rich.console import Console
from rich.progress import (
    BarColumn,
    DownloadColumn,
    Progress,
    SpinnerColumn,
    TextColumn,
    TimeElapsedColumn,
    TimeRemainingColumn,
)
from rich.text import Text

from dflash_bench.errors import BenchError

if TYPE_CHECKING:
    from dflash_bench.ingest.build import Progress as OnProgress
    from dflash_bench.storage import Transferred

PIPE_WIDTH = 160
"""Columns when stdout is no terminal: a file or a CI log has no edge, and tables should not fold at 80."""


class _Console(Console):
    def on_broken_pipe(self) -> None:
        # Rich would exit with 1, which is a crash's code: leave it to the one place that catches errors
        raise


stdout = _Console(
    width=None if sys.stdout.isatty() else max(PIPE_WIDTH, shutil.get_terminal_size((0, 0)).columns), highlight=False
)
stderr = Console(stderr=True, highlight=False, soft_wrap=True)


def complain(error: BenchError) -> None:
    """One sentence, and the next thing to type."""
    stderr.print(Text.assemble(("error: ", "bold red"), error.text))
    if error.hint:
        stderr.print(Text.assemble(("try:   ", "bold"), error.hint))


@contextmanager
def reading_progress() -> Iterator[OnProgress | None]:
    """A bar per file being ingested, on terminals only, and gone when done."""
    if not stderr.is_terminal:
        yield None
        return
    columns = (
        TextColumn("reading {task.description}"),
        BarColumn(),
        TextColumn("{task.completed:,} rows"),
        TimeRemainingColumn(),
    )
    with Progress(*columns, console=stderr, transient=True) as bar:
        tasks: dict[Path, int] = {}

        def on_progress(path: Path, done: int, total: int) -> None:
            if path not in tasks:
                tasks[path] = int(bar.add_task(path.name, total=total))
            bar.update(tasks[path], completed=done, total=total)  # type: ignore[arg-type]

        yield on_progress


@contextmanager
def working(what: str) -> Iterator[None]:
    """What is being done and since when, on terminals only, and gone when done: for work whose length nobody knows."""
    if not stderr.is_terminal:
        yield
        return
    columns = SpinnerColumn(), TextColumn("{task.description}", markup=False), TimeElapsedColumn()
    with Progress(*columns, console=stderr, transient=True) as shown:
        shown.add_task(what, total=None)
        yield


@contextmanager
def transfer_progress() -> Iterator[Transferred | None]:
    """A bar per file on its way from or to a URL, on terminals only, and gone when done."""
    if not stderr.is_terminal:
        yield None
        return
    columns = (TextColumn("copying {task.description}"), BarColumn(), DownloadColumn(), TimeRemainingColumn())
    with Progress(*columns, console=stderr, transient=True) as bar:
        tasks = {}

        def on_bytes(name: str, done: int, total: int) -> None:
            if name not in tasks:
                tasks[name] = bar.add_task(name)
            bar.update(tasks[name], completed=done, total=total or None)

        yield on_bytes
