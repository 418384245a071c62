"""Base units to readable text: the only place where nanoseconds become microseconds."""

from __future__ import annotations

from dflash_bench.model import Unit

MISSING = "–"


def plain(value: str) -> str:
    """A text of a profiled program on one line, with whatever would steer a terminal made visible."""
    line = " ".join(value.split())
    return "".join(c if c.isprintable() else c.encode("unicode_escape").decode("ascii") for c in line)


def text(value: float | None, unit: Unit, *, is_signed: bool = False) -> str:
    """A figure in its display unit: times in µs, shares in %, all else as it is. ``is_signed`` shows a plus."""
    if value is None:
        return MISSING
    sign = "+" if is_signed else ""
    match unit:
        case Unit.NS:
            found = f"{value / 1000:{sign},.1f}"
        case Unit.FRACTION:
            found = f"{100 * value:{sign},.2f}"
        case _:
            found = f"{value:{sign},.0f}" if float(value).is_integer() else f"{value:{sign},.2f}"
    return found.replace("-", "−")


def symbol(unit: Unit) -> str:
    """The display unit's symbol."""
    return {Unit.NS: "µs", Unit.FRACTION: "%", Unit.COUNT: "", Unit.RATIO: "×"}.get(unit, unit.value)


def milliseconds(value_ns: float | None) -> str:
    """A sum of times, in ms."""
    return MISSING if value_ns is None else f"{value_ns / 1e6:,.1f}".replace("-", "−")


def rank_text(rank: int | None) -> str:
    """A rank, or ``all`` for a pooled or cross-rank figure."""
    return "all" if rank is None else str(rank)
