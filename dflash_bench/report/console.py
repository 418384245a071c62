"""A report in the terminal, through Rich. Only this module and ``cli`` know Rich."""

from __future__ import annotations

from rich.console import Console, Group, RenderableType
from rich.table import Table as RichTable
from rich.text import Text

from dflash_bench.report.sheets import Report, Sheet
from dflash_bench.report.units import plain


def show(report: Report, console: Console) -> None:
    """Print a report."""
    console.print(Text(plain(report.title), style="bold"))
    for line in report.lines:
        console.print(Text(plain(line)))
    for sheet in report.sheets:
        console.print()
        console.print(rendered(sheet))
    if report.warnings:
        console.print()
        console.print(Text(f"Warnings ({len(report.warnings)})", style="bold yellow"))
        for warning in report.warnings:
            console.print(Text(f"• {plain(warning)}", style="yellow"))


def rendered(sheet: Sheet) -> RenderableType:
    """A sheet as a Rich table. Texts come from profiled programs and are never read as markup."""
    table = RichTable(
        title=Text(sheet.title, style="bold"), title_justify="left", box=None, pad_edge=False, header_style="dim"
    )
    for column in sheet.columns:
        is_word = column in sheet.left
        table.add_column(Text(column), justify="left" if is_word else "right", no_wrap=not is_word, overflow="fold")
    for row in sheet.rows:
        table.add_row(*(Text(plain(cell)) for cell in row))
    return Group(table, Text(sheet.note, style="dim")) if sheet.note else table
