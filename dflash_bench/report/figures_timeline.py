"""The step timeline: ranges, launches and waits of the host above the work of the GPU."""

from __future__ import annotations

import re
from collections.abc import Sequence
from itertools import chain

from dflash_bench.model import Unit
from dflash_bench.report.figures import MUTED, Figure, Trace, built, label, layout, shown
from dflash_bench.report.timeline import Bar, BarKind, StepWindow
from dflash_bench.report.units import symbol

_COLOURS = {
    BarKind.RANGE: "#8590a0",
    BarKind.WAIT: "#d0702f",
    BarKind.LAUNCH: "#8a63c9",
    BarKind.CALL: "#b5a642",
    BarKind.GPU: "#1f9e78",
}
_SECOND_GREY = "#667180"
"""Neighbouring ranges take turns in two greys, so that one can tell where one ends."""

_TRACK_HEIGHT = 30
MAX_NAMED_BARS = 40
"""Bars of one kind, the longest, that bear their name. Fitting names into bars is most of what a browser does here;
the others say theirs when pointed at."""


def timeline_figure(key: str, side: str, window: StepWindow) -> Figure:
    """One step of a rank. Dragging along the time axis zooms in, a double click shows all again."""
    traces = [_bars(kind, [b for b in window.bars if b.kind is kind]) for kind in BarKind]
    height = 80 + _TRACK_HEIGHT * len(window.tracks)
    return built(
        key,
        f"{side}: {window.title} of rank {window.rank}",
        _words(window),
        [t for t in (_arrows(window), *traces) if len(t["x"])],
        layout(
            height,
            {"title": {"text": f"after the step's start, {symbol(Unit.NS)}"}, "tickformat": ",~f"},
            {
                "tickvals": list(range(len(window.tracks))),
                "ticktext": [label(name) for name in _short(window.tracks)],
                "range": [len(window.tracks) - 0.4, -0.6],
                "showgrid": False,
                "zeroline": False,
            },
            barmode="overlay",
            bargap=0,
            uniformtext={"minsize": 10, "mode": "hide"},
            shapes=[_edge(t) for t in (0, window.length_ns)],
        ),
    )


def _short(tracks: tuple[str, ...]) -> list[str]:
    """Names of tracks that leave a phone some room: no word that all of a kind share, and one name for nested rows."""
    devices = {track.rpartition(" stream ")[0] for track in tracks if " stream " in track}
    return [
        "" if re.search(r"ranges (?!1$)\d+$", track) else _shortened(track, is_one_device=len(devices) < 2)
        for track in tracks
    ]


def _shortened(track: str, *, is_one_device: bool) -> str:
    track = track.removeprefix("host ") if not re.match(r"host \d", track) else track
    if is_one_device and " stream " in track:
        track = "stream " + track.rpartition(" ")[2]
    return track.replace("ranges 1", "ranges")


def _edge(t: int) -> Trace:
    line = {"color": "#8a8a8a", "width": 1, "dash": "dot"}
    return {"type": "line", "x0": t / 1000, "x1": t / 1000, "yref": "paper", "y0": 0, "y1": 1, "line": line}


def _words(window: StepWindow) -> str:
    left_out = f" The {window.num_left_out:,} shortest bars are not drawn." if window.num_left_out else ""
    return (
        f"Step {window.step} of {window.num_steps:,} (counted from 0), {shown(window.length_ns, Unit.NS)} long, between"
        f" the dotted lines. {_waits(window.waits, window.waited_ns)}. Launches with GPU work: {len(window.flows):,};"
        f" pieces of GPU work: {window.num_gpu_work:,}. Lines lead from launches to their work.{left_out}"
    )


def _waits(waits: Sequence[Bar], total_ns: int) -> str:
    if not waits:
        return "No host wait"
    longest = f"{waits[0].name} of {shown(waits[0].length_ns, Unit.NS)}"
    if len(waits) == 1:
        return f"One host wait, {longest}"
    return f"Host waits: {len(waits):,}, {shown(total_ns, Unit.NS)}, the longest {longest}"


def _bars(kind: BarKind, bars: list[Bar]) -> Trace:
    greys = (_COLOURS[kind], _SECOND_GREY)
    colours = [greys[k % 2] if kind is BarKind.RANGE else greys[0] for k in range(len(bars))]
    named = set(sorted(range(len(bars)), key=lambda k: -bars[k].length_ns)[:MAX_NAMED_BARS])
    return {
        "type": "bar",
        "orientation": "h",
        "name": kind.value,
        "base": [b.start_ns / 1000 for b in bars],
        "x": [b.length_ns / 1000 for b in bars],
        "y": [b.track for b in bars],
        "width": 0.8,
        "marker": {"color": colours, "line": {"color": colours, "width": 0.5}},
        "text": [label(b.name) if k in named else "" for k, b in enumerate(bars)],
        "textposition": "inside",
        "insidetextanchor": "start",
        "insidetextfont": {"color": "#ffffff", "size": 11},
        "textangle": 0,
        "hoverinfo": "text",
        "hovertext": [_hover(b) for b in bars],
    }


def _hover(bar: Bar) -> str:
    detail = f"<br>{label(bar.detail)}" if bar.detail else ""
    start = shown(bar.start_ns, Unit.NS, is_signed=True)
    return f"<b>{label(bar.name, limit=90)}</b><br>{bar.kind}, {shown(bar.length_ns, Unit.NS)}<br>at {start}{detail}"


def _arrows(window: StepWindow) -> Trace:
    """Thin lines; a gap (None) ends each."""
    return {
        "type": "scatter",
        "mode": "lines",
        "name": "launch to work",
        "x": list(chain.from_iterable((f.from_ns / 1000, f.to_ns / 1000, None) for f in window.flows)),
        "y": list(chain.from_iterable((f.from_track + 0.4, f.to_track - 0.4, None) for f in window.flows)),
        "line": {"color": MUTED, "width": 1},
        "hoverinfo": "skip",
    }
