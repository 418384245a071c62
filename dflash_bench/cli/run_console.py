"""How runs are told on a terminal or in a log while they are made."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager

from rich.console import Console

from dflash_bench.cli.console import complain, stderr, stdout
from dflash_bench.errors import BenchError
from dflash_bench.run.make import MadeRun, RunListener
from dflash_bench.run.plan import RunPlan

_LINE_EVERY_S = 5.0


class RunConsole(RunListener):
    """Says on stderr how far the runs are. ``results``: where a line for each whole run goes."""

    def __init__(self, results: Console = stdout) -> None:
        self._results = results

    def on_plan(self, plan: RunPlan) -> None:
        stderr.print(plan.choice.text, markup=False)

    @contextmanager
    def progress(self, title: str, steps: int) -> Iterator[Callable[[int], None]]:
        """A bar with rate and time left on a terminal; elsewhere a line every few seconds."""
        if not stderr.is_terminal:
            yield _Lines(title, steps).show
            return
        from rich.progress import BarColumn, MofNCompleteColumn, Progress, ProgressColumn, Task, TextColumn
        from rich.progress import TimeRemainingColumn as TimeLeft
        from rich.text import Text

        class Rate(ProgressColumn):
            def render(self, task: Task) -> Text:
                speed = task.finished_speed or task.speed
                return Text("starting" if speed is None else f"{speed:,.0f} steps/s")

        columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), Rate(), TimeLeft())
        with Progress(*columns, console=stderr) as bar:
            task = bar.add_task(title, total=steps)
            yield lambda done: bar.update(task, completed=done)

    def on_warning(self, text: str) -> None:
        stderr.print(f"warning: {text}", markup=False)

    def on_failure(self, error: BenchError) -> None:
        complain(error)

    def on_run(self, made: MadeRun) -> None:
        info, capture = made.profile.info, made.capture
        num_ranges = sum(process.num_ranges for process in info.processes)
        who, steps = f"arm {info.arm}", f"{capture.steps:,} steps"
        if arms := str(info.settings.get("arms") or "").split():
            who, own = f"{' and '.join(arms)} in turns", info.settings
            steps = f"{own['pairs']} pairs of blocks of {own['block']} steps"
        facts = [f"{who}, {len(info.ranks)} rank{'s' * (len(info.ranks) != 1)}, {steps}, {num_ranges:,} ranges"]
        whole = "every emitted range is there"
        facts.append(whole if capture.is_whole else f"{capture.num_missing:,} emitted ranges are missing")
        if info.settings.get("verify"):
            facts.append(f"{capture.verified_tokens:,} tokens equal the oracle's")
        self._results.print(f"{made.profile.path}: {'; '.join(facts)}", markup=False, soft_wrap=True)


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
        if self.first is None or done == self.shown or now - self.shown_at < _LINE_EVERY_S:
            return
        self.shown, self.shown_at = done, now
        started, offset = self.first
        text = f"{self.title}: {done:,}/{self.steps:,} steps"
        if done > offset:
            rate = (done - offset) / (now - started)
            text += f", {rate:,.1f} steps/s, {max(self.steps - done, 0) / rate:,.0f} s left"
        stderr.print(text, markup=False)
