"""How far a run is: a bar on a terminal, lines in a log."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager

from dflash_bench.cli.console import stderr

LINE_EVERY_S = 5.0


@contextmanager
def steps_bar(title: str, steps: int) -> Iterator[Callable[[int], None]]:
    """A bar with rate and time left on a terminal; elsewhere a line every few seconds."""
    if not stderr.is_terminal:
        yield _Lines(title, steps).show
        return
    from rich.progress import (
        BarColumn,
        MofNCompleteColumn,
        Progress,
        ProgressColumn,
        Task,
        TextColumn,
        TimeRemainingColumn,
    )
    from rich.text import Text

    class Rate(ProgressColumn):
        def render(self, task: Task) -> Text:
            speed = task.finished_speed or task.speed
            return Text("starting" if speed is None else f"{speed:,.0f} steps/s")

    columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), Rate(), TimeRemainingColumn())
    with Progress(*columns, console=stderr) as bar:
        task = bar.add_task(title, total=steps)
        yield lambda done: bar.update(task, completed=done)


class _Lines:
    """Progress for logs. The rate counts from the first sign of progress, so that starting up does not dilute it."""

    def __init__(self, title: str, steps: int) -> None:
        self.title, self.steps = title, steps
        self.shown_at = time.monotonic()
        self.shown = 0
        self.first: tuple[float, int] | None = None

    def show(self, done: int) -> None:
        now = time.monotonic()
        if done and self.first is None:
            self.first = now, done
        if self.first is None or done == self.shown or now - self.shown_at < LINE_EVERY_S:
            return
        self.shown, self.shown_at = done, now
        started, offset = self.first
        text = f"{self.title}: {done:,}/{self.steps:,} steps"
        if done > offset:
            rate = (done - offset) / (now - started)
            text += f", {rate:,.1f} steps/s, {max(self.steps - done, 0) / rate:,.0f} s left"
        stderr.print(text, markup=False)
