"""``dflash-bench scrub``: a copy of a capture that can be shared."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from dflash_bench.cli.console import stdout
from dflash_bench.cli.options import NsysPath


def scrub(
    source: Annotated[Path, typer.Argument(help="Capture: .sqlite, .nsys-rep, .qdrep or .qdstrm.")],
    target: Annotated[Path, typer.Argument(dir_okay=False, help="The shareable .sqlite to write.")],
    replace: Annotated[bool, typer.Option("--replace", help="Replace a file of the same name.")] = False,
    nsys: NsysPath = None,
) -> None:
    """Write a copy of a capture that can be shared: the same events, without anything private.

    Left out: environment, arguments, output, user and host names, paths. Names of ranges and kernels stay.
    """
    from tempfile import TemporaryDirectory

    from dflash_bench.errors import UsageError
    from dflash_bench.ingest.nsys.reports import to_export
    from dflash_bench.ingest.nsys.scrub import scrub as write_shareable

    if source.is_dir():
        raise UsageError(f"{source} is a folder, and captures are scrubbed one by one", hint=f"name a file in {source}")
    if not source.is_file():
        raise UsageError(f"{source}: no such file", hint="look at its spelling; captures end in .sqlite or .nsys-rep")
    with TemporaryDirectory(prefix="dflash-bench-") as scratch:
        done = write_shareable(to_export(source, Path(scratch), nsys), target, is_replace=replace)
    rows = sum(done.rows.values())
    stdout.print(f"{done.path}", markup=False, style="bold", soft_wrap=True)
    stdout.print(f"  {rows:,} rows in {len(done.rows)} tables, {done.size_bytes / 1e6:,.1f} MB", markup=False)
    changed = f"{done.num_names_changed:,} names had a path in them"
    stdout.print(f"  {done.num_tables_left_out} tables left out; {changed}", markup=False)
    stdout.print("  names of ranges stay as the program wrote them", markup=False)
