"""Every metric once: its unit, direction, statistic, how it varies, where it stands in a report, and what it means.

Names are exact, or families with a ``*`` (``range.*`` is ``range.prepare_for_decode`` and its kin); the first row that
a name matches is its own. `docs/figures.md` is made from these rows.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum
from fnmatch import fnmatchcase
from functools import cache

from dflash_bench.model import Better, Statistic, Unit


class Pool(StrEnum):
    """How ranks become one figure: from the same samples, or, for counters without samples, by this rule."""

    SAMPLES = "samples"
    SUM = "sum"
    MEAN = "mean"
    MAX = "max"
    MIN = "min"
    NONE = "none"


class Noise(StrEnum):
    """How a metric varies from run to run: what its tolerance and drift are a share of."""

    RELATIVE = "relative"
    """A positive time or rate: of the mean of both sides' figures."""
    LEVEL = "level"
    """What is left between two times (a lead, a wait, a difference), zero or negative too: of the step's period, or of
    itself where larger."""
    SHARE = "share"
    """A share of events: points."""
    EXACT = "exact"
    """The same seed and steps give the same number, to the last digit; without them, as its unit suggests."""
    UNJUDGED = "unjudged"
    """It speaks of the capture or of the machine's clock, not of the code."""


class Chapter(StrEnum):
    """Where a metric stands in a report, in this order."""

    COST = "What the host costs"
    LEAD = "Launch lead"
    STEPS = "Steps and ranges"
    KINDS = "Kinds of steps"
    ALLOCATION = "Allocation"
    WAITS = "Host waits"
    RANKS = "Across ranks"
    ENGINE = "Engine counters"
    COVERAGE = "Coverage"


class Role(StrEnum):
    """What a verdict makes of a metric."""

    PRIMARY = "primary"
    """Judged, and what the headline is about."""
    SECONDARY = "secondary"
    """Judged."""
    DIAGNOSTIC = "diagnostic"
    """Shown: a longer wait of a host that is ahead is good, so that its length alone proves nothing."""


@dataclass(frozen=True, slots=True)
class Spec:
    """What is known of a metric before it is measured."""

    name: str
    unit: Unit
    better: Better
    statistic: Statistic
    noise: Noise
    chapter: Chapter
    role: Role
    meaning: str
    pool: Pool = Pool.SAMPLES

    @property
    def is_judged(self) -> bool:
        return self.role is not Role.DIAGNOSTIC

    @property
    def is_primary(self) -> bool:
        return self.role is Role.PRIMARY

    @property
    def is_signed(self) -> bool:
        """Whether it may lie below nothing: a lead, a lateness, a difference."""
        is_difference = self.better is Better.HIGHER or self.statistic is Statistic.MEDIAN_DIFFERENCE
        return self.noise is Noise.LEVEL and (is_difference or self.name.startswith("dp.lateness"))

    @property
    def is_family(self) -> bool:
        """Whether it is one of many of its kind (``range.fill``), which some ranks may have and others not."""
        return "*" in self.name


_NS, _SHARE, _COUNT, _RATE = Unit.NS, Unit.FRACTION, Unit.COUNT, Unit.TOKENS_PER_S
_LOW, _HIGH, _ANY = Better.LOWER, Better.HIGHER, Better.NONE
_P50, _P99, _MEAN, _VALUE = Statistic.MEDIAN, Statistic.P99, Statistic.MEAN, Statistic.VALUE
_DIFF = Statistic.MEDIAN_DIFFERENCE
_REL, _LVL, _PTS, _EXACT, _NO = Noise.RELATIVE, Noise.LEVEL, Noise.SHARE, Noise.EXACT, Noise.UNJUDGED
_1, _2, _D = Role.PRIMARY, Role.SECONDARY, Role.DIAGNOSTIC
_S = Chapter

SPECS: tuple[Spec, ...] = (
    Spec("host.busy_per_step", _NS, _LOW, _MEAN, _REL, _S.COST, _1,
         "start to start of a step, less the host waits and the agreement in it: what the host really did"),
    Spec("cost.prepare_for_decode", _NS, _LOW, _MEAN, _REL, _S.COST, _1,
         "time inside prepare_for_decode per step, less the host waits in it; 0 in steps without it"),
    Spec("cost.*.p99", _NS, _LOW, _P99, _REL, _S.COST, _2, "99th percentile of cost.NAME over steps: the tail"),
    Spec("cost.*", _NS, _LOW, _MEAN, _REL, _S.COST, _2,
         "time inside the outermost ranges of that name per step, less the host waits in them; 0 in steps without it"),
    Spec("gpu.dry_per_step", _NS, _LOW, _MEAN, _LVL, _S.COST, _2,
         "time per step in which the GPU had nothing to do until the host launched; lanes united"),
    Spec("sync.exposed_per_step", _NS, _LOW, _MEAN, _LVL, _S.COST, _2,
         "the part of host waits per step behind which the GPU was dry: they made the next launch late"),
    Spec("sync.slack_per_step", _NS, _ANY, _MEAN, _NO, _S.COST, _D,
         "the rest of the host waits per step: the host was ahead and could afford them"),
    Spec("step.lead", _NS, _HIGH, _P50, _LVL, _S.LEAD, _1,
         "lead of the first CUDA-graph launch of a step (without graphs: first launch)"),
    Spec("launch.lead@main", _NS, _HIGH, _P50, _LVL, _S.LEAD, _2, "launch.lead over the lane that works longest"),
    Spec("launch.run_ahead_fraction@main", _SHARE, _HIGH, _MEAN, _PTS, _S.LEAD, _2,
         "launch.run_ahead_fraction over the lane that works longest"),
    Spec("launch.lead", _NS, _HIGH, _P50, _LVL, _S.LEAD, _2,
         "how long before the GPU ran dry each launch was queued, copies included; negative: GPU idle"),
    Spec("launch.run_ahead_fraction", _SHARE, _HIGH, _MEAN, _PTS, _S.LEAD, _2,
         "share of launches, copies included, queued before the GPU ran dry"),
    Spec("launch.backpressure", _COUNT, _ANY, _VALUE, _NO, _S.LEAD, _D,
         "launch calls far longer than others in the same range, with positive lead: the queue was full", Pool.SUM),
    Spec("launch.calls_per_step", _COUNT, _LOW, _MEAN, _EXACT, _S.LEAD, _2,
         "calls in a step that launch kernels and graphs (names with Launch)"),
    Spec("graph.lead", _NS, _HIGH, _P50, _LVL, _S.LEAD, _2, "launch.lead over CUDA-graph launches"),
    Spec("graph.lead@*", _NS, _HIGH, _P50, _LVL, _S.LEAD, _2, "graph.lead of the launches issued inside that range"),
    Spec("graph.run_ahead_fraction", _SHARE, _HIGH, _MEAN, _PTS, _S.LEAD, _2,
         "launch.run_ahead_fraction over CUDA-graph launches"),
    Spec("stall.total_per_step", _NS, _LOW, _P50, _LVL, _S.LEAD, _D,
         "time that lanes lay dry for want of launches, per step; lanes that wait at once count several times"),
    Spec("stall.total_per_s", _NS, _LOW, _VALUE, _REL, _S.LEAD, _D,
         "without steps: time that lanes lay dry for want of launches, per second of the capture", Pool.MEAN),
    Spec("gpu.dry_per_s", _NS, _LOW, _VALUE, _REL, _S.COST, _D,
         "without steps: time in which the GPU had nothing to do until the host launched, per second", Pool.MEAN),
    Spec("launch.calls_per_s", _COUNT, _ANY, _VALUE, _REL, _S.LEAD, _D,
         "without steps: calls that launch kernels and graphs, per second", Pool.MEAN),
    Spec("sync.calls_per_s", _COUNT, _LOW, _VALUE, _REL, _S.WAITS, _D,
         "without steps: host waits per second", Pool.MEAN),
    Spec("sync.total_per_s", _NS, _LOW, _VALUE, _REL, _S.WAITS, _D,
         "without steps: time of all host waits per second", Pool.MEAN),
    Spec("step.period", _NS, _LOW, _P50, _REL, _S.STEPS, _1, "start-to-start time of consecutive steps"),
    Spec("range.*", _NS, _LOW, _P50, _REL, _S.STEPS, _D, "duration of each range of that name"),
    Spec("step.period@[0-9]*", _NS, _LOW, _P50, _REL, _S.ENGINE, _2,
         "step.period by the loop's own clock with so many requests running"),
    Spec("steps@*", _COUNT, _ANY, _VALUE, _EXACT, _S.KINDS, _D,
         "steps of one kind: decode, prefill, mixed, eager, idle, or unknown where nothing tells", Pool.SUM),
    Spec("step.period@*", _NS, _LOW, _P50, _REL, _S.KINDS, _2, "step.period of one kind of steps"),
    Spec("step.lead@*", _NS, _HIGH, _P50, _LVL, _S.KINDS, _2, "step.lead of one kind of steps"),
    Spec("alloc.step_share", _SHARE, _LOW, _MEAN, _EXACT, _S.ALLOCATION, _1,
         "share of steps that hold a kv_alloc range"),
    Spec("alloc.step_cost", _NS, _LOW, _DIFF, _LVL, _S.ALLOCATION, _2,
         "median of the range that holds kv_alloc on allocation steps − median on the others"),
    Spec("sync.calls_per_step", _COUNT, _LOW, _MEAN, _EXACT, _S.WAITS, _2, "host waits in a step"),
    Spec("sync.total_per_step", _NS, _LOW, _P50, _LVL, _S.WAITS, _D, "time of all host waits per step"),
    Spec("sync.*", _NS, _LOW, _P50, _REL, _S.WAITS, _D, "duration of each such host wait inside a step"),
    Spec("dp.agreement_tax", _NS, _LOW, _P50, _LVL, _S.RANKS, _1,
         "last − median arrival: what the slowest rank costs all", Pool.NONE),
    Spec("dp.wait", _NS, _LOW, _P50, _LVL, _S.RANKS, _2, "last arrival at the agreement − own arrival"),
    Spec("dp.lateness", _NS, _LOW, _P50, _LVL, _S.RANKS, _2, "own arrival at the agreement − median arrival"),
    Spec("dp.straggler_share", _SHARE, _LOW, _MEAN, _PTS, _S.RANKS, _2,
         "share of steps in which the rank arrived last", Pool.NONE),
    Spec("dp.alloc_on_critical_path", _SHARE, _LOW, _MEAN, _PTS, _S.RANKS, _2,
         "share of steps whose last arriver allocated", Pool.NONE),
    Spec("dp.agreement_tax@*", _NS, _LOW, _P50, _LVL, _S.RANKS, _1,
         "dp.agreement_tax of the first, second, … agreement in each step", Pool.NONE),
    Spec("dp.wait@*", _NS, _LOW, _P50, _LVL, _S.RANKS, _2, "dp.wait at the first, second, … agreement in each step"),
    Spec("dp.lateness@*", _NS, _LOW, _P50, _LVL, _S.RANKS, _2,
         "dp.lateness at the first, second, … agreement in each step"),
    Spec("dp.straggler_share@*", _SHARE, _LOW, _MEAN, _PTS, _S.RANKS, _2,
         "dp.straggler_share at the first, second, … agreement in each step", Pool.NONE),
    Spec("dp.alloc_on_critical_path@*", _SHARE, _LOW, _MEAN, _PTS, _S.RANKS, _2,
         "dp.alloc_on_critical_path at the first, second, … agreement in each step", Pool.NONE),
    Spec("clock.drift", Unit.PPM, _ANY, _VALUE, _NO, _S.RANKS, _D,
         "how much faster the rank's clock runs than the lowest rank's, where that can be told", Pool.NONE),
    Spec("clock.offset", _NS, _ANY, _VALUE, _NO, _S.RANKS, _D,
         "median over steps: clock of the rank's capture − clock of the lowest rank's", Pool.NONE),
    Spec("clock.offset_spread", _NS, _LOW, _VALUE, _NO, _S.RANKS, _D,
         "interquartile range of the per-step offsets", Pool.NONE),
    Spec("tokens.per_s", _RATE, _HIGH, _VALUE, _REL, _S.ENGINE, _1, "committed tokens per second", Pool.SUM),
    Spec("tokens.per_s_per_request", _RATE, _HIGH, _VALUE, _REL, _S.ENGINE, _2,
         "the same, per running request", Pool.MEAN),
    Spec("accept.length", Unit.TOKENS, _HIGH, _VALUE, _EXACT, _S.ENGINE, _2,
         "mean committed tokens per request and step", Pool.MEAN),
    Spec("swa.usage_max", _SHARE, _LOW, _VALUE, _EXACT, _S.ENGINE, _2,
         "largest share of sliding-window pages in use", Pool.MAX),
    Spec("kv.usage_max", _SHARE, _LOW, _VALUE, _EXACT, _S.ENGINE, _2, "largest share of KV pages in use", Pool.MAX),
    Spec("kv.topup_pages_held", Unit.PAGES, _ANY, _VALUE, _EXACT, _S.ENGINE, _2,
         "mean pages held beyond the need", Pool.SUM),
    Spec("topup.guard_ratio_min", Unit.RATIO, _HIGH, _VALUE, _EXACT, _S.ENGINE, _2,
         "least free tokens ÷ guard bound", Pool.MIN),
    Spec("tokens.committed", Unit.TOKENS, _ANY, _VALUE, _EXACT, _S.ENGINE, _2, "tokens committed by the run", Pool.SUM),
    Spec("alloc.steps", _COUNT, _LOW, _VALUE, _EXACT, _S.ALLOCATION, _2,
         "steps that allocated KV pages, as the loop itself counted", Pool.SUM),
    Spec("retracted", _COUNT, _LOW, _VALUE, _EXACT, _S.ENGINE, _2,
         "requests retracted for lack of KV pages", Pool.SUM),
    Spec("consistency.checks", _COUNT, _ANY, _VALUE, _EXACT, _S.ENGINE, _2,
         "allocation steps that were checked", Pool.SUM),
    Spec("consistency.bad", _COUNT, _LOW, _VALUE, _EXACT, _S.ENGINE, _2,
         "allocation steps found inconsistent", Pool.SUM),
    Spec("gpu_work_without_launch", _COUNT, _ANY, _VALUE, _NO, _S.COVERAGE, _D,
         "GPU work whose launch call is not in the capture", Pool.SUM),
    Spec("coverage.launches_matched", _SHARE, _HIGH, _MEAN, _NO, _S.COVERAGE, _D,
         "launch calls in steps (names with Launch) that GPU work was found for"),
    Spec("coverage.gpu_work_matched", _SHARE, _HIGH, _MEAN, _NO, _S.COVERAGE, _D,
         "GPU work that its launch call was found for"),
    Spec("coverage.gpu_work_uncorrelated", _COUNT, _ANY, _VALUE, _NO, _S.COVERAGE, _D,
         "GPU work with correlation id 0", Pool.SUM),
    Spec("coverage.open_ranges", _COUNT, _ANY, _VALUE, _NO, _S.COVERAGE, _D,
         "ranges still open when the capture closed", Pool.SUM),
    Spec("coverage.steps_with_overhead", _COUNT, _ANY, _VALUE, _NO, _S.COVERAGE, _D,
         "steps that profiler overhead touched", Pool.SUM),
    Spec("coverage.impossible_pairs", _COUNT, _ANY, _VALUE, _NO, _S.COVERAGE, _D,
         "GPU work that starts before its launch call", Pool.SUM),
    Spec("coverage.impossible_rows", _COUNT, _ANY, _VALUE, _NO, _S.COVERAGE, _D,
         "GPU rows with times that cannot be, left out", Pool.SUM),
)  # fmt: skip

_EXACTLY = {spec.name: spec for spec in SPECS if not spec.is_family}
_FAMILIES = [spec for spec in SPECS if spec.is_family]


@cache
def spec(name: str) -> Spec:
    """The entry of a metric. Raises KeyError for a name that no entry covers."""
    if name in _EXACTLY:
        return _EXACTLY[name]
    for family in _FAMILIES:
        if fnmatchcase(name, family.name) and len(name) >= len(family.name.replace("[0-9]", "")):
            return family
    raise KeyError(name)


def is_known(name: str) -> bool:
    """Whether an entry covers a name."""
    try:
        spec(name)
    except KeyError:
        return False
    return True


def position(name: str) -> int:
    """Where a metric stands in every listing."""
    return SPECS.index(spec(name))
