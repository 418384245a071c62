"""Captures of several ranks that begin apart, whose clocks drift, of which one idles, or whose files were renamed.

Each draw takes generated ranks, each on a clock of its own or all on one, damages some of them at random places, and
holds every figure across ranks against what the undamaged ranks had at the agreements that all of them still show.
"""

from __future__ import annotations

import shutil
from dataclasses import dataclass, replace
from functools import cache

import numpy as np
import pytest
from generator import Fault, Spec
from generator.write import write_export, write_ranks
from handmade import Range, mark, write
from hypothesis import given, settings
from hypothesis import strategies as st

from dflash_bench.errors import DataError
from dflash_bench.ingest.sources import IngestOptions, ingest
from dflash_bench.metrics.agreement import agreement_metrics, agreements_of, find_meetings
from dflash_bench.metrics.events.process import load_events
from dflash_bench.metrics.measure import measure
from dflash_bench.metrics.reading import Reading
from dflash_bench.metrics.summary import figure
from dflash_bench.metrics.view import View

NAMES = (
    "clock.offset_spread",
    "dp.agreement_tax",
    "dp.wait",
    "dp.lateness",
    "dp.straggler_share",
    "dp.alloc_on_critical_path",
)


@dataclass(frozen=True)
class Whole:
    """Undamaged ranks: what each did, wall time at time 0 of its clock, and the figures. ``steps``: of each rank."""

    profile: object
    events: tuple
    utc_ns: tuple[int, ...]
    figures: dict
    steps: int


@pytest.fixture(scope="module")
def whole(tmp_path_factory):
    """A function: undamaged ranks of a seed, from files in the disguise of nsys exports; each made once."""

    @cache
    def made(seed: int, has_own_clocks: bool) -> Whole:
        rng = np.random.default_rng(seed)
        ranks, folder = int(rng.integers(2, 5)), tmp_path_factory.mktemp("whole")
        clocks = frozenset({Fault.OWN_CLOCKS}) if has_own_clocks else frozenset[Fault]()
        spec = Spec(rows=ranks * int(rng.integers(700, 4500)), ranks=ranks, faults=clocks, seed=seed)
        files = write_ranks(folder, spec) if has_own_clocks else [write_export(folder / "run.sqlite", spec)]
        (profile,) = ingest(files, IngestOptions(profiles=folder / "profiles"))
        info = profile.info
        events = tuple(load_events(profile, p) for p in sorted(info.processes, key=lambda p: p.rank))
        utc_ns = tuple(info.captures[each.process.capture].session_start_utc_ns for each in events)
        figures, codes = figures_of(profile, events, utc_ns)
        assert not codes & {"clock_spread", "agreements_unpaired", "agreements_outside_steps"}
        return Whole(profile, events, utc_ns, figures, len(figures["dp.agreement_tax", None]))

    return made


def figures_of(profile, events, utc_ns):
    """Metric and rank → a sample for each agreement; the codes of the warnings."""
    found = [agreements_of(View(profile, each, Reading(), False)) for each in events]
    found = [replace(a, utc_ns=utc) for a, utc in zip(found, utc_ns, strict=True) if a is not None]
    met = find_meetings(found)
    if met is None:
        return {}, {"agreements_apart"}
    return {(m.name, m.rank): m.values for m in agreement_metrics(met[0]) if m.name in NAMES}, {f.code for f in met[1]}


# ── damages: (events of a rank, rng) → the same damaged, bool [steps]: which steps are left ───────────────────────────


def steps_of(events):
    return events.ranges[events.ranges.name.among({"decode_step"})]


def begins_late(events, rng):
    """The profiler began later, somewhere in a step: that one is lost, and what of it began later is left."""
    start = steps_of(events).start
    t = int(start[rng.integers(1, len(start) // 4)] + rng.integers(0, 9_000_000))
    kept = {name: getattr(events, name)[getattr(events, name).start >= t] for name in ("ranges", "calls", "gpu")}
    return replace(events, **kept), start >= t


def ends_early(events, rng):
    """The profiler stopped earlier, somewhere in a step: ranges that were open have no end."""
    steps = steps_of(events)
    t = int(steps.start[-rng.integers(1, len(steps) // 4)] + rng.integers(0, 9_000_000))
    ranges, calls, gpu = events.ranges, events.calls, events.gpu
    kept = {"ranges": ranges[ranges.end <= t], "calls": calls[calls.end <= t], "gpu": gpu[gpu.end <= t]}
    return replace(events, **kept), steps.end <= t


def drifts(events, rng):
    """A clock that runs faster or slower, by up to 400 parts in a million."""
    rate = 1 + float(rng.uniform(-400e-6, 400e-6))

    def moved(rows):
        return replace(rows, start=(rows.start * rate).astype(np.int64), end=(rows.end * rate).astype(np.int64))

    return replace(
        events, ranges=moved(events.ranges), calls=moved(events.calls), gpu=moved(events.gpu)
    ), np.ones(len(steps_of(events)), bool)  # fmt: skip


def has_no_requests(events, rng):
    """A rank without requests for some steps, at the beginning or anywhere: it agrees, outside any step."""
    steps = steps_of(events)
    is_idle = idle_steps(rng, len(steps))
    inside = is_idle[np.maximum(np.searchsorted(steps.start, events.ranges.start, side="right") - 1, 0)]
    ranges = events.ranges[~inside | events.ranges.name.among({"dp_agreement"})]
    return replace(without_work(events, steps, is_idle), ranges=ranges), ~is_idle


def has_empty_steps(events, rng):
    """The same in an engine whose step range is there in every iteration, whether it launches or not."""
    steps = steps_of(events)
    is_idle = idle_steps(rng, len(steps))
    return without_work(events, steps, is_idle), ~is_idle


def idle_steps(rng, num):
    first = 0 if rng.random() < 0.5 else int(rng.integers(0, num // 2))
    number = np.arange(num)
    return (number >= first) & (number < first + rng.integers(1, num // 3))


def without_work(events, steps, is_idle):
    """The events without the calls of some steps, and what these launched."""
    step = np.searchsorted(steps.start, events.calls.start, side="right") - 1
    gone = (step >= 0) & is_idle[np.maximum(step, 0)]
    gpu = events.gpu[~np.isin(events.gpu.correlation, events.calls.correlation[gone])]
    return replace(events, calls=events.calls[~gone], gpu=gpu)


def leaves_unevenly(events, rng):
    """Leaving the agreement takes up to 10 µs more or less: clocks line up that well."""
    ranges, most = events.ranges, int(10 ** rng.uniform(2, 4))
    late = np.where(ranges.name.among({"dp_agreement"}), rng.integers(-most, most, len(ranges)), 0)
    return replace(events, ranges=replace(ranges, end=ranges.end + late)), np.ones(len(steps_of(events)), bool)


DAMAGES = {
    "late": (begins_late,),
    "early": (ends_early,),
    "drift": (drifts,),
    "idle": (has_no_requests,),
    "empty": (has_empty_steps,),
    "uneven": (leaves_unevenly,),
    "all": (begins_late, ends_early, drifts, has_no_requests, leaves_unevenly),
}


def check(whole, kind, number, seed):
    rng = np.random.default_rng(seed)
    # one clock does not drift against itself
    has_own_clocks = kind in ("drift", "uneven", "all") or rng.random() < 0.5
    base = whole(number, has_own_clocks)
    left, damaged = np.ones(base.steps, bool), []
    for events in base.events:
        number = np.arange(base.steps)
        for damage in DAMAGES[kind] if rng.random() < 0.7 else ():
            events, own = damage(events, rng)
            number = number[own]
        left &= np.isin(np.arange(base.steps), number)
        damaged.append(events)
    # some captures do not say when they began
    utc_ns = base.utc_ns if rng.random() < 0.7 else (None,) * len(base.events)
    found, codes = figures_of(base.profile, damaged, utc_ns)
    if not found or "clock_drift_unknown" in codes:
        return
    assert found.keys() == base.figures.keys()
    doubt = max(found["clock.offset_spread", each.process.rank][0] for each in base.events)
    for (name, rank), values in base.figures.items():
        if name == "clock.offset_spread":
            continue
        right, now = values[left], found[name, rank]
        assert len(now) == len(right), (name, rank, "agreements of other steps")
        if name in ("dp.straggler_share", "dp.alloc_on_critical_path"):
            # who came last by less than clocks line up may be another one
            assert abs(now.mean() - right.mean()) <= 0.005 + 2 / len(right), (name, rank)
        else:
            # all but a few agreements lie within four times the spread that the output states
            slack = max(1000, 0.005 * abs(np.median(right)), 4 * doubt)
            assert abs(np.median(now) - np.median(right)) <= slack, (name, rank, codes)


SEED = st.integers(0, 2**32)


@pytest.mark.parametrize("kind", DAMAGES)
@given(number=st.integers(0, 2), seed=SEED)
@settings(max_examples=10)
def test_figures_across_ranks_are_right_or_withheld(whole, kind, number, seed):
    check(whole, kind, number, seed)


@pytest.mark.soak
@pytest.mark.parametrize("kind", DAMAGES)
@given(number=st.integers(0, 30), seed=SEED)
@settings(max_examples=200)
def test_figures_across_ranks_at_length(whole, kind, number, seed):
    check(whole, kind, number, seed)


# ── files that were renamed ──────────────────────────────────────────────────────────────────────────────────────────

MOST = 13


@pytest.fixture(scope="module")
def files(tmp_path_factory):
    """For each rank a capture without and one with a rank mark; rank r's steps take 1000 + 100 r."""
    folder = tmp_path_factory.mktemp("files")

    def made(rank, is_marked):
        period, pid = 1000 + 100 * rank, 500 - 7 * rank
        ranges = [Range("decode_step", k * period, k * period + 900, pid=pid, tid=pid) for k in range(10)]
        said = [mark(rank, MOST, pid=pid)] if is_marked else []
        return write(folder / f"{rank}-{is_marked}.sqlite", [*said, *ranges])

    return [[made(rank, is_marked) for is_marked in (False, True)] for rank in range(MOST)]


def any_names(rng, num):
    """Names that say nothing true: the marks inside do."""
    numbers = rng.permutation(100)[:num]
    return [f"{rng.choice(['', 'a/', 'b/'])}{rng.choice(['rank', 'run_', 'r'])}{k}" for k in numbers]


def rank_names(rng, num):
    """Names that state the rank, with other numbers around it."""
    before, join = rng.choice(["", "20260512_", "dp2_run7_", "node3-"]), rng.choice(["", "_", "-", "."])
    digits, behind = int(rng.integers(1, 5)), rng.choice(["", "_of_16", "_pid4242"])
    return [f"{before}rank{join}{rank:0{digits}}{behind}" for rank in range(num)]


def numbered_names(rng, num):
    """Names that differ in a number alone: in its order, whether it begins at 0 and leaves some out or not."""
    numbers, stem = np.sort(rng.permutation(120)[:num]), rng.choice(["report_", "report", "a.b-", "x7_"])
    return [f"{stem}{k}" for k in numbers]


def node_names(rng, num):
    """A folder for each node, in each the ranks from 0 on."""
    each, word = int(rng.integers(1, num + 1)), rng.choice(["node", "host_", "worker-"])
    stem = rng.choice(["rank", "report_"])
    return [f"{word}{rank // each}/{stem}{rank % each}" for rank in range(num)]


def axis_names(rng, num):
    """Places in parallel groups: data outside, tensor inside."""
    tensor = int(rng.choice([k for k in range(1, num + 1) if num % k == 0]))
    return [f"1234-TP-{rank % tensor}-DP-{rank // tensor}" for rank in range(num)]


def one_rank_twice(rng, num):
    """A copy that somebody left beside the file."""
    names = rank_names(rng, num)
    return [*names[:-1], names[0] + "_copy"]


RENAMES = (any_names, rank_names, numbered_names, node_names, axis_names, one_rank_twice)


def check_names(files, folder, name, seed):
    rng = np.random.default_rng(seed)
    num = int(rng.integers(2, MOST + 1))
    is_marked = name is any_names or rng.random() < 0.3
    for rank, own in enumerate(name(rng, num)):
        path = folder / "in" / f"{own}.sqlite"
        path.parent.mkdir(parents=True, exist_ok=True)
        shutil.copy(files[rank][is_marked], path)
    options = IngestOptions(profiles=folder / "profiles", run="x", jobs=1)
    if name is one_rank_twice and not is_marked:
        with pytest.raises(DataError, match="both hold rank 0"):
            ingest([folder / "in"], options)
        return
    (profile,) = ingest([folder / "in"], options)
    run = measure(profile)
    periods = {rank: figure(run.find("step.period", rank)) for rank in profile.info.ranks}
    assert periods == {rank: 1000 + 100 * rank for rank in range(num)}


@pytest.mark.parametrize("name", RENAMES)
@given(seed=SEED)
@settings(max_examples=4)
def test_a_rank_is_itself_whatever_its_file_is_called(files, tmp_path_factory, name, seed):
    check_names(files, tmp_path_factory.mktemp("renamed"), name, seed)


@pytest.mark.soak
@pytest.mark.parametrize("name", RENAMES)
@given(seed=SEED)
@settings(max_examples=60)
def test_a_rank_is_itself_at_length(files, tmp_path_factory, name, seed):
    check_names(files, tmp_path_factory.mktemp("renamed"), name, seed)
