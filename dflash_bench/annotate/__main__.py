"""``python -m dflash_bench.annotate TABLE -- CMD …``: run a command with the ranges of a table.

For a tool that is around it already, nsys or another. With DFLASH_BENCH_RECORD=FOLDER the ranges go into the built-in
recorder instead, a file for each process, with DFLASH_BENCH_TORCH_TRACE=FOLDER into a torch trace of 50 steps of each
process that has steps. ``--check WHEEL`` runs nothing: it says which targets of the table are in a
wheel or an unpacked folder.
"""

from __future__ import annotations

import argparse
import os
import shlex
import sys
from pathlib import Path

from dflash_bench.annotate.check import check_table
from dflash_bench.annotate.environment import annotating
from dflash_bench.annotate.sinks import TRACE_VARIABLE, SinkKind
from dflash_bench.annotate.table import own_tables, read_table, table_file
from dflash_bench.capture.recorder import FOLDER_VARIABLE
from dflash_bench.errors import BenchError, ExitCode, UsageError


def main(words: list[str]) -> int:
    """Returns only when nothing is run."""
    own, command = (words[: words.index("--")], words[words.index("--") + 1 :]) if "--" in words else (words, [])
    parser = argparse.ArgumentParser(prog="python -m dflash_bench.annotate", description=(__doc__ or "").strip())
    parser.formatter_class = argparse.RawDescriptionHelpFormatter
    parser.add_argument("table", help=f"{', '.join(own_tables())}, or a TOML file")
    parser.add_argument("--arm", help="what the rank marks call the run; default: the engine")
    parser.add_argument("--check", type=Path, metavar="WHEEL", help="look for the targets in a wheel or folder")
    parser.add_argument("--version", dest="engine_version", help="with --check: the version that it is")
    parser.add_argument("--dry-run", action="store_true", help="show the variables and the command, run nothing")
    args = parser.parse_args(own)
    try:
        path = table_file(args.table)
        if args.check is not None:
            return _check(path, args.check, args.engine_version)
        if not command:
            raise UsageError("no command is given", hint="put it after --")
        variables = annotating(path, _sink(), args.arm)
        if args.dry_run:
            sys.stdout.write(
                " ".join(f"{k}={shlex.quote(v)}" for k, v in variables.items()) + f" {shlex.join(command)}\n"
            )
            return 0
        os.execvpe(command[0], command, {**os.environ, **variables})
    except OSError as error:
        sys.stderr.write(f"error: {command[0]}: {error.strerror}\n")
        return ExitCode.USAGE
    except BenchError as error:
        sys.stderr.write(f"error: {error.text}\n" + (f"hint: {error.hint}\n" if error.hint else ""))
        return error.exit_code


def _sink() -> SinkKind:
    if os.environ.get(TRACE_VARIABLE):
        return SinkKind.TORCH
    return SinkKind.RECORDER if os.environ.get(FOLDER_VARIABLE) else SinkKind.NVTX


def _check(table: Path, sources: Path, version: str | None) -> int:
    found = check_table(read_table(table), sources, version)
    for each in found:
        sys.stdout.write(f"{'missing' if each.problem else 'there':8}{each.name:22}{each.problem or each.target}\n")
    return ExitCode.BAD_DATA if any(each.problem for each in found) else ExitCode.PASS


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
