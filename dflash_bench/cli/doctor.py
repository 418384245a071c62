"""``dflash-bench doctor``: what a capture here can see, and what mends what it cannot."""

from __future__ import annotations

import dataclasses
import json
from typing import TYPE_CHECKING, Annotated

import typer

from dflash_bench.cli.console import stdout
from dflash_bench.errors import ExitCode

if TYPE_CHECKING:
    from rich.table import Table

    from dflash_bench.doctor.checks import MachineCheck

_COLOURS = {"ok": "green", "warn": "yellow", "fail": "red"}


def doctor(
    as_json: Annotated[bool, typer.Option("--json", help="The checks as JSON.")] = False,
    no_self_test: Annotated[bool, typer.Option("--no-self-test", help="Only look; capture nothing.")] = False,
) -> None:
    """Look at Python, nsys, its importer, the GPU and its driver, and really capture ten ranges each way there is.

    Exit code 0 when a capture is possible here, 5 when not.
    """
    from dflash_bench.doctor.checks import machine_checks
    from dflash_bench.doctor.facts import machine_facts
    from dflash_bench.doctor.self_test import self_tests, ways_to_capture

    facts = machine_facts()
    checks = machine_checks(facts)
    if not no_self_test:
        checks += self_tests(facts)
    ways = None if no_self_test else ways_to_capture(checks)
    if as_json:
        able = None if ways is None else bool(ways)
        content = {"can_capture": able, "with": ways, "checks": [dataclasses.asdict(check) for check in checks]}
        stdout.print_json(json.dumps(content))
    else:
        stdout.print(_table(checks))
        stdout.print(_answer(ways, is_nsys_here=bool(facts.tools)), soft_wrap=True)
    if ways == ():
        raise typer.Exit(ExitCode.BAD_DATA)


def _answer(ways: tuple[str, ...] | None, *, is_nsys_here: bool) -> str:
    if ways is None:
        return "nothing was captured to try it (--no-self-test)"
    if not ways:
        return "no capture is possible here"
    if any(way.startswith("nsys") for way in ways):
        return f"captures are possible here, with {' and '.join(ways)}"
    lacks = "nsys is here and captures nothing" if is_nsys_here else "there is no nsys here"
    return f"{lacks}: only the built-in recorder works, for `run` and for `capture --annotate … --recorder`"


def _table(checks: tuple[MachineCheck, ...]) -> Table:
    from rich.table import Table
    from rich.text import Text

    table = Table(box=None, pad_edge=False, header_style="bold")
    table.add_column("check", no_wrap=True)
    table.add_column("")
    table.add_column("what was found", overflow="fold")
    for check in checks:
        what = Text(check.what)
        if check.mend:
            what.append(f"\n→ {check.mend}", style="bold")
        table.add_row(check.name, Text(check.status, style=_COLOURS[check.status]), what)
    return table
