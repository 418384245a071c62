"""Base units to readable text: the only place where nanoseconds become micro- and milliseconds."""

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


def _difference_symbol(unit: Unit) -> str:
    """The symbol of a difference: shares differ by points, which are no percentage of anything."""
    return "points" if unit is Unit.FRACTION else symbol(unit)


def with_unit(value: float | None, unit: Unit, *, is_signed: bool = False) -> str:
    """A figure with its unit; a signed share is a difference, and stands in points."""
    return f"{text(value, unit, is_signed=is_signed)} {(_difference_symbol if is_signed else symbol)(unit)}".strip()


def readable(*values: float | None, unit: Unit, is_signed: bool = False) -> tuple[str, ...]:
    """Figures for a sentence, and last their unit: times from 1 ms on in ms, all figures with the same few digits."""
    largest = max((abs(v) for v in values if v is not None), default=0.0)
    factor, name = {Unit.NS: (1e-3, "µs"), Unit.FRACTION: (100.0, "%")}.get(unit, (1.0, symbol(unit)))
    if unit is Unit.NS and largest >= 1e6:
        factor, name = 1e-6, "ms"
    digits = _digits(largest * factor, unit)
    texts = (MISSING if v is None else f"{v * factor:{'+' if is_signed else ''},.{digits}f}" for v in values)
    return (*(t.replace("-", "−") for t in texts), "points" if is_signed and unit is Unit.FRACTION else name)


def _digits(largest: float, unit: Unit) -> int:
    if unit in (Unit.NS, Unit.FRACTION):
        return 2 if largest < 20 else 1 if largest < 200 else 0
    return 2 if largest < 100 and not float(largest).is_integer() else 0


def percent(share: float, *, is_signed: bool = True) -> str:
    """A share as a percentage with two or three digits that count: −14 %, +1.3 %, +0.06 %."""
    value = 100 * share
    digits = 0 if abs(value) >= 9.95 else 1 if abs(value) >= 0.95 else 2
    # what rounds to nothing has no sign
    value = round(value, digits) + 0.0
    return f"{value:{'+' if is_signed and value else ''},.{digits}f} %".replace("-", "−")


def abridged(name: str, limit: int) -> str:
    """A name in at most so many characters: its middle is left out, since both ends tell."""
    head = (limit - 1) // 2
    return name if len(name) <= limit else f"{name[:head]}…{name[head + 1 - limit :]}"


def milliseconds(value_ns: float | None) -> str:
    """A sum of times, in ms."""
    return MISSING if value_ns is None else f"{value_ns / 1e6:,.1f}".replace("-", "−")


def rank_text(rank: int | None) -> str:
    """A rank, or ``all`` for a pooled or cross-rank figure."""
    return "all" if rank is None else str(rank)
