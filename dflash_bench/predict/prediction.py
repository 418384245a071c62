"""What a run would be under other circumstances, with intervals: traces redrawn in blocks, replayed, summed up.

What spreads the replicates, and so the intervals: which blocks are drawn (steps differ), which tenths of the run they
come from (the host's speed drifts within seconds), and a factor on all host work as wide as the tenths differ (another
process has another speed). What the model leaves out is no part of them: `docs/predict.md`.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from dflash_bench.errors import UsageError
from dflash_bench.findings import finding
from dflash_bench.model import BoolArray, Finding, FloatArray, IntArray, Unit
from dflash_bench.predict.allocation import Allocator, draw_allocations
from dflash_bench.predict.communication import Communication, CommunicationSource, communication_for
from dflash_bench.predict.replay import Replay, StepWork, replay
from dflash_bench.predict.trace import StepTrace

_BLOCK = 10
"""Steps redrawn together: what follows on each other in a run (an allocation's neighbours, a slow moment) stays so."""

_PROCESS_SPREAD = 0.22
"""Ten processes of `control` and `topup` with one rank on one H200 machine within five minutes: `docs/predict.md`."""

PREDICTION_CONFIDENCE = 0.90
_WARM_UP_STEPS = 20
_OTHER_WAITS_SHARE = 0.05


@dataclass(frozen=True, slots=True)
class Scenario:
    """What is asked for. ``None``: as in the profile.

    gpu_work, host_work  factors
    allocator            how pages are taken; needs page size, block, accept length and requests of the profile
    together             ranks drawn from the same steps of the run, as correlated as they were there
    """

    ranks: int
    gpu_work: float = 1.0
    host_work: float = 1.0
    ranks_per_gpu: int = 1
    allocator: Allocator | None = None
    together: bool = False
    given_us: dict[int, float] | None = None

    def __post_init__(self) -> None:
        if self.ranks < 1 or self.ranks_per_gpu < 1:
            raise UsageError("ranks and ranks per GPU are at least 1")
        if self.ranks % self.ranks_per_gpu:
            raise UsageError(f"{self.ranks} ranks cannot share GPUs {self.ranks_per_gpu} each")
        if self.gpu_work <= 0 or self.host_work <= 0:
            raise UsageError("factors on GPU and host work must be above 0")


@dataclass(frozen=True, slots=True)
class Redraws:
    """How much is drawn: runs, the steps of each (None: as many as the profile has, up to 500), and the seed."""

    replicates: int = 200
    steps: int | None = None
    seed: int = 0


@dataclass(frozen=True, slots=True)
class PredictedFigure:
    """One predicted figure in its base unit, with its interval of 90 %."""

    name: str
    value: float
    low: float
    high: float
    unit: Unit


@dataclass(frozen=True, slots=True)
class Prediction:
    """The figures of one scenario, where its agreement's time comes from, and what must be known of them."""

    scenario: Scenario
    figures: tuple[PredictedFigure, ...]
    communication: Communication
    findings: tuple[Finding, ...]

    def figure(self, name: str) -> PredictedFigure:
        """The figure of that name. Raises KeyError."""
        return next(f for f in self.figures if f.name == name)


def predict(
    runs: Sequence[Sequence[StepTrace]],
    scenario: Scenario,
    *,
    also: Sequence[Sequence[StepTrace]] = (),
    tokens_per_step: float | None = None,
    requests: int | None = None,
    redraws: Redraws | None = None,
) -> Prediction:
    """Predict from `runs`, the traces of all ranks of each; `also` only says what agreements cost among other numbers.

    Several runs are of one code with the same number of ranks: each redrawn run is one of them.

    tokens_per_step  committed a rank and step, for tokens/s
    requests         running ones of a rank of the profile: with another number what goes over all of them is scaled

    Raises UsageError where the profile cannot say what is asked for.
    """
    redraws = redraws or Redraws()
    random = np.random.default_rng(redraws.seed)
    if len({len(run) for run in runs}) > 1:
        raise UsageError("the runs have different numbers of ranks", hint="name those of other sizes with --also")
    found = communication_for(scenario.ranks, [*runs, *also], scenario.given_us)
    draws = _Draws(runs, scenario, redraws, random)
    allocates, prepare, before = draws.preparation(requests)
    speed = draws.speed * scenario.host_work
    work = StepWork(
        before=before * speed,
        leave_skew=draws.of("leave_skew") if scenario.ranks > 1 else draws.of("leave_skew") * 0.0,
        to_first=draws.of("to_first") * speed,
        to_last=draws.of("to_last") * speed,
        to_wait=draws.of("to_wait") * speed,
        after=draws.of("after") * speed,
        first_gpu=draws.of("first_gpu") * scenario.gpu_work + draws.of("first_small"),
        rest_gpu=draws.of("rest_gpu") * scenario.gpu_work + draws.of("rest_small"),
        communication=draws.communication(found),
        lag=runs[0][0].lag,
    )
    result = replay(work, scenario.ranks_per_gpu)
    figures = _figures(work, result, allocates, prepare * speed, scenario, tokens_per_step)
    return Prediction(scenario, figures, found, _findings([t for run in runs for t in run], found))


class _Draws:
    """Which step of which measured rank stands for each step of each predicted rank, [steps, replicates, ranks]."""

    def __init__(
        self, runs: Sequence[Sequence[StepTrace]], scenario: Scenario, redraws: Redraws, random: np.random.Generator
    ) -> None:
        self.traces = [trace for run in runs for trace in run]
        self.scenario, self.random = scenario, random
        n = min(t.num_steps for t in self.traces)
        self.num_steps, num_measured = n, len(runs[0])
        self.shape = (redraws.steps or min(n, 500)) + _WARM_UP_STEPS, redraws.replicates, scenario.ranks
        num_blocks = -(-self.shape[0] // _BLOCK)
        width = 1 if scenario.together else scenario.ranks
        # each replicate is drawn from ten tenths with repetition: a run that happened to be fast or slow
        tenths = random.integers(0, 10, size=(redraws.replicates, 10))
        pick = random.integers(0, 10, (num_blocks, redraws.replicates, width))
        tenth = tenths[np.arange(redraws.replicates)[None, :, None], pick]
        length = max(n // 10, 1)
        begin = tenth * length + random.integers(0, max(length - _BLOCK, 1), tenth.shape)
        begin = np.broadcast_to(np.minimum(begin, max(n - _BLOCK, 0)), (num_blocks, redraws.replicates, scenario.ranks))
        steps = begin[:, None] + np.arange(_BLOCK)[None, :, None, None]
        self.step: IntArray = np.minimum(steps.reshape(-1, redraws.replicates, scenario.ranks)[: self.shape[0]], n - 1)
        if scenario.together:  # predicted rank r plays measured rank r, in turns
            rank: IntArray = np.broadcast_to(np.arange(scenario.ranks) % num_measured, self.step.shape)
        else:
            drawn = random.integers(0, num_measured, (num_blocks, redraws.replicates, scenario.ranks))
            rank = np.repeat(drawn, _BLOCK, axis=0)[: self.shape[0]]
        run = random.integers(0, len(runs), (1, redraws.replicates, 1))
        self.rank: IntArray = rank + run * num_measured
        # the run predicted is another process than those measured: both kinds of luck count. From three runs on the
        # draws show the first kind by themselves
        luck = 1 / len(runs) + (len(runs) < 3)
        spread = _host_speed_spread(runs) * luck**0.5
        self.speed = np.exp(random.normal(0.0, spread, (1, redraws.replicates, 1)))

    def of(self, name: str) -> FloatArray:
        """The samples of a field of `StepTrace` behind the draws."""
        table = np.stack([getattr(t, name)[-self.num_steps :] for t in self.traces])
        drawn: FloatArray = table[self.rank, self.step]
        return drawn

    def communication(self, found: Communication) -> FloatArray:
        """Time of the agreements, [steps, replicates], drawn with the first rank's steps."""
        samples = found.samples[np.minimum(self.step[:, :, 0], len(found.samples) - 1)]
        doubt = np.exp(self.random.normal(0.0, found.error, (1, self.shape[1])))
        drawn: FloatArray = samples * found.factor * doubt
        return drawn

    def preparation(self, requests: int | None) -> tuple[BoolArray, FloatArray, FloatArray]:
        """Whether steps allocate, their time in prepare_for_decode, and all their work before the agreement."""
        before, prepare, allocates = self.of("before"), self.of("prepare"), self.of("allocates").astype(bool)
        allocator = self.scenario.allocator
        if allocator is None:
            return allocates, prepare, before
        wanted = self._wanted(allocator)
        # take the time of the nearest step of the same rank that did (or did not) allocate: the same moment's speed
        nearest = {kind: self._nearest(kind) for kind in (False, True)}
        at = np.where(wanted, nearest[True][self.rank, self.step], nearest[False][self.rank, self.step])
        redrawn = np.stack([t.prepare[-self.num_steps :] for t in self.traces])[self.rank, at]
        outside = before - prepare
        if requests is not None and requests != allocator.requests:
            loops = self._loops()[self.rank, at] * (allocator.requests / requests - 1)
            redrawn, outside = redrawn + loops, outside + loops
        return wanted, redrawn, outside + redrawn

    def _loops(self) -> FloatArray:
        table = np.stack([t.loops[-self.num_steps :] for t in self.traces])
        if not table.any():
            raise UsageError(
                "what one more request costs is not in this profile: no range goes over all requests and nothing else",
                hint="--loop-range names one; in the built-in loop it is check_memory",
            )
        return table

    def _wanted(self, allocator: Allocator) -> BoolArray:
        """Which steps allocate, [steps, replicates, ranks]: pieces of a few long series, each from its own place."""
        length, num_series = 4 * self.shape[0], 16
        series = draw_allocations(allocator, length, num_series, self.random)
        which = self.random.integers(0, num_series, self.shape[1:])
        begin = self.random.integers(0, length - self.shape[0], self.shape[1:])
        drawn: BoolArray = series[begin + np.arange(self.shape[0])[:, None, None], which]
        return drawn

    def _nearest(self, kind: bool) -> IntArray:
        """Of each step of each measured rank the nearest step with (or without) allocation, int64 [ranks, steps]."""
        rows = []
        for trace in self.traces:
            index = np.flatnonzero(trace.allocates[-self.num_steps :] == kind)
            if not len(index):
                word = "allocated" if kind else "did without pages"
                raise UsageError(
                    f"no step of rank {trace.rank} {word}: what such a step costs is not in this profile",
                    hint="predict from an arm with both kinds of steps, control for instance",
                )
            at = np.searchsorted(index, np.arange(self.num_steps))
            left, right = index[np.maximum(at - 1, 0)], index[np.minimum(at, len(index) - 1)]
            steps = np.arange(self.num_steps)
            rows.append(np.where(np.abs(steps - left) <= np.abs(right - steps), left, right))
        return np.stack(rows)


def _host_speed_spread(runs: Sequence[Sequence[StepTrace]]) -> float:
    """By how much the host of another process would be faster or slower: standard deviation of its logarithm.

    From the runs where there are at least three; else from the tenths of the run, and no less than what processes of
    the same code on the reference machine were apart.
    """
    if len(runs) >= 3:
        return float(np.std([np.log(np.mean([np.median(_own_host(t)) for t in run])) for run in runs], ddof=1))
    tenths = [np.log(np.median(part)) for trace in runs[0] for part in np.array_split(_own_host(trace), 10)]
    return max(float(np.std(tenths, ddof=1)), _PROCESS_SPREAD)


def _own_host(trace: StepTrace) -> FloatArray:
    return np.maximum(trace.host - trace.other_waits, 1.0)


def _correlation_between_ranks(traces: Sequence[StepTrace]) -> float | None:
    """Mean correlation of the ranks' work before the agreement, step by step; None with one rank."""
    if len(traces) < 2:
        return None
    n = min(t.num_steps for t in traces)
    table = np.asarray(np.corrcoef(np.stack([t.before[-n:] for t in traces])))
    return float(table[np.triu_indices(len(traces), 1)].mean())


def _figures(
    work: StepWork,
    result: Replay,
    allocates: BoolArray,
    prepare: FloatArray,
    scenario: Scenario,
    tokens_per_step: float | None,
) -> tuple[PredictedFigure, ...]:
    ran = slice(_WARM_UP_STEPS, None)
    period, tax = result.period[_WARM_UP_STEPS - 1 :], result.tax[ran]
    last = np.take_along_axis(allocates[ran], result.last_rank[ran][..., None], axis=2)[..., 0]
    host = work.before + work.to_first + work.to_last + work.to_wait + work.after
    path = work.before.max(axis=2) + work.communication + (host - work.before).mean(axis=2)
    gpu = (work.first_gpu + work.rest_gpu).mean(axis=2) * scenario.ranks_per_gpu
    by_replicate: list[tuple[str, FloatArray, Unit]] = [
        ("step.period", np.median(period, axis=0), Unit.NS),
        ("step.period (mean)", period.mean(axis=0), Unit.NS),
        ("dp.agreement_tax", np.median(tax, axis=0), Unit.NS),
        ("dp.agreement_tax (mean)", tax.mean(axis=0), Unit.NS),
        ("cost.prepare_for_decode", prepare[ran].mean(axis=(0, 2)), Unit.NS),
        ("alloc.step_share", allocates[ran].mean(axis=(0, 2)), Unit.FRACTION),
        ("dp.alloc_on_critical_path", last.mean(axis=0), Unit.FRACTION),
        ("step.lead", np.median(result.lead[ran], axis=(0, 2)), Unit.NS),
        ("steps bound by the GPU", result.host_waits[ran].mean(axis=(0, 2)), Unit.FRACTION),
        ("GPU may be faster by", gpu[ran].mean(axis=0) / path[ran].mean(axis=0), Unit.RATIO),
    ]
    if tokens_per_step is not None:
        rate = tokens_per_step * scenario.ranks / period.mean(axis=0) * 1e9
        by_replicate.insert(2, ("tokens.per_s", rate, Unit.TOKENS_PER_S))
    if scenario.ranks == 1:
        by_replicate = [f for f in by_replicate if not f[0].startswith("dp.")]
    edges = 50 * (1 - PREDICTION_CONFIDENCE), 50 * (1 + PREDICTION_CONFIDENCE)
    return tuple(_figure(name, values, unit, edges) for name, values, unit in by_replicate)


def _figure(name: str, values: FloatArray, unit: Unit, edges: tuple[float, float]) -> PredictedFigure:
    low, high = np.percentile(values, edges)
    return PredictedFigure(name, float(np.median(values)), float(low), float(high), unit)


def _findings(traces: Sequence[StepTrace], communication: Communication) -> tuple[Finding, ...]:
    shares = [(t, float(t.other_waits.mean() / t.period.mean())) for t in traces]
    found = [
        finding("waits_taken_as_work", t.rank, t.num_steps, who=f"rank {t.rank}", share=share)
        for t, share in shares
        if share > _OTHER_WAITS_SHARE
    ]
    if communication.source is CommunicationSource.UNCHANGED:
        found.append(finding("communication_unchanged", None, 1, mean_us=communication.mean_ns / 1e3))
    return tuple(found)
