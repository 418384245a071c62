"""Launch leads of a process, window by window: how far ahead of the GPU the host was, and what it lost when behind."""

from __future__ import annotations

from collections.abc import Callable, Iterator

import numpy as np

from dflash_bench.metrics.ahead import Ahead
from dflash_bench.metrics.collect import Collector
from dflash_bench.metrics.gpu import GpuFile
from dflash_bench.metrics.intervals import NONE
from dflash_bench.metrics.launches import JoinCounts, Joiner, Launches, is_launch
from dflash_bench.metrics.quantiles import median
from dflash_bench.metrics.shelf import Growing, Shelf, chunks
from dflash_bench.metrics.stalls import TABLE, StallMeter
from dflash_bench.metrics.steps import PerStep, Steps
from dflash_bench.metrics.strata import Stratum, timed
from dflash_bench.metrics.windows import HostEvents, Window
from dflash_bench.metrics.work import NO_WORK, Work, changes, pieces, replays_of
from dflash_bench.model import BoolArray, Finding, IntArray

WITHHELD_BELOW = 0.50
WARNED_BELOW = 0.95
"""Coverage under which a lead, stall or share figure is withheld, or shown with a warning."""

BACKPRESSURE_FACTOR = 10
LEADS = (
    "step.lead",
    "step.lead@*",
    "launch.lead",
    "launch.run_ahead_fraction",
    "launch.backpressure",
    "graph.lead",
    "graph.lead@*",
    "graph.run_ahead_fraction",
    "stall.total_per_step",
)
"""What rests on launches joined to their work, and is withheld where too few are."""


class LeadMeter:
    """Launches and their leads. Holds five bytes a step, and without a shelf of every launch the length of its call."""

    def __init__(self, host: HostEvents, gpu: GpuFile, steps: Steps, collector: Collector, window_rows: int) -> None:
        self.rank, self.steps, self.collector, self.gpu = host.process.rank, steps, collector, gpu
        self.replays = replays_of(gpu.without_id())
        self.work = gpu.by_id()
        is_one_for_each = self.replays.num > 0 and self.replays.num == _num_waiting(host, gpu, window_rows)
        self.joiner = Joiner(_work_until(self.work), self.replays.work if is_one_for_each else NO_WORK)
        self.stalls = StallMeter(collector)
        self.launched_in = np.zeros(len(steps), bool)
        self.lost = PerStep(len(steps), collector.shelf)
        self.first, self.first_graph = (_FirstOfStep(len(steps), collector.shelf) for _ in range(2))
        self.num_seen = self.num_seen_with_work = self.num_graphs = self.num_graphs_with_work = self.num_leads = 0
        self.length, self.is_ahead = Growing(collector.shelf, np.int64), Growing(collector.shelf, np.bool_)

    def see(self, window: Window, step: IntArray) -> None:
        """Take in the calls of a window; ``step`` int64 [calls] is the step of each, or NONE."""
        calls = window.calls
        launches, launched = self.joiner.feed(calls, window.coming)
        # without steps, coverage is told all the same
        seen = is_launch(calls.name) & (step != NONE if len(self.steps) else True)
        if seen.any():
            self.collector.add("coverage.launches_matched", launched[seen])
        is_graph = seen & calls.name.containing("GraphLaunch")
        self.num_seen += int(seen.sum())
        self.num_seen_with_work += int(launched[seen].sum())
        self.num_graphs += int(is_graph.sum())
        self.num_graphs_with_work += int(launched[is_graph].sum())
        if len(self.steps):
            # by start, not stream by stream: as it would be had all windows been one
            is_in_order = (launches.start[1:] >= launches.start[:-1]).all()
            order = slice(None) if is_in_order else np.argsort(launches.start, kind="stable")
            self._see_leads(window, launches[order], step)

    def _see_leads(self, window: Window, launches: Launches, step_of_call: IntArray) -> None:
        step = step_of_call[launches.call]
        if not (inside := step != NONE).all():
            launches, step = launches[inside], step[inside]
        self.launched_in[step] = True
        self.first.see(launches, step)
        graph = np.flatnonzero(launches.is_graph)
        self.first_graph.see(launches[graph], step[graph])
        if not launches.has_lead.all():
            launches, step = launches[launches.has_lead], step[launches.has_lead]
            graph = np.flatnonzero(launches.is_graph)
        lead = launches.lead
        self.num_leads += len(lead)
        if len(lead):
            self.collector.add("launch.lead", lead, step)
            self.collector.add("launch.run_ahead_fraction", lead > 0, step)
            self.length.add(launches.end - launches.start)
            self.is_ahead.add(lead > 0)
        if len(graph):
            self._see_graphs(window, launches[graph], step[graph])
        late = np.flatnonzero(lead < 0)
        self.lost.add(step[late], -lead[late])
        self.stalls.see(window, launches[late])

    def _see_graphs(self, window: Window, graphs: Launches, step: IntArray) -> None:
        self.collector.add("graph.lead", graphs.lead, step)
        self.collector.add("graph.run_ahead_fraction", graphs.lead > 0, step)
        names = window.own.ranges.name
        held = window.own.innermost(graphs.thread, graphs.start)
        code = np.where(held == NONE, NONE, names.codes[held]) if len(names.codes) else held
        for own in np.unique(code[code != NONE]):
            rows = code == own
            self.collector.add(f"graph.lead@{names.values[own]}", graphs.lead[rows], step[rows])

    def finish(
        self, again: Callable[[], Iterator[Window]], strata: dict[Stratum, BoolArray]
    ) -> tuple[float | None, list[Finding]]:
        """The figures that need all windows, and what to know about them.

        Returns the coverage of the lead and stall figures, None where there are none. ``again``: see `StallMeter`.
        ``strata``: the steps of each kind.
        """
        for rest in self.work.rest():
            self.joiner.add_unlaunched(pieces(rest))
        counts = self.joiner.counts(self.replays.num_rows, self.replays.num_pieces, self.replays.num)
        self._add_join_coverage(counts)
        findings = list(_join_findings(self.rank, counts))
        if lost := self._num_without_work:
            text = f"{lost:,} of {self.num_seen:,} launch calls join no GPU work"
            findings.append(Finding("launches_without_work", self.rank, lost, text))
        coverage = counts.num_matched / max(1, counts.num_work)
        if self.num_seen:
            coverage = min(coverage, self.num_seen_with_work / self.num_seen)
        withheld = self._why_withheld(counts, coverage)
        if withheld is not None or not self.num_leads:
            self.collector.drop(LEADS, TABLE)
        if withheld is not None:
            return None, [*findings, withheld]
        if not len(self.steps):
            return None, findings
        findings += self._doubts(counts, coverage)
        if self.num_leads:
            self._add_per_step(strata)
            self.stalls.finish(again)
        return coverage, findings

    def _add_join_coverage(self, counts: JoinCounts) -> None:
        without = counts.num_unlaunched
        add = self.collector.add_value
        add("gpu_work_without_launch", without, counts.num_work)
        add("coverage.gpu_work_uncorrelated", counts.num_uncorrelated, counts.num_work)
        add("coverage.impossible_pairs", counts.num_impossible, counts.num_matched)
        for value, count in ((True, counts.num_matched), (False, without)):
            for at in range(0, count, _CHUNK):
                self.collector.add("coverage.gpu_work_matched", np.full(min(_CHUNK, count - at), value, bool))

    def _why_withheld(self, counts: JoinCounts, coverage: float) -> Finding | None:
        if self.num_graphs and not self.num_graphs_with_work:
            text = f"{self.num_graphs:,} graph launches join no GPU work: the rest gives no lead or stall figure"
            text += _about_replays(counts)
            return Finding("graph_launches_without_work", self.rank, self.num_graphs, text)
        if not len(self.steps) or coverage >= WITHHELD_BELOW:
            return None
        text = f"only {coverage:.0%} of launches and GPU work could be joined: lead and stall figures are withheld"
        return Finding("coverage_withheld", self.rank, self._num_unjoined(counts), text + self._unjoined(counts))

    def _doubts(self, counts: JoinCounts, coverage: float) -> Iterator[Finding]:
        if coverage < WARNED_BELOW:
            text = f"{coverage:.0%} of launches and GPU work could be joined: lead and stall figures rest on these"
            yield Finding("coverage_low", self.rank, self._num_unjoined(counts), text + self._unjoined(counts))
        if not self.launched_in.all():
            idle, num = int((~self.launched_in).sum()), len(self.steps)
            text = f"{idle:,} of {num:,} steps launched nothing; no lead or stall figure is computed from them"
            yield Finding("steps_without_launches", self.rank, idle, text)

    @property
    def _num_without_work(self) -> int:
        return self.num_seen - self.num_seen_with_work

    def _num_unjoined(self, counts: JoinCounts) -> int:
        """Launches in steps without work, and work without a launch."""
        return self._num_without_work + counts.num_unlaunched

    def _unjoined(self, counts: JoinCounts) -> str:
        without, unlaunched = self._num_without_work, counts.num_unlaunched
        text = f" ({without:,} launches without work, {unlaunched:,} pieces of work without launch)"
        return text + _about_replays(counts)

    def _add_per_step(self, strata: dict[Stratum, BoolArray]) -> None:
        first = self.first_graph if self.first_graph.is_seen.any() else self.first
        self.collector.add("step.lead", first.lead.array()[first.has_lead], np.flatnonzero(first.has_lead))
        for kind, steps in timed(strata):
            own_first = self.first_graph if self.first_graph.is_seen[steps].any() else self.first
            if (own := own_first.has_lead & steps).any():
                self.collector.add(f"step.lead@{kind}", own_first.lead.array()[own], np.flatnonzero(own))
        self.collector.add(
            "stall.total_per_step", self.lost.array()[self.launched_in], np.flatnonzero(self.launched_in)
        )
        # far longer than usual although work was queued ahead: the queue was full, not the host slow
        longest = BACKPRESSURE_FACTOR * median(self.length.parts())
        pairs = zip(chunks(self.length.parts()), chunks(self.is_ahead.parts()), strict=True)
        blocked = sum(int(((length > longest) & is_ahead).sum()) for length, is_ahead in pairs)
        self.collector.add_value("launch.backpressure", blocked, self.num_leads)


_CHUNK = 1 << 15


def _about_replays(counts: JoinCounts) -> str:
    """Why replays without a correlation id could not be joined in order of launch, if there are any."""
    if not counts.num_uncorrelated or counts.num_by_order:
        return ""
    if not counts.num_replays:
        return f"; {counts.num_uncorrelated:,} GPU rows without correlation id make up no whole graph replays"
    return (
        f"; {counts.num_replays:,} graph replays without correlation id face {counts.num_waiting:,} graph launches"
        " without work, and which belongs to which cannot be told"
    )


class _FirstOfStep:
    """The first launch of each step, and its lead."""

    def __init__(self, num_steps: int, shelf: Shelf | None) -> None:
        self.is_seen, self.has_lead = np.zeros(num_steps, bool), np.zeros(num_steps, bool)
        self.lead = PerStep(num_steps, shelf)

    def see(self, launches: Launches, step: IntArray) -> None:
        """Take in launches in order of start, and so of steps."""
        first = np.flatnonzero(changes(step))
        first = first[~self.is_seen[step[first]]]
        steps = step[first]
        self.is_seen[steps] = True
        self.has_lead[steps] = launches.has_lead[first]
        self.lead.add(steps, launches.lead[first])


def _work_until(work: Ahead[Work]) -> Callable[[int], Work]:
    """What a joiner asks for work. Not a method: a meter in a cycle would be held until the next collection."""
    return lambda highest: pieces(work.until(highest + 1))


def _num_waiting(host: HostEvents, gpu: GpuFile, window_rows: int) -> int:
    """How many graph launches join no work by their id."""
    joiner = Joiner(_work_until(gpu.by_id()))
    for calls, coming in host.calls_alone(window_rows):
        joiner.feed(calls, coming)
    return joiner.num_waiting


def _join_findings(rank: int | None, counts: JoinCounts) -> Iterator[Finding]:
    if without := counts.num_unlaunched:
        text = f"{without:,} of {counts.num_work:,} pieces of GPU work have no launch call in the capture"
        yield Finding("gpu_work_without_launch", rank, without, text)
    if counts.num_uncorrelated and not counts.num_by_order:
        text = f"{counts.num_uncorrelated:,} GPU rows have correlation id 0 and join no launch{_about_replays(counts)}"
        yield Finding("gpu_work_uncorrelated", rank, counts.num_uncorrelated, text)
    if counts.num_by_order:
        text = f"{counts.num_by_order:,} graph replays carry no correlation id and were joined in order of launch"
        yield Finding("joined_by_order", rank, counts.num_by_order, text)
    if counts.num_duplicate_calls:
        text = f"{counts.num_duplicate_calls:,} API calls repeat a correlation id; the first of each counts"
        yield Finding("duplicate_api_calls", rank, counts.num_duplicate_calls, text)
    if counts.num_impossible:
        text = f"{counts.num_impossible:,} pieces of GPU work start before their launch call"
        yield Finding("impossible_pairs", rank, counts.num_impossible, text)
