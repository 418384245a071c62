"""The command line: one module per command, errors caught in one place.

Heavy packages are imported inside the command that needs them, so that ``--help`` and ``--version`` answer at once.
"""

from __future__ import annotations

import errno
import io
import logging
import os
import sys
from typing import Annotated, Any

import typer
from typer.core import TyperGroup

from dflash_bench import __version__
from dflash_bench.cli.baseline import app as baseline
from dflash_bench.cli.calibrate import calibrate
from dflash_bench.cli.capture import capture
from dflash_bench.cli.compare import compare
from dflash_bench.cli.console import complain, stderr
from dflash_bench.cli.doctor import doctor
from dflash_bench.cli.gate import gate
from dflash_bench.cli.ingest import ingest
from dflash_bench.cli.list import list_
from dflash_bench.cli.metrics import metrics
from dflash_bench.cli.predict import predict
from dflash_bench.cli.report import report
from dflash_bench.cli.run import run
from dflash_bench.cli.scrub import scrub
from dflash_bench.cli.urls import Command
from dflash_bench.errors import BenchError, DataError, ExitCode

EXIT_CODES = "Exit codes: 0 pass, 2 usage, 3 regression, 4 inconclusive, 5 bad data or failed capture, 130 interrupted."


class Commands(TyperGroup):
    """The command group: turns errors into one sentence and an exit code."""

    def invoke(self, ctx: Any) -> Any:
        try:
            found = super().invoke(ctx)
            # what is still held back may not fit either
            sys.stdout.flush()
            return found
        except BenchError as error:
            complain(error)
            raise typer.Exit(error.exit_code) from None
        except KeyboardInterrupt:
            stderr.print("interrupted")
            raise typer.Exit(ExitCode.INTERRUPTED) from None
        except BrokenPipeError:
            # whoever read us has seen enough (`… | head`); nor must the flush at exit meet the closed pipe again
            os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
            raise typer.Exit(ExitCode.PASS) from None
        except OSError as error:
            if error.errno != errno.ENOSPC:
                raise
            # nor must the flush at exit meet the full device again
            os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
            complain(DataError(f"no space left on the device{f' of {error.filename}' if error.filename else ''}"))
            raise typer.Exit(ExitCode.BAD_DATA) from None


app = typer.Typer(
    name="dflash-bench",
    cls=Commands,
    help="Profile and compare the host path of speculative decoding, from nsys captures.",
    epilog=EXIT_CODES,
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    context_settings={"help_option_names": ["-h", "--help"]},
)


def _version(value: bool) -> None:
    if value:
        typer.echo(f"dflash-bench {__version__}")
        raise typer.Exit


@app.callback()
def options(
    verbose: Annotated[bool, typer.Option("--verbose", "-v", help="Log what is done.")] = False,
    version: Annotated[
        bool, typer.Option("--version", callback=_version, is_eager=True, help="Show the version and exit.")
    ] = False,
) -> None:
    """Options of all commands."""
    logging.basicConfig(level=logging.INFO if verbose else logging.WARNING, format="%(levelname)s: %(message)s")


for command in (run, capture, ingest, metrics, compare, report, predict, gate, calibrate, scrub, doctor):
    app.command(cls=Command)(command)
app.command("list", cls=Command)(list_)
app.add_typer(baseline, name="baseline")


def main() -> None:
    """Entry point of the ``dflash-bench`` script."""
    for stream in (sys.stdout, sys.stderr):
        # a terminal or a log that knows no µ or − shows an escape for it instead of ending in a crash
        if isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(errors="backslashreplace")
    app()
