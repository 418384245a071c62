"""Charts of the page as inline SVG: intervals, distributions, a map of small cells. Numbers in, markup out.

Everything is drawn here, once: the page needs no library, prints as it is seen, and a test reads what it shows. Colours
are classes of the style sheet, so that light, dark and paper each have their own.
"""

from __future__ import annotations

import base64
import math
import struct
import zlib
from collections.abc import Sequence
from dataclasses import dataclass
from html import escape

import numpy as np

from dflash_bench.model import Change, FloatArray, Unit
from dflash_bench.report.changes import Tone, is_relative
from dflash_bench.report.units import symbol

_WINDOWS = (0.02, 0.05, 0.1, 0.25, 0.5, 1.0, 4.0)
"""Half-widths that the common axis of relative changes may have."""
_WIDTH, _HEIGHT = 260, 22


def axis_window(changes: Sequence[Change]) -> float:
    """The narrowest half-width, as a share of the base, that holds the first of the changes with its whole interval.

    The first is what the comparison is about; what moved further ends in an arrow.
    """
    for c in (c for c in changes if is_relative(c) and c.difference is not None and c.base):
        assert c.base is not None
        ends = (c.difference or 0.0, *((c.interval.low, c.interval.high) if c.interval else ()))
        needed = max(abs(end / c.base) for end in ends)
        return next((w for w in _WINDOWS if w >= needed), _WINDOWS[-1])
    return _WINDOWS[-1]


def interval_chart(change: Change, tone: Tone, window: float) -> str:
    """A difference and its interval about zero: in % of the base on the common axis, else on an axis of its own.

    What lies beyond the axis ends in an arrow. Without a difference there is nothing to draw.
    """
    if change.difference is None:
        return ""
    span = change.interval
    ends = (change.difference, *((span.low, span.high) if span else ()))
    if is_relative(change):
        assert change.base is not None
        scale, own = change.base * window, ""
    else:
        # a zero that did not move has no scale
        scale, own = max(abs(end) for end in ends) * 1.1 or 1.0, " own"
    at = [_x(end / scale) for end in ends]
    parts = [f'<line class="zero" x1="{_x(0)}" x2="{_x(0)}" y1="0" y2="{_HEIGHT}"/>']
    middle = _HEIGHT / 2
    if span is not None:
        parts.append(f'<line class="span" x1="{at[1]}" x2="{at[2]}" y1="{middle}" y2="{middle}"/>')
    if abs(ends[0] / scale) > 1:
        tip, back = (_WIDTH, _WIDTH - 9) if ends[0] > 0 else (0, 9)
        parts.append(f'<path d="M{tip} {middle}L{back} {middle - 6}V{middle + 6}Z"/>')
    else:
        hollow = "" if span is not None else ' class="hollow"'
        parts.append(f'<circle{hollow} cx="{at[0]}" cy="{middle}" r="4.5"/>')
    return (
        f'<svg class="interval {tone}{own}" viewBox="0 0 {_WIDTH} {_HEIGHT}" aria-hidden="true">{"".join(parts)}</svg>'
    )


def _x(share: float) -> float:
    """Where a share of the half-width lies, kept inside the chart."""
    return round(_WIDTH / 2 * (1 + max(-1.0, min(1.0, share))), 1)


def axis_chart(window: float) -> str:
    """The axis under the charts of relative changes."""
    ticks = (-window, -window / 2, 0.0, window / 2, window)
    texts = "".join(
        f'<text x="{_x(t / window)}" y="12" text-anchor="{anchor}">{_tick(t)}</text>'
        for t, anchor in zip(ticks, ("start", "middle", "middle", "middle", "end"), strict=True)
    )
    return f'<svg class="axis" viewBox="0 0 {_WIDTH} 16" aria-hidden="true">{texts}</svg>'


def _tick(share: float) -> str:
    return "0" if not share else f"{100 * share:+g}\u2009%".replace("-", "−")


# ── distributions ────────────────────────────────────────────────────────────────────────────────────────────────────

_MAX_POINTS = 200
_LOGARITHMIC_FROM = 20.0
"""Ratio of an axis' ends from which it is logarithmic."""
_PLOT = (640, 250)
_LEFT, _RIGHT, _TOP, _BOTTOM = 44, 10, 8, 34


@dataclass(frozen=True, slots=True)
class Curve:
    """A distribution as a line. ``style`` is a class of the style sheet: its side, and solid, dashed or thin."""

    name: str
    style: str
    values: FloatArray


def distribution(values: FloatArray) -> tuple[FloatArray, FloatArray]:
    """Points (value, share of samples up to it); few samples give their exact steps, many are read at quantiles."""
    ordered = np.sort(values)
    n = len(ordered)
    if n <= _MAX_POINTS:
        return ordered, np.arange(1, n + 1) / n
    tail = np.logspace(-4, -2, 20)
    share = np.unique(np.concatenate([[0.0, 1.0], tail, 1 - tail, np.linspace(0.01, 0.99, _MAX_POINTS - 43)]))
    return np.percentile(ordered, 100 * share), share


def distribution_chart(curves: Sequence[Curve], unit: Unit, title: str) -> str:
    """Curves over one axis that holds the middle 99 % of the samples, logarithmic where that spans decades."""
    factor = {Unit.NS: 1e-3, Unit.FRACTION: 100.0}.get(unit, 1.0)
    ends = np.array([np.percentile(c.values, [0.5, 99.5]) for c in curves]) * factor
    low, high = float(ends[:, 0].min()), float(ends[:, 1].max())
    is_log = unit is Unit.NS and low > 0 and high > _LOGARITHMIC_FROM * low
    if not is_log:
        margin = 0.03 * ((high - low) or abs(high) or 1.0)
        low, high = low - margin, high + margin

    def place(value: float) -> float:
        share = math.log(value / low) / math.log(high / low) if is_log else (value - low) / (high - low)
        return _LEFT + share * (_PLOT[0] - _LEFT - _RIGHT)

    def rise(share: float) -> float:
        return _PLOT[1] - _BOTTOM - share * (_PLOT[1] - _TOP - _BOTTOM)

    parts = []
    for share in (0.0, 0.25, 0.5, 0.75, 1.0):
        y = f"{rise(share):.1f}"
        parts.append(f'<line class="grid" x1="{_LEFT}" x2="{_PLOT[0] - _RIGHT}" y1="{y}" y2="{y}"/>')
        parts.append(f'<text x="{_LEFT - 6}" y="{y}" dy="4" text-anchor="end">{share:.0%}</text>')
    for tick in _log_ticks(low, high) if is_log else nice_ticks(low, high):
        x = f"{place(tick):.1f}"
        parts.append(f'<line class="grid" x1="{x}" x2="{x}" y1="{_TOP}" y2="{_PLOT[1] - _BOTTOM}"/>')
        parts.append(f'<text x="{x}" y="{_PLOT[1] - 20}" text-anchor="middle">{_number(tick)}</text>')
    name = f"{title}, {symbol(unit)}" if symbol(unit) else title
    parts.append(f'<text x="{_PLOT[0] - _RIGHT}" y="{_PLOT[1] - 4}" text-anchor="end">{escape(name)}</text>')
    parts += [_line(curve, factor, (low, high), place, rise) for curve in curves]
    return f'<svg class="plot" viewBox="0 0 {_PLOT[0]} {_PLOT[1]}" aria-hidden="true">{"".join(parts)}</svg>'


def _line(curve: Curve, factor: float, ends: tuple[float, float], place, rise) -> str:  # type: ignore[no-untyped-def]
    x, y = distribution(curve.values)
    inside = [(v, s) for v, s in zip((x * factor).tolist(), y.tolist(), strict=True) if ends[0] <= v <= ends[1]]
    if not inside:
        return ""
    path = f"M{place(inside[0][0]):.1f} {rise(inside[0][1]):.1f}" + "".join(
        f"H{place(v):.1f}V{rise(s):.1f}" for v, s in inside[1:]
    )
    return f'<path class="curve {curve.style}" d="{path}"/>'


def nice_ticks(low: float, high: float, count: int = 6) -> list[float]:
    """Round numbers inside an axis."""
    rough = (high - low) / count
    power = 10 ** math.floor(math.log10(rough))
    step = next(s * power for s in (1, 2, 5, 10) if s * power >= rough)
    first = math.ceil(low / step)
    return [k * step for k in range(first, math.floor(high / step) + 1)]


def _log_ticks(low: float, high: float) -> list[float]:
    powers = range(math.floor(math.log10(low)), math.ceil(math.log10(high)) + 1)
    return [t for p in powers for s in (1, 2, 5) if low <= (t := s * 10.0**p) <= high]


def _number(value: float) -> str:
    return f"{value:,.10g}".replace("-", "−")


# ── maps ─────────────────────────────────────────────────────────────────────────────────────────────────────────────

_EARLY, _LATE, _NONE = np.array([31, 99, 168]), np.array([184, 84, 20]), np.array([236, 238, 241])


def map_image(cells: FloatArray, span: float) -> str:
    """float64 [rows, columns] as a PNG in a data address, one pixel a cell: −span is blue, 0 is pale, +span orange."""
    share = np.clip(cells / (span or 1.0), -1, 1)[..., None]
    colour = _NONE + abs(share) * (np.where(share < 0, _EARLY, _LATE) - _NONE)
    pixels = np.rint(colour).astype(np.uint8)
    rows = b"".join(b"\0" + row.tobytes() for row in pixels)
    head = struct.pack(">IIBBBBB", cells.shape[1], cells.shape[0], 8, 2, 0, 0, 0)
    png = b"\x89PNG\r\n\x1a\n" + b"".join(
        _chunk(kind, data) for kind, data in ((b"IHDR", head), (b"IDAT", zlib.compress(rows, 9)), (b"IEND", b""))
    )
    return "data:image/png;base64," + base64.b64encode(png).decode("ascii")


def _chunk(kind: bytes, data: bytes) -> bytes:
    return struct.pack(">I", len(data)) + kind + data + struct.pack(">I", zlib.crc32(kind + data))
