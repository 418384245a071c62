"""One step as bars on tracks: ranges and API calls of the host, GPU work, and which call queued which work."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from enum import StrEnum
from typing import Any

import numpy as np

from dflash_bench.metrics.cache import answer
from dflash_bench.metrics.dry import DryGaps, DryPieces, dry_gaps, dry_pieces
from dflash_bench.metrics.events.arrays import NONE
from dflash_bench.metrics.events.host import ApiCalls, Ranges
from dflash_bench.metrics.events.launches import Launches
from dflash_bench.metrics.events.process import load_events
from dflash_bench.metrics.events.steps import Steps
from dflash_bench.metrics.reading import Reading
from dflash_bench.metrics.view import View
from dflash_bench.metrics.waits import waits_of
from dflash_bench.model import BoolArray, IntArray, RunMetrics, Unit
from dflash_bench.profile import Profile
from dflash_bench.report.causes import OUTSIDE
from dflash_bench.report.gpu_work import GpuWork, gpu_work
from dflash_bench.report.units import symbol, text

_MAX_BARS = 300
"""Bars of one kind that one step draws; of more, the longest are drawn and the rest is counted."""
_MAX_BARS_IN_ALL = 15_000
"""Bars of one kind over all steps of a page: many ranks share them."""


class BarKind(StrEnum):
    """What a bar stands for. The order is the order of the legend."""

    RANGE = "range"
    WAIT = "host wait"
    LAUNCH = "launch"
    CALL = "other API call"
    DRY = "GPU dry"
    GPU = "GPU work"


@dataclass(frozen=True, slots=True)
class Bar:
    """Something that took time. Times are ns after the step's start; ``track`` indexes ``_StepWindow.tracks``."""

    kind: BarKind
    track: int
    name: str
    start_ns: int
    end_ns: int
    detail: str = ""

    @property
    def length_ns(self) -> int:
        return self.end_ns - self.start_ns


@dataclass(frozen=True, slots=True)
class _Flow:
    """A launch and the GPU work that it queued, each a (track, instant), ns after the step's start."""

    from_track: int
    from_ns: int
    to_track: int
    to_ns: int


@dataclass(frozen=True, slots=True)
class _StepWindow:
    """One step of a rank: what its host did, and the GPU work that ran or was queued meanwhile.

    ``bars`` are those that are drawn, ``num_left_out`` is how many are not; ``waits``, the longest first, ``dry`` and
    ``num_gpu_work`` count all of them.
    """

    title: str
    rank: int | None
    step: int
    num_steps: int
    length_ns: int
    tracks: tuple[str, ...]
    bars: tuple[Bar, ...]
    flows: tuple[_Flow, ...]
    num_left_out: int
    waits: tuple[Bar, ...] = ()
    dry: tuple[Bar, ...] = ()
    num_gpu_work: int = 0

    @property
    def dry_ns(self) -> int:
        """Time during which no GPU work ran and none was queued."""
        return sum(bar.length_ns for bar in self.dry)

    @property
    def waited_ns(self) -> int:
        """Time of the host waits."""
        return sum(bar.length_ns for bar in self.waits)

    @property
    def words(self) -> str:
        """The step in one sentence."""
        dry, waited = self.dry_ns, self.waited_ns
        parts = [f"step {self.step:,} of {self.num_steps:,}, {_us(self.length_ns)} long"]
        parts.append(f"GPU dry {_us(dry)}{self._most_dry}")
        longest = f", the longest {self.waits[0].name} of {_us(self.waits[0].length_ns)}" if self.waits else ""
        parts.append(f"{len(self.waits):,} host wait{'s' * (len(self.waits) != 1)}, {_us(waited)}{longest}")
        parts.append(f"{self.num_gpu_work:,} piece{'s' * (self.num_gpu_work != 1)} of GPU work")
        if self.num_left_out:
            parts.append(f"the {self.num_left_out:,} shortest bars are not drawn")
        return "; ".join(parts)

    @property
    def _most_dry(self) -> str:
        """What the host did most of the time while the GPU was dry."""
        lengths: dict[str, int] = {}
        for bar in self.dry:
            lengths[bar.name] = lengths.get(bar.name, 0) + bar.length_ns
        most = max(lengths, key=lambda name: lengths[name], default="")
        return f", {_us(lengths[most])} of it {most if most.startswith(OUTSIDE) else f'in {most}'}" if most else ""


def _step_windows(
    profile: Profile, rank: int, reading: Reading | None = None, max_bars: int = _MAX_BARS
) -> tuple[_StepWindow, ...]:
    """The median and the longest step of a rank; nothing where the rank has no steps."""
    reading = replace(reading or Reading(), arm=profile.arm)
    for process in profile.info.processes_of(rank):
        events = load_events(profile, process)
        # whether the loop is its own matters to figures of allocation only
        view = View(profile, events, reading, False)
        if len(view.steps):
            work, gaps, waits = gpu_work(profile, events), dry_gaps(view), waits_of(view)
            return tuple(
                _window(t, k, view, work, gaps, waits, max_bars)
                for t, k in _median_and_longest(view.steps, view.is_warm_up)
            )
    return ()


def _median_and_longest(steps: Steps, is_warm_up: BoolArray) -> tuple[tuple[str, int], ...]:
    """The step whose length is nearest to the median, and the longest that is no warm-up; of equals the earliest."""
    length = steps.end - steps.start
    steady = length if is_warm_up.all() else np.where(is_warm_up, 0, length)
    return (
        ("median step", int(np.abs(length - np.median(length)).argmin())),
        ("longest step", int(steady.argmax())),
    )


def _depths(start: IntArray, end: IntArray) -> list[int]:
    """A depth for each interval, ascending by start, so that no two overlap at one: inner lie below outer."""
    found: list[int] = []
    busy: list[int] = []  # end of the last interval on each depth that is still open
    for begin, stop in zip(start.tolist(), end.tolist(), strict=True):
        while busy and busy[-1] <= begin:
            busy.pop()
        found.append(len(busy))
        busy.append(stop)
    return found


def _window(
    title: str, index: int, view: View, work: GpuWork, gaps: DryGaps, waits: ApiCalls, max_bars: int
) -> _StepWindow:
    steps, events = view.steps, view.events
    begin, stop = int(steps.start[index]), int(steps.end[index])
    tracks: dict[str, int] = {}
    ranges = events.ranges[(events.ranges.start < stop) & (events.ranges.end > begin)]
    calls = events.calls[(events.calls.start < stop) & (events.calls.end > begin)]
    queued = (work.launch != NONE) & (work.launched_at >= begin) & (work.launched_at < stop)
    shown = work[queued | ((work.start < stop) & (work.end > begin))]
    waits = waits[(waits.start < stop) & (waits.end > begin)]
    host = [*_range_bars(ranges, begin, tracks), *_call_bars(calls, waits, work.launches, begin, tracks)]
    dry = list(_dry_bars(dry_pieces(view, gaps[gaps.step == index]), view, begin, tracks))
    gpu = list(_gpu_bars(shown, begin, tracks))
    kept, left_out = _longest([*host, *dry, *gpu], max_bars)
    return _StepWindow(
        title=title,
        rank=events.process.rank,
        step=index,
        num_steps=len(steps),
        length_ns=stop - begin,
        tracks=tuple(tracks),
        bars=tuple(kept),
        flows=tuple(_flows(shown, begin, stop, tracks)),
        num_left_out=left_out,
        waits=tuple(_longest_first(bar for bar in host if bar.kind is BarKind.WAIT)),
        dry=tuple(dry),
        num_gpu_work=len(gpu),
    )


def _longest_first(bars: Iterable[Bar]) -> list[Bar]:
    return sorted(bars, key=lambda bar: -bar.length_ns)


def _longest(bars: Sequence[Bar], max_bars: int) -> tuple[list[Bar], int]:
    kept: list[Bar] = []
    for kind in BarKind:
        same = _longest_first(b for b in bars if b.kind is kind)
        kept += sorted(same[:max_bars], key=lambda b: b.start_ns)
    return kept, len(bars) - len(kept)


def _thread_names(threads: IntArray) -> dict[int, str]:
    """``host`` for the only thread, else ``host``, ``host 2`` … by id."""
    return {int(t): "host" if k == 0 else f"host {k + 1}" for k, t in enumerate(np.unique(threads))}


def _track(tracks: dict[str, int], name: str) -> int:
    return tracks.setdefault(name, len(tracks))


def _range_bars(ranges: Ranges, begin: int, tracks: dict[str, int]) -> Iterator[Bar]:
    for thread, name in _thread_names(ranges.thread).items():
        own = ranges[ranges.thread == thread]
        depth = _depths(own.start, own.end)
        place = [_track(tracks, f"{name} ranges {level + 1}") for level in range(max(depth, default=0) + 1)]
        for k, title in enumerate(own.name.text()):
            yield Bar(BarKind.RANGE, place[depth[k]], title, int(own.start[k]) - begin, int(own.end[k]) - begin)


def _call_bars(
    calls: ApiCalls, waits: ApiCalls, launches: Launches, begin: int, tracks: dict[str, int]
) -> Iterator[Bar]:
    launches = launches[np.isin(launches.start, calls.start)]
    with_lead = launches[launches.has_lead]
    leads = dict(
        zip(zip(with_lead.thread.tolist(), with_lead.start.tolist(), strict=True), with_lead.lead.tolist(), strict=True)
    )
    # a wait by polling is the bar of all its queries
    start, thread = calls.start[:, None], calls.thread[:, None]
    calls = calls[~((waits.start <= start) & (start < waits.end) & (waits.thread == thread)).any(axis=1)]
    is_launch = np.isin(calls.start, launches.start)
    names = _thread_names(np.concatenate([calls.thread, waits.thread]))
    for rows, are_waits in ((waits, True), (calls, False)):
        for k, title in enumerate(rows.name.text()):
            kind = BarKind.WAIT if are_waits else BarKind.LAUNCH if is_launch[k] else BarKind.CALL
            begun, end, of = int(rows.start[k]), int(rows.end[k]), int(rows.thread[k])
            lead = leads.get((of, begun))
            detail = "" if lead is None else f"lead {_us(lead)}"
            yield Bar(kind, _track(tracks, f"{names[of]} CUDA calls"), title, begun - begin, end - begin, detail)


def _dry_bars(dry: DryPieces, view: View, begin: int, tracks: dict[str, int]) -> Iterator[Bar]:
    """While the GPU had nothing to do: what the host did, as ``dry.by_cause`` counts it."""
    for start, stop, held, call in zip(*(a.tolist() for a in (dry.start, dry.stop, dry.held, dry.call)), strict=True):
        ranges, calls = view.own.name, view.events.calls.name
        code = OUTSIDE if held == NONE else ranges.values[ranges.codes[held]]
        what = "CPU work" if call == NONE else calls.values[calls.codes[call]]
        yield Bar(BarKind.DRY, _track(tracks, "GPU dry"), f"{code} · {what}", start - begin, stop - begin)


def _gpu_bars(work: GpuWork, begin: int, tracks: dict[str, int]) -> Iterator[Bar]:
    for row in np.lexsort((work.start, work.stream, work.device)).tolist():
        place = _track(tracks, _stream_name(work, row))
        launched = int(work.launched_at[row]) - begin if work.launch[row] != NONE else None
        detail = "launch not in the capture" if launched is None else f"launched at {_us(launched)}"
        yield Bar(BarKind.GPU, place, work.label(row), int(work.start[row]) - begin, int(work.end[row]) - begin, detail)


def _stream_name(work: GpuWork, row: int) -> str:
    return f"GPU {work.device[row]} stream {work.stream[row]}"


def _flows(work: GpuWork, begin: int, stop: int, tracks: dict[str, int]) -> Iterator[_Flow]:
    threads = _thread_names(work.launches.thread)
    for row in np.flatnonzero(work.launch != NONE).tolist():
        at = int(work.launched_at[row])
        source = tracks.get(f"{threads[int(work.launches.thread[work.launch[row]])]} CUDA calls")
        if begin <= at < stop and source is not None:
            yield _Flow(source, at - begin, tracks[_stream_name(work, row)], int(work.start[row]) - begin)


def _us(value_ns: int) -> str:
    return f"{text(value_ns, Unit.NS)} {symbol(Unit.NS)}"


# ── for the page ─────────────────────────────────────────────────────────────────────────────────────────────────────


def timeline_document(
    sides: Sequence[tuple[str, Profile, RunMetrics]],
    ranks: Sequence[int],
    first: int,
    reading: Reading | None = None,
) -> dict[str, Any] | None:
    """The median and the longest step of each rank of each side, as the page's script draws them; None without any.
    Of large runs it is kept beside their figures.

    Names stand once, in ``names``; a bar is [kind, track, name, start, length, detail], a line from a launch to its
    work [track, instant, track, instant], times in ns after the step's start. ``first`` is the rank shown first.
    """
    names, profiles, runs = zip(*sides, strict=True)
    named = list(zip(names, profiles, strict=True))
    found: dict[str, Any] | None = answer(
        runs, ("timeline", names, ranks, first, reading), lambda: _document(named, ranks, first, reading)
    )
    return found


def _document(
    sides: Sequence[tuple[str, Profile]], ranks: Sequence[int], first: int, reading: Reading | None
) -> dict[str, Any] | None:
    max_bars = min(_MAX_BARS, _MAX_BARS_IN_ALL // (4 * max(len(ranks) * len(sides), 1)))
    names: dict[str, int] = {}
    found = [
        {
            "name": name,
            "ranks": {
                rank: [window_document(w, names) for w in windows]
                for rank in ranks
                if (windows := _step_windows(profile, rank, reading, max_bars))
            },
        }
        for name, profile in sides
    ]
    if not any(side["ranks"] for side in found):
        return None
    return {"sides": found, "first": first, "kinds": [str(kind) for kind in BarKind], "names": list(names)}


def window_document(window: _StepWindow, names: dict[str, int]) -> dict[str, Any]:
    """One step as the page's script draws it; what it names goes into ``names``."""

    def name(text: str) -> int:
        return names.setdefault(text[:_MAX_NAME], len(names))

    kinds = list(BarKind)
    return {
        "title": window.title,
        "words": window.words,
        "length": window.length_ns,
        "tracks": window.tracks,
        "bars": [
            [kinds.index(b.kind), b.track, name(b.name), b.start_ns, b.length_ns]
            + ([name(b.detail)] if b.detail else [])
            for b in window.bars
        ],
        "flows": [[f.from_track, f.from_ns, f.to_track, f.to_ns] for f in window.flows[:_MAX_BARS]],
    }


_MAX_NAME = 120
