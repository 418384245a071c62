"""`gate --against`: the code here held against another version of it, and `--bisect`, what git is told of a commit."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from typing import TYPE_CHECKING

import typer

from dflash_bench.cli.console import complain, stderr
from dflash_bench.errors import BenchError, ExitCode, UsageError

if TYPE_CHECKING:
    from dflash_bench.profile import Profile
    from dflash_bench.run.request import RunRequest

SKIP, ABORT = 125, 128
"""What `git bisect run` takes for "cannot be tested" and for "stop"."""


def duet_runs(request: RunRequest) -> list[Profile]:
    """Both versions in turns, a profile for each pair of processes. Raises CaptureError unless all are whole."""
    from dflash_bench.cli.run_console import RunConsole
    from dflash_bench.run.make import make_runs
    from dflash_bench.run.plan import plan_runs

    plan = plan_runs(request)
    made = make_runs(plan, RunConsole(stderr))
    if made.is_interrupted:
        raise typer.Exit(ExitCode.INTERRUPTED)
    made.require_all(plan)
    return list(made.profiles)


def further_runs(request: RunRequest, num: int) -> list[Profile]:
    """So many more pairs of processes, under names of their own."""
    return duet_runs(replace(request, repeats=num, name=None))


@contextmanager
def told_to_git() -> Iterator[None]:
    """Only a pass and a regression say something of a commit. What cannot be told or run is skipped; a wrong option
    would be wrong for every commit, and ends the search."""
    try:
        yield
    except typer.Exit as answer:
        raise typer.Exit(SKIP if answer.exit_code == ExitCode.INCONCLUSIVE else answer.exit_code) from None
    except BenchError as error:
        complain(error)
        raise typer.Exit(ABORT if isinstance(error, UsageError) else SKIP) from None
