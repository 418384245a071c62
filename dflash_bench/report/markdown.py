"""A report as GitHub-flavoured Markdown."""

from __future__ import annotations

from dflash_bench.report.sheets import Report, Sheet
from dflash_bench.report.units import plain


def markdown(report: Report) -> str:
    """The whole report as one Markdown text."""
    blocks = [f"# {escaped(report.title)}"]
    if report.lines:
        blocks.append("\n".join(f"- {escaped(' '.join(line.split()))}" for line in report.lines))
    if report.warnings:
        blocks.append("\n".join(f"- ⚠ {escaped(w)}" for w in report.warnings))
    blocks += [_table(sheet) for sheet in report.sheets]
    return "\n\n".join(blocks) + "\n"


def _table(sheet: Sheet) -> str:
    head = "| " + " | ".join(escaped(c) for c in sheet.columns) + " |"
    rule = "|" + "|".join(":--" if c in sheet.left else "--:" for c in sheet.columns) + "|"
    rows = ["| " + " | ".join(escaped(cell) for cell in row) + " |" for row in sheet.rows]
    note = f"\n\n{escaped(sheet.note)}" if sheet.note else ""
    title = f"## {escaped(sheet.title)}\n\n" if sheet.title else ""
    return title + "\n".join([head, rule, *rows]) + note


def escaped(value: str) -> str:
    """Text that Markdown shows as it is."""
    # range names come from the profiled program: they may hold anything
    value = plain(value)
    for char in "\\|<>&*_~$`[]":
        value = value.replace(char, "\\" + char)
    return value
