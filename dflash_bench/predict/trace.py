"""What the model of the loop needs to know of every step of a profile: host work, GPU work, agreement.

A step of one rank, in the order of the host::

    ├── before ──┤ agreement ├── to_first ──┤ first graph ├── to_last ──┤ last graph ├── to_wait ──┤ wait ├── after ──┤

`before` ends when the rank arrives at the agreement; the waits of the others and the wait for the result are what the
model predicts, so they are measured only to be left out. All of it is read on each rank's own clock.
"""

from __future__ import annotations

from dataclasses import dataclass, fields
from typing import TYPE_CHECKING

import numpy as np

from dflash_bench.errors import DataError
from dflash_bench.model import BoolArray, FloatArray, IntArray

if TYPE_CHECKING:
    import pandas as pd

    from dflash_bench.profile import Profile

WARM_UP = 0.05
"""Share of the steps at the start of a run that no step is redrawn from: they compile and fill the pipeline."""

MIN_STEPS = 50
"""Fewer steps than this say too little about the tail that the slowest of many ranks is drawn from."""


@dataclass(frozen=True, slots=True)
class StepTrace:
    """The steps of one rank, float64 [n] in ns; ``allocates`` bool [n].

    prepare      of ``before`` the part inside prepare_for_decode, and ``prepare_own`` what of it no inner range covers
    agreement    own time inside the agreement, the waits for the others included
    first_gpu    GPU work of the launches up to the first graph; ``rest_gpu`` of those behind it
    period       start to start
    other_waits  host waits outside the agreement and the wait for the result, which the model takes for work
    lag          how many steps ago the work was launched whose result a step waits for
    """

    rank: int
    before: FloatArray
    prepare: FloatArray
    prepare_own: FloatArray
    agreement: FloatArray
    to_first: FloatArray
    to_last: FloatArray
    to_wait: FloatArray
    after: FloatArray
    first_gpu: FloatArray
    rest_gpu: FloatArray
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
        """GPU work of every step, ns [n]."""
        total: FloatArray = self.first_gpu + self.rest_gpu
        return total

    def take(self, index: IntArray) -> StepTrace:
        """The steps of these numbers, in this order."""
        taken = {f.name: value[index] for f in fields(self) if isinstance(value := getattr(self, f.name), np.ndarray)}
        return StepTrace(rank=self.rank, lag=self.lag, **taken)


def read_traces(profile: Profile, *, step: str = "decode_step", agreement: str = "dp_agreement") -> list[StepTrace]:
    """The steps of every rank of a profile, without its warm-up.

    Raises DataError where a rank has no steps, no agreement, no graph launches or no GPU work: the loop cannot be
    rebuilt from such a capture.
    """
    ranges, calls, work = (profile.frame(table) for table in ("ranges", "api_calls", "gpu_work"))
    if not profile.info.ranks:
        raise DataError(f"{profile.info.run} has no ranks", hint="dflash-bench metrics says what the capture holds")
    return [
        _trace(
            profile.info.run,
            rank,
            *(frame[frame["rank"] == rank].sort_values("start_ns") for frame in (ranges, calls, work)),
            step,
            agreement,
        )
        for rank in profile.info.ranks
    ]


def _trace(
    run: str, rank: int, ranges: pd.DataFrame, calls: pd.DataFrame, work: pd.DataFrame, step: str, agreement: str
) -> StepTrace:
    spans = {name: _spans(ranges, name) for name in (step, agreement, "prepare_for_decode", "kv_alloc")}
    steps, meets = spans[step], spans[agreement]
    for name, found in ((step, steps), (agreement, meets)):
        if not len(found):
            raise DataError(
                f"{run}: rank {rank} has no range {name}: there is no loop to predict",
                hint="--step-range and --agreement-range name them",
            )
    graphs = calls[calls["name"].astype(str).str.contains("GraphLaunch")]
    if graphs.empty or work.empty:
        raise DataError(
            f"{run}: rank {rank} has no graph launches with GPU work: what the GPU would do cannot be told",
            hint="capture with CUDA tracing (nsys -t cuda,nvtx)",
        )
    return _assemble(rank, spans, ranges, calls, graphs, work, step, agreement)


def _assemble(
    rank: int,
    spans: dict[str, IntArray],
    ranges: pd.DataFrame,
    calls: pd.DataFrame,
    graphs: pd.DataFrame,
    work: pd.DataFrame,
    step: str,
    agreement: str,
) -> StepTrace:
    start = spans[step][:, 0]
    n = len(start) - 1  # the last step has no next one to end it
    bounds = np.append(start[: n + 1], np.iinfo(np.int64).max)

    def of(times: IntArray) -> IntArray:
        return np.searchsorted(start, times, side="right") - 1

    met = spans[agreement]
    met_step = of(met[:, 0])
    arrive = _first(met_step, met[:, 0], n)
    leave = _first(met_step, met[:, 1], n)
    graph_start = graphs["start_ns"].to_numpy(np.int64)
    graph_step = of(graph_start)
    first_graph, last_graph = _first(graph_step, graph_start, n), _last(graph_step, graph_start, n)
    waits = _host_waits(calls)
    wait_step = of(waits[:, 0])
    is_result = np.zeros(len(waits), dtype=bool)
    inside = (wait_step >= 0) & (wait_step < n)
    is_result[inside] = waits[inside, 0] > np.nan_to_num(last_graph[wait_step[inside]], nan=np.inf)
    wait_from = _first(wait_step[is_result], waits[is_result, 0], n)
    wait_to = _last(wait_step[is_result], waits[is_result, 1], n)
    end = bounds[1 : n + 1].astype(np.float64)
    # a step without a result to wait for (the first ones) has its host work up to the next step's start
    wait_from, wait_to = np.where(np.isnan(wait_from), end, wait_from), np.where(np.isnan(wait_to), end, wait_to)

    launch = calls.drop_duplicates(["process", "correlation_id"])[["process", "correlation_id", "start_ns"]]
    joined = work.merge(launch, on=["process", "correlation_id"], suffixes=("", "_api"))
    api, gpu_ns = joined["start_ns_api"].to_numpy(np.int64), (joined["end_ns"] - joined["start_ns"]).to_numpy(np.int64)
    gpu_step = of(api)
    ok = (gpu_step >= 0) & (gpu_step < n)
    is_first = np.zeros(len(api), dtype=bool)
    is_first[ok] = api[ok] <= np.nan_to_num(first_graph[gpu_step[ok]], nan=-1.0)
    prepare = spans["prepare_for_decode"]
    held = _held(ranges, prepare)
    is_other = ~is_result & ~_inside(waits[:, 0], met)
    s = start[:n].astype(np.float64)
    whole = StepTrace(
        rank=rank,
        before=arrive - s,
        prepare=_sums(of(prepare[:, 0]), prepare[:, 1] - prepare[:, 0], n),
        prepare_own=_sums(of(prepare[:, 0]), prepare[:, 1] - prepare[:, 0] - held, n),
        agreement=leave - arrive,
        to_first=first_graph - leave,
        to_last=last_graph - first_graph,
        to_wait=wait_from - last_graph,
        after=end - wait_to,
        first_gpu=_sums(gpu_step[ok & is_first], gpu_ns[ok & is_first], n),
        rest_gpu=_sums(gpu_step[ok & ~is_first], gpu_ns[ok & ~is_first], n),
        period=end - s,
        other_waits=_sums(wait_step[is_other], (waits[:, 1] - waits[:, 0])[is_other], n),
        allocates=_sums(of(spans["kv_alloc"][:, 0]), np.ones(len(spans["kv_alloc"]), np.int64), n) > 0,
        lag=_lag(wait_to, waits, is_result, wait_step, joined, gpu_step, n),
    )
    keep = np.arange(n) >= max(3, int(n * WARM_UP))
    for field in fields(whole):
        value = getattr(whole, field.name)
        if isinstance(value, np.ndarray) and value.dtype == np.float64:
            keep &= np.isfinite(value)
    if keep.sum() < MIN_STEPS:
        raise DataError(
            f"rank {rank} has {int(keep.sum())} whole steps with agreement and graph launch, fewer than {MIN_STEPS}",
            hint="capture more steps",
        )
    return whole.take(np.flatnonzero(keep))


def _spans(ranges: pd.DataFrame, name: str) -> IntArray:
    """Start and end of the ranges of a name, int64 [n, 2], ascending."""
    own = ranges[ranges["name"] == name]
    return own[["start_ns", "end_ns"]].to_numpy(np.int64)


def _host_waits(calls: pd.DataFrame) -> IntArray:
    """Start and end of the calls that return when the GPU got somewhere, int64 [n, 2]."""
    names = calls["name"].astype(str)
    is_wait = names.str.contains("Synchronize") | names.isin(["hipMemcpyWithStream"])
    return calls[is_wait][["start_ns", "end_ns"]].to_numpy(np.int64)


def _first(step: IntArray, value: IntArray, n: int) -> FloatArray:
    out = np.full(n, np.nan)
    ok = (step >= 0) & (step < n)
    index, where = np.unique(step[ok], return_index=True)
    out[index] = value[ok][where]
    return out


def _last(step: IntArray, value: IntArray, n: int) -> FloatArray:
    return _first(step[::-1], value[::-1], n)


def _sums(step: IntArray, value: IntArray, n: int) -> FloatArray:
    ok = (step >= 0) & (step < n)
    total: FloatArray = np.bincount(step[ok], weights=value[ok].astype(np.float64), minlength=n)[:n]
    return total


def _inside(times: IntArray, spans: IntArray) -> BoolArray:
    at = np.searchsorted(spans[:, 0], times, side="right") - 1
    found: BoolArray = (at >= 0) & (times < spans[np.maximum(at, 0), 1])
    return found


def _held(ranges: pd.DataFrame, outer: IntArray) -> IntArray:
    """Of each of the `outer` ranges the time that its direct children cover, int64 [n]."""
    total = np.zeros(len(outer), np.int64)
    if not len(outer):
        return total
    times = ranges[["start_ns", "end_ns"]].to_numpy(np.int64)
    at = np.searchsorted(outer[:, 0], times[:, 0], side="right") - 1
    is_child = (at >= 0) & (times[:, 1] <= outer[np.maximum(at, 0), 1])
    is_child &= (times[:, 0] > outer[np.maximum(at, 0), 0]) | (times[:, 1] < outer[np.maximum(at, 0), 1])
    latest = -1
    for (begin, end), parent in zip(times[is_child], at[is_child], strict=True):
        if begin >= latest:  # what begins inside the child before is a child of that one
            total[parent] += end - begin
            latest = end
    return total


def _lag(
    wait_to: FloatArray,
    waits: IntArray,
    is_result: BoolArray,
    wait_step: IntArray,
    joined: pd.DataFrame,
    gpu_step: IntArray,
    n: int,
) -> int:
    """How many steps ago the awaited work was launched: that step whose GPU work ends nearest to the waits' ends."""
    ends = joined["end_ns"].to_numpy(np.int64)
    order = np.lexsort((ends, gpu_step))
    last_end = _last(gpu_step[order], ends[order], n)
    is_long = is_result & (waits[:, 1] - waits[:, 0] > 20_000) & (wait_step >= 2) & (wait_step < n)
    if not is_long.any():
        return 1
    step, end = wait_step[is_long], waits[is_long, 1]
    misses = [np.nanmedian(np.abs(end - last_end[step - lag])) for lag in (0, 1, 2)]
    return int(np.argmin(misses))
