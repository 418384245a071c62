"""What the model of the loop needs to know of every step of a profile: host work, GPU work, agreement.

A step of one rank, in the order of the host::

    ├── before ──┤ agreement ├── to_first ──┤ first graph ├── to_last ──┤ last graph ├── to_wait ──┤ wait ├── after ──┤

`before` ends when the rank arrives at the agreement; the waits of the others and the wait for the result are what the
model predicts, so they are measured only to be left out. All of it is read on each rank's own clock.
"""

from __future__ import annotations

from dataclasses import dataclass, fields, replace
from typing import TYPE_CHECKING

import numpy as np

from dflash_bench.duet import duet_mark
from dflash_bench.errors import DataError
from dflash_bench.model import BoolArray, FloatArray, IntArray

if TYPE_CHECKING:
    import pandas as pd

    from dflash_bench.profile import Profile

_WARM_UP = 0.05
"""Share of the steps at the start of a run that no step is redrawn from: they compile and fill the pipeline."""

_MAX_GAP_NS = 10_000
"""Queued pieces follow on each other within 1 to 3 µs on an H200; a longer gap is somebody else's work."""

_LONG_WAIT_NS = 20_000
"""A wait shorter than this returned at once: it says nothing of what it waited for."""

_MIN_STEPS = 50
"""Fewer steps than this say too little about the tail that the slowest of many ranks is drawn from."""


@dataclass(frozen=True, slots=True)
class StepTrace:
    """The steps of one rank, float64 [n] in ns; ``allocates`` bool [n].

    prepare      of ``before`` the part inside prepare_for_decode
    agreement    own time inside the agreement, the waits for the others included
    leave_skew   when the rank left the agreement, against the mean of all ranks; without what stays the same (a clock)
    loops        time in the ranges that go over all requests and nothing else, in preparation's own arithmetic
    first_gpu    graphs launched up to the first one; ``rest_gpu`` those behind it: what another GPU does in other time
    first_small, rest_small  kernels and copies launched beside them, and the gaps between pieces that were queued
    start        on the rank's own clock
    period       start to start
    other_waits  host waits outside the agreement and the wait for the result, which the model takes for work
    lag          how many steps ago the work was launched whose result a step waits for
    """

    rank: int
    before: FloatArray
    prepare: FloatArray
    agreement: FloatArray
    leave_skew: FloatArray
    loops: FloatArray
    to_first: FloatArray
    to_last: FloatArray
    to_wait: FloatArray
    after: FloatArray
    first_gpu: FloatArray
    rest_gpu: FloatArray
    first_small: FloatArray
    rest_small: FloatArray
    start: FloatArray
    period: FloatArray
    other_waits: FloatArray
    allocates: BoolArray
    lag: int

    @property
    def num_steps(self) -> int:
        return len(self.period)

    @property
    def host(self) -> FloatArray:
        """Host work of every step without agreement and wait, ns [n]."""
        total: FloatArray = self.before + self.to_first + self.to_last + self.to_wait + self.after
        return total

    @property
    def gpu(self) -> FloatArray:
        """GPU time of every step, ns [n]."""
        total: FloatArray = self.first_gpu + self.rest_gpu + self.first_small + self.rest_small
        return total

    def take(self, index: IntArray) -> StepTrace:
        """The steps of these numbers, in this order."""
        taken = {f.name: value[index] for f in fields(self) if isinstance(value := getattr(self, f.name), np.ndarray)}
        return StepTrace(rank=self.rank, lag=self.lag, **taken)


@dataclass(frozen=True, slots=True)
class Roles:
    """The names that the ranges of an engine have: the step, the agreement, and what goes over all requests."""

    step: str = "decode_step"
    agreement: str = "dp_agreement"
    loops: tuple[str, ...] = ("check_memory",)


def read_traces(profile: Profile, roles: Roles | None = None) -> list[StepTrace]:
    """The steps of every rank of a profile, without its warm-up; of a duet those of the arm that is looked at.

    Raises DataError where a rank has no steps, no agreement, no graph launches or no GPU work: the loop cannot be
    rebuilt from such a capture.
    """
    roles = roles or Roles()
    tables = [profile.frame(table) for table in ("ranges", "api_calls", "gpu_work")]
    marks = profile.frame("marks") if profile.arm is not None else None
    if not profile.info.ranks:
        raise DataError(f"{profile.info.run} has no ranks", hint="dflash-bench metrics says what the capture holds")
    found = [
        _rank_trace(
            f"{profile.info.run}: rank {rank}",
            rank,
            _Events(*(frame[frame["rank"] == rank].sort_values("start_ns") for frame in tables)),
            roles,
        )
        for rank in profile.info.ranks
    ]
    in_arm = [_in_blocks(trace, marks, profile.arm) for trace in found]
    return [
        trace.take(np.flatnonzero(_usable(trace) & own)) for trace, own in zip(_with_skew(found), in_arm, strict=True)
    ]


@dataclass(frozen=True, slots=True)
class _Events:
    """The events of one rank, ascending."""

    ranges: pd.DataFrame
    calls: pd.DataFrame
    work: pd.DataFrame

    def spans(self, *names: str) -> IntArray:
        """Start and end of the ranges of these names, int64 [n, 2], ascending."""
        return self.ranges[self.ranges["name"].isin(names)][["start_ns", "end_ns"]].to_numpy(np.int64)

    def waits(self) -> IntArray:
        """Start and end of the calls that return when the GPU got somewhere, int64 [n, 2]."""
        names = self.calls["name"].astype(str)
        is_wait = names.str.contains("Synchronize") | (names == "hipMemcpyWithStream")
        return self.calls[is_wait][["start_ns", "end_ns"]].to_numpy(np.int64)

    def launched(self) -> pd.DataFrame:
        """GPU work with the start of its launch call in ``start_ns_api``."""
        launch = self.calls.drop_duplicates(["process", "correlation_id"])[["process", "correlation_id", "start_ns"]]
        return self.work.merge(launch, on=["process", "correlation_id"], suffixes=("", "_api")).sort_values("start_ns")


class _Steps:
    """The steps of one rank, and what happened in them: all methods give float64 [n], NaN or 0 where nothing did."""

    def __init__(self, start: IntArray) -> None:
        self.start, self.n = start, len(start) - 1  # the last one has no next to end it

    def of(self, times: IntArray) -> IntArray:
        """Number of the step that holds each time, −1 and n for none."""
        found: IntArray = np.searchsorted(self.start, times, side="right") - 1
        return found

    def first(self, spans: IntArray, column: int) -> FloatArray:
        """Start (column 0) or end (1) of the first of the spans in each step."""
        step = self.of(spans[:, 0])
        ok = (step >= 0) & (step < self.n)
        out = np.full(self.n, np.nan)
        index, where = np.unique(step[ok], return_index=True)
        out[index] = spans[ok][where, column]
        return out

    def last(self, spans: IntArray, column: int) -> FloatArray:
        """Start or end of the last one."""
        return self.first(spans[::-1], column)

    def sums(self, at: IntArray, length: IntArray) -> FloatArray:
        """Total length of what began in each step."""
        step = self.of(at)
        ok = (step >= 0) & (step < self.n)
        total = np.bincount(step[ok], weights=length[ok].astype(np.float64), minlength=self.n)
        return np.asarray(total[: self.n], dtype=np.float64)

    def time_in(self, spans: IntArray) -> FloatArray:
        """Total time of the spans that began in each step."""
        return self.sums(spans[:, 0], spans[:, 1] - spans[:, 0])


def _rank_trace(who: str, rank: int, events: _Events, roles: Roles) -> StepTrace:
    step_spans, meets = events.spans(roles.step), events.spans(roles.agreement)
    for name, found in ((roles.step, step_spans), (roles.agreement, meets)):
        if len(found) < 2:
            raise DataError(
                f"{who} has no range {name}: there is no loop to predict",
                hint="--step-range and --agreement-range name them",
            )
    graphs = events.calls[events.calls["name"].astype(str).str.contains("GraphLaunch")]
    if graphs.empty or events.work.empty:
        raise DataError(
            f"{who} has no graph launches with GPU work: what the GPU would do cannot be told",
            hint="capture with CUDA tracing (nsys -t cuda,nvtx)",
        )
    steps = _Steps(step_spans[:, 0])
    end, start = steps.start[1:].astype(np.float64), steps.start[:-1].astype(np.float64)
    launches = graphs[["start_ns", "end_ns"]].to_numpy(np.int64)
    first_graph, last_graph = steps.first(launches, 0), steps.last(launches, 0)
    arrive, leave = steps.first(meets, 0), steps.first(meets, 1)
    waits = events.waits()
    wait_step = steps.of(waits[:, 0])
    is_result = _is_behind(waits[:, 0], wait_step, last_graph)
    results = waits[is_result]
    # a step that waits for no result works on until the next one starts
    wait_from, wait_to = steps.first(results, 0), steps.last(results, 1)
    wait_from, wait_to = np.where(np.isnan(wait_from), end, wait_from), np.where(np.isnan(wait_to), end, wait_to)
    others = waits[~is_result & ~_inside(waits[:, 0], meets)]
    prepare, taken = events.spans("prepare_for_decode"), events.spans("kv_alloc")
    launched = events.launched()
    first_gpu, rest_gpu, first_small, rest_small = _gpu_times(launched, steps, first_graph)
    return StepTrace(
        rank=rank,
        before=arrive - start,
        prepare=steps.time_in(prepare),
        agreement=leave - arrive,
        leave_skew=leave,  # on the rank's own clock, until all ranks are there
        loops=steps.time_in(events.spans(*roles.loops)),
        to_first=first_graph - leave,
        to_last=last_graph - first_graph,
        to_wait=wait_from - last_graph,
        after=end - wait_to,
        first_gpu=first_gpu,
        rest_gpu=rest_gpu,
        first_small=first_small,
        rest_small=rest_small,
        start=start,
        period=end - start,
        other_waits=steps.time_in(others),
        allocates=steps.sums(taken[:, 0], np.ones(len(taken), np.int64)) > 0,
        lag=_lag(results, steps, launched),
    )


def _gpu_times(launched: pd.DataFrame, steps: _Steps, first_graph: FloatArray) -> tuple[FloatArray, ...]:
    """Graphs and small pieces of each step, up to its first graph and behind it: four times float64 [n].

    Gaps between pieces that lay in the queue (a µs or two each) are the GPU's own and count as small pieces.
    """
    main = launched.groupby(["device", "stream"])["start_ns"].transform("size")
    lane = launched[main == main.max()] if len(launched) else launched
    api = lane["start_ns_api"].to_numpy(np.int64)
    begin, end = lane["start_ns"].to_numpy(np.int64), lane["end_ns"].to_numpy(np.int64)
    before = np.maximum.accumulate(np.concatenate([begin[:1], end[:-1]]))
    gap = np.where((api < before) & (begin - before < _MAX_GAP_NS), np.maximum(begin - before, 0), 0)
    length = np.maximum(end - np.maximum(begin, before), 0)
    step = steps.of(api)
    is_first = ~_is_behind(api, step, first_graph)
    is_graph = (lane["kind"] == "graph").to_numpy() | (lane["graph_node_id"].fillna(0) != 0).to_numpy()

    def total(chosen: BoolArray, times: IntArray) -> FloatArray:
        return steps.sums(api[chosen], times[chosen])

    return (
        total(is_first & is_graph, length),
        total(~is_first & is_graph, length),
        total(is_first & ~is_graph, length) + total(is_first, gap),
        total(~is_first & ~is_graph, length) + total(~is_first, gap),
    )


def _is_behind(times: IntArray, step: IntArray, limit: FloatArray) -> BoolArray:
    """Whether each time lies behind the limit of its step; False outside of all steps and where there is no limit."""
    out = np.zeros(len(times), dtype=bool)
    ok = (step >= 0) & (step < len(limit))
    out[ok] = times[ok] > np.nan_to_num(limit[step[ok]], nan=np.inf)
    return out


def _inside(times: IntArray, spans: IntArray) -> BoolArray:
    at = np.searchsorted(spans[:, 0], times, side="right") - 1
    found: BoolArray = (at >= 0) & (times < spans[np.maximum(at, 0), 1])
    return found


def _lag(results: IntArray, steps: _Steps, launched: pd.DataFrame) -> int:
    """How many steps ago the awaited work was launched: that step whose GPU work ends nearest to the waits' ends.

    Told only where most steps wait; a host that never has to is taken to look at the step before, as published engines
    do (`decode-prep`, overlap scheduling).
    """
    at = steps.of(results[:, 0])
    is_long = (results[:, 1] - results[:, 0] > _LONG_WAIT_NS) & (at >= 2) & (at < steps.n)
    if is_long.sum() < steps.n / 2:
        return 1
    ends = launched[["start_ns_api", "end_ns"]].sort_values("end_ns").to_numpy(np.int64)
    last_end = steps.last(ends, 1)
    misses = [np.nanmedian(np.abs(results[is_long, 1] - last_end[at[is_long] - lag])) for lag in (0, 1, 2)]
    return int(np.argmin(misses))


def _with_skew(traces: list[StepTrace]) -> list[StepTrace]:
    """The traces with `leave_skew` against the mean of all ranks; zero for one rank and for unequal step counts."""
    if len(traces) < 2 or len({t.num_steps for t in traces}) > 1:
        return [replace(t, leave_skew=np.zeros(t.num_steps)) for t in traces]
    leave = np.stack([t.leave_skew for t in traces])
    skew = leave - leave.mean(axis=0)
    # what is always there is a clock's offset (or a rank that always leaves late: the two cannot be told apart)
    skew -= np.nanmedian(skew, axis=1, keepdims=True)
    # the mean of a few ranks moves with each of them: give back what that hides
    skew *= np.sqrt(len(traces) / (len(traces) - 1))
    return [replace(t, leave_skew=row) for t, row in zip(traces, skew, strict=True)]


def _in_blocks(trace: StepTrace, marks: pd.DataFrame | None, arm: str | None) -> BoolArray:
    """The steps of an arm's blocks but the last of each, which ends where another arm's begins; all without an arm."""
    if marks is None:
        return np.ones(trace.num_steps, dtype=bool)
    own = marks[marks["rank"] == trace.rank].sort_values("start_ns")
    inside = np.zeros(trace.num_steps, dtype=bool)
    opened = None
    for at, mark in zip(own["start_ns"], map(duet_mark, own["text"].astype(str)), strict=True):
        if mark is None or mark.arm != arm:
            continue
        if mark.is_open:
            opened = at
        elif opened is not None:
            begin, end = np.searchsorted(trace.start, [opened, at])
            inside[begin : max(begin, end - 1)] = True
            opened = None
    return inside


def _usable(trace: StepTrace) -> BoolArray:
    """Steps behind the warm-up of which everything is known. Raises DataError where too few are left."""
    usable = np.arange(trace.num_steps) >= max(3, int(trace.num_steps * _WARM_UP))
    for field in fields(trace):
        value = getattr(trace, field.name)
        if isinstance(value, np.ndarray) and value.dtype == np.float64:
            usable &= np.isfinite(value)
    if usable.sum() < _MIN_STEPS:
        raise DataError(
            f"rank {trace.rank} has {int(usable.sum())} whole steps with agreement and graph launch: too few",
            hint=f"capture at least {_MIN_STEPS} and some to warm up",
        )
    return usable
