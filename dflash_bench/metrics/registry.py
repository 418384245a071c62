"""Every metric once: its unit, its better direction, how it is summed up over ranks, and what it means.

Names are exact, or families that end in ``*`` (``range.*`` is ``range.prepare_for_decode`` and its kin). The
definitions stand in docs of the same words: README, "What the numbers mean".
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum

from dflash_bench.model import Better, Statistic, Unit


class Pool(StrEnum):
    """How ranks become one figure: from the same samples, or, for counters without samples, by this rule."""

    SAMPLES = "samples"
    SUM = "sum"
    MEAN = "mean"
    MAX = "max"
    MIN = "min"
    NONE = "none"


@dataclass(frozen=True, slots=True)
class Spec:
    """What is known of a metric before it is measured."""

    name: str
    unit: Unit
    better: Better
    statistic: Statistic
    meaning: str
    pool: Pool = Pool.SAMPLES


_NS, _SHARE, _COUNT = Unit.NS, Unit.FRACTION, Unit.COUNT
_LOW, _HIGH, _ANY = Better.LOWER, Better.HIGHER, Better.NONE
_P50, _MEAN, _DIFF, _VALUE = Statistic.MEDIAN, Statistic.MEAN, Statistic.MEDIAN_DIFFERENCE, Statistic.VALUE

SPECS: tuple[Spec, ...] = (
    Spec("step.period", _NS, _LOW, _P50, "start-to-start time of consecutive steps"),
    Spec("step.lead", _NS, _HIGH, _P50, "lead of the first CUDA-graph launch of a step (without graphs: first launch)"),
    Spec("range.*", _NS, _LOW, _P50, "duration of each range of that name"),
    Spec("alloc.step_share", _SHARE, _LOW, _MEAN, "share of steps that hold a kv_alloc range"),
    Spec("alloc.step_cost", _NS, _LOW, _DIFF, "median prepare_for_decode on allocation steps − median on the others"),
    Spec("launch.lead", _NS, _HIGH, _P50, "how long before the GPU ran dry each launch was queued; negative: GPU idle"),
    Spec("launch.run_ahead_fraction", _SHARE, _HIGH, _MEAN, "share of launches queued before the GPU ran dry"),
    Spec("launch.backpressure", _COUNT, _ANY, _VALUE, "launch calls that blocked on a full queue", Pool.SUM),
    Spec("launch.calls_per_step", _COUNT, _LOW, _MEAN, "launch calls in a step"),
    Spec("graph.lead", _NS, _HIGH, _P50, "launch.lead over CUDA-graph launches"),
    Spec("graph.lead@*", _NS, _HIGH, _P50, "graph.lead of the launches issued inside that range"),
    Spec("graph.run_ahead_fraction", _SHARE, _HIGH, _MEAN, "launch.run_ahead_fraction over CUDA-graph launches"),
    Spec("stall.total_per_step", _NS, _LOW, _P50, "time that streams lay dry for want of launches, per step, added up"),
    Spec("sync.calls_per_step", _COUNT, _LOW, _MEAN, "host waits in a step"),
    Spec("sync.total_per_step", _NS, _LOW, _P50, "time of all host waits per step"),
    Spec("sync.*", _NS, _LOW, _P50, "duration of each such host wait inside a step"),
    Spec("dp.wait", _NS, _LOW, _P50, "last arrival at the agreement − own arrival"),
    Spec("dp.lateness", _NS, _LOW, _P50, "own arrival at the agreement − median arrival"),
    Spec("dp.straggler_share", _SHARE, _LOW, _MEAN, "share of steps in which the rank arrived last", Pool.NONE),
    Spec("dp.alloc_on_critical_path", _SHARE, _LOW, _MEAN, "share of steps whose last arriver allocated", Pool.NONE),
    Spec("dp.agreement_tax", _NS, _LOW, _P50, "last − median arrival: what the slowest rank costs all", Pool.NONE),
    Spec(
        "clock.offset",
        _NS,
        _ANY,
        _VALUE,
        "median over steps: clock of the rank's capture − clock of the lowest rank's",
        Pool.NONE,
    ),
    Spec("clock.offset_spread", _NS, _LOW, _VALUE, "interquartile range of the per-step offsets", Pool.NONE),
    Spec("gpu_work_without_launch", _COUNT, _ANY, _VALUE, "GPU work whose launch call is not in the capture", Pool.SUM),
    Spec("coverage.launches_matched", _SHARE, _HIGH, _MEAN, "launch calls in steps that GPU work was found for"),
    Spec("coverage.gpu_work_matched", _SHARE, _HIGH, _MEAN, "GPU work that its launch call was found for"),
    Spec("coverage.gpu_work_uncorrelated", _COUNT, _ANY, _VALUE, "GPU work with correlation id 0", Pool.SUM),
    Spec("coverage.open_ranges", _COUNT, _ANY, _VALUE, "ranges still open when the capture closed", Pool.SUM),
    Spec("coverage.steps_with_overhead", _COUNT, _ANY, _VALUE, "steps that profiler overhead touched", Pool.SUM),
    Spec("coverage.impossible_pairs", _COUNT, _ANY, _VALUE, "GPU work that starts before its launch call", Pool.SUM),
    Spec("steps@*", _COUNT, _ANY, _VALUE, "steps of one kind: decode, prefill, mixed, eager, idle", Pool.SUM),
    Spec(
        "step.period@*",
        _NS,
        _LOW,
        _P50,
        "step.period of one kind of steps, or by the loop's own clock with so many requests running",
    ),
    Spec("step.lead@*", _NS, _HIGH, _P50, "step.lead of one kind of steps"),
    Spec("tokens.per_s", Unit.TOKENS_PER_S, _HIGH, _VALUE, "committed tokens per second", Pool.SUM),
    Spec("tokens.per_s_per_request", Unit.TOKENS_PER_S, _HIGH, _VALUE, "the same, per running request", Pool.MEAN),
    Spec("accept.length", Unit.TOKENS, _HIGH, _VALUE, "mean committed tokens per request and step", Pool.MEAN),
    Spec("swa.usage_max", _SHARE, _LOW, _VALUE, "largest share of sliding-window pages in use", Pool.MAX),
    Spec("kv.usage_max", _SHARE, _LOW, _VALUE, "largest share of KV pages in use", Pool.MAX),
    Spec("kv.topup_pages_held", Unit.PAGES, _ANY, _VALUE, "mean pages held beyond the need", Pool.SUM),
    Spec("topup.guard_ratio_min", Unit.RATIO, _HIGH, _VALUE, "least free tokens ÷ guard bound", Pool.MIN),
    Spec("tokens.committed", Unit.TOKENS, _ANY, _VALUE, "tokens committed by the run", Pool.SUM),
    Spec("alloc.steps", _COUNT, _LOW, _VALUE, "steps that allocated KV pages, as the loop itself counted", Pool.SUM),
    Spec("retracted", _COUNT, _LOW, _VALUE, "requests retracted for lack of KV pages", Pool.SUM),
    Spec("consistency.checks", _COUNT, _ANY, _VALUE, "allocation steps that were checked", Pool.SUM),
    Spec("consistency.bad", _COUNT, _LOW, _VALUE, "allocation steps found inconsistent", Pool.SUM),
)

_EXACT = {spec.name: spec for spec in SPECS if not spec.name.endswith("*")}
_FAMILIES = [spec for spec in SPECS if spec.name.endswith("*")]


def spec(name: str) -> Spec:
    """The entry of a metric. Raises KeyError for a name that no entry covers."""
    if name in _EXACT:
        return _EXACT[name]
    for family in _FAMILIES:
        if name.startswith(family.name[:-1]) and len(name) >= len(family.name):
            return family
    raise KeyError(name)


def is_known(name: str) -> bool:
    """Whether an entry covers a name."""
    try:
        spec(name)
    except KeyError:
        return False
    return True


def is_family(name: str) -> bool:
    """Whether a name is one of many of its kind (``range.fill``), which some ranks may have and others not."""
    return name not in _EXACT


def position(name: str) -> int:
    """Where a metric stands in every listing."""
    return SPECS.index(spec(name))
