"""The nouns of the harness: what stands at the border between two stages.

Read this module first; the stages are functions between these types::

    capture ──▶ capture file ──ingest──▶ Profile(RunInfo + Arrow tables) ──metrics──▶ RunMetrics ──compare──▶ Comparison

All times are integer nanoseconds (``_ns``); they are formatted only where they are shown. ``rank`` is ``None`` where a
figure belongs to no single rank: pooled over ranks, or about all of them at once.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from enum import StrEnum
from pathlib import Path

import numpy as np
import numpy.typing as npt

IntArray = npt.NDArray[np.int64]
FloatArray = npt.NDArray[np.float64]
BoolArray = npt.NDArray[np.bool_]

Value = int | float | str | None
"""A cell of a table."""

MetricKey = tuple[str, int | None]
"""Name and rank of a metric."""

Figures = Mapping[MetricKey, Sequence[float]]
"""The figure of a metric in each of several runs."""


@dataclass(frozen=True, slots=True, order=True)
class Finding:
    """Something a reader of the figures must know: counted, never silent.

    ``code`` is stable (scripts may match it), ``count`` is how many rows, steps or launches it concerns. ``option``:
    what to type for it to be gone, where the text proposes that.
    """

    code: str
    rank: int | None
    count: int
    text: str
    option: str = ""


# ── profile ──────────────────────────────────────────────────────────────────────────────────────────────────────────


class RankSource(StrEnum):
    """Where the rank of a process was read, best first."""

    OPTION = "option"
    MARK = "mark"
    TRACE = "trace"
    FILE_NAME = "file name"
    PROCESS_ORDER = "process order"


class ProcessRole(StrEnum):
    """What a process does of an engine that splits a rank."""

    CORE = "core"
    """Schedules and takes pages for all ranks of its group, and is no rank itself."""
    WORKER = "worker"


class Recorder(StrEnum):
    """What wrote a capture."""

    NSYS = "nsys"
    BUILTIN = "built-in recorder"
    TORCH = "torch profiler"


@dataclass(frozen=True, slots=True)
class ProcessInfo:
    """A profiled process. ``process`` is ``globalPid >> 24``: it holds the pid and the machine's id in the capture.

    ``group``: processes of one engine that share a scheduler; ``role``: which of them it is.
    """

    process: int
    pid: int
    capture: int
    rank: int | None
    rank_source: RankSource | None
    world: int | None
    arm: str | None
    num_ranges: int
    num_api_calls: int
    num_gpu_work: int
    group: str | None = None
    role: ProcessRole | None = None


@dataclass(frozen=True, slots=True)
class CaptureInfo:
    """One capture file, without anything that could tell whose it is.

    ``fingerprint`` identifies the content; ``session_start_utc_ns`` is wall time at capture time 0, when known;
    ``file`` is its name, without its folder.
    """

    fingerprint: str
    size_bytes: int
    recorder: Recorder
    exporter_version: str | None
    schema_version: str | None
    session_start_utc_ns: int | None
    first_ns: int | None
    last_ns: int | None
    file: str | None = None


@dataclass(frozen=True, slots=True)
class RunInfo:
    """What ``run.json`` says of a run: one launch on all its ranks, of one arm, or of several that take turns in it.

    ``arms`` are those that take turns (a duet), in the order asked for; empty for a run of one arm, which is ``arm``.
    ``counters`` are by rank, in a duet by ``RANK:ARM``.
    """

    run: str
    arm: str | None
    workload: str | None
    device: str | None
    devices: tuple[str, ...]
    world: int | None
    created_utc: str
    tool_version: str
    captures: tuple[CaptureInfo, ...]
    processes: tuple[ProcessInfo, ...]
    findings: tuple[Finding, ...]
    settings: dict[str, Value] = field(default_factory=dict)
    counters: dict[str, dict[str, float]] = field(default_factory=dict)
    arms: tuple[str, ...] = ()

    @property
    def ranks(self) -> tuple[int, ...]:
        """Ranks that have at least one process, ascending."""
        return tuple(sorted({p.rank for p in self.processes if p.rank is not None}))

    @property
    def rank_source(self) -> RankSource | None:
        """The weakest source any rank rests on."""
        order = list(RankSource)
        sources = [p.rank_source for p in self.processes if p.rank_source is not None]
        return max(sources, key=order.index) if sources else None

    def processes_of(self, rank: int) -> tuple[ProcessInfo, ...]:
        """The processes of one rank."""
        return tuple(p for p in self.processes if p.rank == rank)


# ── metrics ──────────────────────────────────────────────────────────────────────────────────────────────────────────


class Better(StrEnum):
    """The direction in which a metric improves."""

    LOWER = "lower"
    HIGHER = "higher"
    NONE = "none"


class Unit(StrEnum):
    """Base units. Figures are stored in these and formatted at the edge."""

    NS = "ns"
    FRACTION = "fraction"
    COUNT = "count"
    TOKENS = "tokens"
    TOKENS_PER_S = "tokens/s"
    PAGES = "pages"
    RATIO = "ratio"
    PPM = "ppm"


class Statistic(StrEnum):
    """The one figure by which two runs are compared on a metric."""

    MEDIAN = "p50"
    P99 = "p99"
    MEAN = "mean"
    MEDIAN_DIFFERENCE = "median difference"
    VALUE = "value"


@dataclass(frozen=True, slots=True)
class Summary:
    """A distribution in five figures, in the metric's unit. Quantiles interpolate linearly between order statistics."""

    n: int
    p50: float
    p90: float
    p99: float
    mean: float
    total: float


@dataclass(frozen=True, slots=True)
class SampleFigures:
    """What is known of some samples: their summary, and the metric's statistic over them, None where it has none.

    ``values`` and ``group`` are the samples themselves, so that nobody takes it for what is known of others.
    """

    summary: Summary
    figure: float | None
    values: FloatArray
    group: BoolArray | None


@dataclass(frozen=True, slots=True)
class Metric:
    """One metric of one run and rank, with the samples it was computed from.

    ``values``: float64 [n] for MEDIAN (a distribution), 0/1 float64 [n] for MEAN (a share). For MEDIAN_DIFFERENCE,
    ``values`` is float64 [n] and ``group`` bool [n]: median where true − median where false. VALUE has one value and
    no samples behind it. ``block`` int [n] is the step of each sample, by which it is resampled; None: its order.
    ``pair`` int [n] is the pair of blocks that each sample is from, in a duet: arms are compared pair by pair.
    ``num_samples`` overrides n where a value rests on more than one sample. ``coverage`` is the share of the events
    that the figure could see, where that can be less than all of them. ``known``: what was computed already.
    """

    name: str
    rank: int | None
    unit: Unit
    statistic: Statistic
    values: FloatArray
    group: BoolArray | None = None
    block: IntArray | None = None
    num_samples: int | None = None
    coverage: float | None = None
    pair: IntArray | None = None
    known: SampleFigures | None = None

    @property
    def n(self) -> int:
        return len(self.values) if self.num_samples is None else self.num_samples


@dataclass(frozen=True, slots=True)
class Table:
    """A result that is a table: column names and rows."""

    name: str
    columns: tuple[str, ...]
    rows: tuple[tuple[Value, ...], ...]


@dataclass(frozen=True, slots=True)
class FiguresFile:
    """Where figures of a run are kept. The file's name is a digest of everything that they depend on.

    ``metrics`` are the figures themselves, so that nobody takes it for the file of others.
    """

    path: Path
    metrics: tuple[Metric, ...]


@dataclass(frozen=True, slots=True)
class RunMetrics:
    """Everything that was measured of one run. ``step``: the range that its steps are; empty where nothing says it.

    ``file``: where this is kept, if anywhere.
    """

    info: RunInfo
    metrics: tuple[Metric, ...]
    tables: tuple[Table, ...]
    findings: tuple[Finding, ...]
    step: str = ""
    file: FiguresFile | None = None

    def find(self, name: str, rank: int | None) -> Metric | None:
        """The metric of that name and rank, or None."""
        return next((m for m in self.metrics if m.name == name and m.rank == rank), None)


# ── comparison ───────────────────────────────────────────────────────────────────────────────────────────────────────


@dataclass(frozen=True, slots=True)
class Interval:
    """A two-sided confidence interval."""

    low: float
    high: float
    confidence: float


@dataclass(frozen=True, slots=True)
class Change:
    """Base against candidate on one metric and rank. Figures are None where that side has no data.

    ``interval`` belongs to ``difference`` (candidate − base), in the metric's unit.
    """

    metric: str
    rank: int | None
    unit: Unit
    better: Better
    statistic: Statistic
    base: float | None
    candidate: float | None
    base_n: int
    candidate_n: int
    difference: float | None
    ratio: float | None
    interval: Interval | None


@dataclass(frozen=True, slots=True)
class Sides:
    """The two sides of a comparison: the runs of base and candidate, at least one each.

    Verdicts and the figures of metrics rest on all of them. What is made of single steps (distributions, causes,
    arrivals, timelines) is made of the first run of each. ``history``: figures of earlier runs of the base's arm, from
    which their drift is learned, or medians of earlier sessions. ``is_baseline``: the base comes from a baseline file.
    ``is_other_session``: the candidate was made in another session (machine, day, job) than the base.
    """

    base: tuple[RunMetrics, ...]
    candidate: tuple[RunMetrics, ...]
    history: Figures = field(default_factory=dict)
    is_baseline: bool = False
    is_other_session: bool = False

    @property
    def is_repeated(self) -> bool:
        """Whether either side has more than one run."""
        return len(self.base) > 1 or len(self.candidate) > 1

    @property
    def named(self) -> tuple[tuple[str, tuple[RunMetrics, ...]], ...]:
        """Each side's name and runs."""
        return ("base", self.base), ("candidate", self.candidate)


class Verdict(StrEnum):
    """What can be said of a metric."""

    IMPROVED = "improved"
    UNCHANGED = "unchanged"
    REGRESSED = "regressed"
    INCONCLUSIVE = "inconclusive"
    DESCRIBED = "described"
    """One run a side, whose drift nobody measured: it differs by so much, and that is all that can be said."""
    REMOVED = "removed"
    """Every run of the base has it, and none of the candidate."""
    NEW = "new"


class Family(StrEnum):
    """Primary metrics are judged first and decide; all others are looked at beside them."""

    PRIMARY = "primary"
    SECONDARY = "secondary"


class Design(StrEnum):
    """What a verdict rests on."""

    DUET = "pairs of blocks"
    RUNS = "runs"
    SESSIONS = "sessions"
    SINGLE = "one run a side"
    EXACT = "exact count"


class Basis(StrEnum):
    """What of a metric shows a change: all of these are asked, and are one family."""

    FIGURE = "figure"
    RANKS = "against the other ranks"
    HOST = "with the host's speed divided out"
    STEP = "of the median step"
    STEP_RANKS = "of the median step, against the other ranks"

    @property
    def is_levelled(self) -> bool:
        """Whether a rank is held against the others of the same runs."""
        return self in (Basis.RANKS, Basis.STEP_RANKS)


@dataclass(frozen=True, slots=True)
class Judgement:
    """The verdict on one metric and rank. Figures and differences are in the metric's unit.

    ``base`` and ``candidate`` are medians of the runs' figures, ``shift`` is candidate − base as ``design`` measures
    it, so not quite the difference of the two. ``base`` is None where the metric is new, ``candidate`` where it was
    removed. ``tolerance`` is what counts as no change. ``worst``: the harm that is ruled out, by a one-sided bound of
    95 %; negative where the metric surely improved. ``q`` is the p-value adjusted for all comparisons. ``detectable``
    is the smallest difference that gets a verdict, 9 times in 10; ``further`` how many more runs of each side
    (processes of a duet) would decide. ``pairs``: pairs of blocks behind it, in a duet. ``basis``: where it is
    not the figure itself that shows the change, what does.
    """

    metric: str
    rank: int | None
    unit: Unit
    better: Better
    verdict: Verdict
    family: Family
    design: Design
    reason: str
    base: float | None
    candidate: float | None
    base_runs: int
    candidate_runs: int
    tolerance: float = 0.0
    shift: float | None = None
    interval: Interval | None = None
    worst: float | None = None
    p: float | None = None
    q: float | None = None
    detectable: float | None = None
    further: int | None = None
    pairs: int | None = None
    basis: Basis = Basis.FIGURE

    @property
    def is_exact(self) -> bool:
        """Whether the numbers were compared to the last digit."""
        return self.design is Design.EXACT

    @property
    def percent(self) -> Interval | None:
        """The interval as a share of the base's figure; None for shares, and where the base is not positive."""
        found = self.interval
        if found is None or self.unit is Unit.FRACTION or self.base is None or self.base <= 0:
            return None
        return Interval(found.low / self.base, found.high / self.base, found.confidence)

    @property
    def excludes_regression(self) -> bool:
        """Whether a regression beyond the tolerance is ruled out, whatever else is open."""
        if self.verdict in (Verdict.UNCHANGED, Verdict.IMPROVED):
            return True
        return self.verdict is Verdict.INCONCLUSIVE and self.worst is not None and self.worst <= self.tolerance


@dataclass(frozen=True, slots=True)
class Judgements:
    """All verdicts of a comparison. ``num_primary`` and ``num_secondary`` metrics were tested for a change.

    ``rate``: the chance of any false *improved* or *regressed*, were nothing changed at all.
    """

    each: tuple[Judgement, ...]
    num_primary: int
    num_secondary: int
    rate: float

    def of(self, verdict: Verdict, family: Family | None = None) -> tuple[Judgement, ...]:
        """Those with this verdict, in the order of every listing."""
        return tuple(j for j in self.each if j.verdict is verdict and family in (None, j.family))

    def find(self, name: str, rank: int | None) -> Judgement | None:
        """The verdict on that metric and rank, or None."""
        return next((j for j in self.each if j.metric == name and j.rank == rank), None)

    @property
    def num_tests(self) -> int:
        """How many metrics were tested, each with all its ranks."""
        return self.num_primary + self.num_secondary

    @property
    def method(self) -> str:
        """How the verdicts were reached, in one line."""
        if not self.num_tests:
            return "nothing was tested: counts are compared exactly, single runs are described"
        primary = f"{self.num_primary} primary metric{'s' * (self.num_primary != 1)}"
        others = f" and {self.num_secondary} secondary" if self.num_secondary else ""
        return f"{primary}{others}, each with its ranks as one family: any false verdict at most {self.rate:.0%}"


@dataclass(frozen=True, slots=True)
class Comparison:
    """Two sides, metric by metric and rank by rank.

    ``judgements``: None where the runs differ in something that forbids verdicts; the findings say in what.
    """

    sides: Sides
    changes: tuple[Change, ...]
    findings: tuple[Finding, ...]
    judgements: Judgements | None = None

    @property
    def base(self) -> RunMetrics:
        """The run of the base that is looked at step by step."""
        return self.sides.base[0]

    @property
    def candidate(self) -> RunMetrics:
        """The run of the candidate that is looked at step by step."""
        return self.sides.candidate[0]
