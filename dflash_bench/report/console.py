"""A report in the terminal, through Rich. Only this module and ``cli`` know Rich."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from rich.cells import cell_len
from rich.console import Console, ConsoleOptions, RenderableType, RenderResult
from rich.padding import Padding
from rich.table import Table as RichTable
from rich.text import Text

from dflash_bench.report.sheets import Report, Sheet
from dflash_bench.report.units import plain

_MIN_WORDS = 24
"""Columns that a column of words may be folded into; in fewer, a name or a sentence becomes a tower of syllables."""

_GAP = 2


def show(report: Report, console: Console) -> None:
    """Print a report: the answer, what to know before the figures, the figures, what to type next."""
    width = min(console.width, report.width or console.width)
    console.print(Text(plain(report.title), style="bold"), width=width)
    for line in report.lines:
        console.print(Text(plain(line)), width=width)
    for warning in report.warnings:
        console.print(Text(f"! {plain(warning)}", style="yellow"), width=width)
    for sheet in report.sheets:
        console.print()
        console.print(rendered(sheet), width=width)
    for k, command in enumerate(report.following):
        if k == 0:
            console.print()
        # whole, whatever its length: it is there to be copied
        console.print(Text(f"next: {plain(command)}"), soft_wrap=True)


def rendered(sheet: Sheet) -> RenderableType:
    """A sheet for the terminal. Texts come from profiled programs and are never read as markup."""
    return _Shown(sheet)


@dataclass(frozen=True, slots=True)
class _Shown:
    """A table where its figures fit into the terminal, otherwise one paragraph a row: no figure is ever cut."""

    sheet: Sheet

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        if _needed_width(self.sheet) <= options.max_width:
            # the title of a table is wrapped to the table, which can be narrower than its title
            yield from _title(self.sheet)
            yield _table(self.sheet)
        else:
            yield from _title(self.sheet)
            yield from _paragraphs(self.sheet, options.max_width)
        if self.sheet.note:
            yield Text(self.sheet.note, style="dim")


def _needed_width(sheet: Sheet) -> int:
    """Of a table that shows every figure whole and folds words no further than `_MIN_WORDS`."""
    cells = zip(*(sheet.columns, *sheet.rows), strict=True)
    widths = [max(cell_len(plain(cell)) for cell in column) for column in cells]
    kept = (min(w, _MIN_WORDS) if c in sheet.left else w for c, w in zip(sheet.columns, widths, strict=True))
    return sum(kept) + _GAP * (len(widths) - 1)


def _title(sheet: Sheet) -> list[Text]:
    return [Text(sheet.title, style="bold")] if sheet.title else []


def _table(sheet: Sheet) -> RichTable:
    table = RichTable(box=None, pad_edge=False, header_style="dim")
    for column in sheet.columns:
        is_word = column in sheet.left
        table.add_column(Text(column), justify="left" if is_word else "right", no_wrap=not is_word, overflow="fold")
    for row in sheet.rows:
        table.add_row(*(Text(plain(cell)) for cell in row))
    return table


def _paragraphs(sheet: Sheet, width: int) -> Iterator[RenderableType]:
    """The first cell of each row as a heading, unless it is that of the row before; the rest below it."""
    last = ""
    for first, *rest in sheet.rows:
        if first not in ("", last):
            last = first
            heading = first if sheet.columns[0] in sheet.left else f"{sheet.columns[0]} {first}"
            yield Text(plain(heading))
        pairs = [(column, plain(cell)) for column, cell in zip(sheet.columns[1:], rest, strict=True) if cell]
        for line in _filled(pairs, width - _GAP):
            yield Padding(line, (0, 0, 0, _GAP), expand=False)


def _filled(pairs: Sequence[tuple[str, str]], width: int) -> Iterator[Text]:
    """Headings and cells side by side, as many in a line as fit; only what is longer than a line is folded."""
    line = Text()
    for column, cell in pairs:
        pair = Text.assemble((column, "dim"), " ", cell)
        if line and line.cell_len + _GAP + pair.cell_len > width:
            yield line
            line = Text()
        line = Text(" " * _GAP).join([line, pair]) if line else pair
    if line:
        yield line
