"""The four H200 captures through the real command line, against figures worked out here in another way.

The oracle below is plain SQL and loops, written from the metric definitions alone: nothing of ``dflash_bench`` but the
command and its JSON is used. It is slow and obvious on purpose. Sums and counts must be equal, quantiles to 1e-9.
"""

from __future__ import annotations

import functools
import json
import sqlite3
import statistics
import subprocess
import sys
from bisect import bisect_left, bisect_right
from collections import defaultdict
from contextlib import closing
from itertools import pairwise
from pathlib import Path

import pytest

H200 = Path(__file__).parents[1] / "data" / "h200"
ARMS = ("sync", "nosync")
WORK = " UNION ALL ".join(
    f"SELECT deviceId, streamId, correlationId, globalPid, start, end FROM CUPTI_ACTIVITY_KIND_{table}"
    for table in ("KERNEL", "MEMCPY", "MEMSET", "GRAPH_TRACE")
)
SYNCS = ("cudaStreamSynchronize", "cudaEventSynchronize", "cudaDeviceSynchronize")


def quantile(samples, percent):
    """Linear interpolation between order statistics, by the book."""
    ordered = sorted(samples)
    if len(ordered) == 1:
        return ordered[0]
    return statistics.quantiles(ordered, n=100, method="inclusive")[percent - 1]


def bare(name):
    """An API name without its version suffix."""
    head, _, tail = name.rpartition("_v")
    return head if tail.isdecimal() else name


class Intervals:
    """Things with a start and an end, to be asked which of them hold an instant."""

    def __init__(self, items):
        self.items = sorted(items, key=lambda r: (r["start"], -r["end"]))
        self.starts = [r["start"] for r in self.items]
        self.longest = max((r["end"] - r["start"] for r in self.items), default=0)

    def holding(self, t):
        """All that hold t, outermost first: by start, of equal starts the longer first."""
        near = self.items[bisect_left(self.starts, t - self.longest) : bisect_right(self.starts, t)]
        return [r for r in near if r["start"] <= t < r["end"]]

    def innermost(self, t):
        return next(reversed(self.holding(t)), None)


NOTHING = Intervals([])


def by_thread(items):
    threads = defaultdict(list)
    for item in items:
        threads[item["thread"]].append(item)
    return defaultdict(lambda: NOTHING, {thread: Intervals(own) for thread, own in threads.items()})


class Capture:
    """One file of one rank, read with SQL only."""

    def __init__(self, path):
        with closing(sqlite3.connect(f"file:{path}?mode=ro&immutable=1", uri=True)) as db:
            db.row_factory = sqlite3.Row
            self.ranges = [dict(r) for r in db.execute(
                "SELECT start, end, COALESCE(text, value) AS name, globalTid AS thread, domainId AS domain"
                " FROM NVTX_EVENTS LEFT JOIN StringIds ON id = textId"
                " WHERE eventType IN (59, 60) AND end IS NOT NULL ORDER BY start, end DESC"
            )]  # fmt: skip
            self.calls = [dict(r) | {"name": bare(r["name"])} for r in db.execute(
                "SELECT start, end, value AS name, globalTid AS thread, correlationId AS id"
                " FROM CUPTI_ACTIVITY_KIND_RUNTIME JOIN StringIds ON id = nameId"
                " WHERE eventClass IN (0, 1) ORDER BY start, correlationId".replace("ON id", "ON StringIds.id")
            )]  # fmt: skip
            self.work = [dict(r) for r in db.execute(
                "SELECT deviceId AS device, streamId AS stream, correlationId AS id,"
                " MIN(start) AS start, MAX(end) AS end"
                f" FROM ({WORK}) GROUP BY globalPid, deviceId, streamId, correlationId"
            )]  # fmt: skip
            (self.num_rows,) = db.execute(f"SELECT COUNT(*) FROM ({WORK})").fetchone()
            (self.processes,) = db.execute("SELECT COUNT(DISTINCT globalTid >> 24) FROM NVTX_EVENTS").fetchone()
            self.overhead = db.execute("SELECT start, end FROM PROFILER_OVERHEAD").fetchall()
        self.steps = [r for r in self.ranges if r["name"] == "decode_step"]
        domains = {s["domain"] for s in self.steps}
        self.own = [r for r in self.ranges if r["domain"] in domains]
        self.own_of = by_thread(self.own)
        self.calls_of = by_thread(self.calls)
        self.step_index = Intervals([{**s, "k": k} for k, s in enumerate(self.steps)])

    def step_of(self, t):
        held = self.step_index.innermost(t)
        return None if held is None else held["k"]

    @functools.cache  # noqa: B019  four captures live as long as the module
    def launches(self):
        """Launches with their lead, of every stream, in order of API start; the first of a stream has none."""
        calls = {c["id"]: c for c in self.calls}
        assert len(calls) == len(self.calls), "the oracle takes unique ids for granted; the files have them"
        lanes = defaultdict(list)
        for w in self.work:
            if w["id"] in calls:
                lanes[w["device"], w["stream"]].append((calls[w["id"]], w))
        found = []
        for key, lane in lanes.items():
            lane.sort(key=lambda pair: (pair[0]["start"], pair[0]["id"]))
            dry = None
            for call, work in lane:
                lead = None if dry is None else dry - call["start"]
                found.append({**call, "dry": dry, "lead": lead, "lane": key, "work": work["end"] - work["start"]})
                dry = work["end"] if dry is None else max(dry, work["end"])
        return found

    def path_of(self, t, thread):
        return " > ".join(r["name"] for r in self.own_of[thread].holding(t)) or "-"

    def alloc_steps(self):
        return {self.step_of(r["start"]) for r in self.own if r["name"] == "kv_alloc"} - {None}


@functools.cache
def samples_of(c):
    """Metric → samples, for everything that has samples. Shares are samples of 0 and 1."""
    found = defaultdict(list)
    for r in c.ranges:
        found[f"range.{r['name']}"].append(r["end"] - r["start"])
    starts = [s["start"] for s in c.steps]
    found["step.period"] = [b - a for a, b in pairwise(starts)]
    alloc = c.alloc_steps()
    found["alloc.step_share"] = [int(k in alloc) for k in range(len(c.steps))]
    launches = c.launches()
    inside = [(launch, c.step_of(launch["start"])) for launch in launches if launch["lead"] is not None]
    inside = [(launch, k) for launch, k in inside if k is not None]
    found["launch.lead"] = [launch["lead"] for launch, _ in inside]
    found["launch.run_ahead_fraction"] = [int(launch["lead"] > 0) for launch, _ in inside]
    time = defaultdict(int)
    for launch in launches:
        if c.step_of(launch["start"]) is not None:
            time[launch["lane"]] += launch["work"]
    main = max(time, key=time.get)
    found["launch.lead@main"] = [launch["lead"] for launch, _ in inside if launch["lane"] == main]
    found["launch.run_ahead_fraction@main"] = [int(lead > 0) for lead in found["launch.lead@main"]]
    graphs = [(launch, k) for launch, k in inside if "Graph" in launch["name"]]
    found["graph.lead"] = [launch["lead"] for launch, _ in graphs]
    found["graph.run_ahead_fraction"] = [int(launch["lead"] > 0) for launch, _ in graphs]
    first = {}
    for launch, _ in sorted(graphs, key=lambda pair: pair[0]["start"]):
        held = c.own_of[launch["thread"]].innermost(launch["start"])
        found[f"graph.lead@{held['name']}"].append(launch["lead"])
    for launch in sorted(launches, key=lambda launch: launch["start"]):
        if "Graph" in launch["name"] and (k := c.step_of(launch["start"])) is not None:
            first.setdefault(k, launch["lead"])
    found["step.lead"] = [lead for lead in first.values() if lead is not None]
    with_launches = {c.step_of(launch["start"]) for launch in launches} - {None}
    lost = dict.fromkeys(sorted(with_launches), 0)
    for launch, k in inside:
        lost[k] += max(0, -launch["lead"])
    found["stall.total_per_step"] = list(lost.values())
    per_step = [0] * len(c.steps)
    for call in c.calls:
        if call["name"] in SYNCS and (k := c.step_of(call["start"])) is not None:
            found[f"sync.{call['name']}"].append(call["end"] - call["start"])
            per_step[k] += call["end"] - call["start"]
    found["sync.total_per_step"] = per_step
    launched = {w["id"] for w in c.work}
    in_steps = [x for x in c.calls if "Launch" in x["name"] and c.step_of(x["start"]) is not None]
    found["coverage.launches_matched"] = [int(x["id"] in launched) for x in in_steps]
    for metric, names in (("launch", {x["name"] for x in in_steps}), ("sync", SYNCS)):
        steps_of_calls = [c.step_of(x["start"]) for x in c.calls if x["name"] in names]
        found[f"{metric}.calls_per_step"] = [steps_of_calls.count(k) for k in range(len(c.steps))]
    called = {x["id"] for x in c.calls}
    found["coverage.gpu_work_matched"] = [int(w["id"] in called) for w in c.work]
    return dict(found)


@functools.cache
def scalars_of(c):
    """Metric → (value, n) for the counts."""
    called = {x["id"]: x for x in c.calls}
    matched = [(called[w["id"]], w) for w in c.work if w["id"] in called]
    inside = [
        launch for launch in c.launches() if launch["lead"] is not None and c.step_of(launch["start"]) is not None
    ]
    like = defaultdict(list)
    for launch in inside:
        held = c.own_of[launch["thread"]].innermost(launch["start"])
        like[launch["name"], held and held["name"]].append(launch)
    usual = {key: statistics.median(x["end"] - x["start"] for x in own) for key, own in like.items()}
    blocked = [x for key, own in like.items() for x in own if x["end"] - x["start"] > 10 * usual[key] and x["lead"] > 0]
    touched = [s for s in c.steps if any(a < s["end"] and b > s["start"] for a, b in c.overhead)]
    prepare = [(r["end"] - r["start"], c.step_of(r["start"])) for r in c.own if r["name"] == "prepare_for_decode"]
    alloc = c.alloc_steps()
    cost = statistics.median(d for d, k in prepare if k in alloc) - statistics.median(
        d for d, k in prepare if k is not None and k not in alloc
    )
    # nothing in these captures is called prefill, and every step launches graphs: they are all of one kind
    assert not any("prefill" in r["name"] for r in c.ranges)
    graphed = {c.step_of(x["start"]) for x in c.calls if "GraphLaunch" in x["name"]} - {None}
    return {
        "steps@decode": (len(graphed), len(c.steps)),
        "coverage.impossible_rows": (0, c.num_rows),
        "alloc.step_cost": (cost, len(prepare)),
        "launch.backpressure": (len(blocked), len(inside)),
        "gpu_work_without_launch": (len(c.work) - len(matched), len(c.work)),
        "coverage.gpu_work_uncorrelated": (sum(w["id"] == 0 for w in c.work), len(c.work)),
        "coverage.impossible_pairs": (sum(w["start"] < x["start"] for x, w in matched), len(matched)),
        "coverage.steps_with_overhead": (len(touched), len(c.steps)),
    }


def tables_of(c):
    """Table → rows without the rank, as sets: the order of equal totals is nobody's business."""
    stalls, of_range, of_thread = defaultdict(list), defaultdict(list), defaultdict(list)
    for launch in c.launches():
        if launch["lead"] is None or launch["lead"] >= 0 or c.step_of(launch["start"]) is None:
            continue
        held = c.own_of[launch["thread"]].innermost(launch["dry"])
        call = c.calls_of[launch["thread"]].innermost(launch["dry"])
        cause = f"{held['name'] if held else '-'} · {call['name'] if call else '-'}"
        stalls[cause,].append(-launch["lead"])
    for x in c.calls:
        if c.step_of(x["start"]) is None:
            continue
        blocks = x["name"].startswith(("cudaMemcpy", "cuMemcpy")) and "Async" not in x["name"]
        if x["name"] in SYNCS or blocks:
            of_range[c.path_of(x["start"], x["thread"]), x["name"]].append(x["end"] - x["start"])
        if x["name"] in SYNCS:
            of_thread[str(x["thread"] & 0xFFFFFF), x["name"]].append(x["end"] - x["start"])
    step_time = sum(s["end"] - s["start"] for s in c.steps)

    def rows(groups):
        return {k: (len(v), sum(v), statistics.median(v)) for k, v in groups.items()}

    return {
        "stall.by_cause": rows(stalls),
        "sync.by_range": rows(of_range),
        "sync.by_thread": {k: (len(v), sum(v), sum(v) / step_time) for k, v in of_thread.items()},
    }


def meeting_of(captures):
    """Everything between ranks: from the k-th agreement of each, on the first rank's clock."""
    met = [[r for r in c.own if r["name"] == "dp_agreement"] for c in captures]
    n = min(map(len, met))
    shift = [statistics.median(m[k]["end"] - met[0][k]["end"] for k in range(n)) for m in met]
    spread = []
    for m in met:
        offsets = [m[k]["end"] - met[0][k]["end"] for k in range(n)]
        spread.append(quantile(offsets, 75) - quantile(offsets, 25))
    arrival = [[m[k]["start"] - s for k in range(n)] for m, s in zip(met, shift, strict=True)]
    last = [max(range(len(captures)), key=lambda r: (arrival[r][k], -r)) for k in range(n)]
    middle = [statistics.median(a[k] for a in arrival) for k in range(n)]
    alloc = [c.alloc_steps() for c in captures]
    per_rank = [
        {
            "dp.wait": [max(a[k] for a in arrival) - own[k] for k in range(n)],
            "dp.lateness": [own[k] - middle[k] for k in range(n)],
            "dp.straggler_share": [int(last[k] == r) for k in range(n)],
        }
        for r, own in enumerate(arrival)
    ]
    shared = {
        "dp.agreement_tax": [max(a[k] for a in arrival) - middle[k] for k in range(n)],
        "dp.alloc_on_critical_path": [
            int(captures[last[k]].step_of(met[last[k]][k]["start"]) in alloc[last[k]]) for k in range(n)
        ],
    }
    clocks = [{"clock.offset": (s, n), "clock.offset_spread": (w, n)} for s, w in zip(shift, spread, strict=True)]
    return per_rank, shared, clocks


def work_before(c, met, step):
    """Time by innermost range from the start of the step to the agreement in it, cut at every edge."""
    begin, end, thread = step["start"], met["start"], met["thread"]
    edges = {begin, end}
    for r in c.own_of[thread].items:
        edges |= {t for t in (r["start"], r["end"]) if begin < t < end}
    total = defaultdict(int)
    cuts = sorted(edges)
    for a, b in pairwise(cuts):
        held = c.own_of[thread].innermost(a)
        total[held["name"] if held else "between ranges"] += b - a
    return total


@pytest.fixture(scope="module")
def captures():
    return {arm: [Capture(H200 / f"h200x2_{arm}_rank{rank}.sqlite") for rank in (0, 1)] for arm in ARMS}


@pytest.fixture(scope="module")
def document(tmp_path_factory):
    """What ``dflash-bench metrics tests/data/h200 --json`` prints."""
    profiles = tmp_path_factory.mktemp("profiles")
    command = [sys.executable, "-m", "dflash_bench", "metrics", str(H200), "--json", "--profiles", str(profiles)]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    assert done.stderr == ""
    return json.loads(done.stdout)


@pytest.fixture(scope="module")
def found(document):
    """(arm, rank, metric) → the JSON of that metric; each occurs once."""
    keyed = {(m["run"].removeprefix("h200x2_"), m["rank"], m["metric"]): m for m in document["metrics"]}
    assert len(keyed) == len(document["metrics"])
    return keyed


def same_samples(row, samples, where):
    """A metric's JSON against the samples that it should have been made of."""
    assert row["n"] == len(samples), where
    if "value" in row:
        assert row["value"] == pytest.approx(sum(samples) / len(samples), abs=1e-9), where
        return
    assert row["total"] == sum(samples), where
    for percent in (50, 90, 99):
        assert row[f"p{percent}"] == pytest.approx(quantile(samples, percent), abs=1e-9, rel=1e-12), where
    assert row["mean"] == pytest.approx(sum(samples) / len(samples), abs=1e-9, rel=1e-12), where


# ── the figures that were published with the captures ───────────────────────────────────────────────────────────────

PUBLISHED = {
    # metric: (field, sync, nosync, digits)
    "range.prepare_for_decode": ("p50", 687.4e3, 608.6e3, 0.05e3),
    "step.period": ("p50", 8966.7e3, 8221.4e3, 0.05e3),
    "alloc.step_share": ("value", 0.395, 0.010, 0.0005),
    "launch.run_ahead_fraction": ("value", 0.2769, 0.9064, 0.00005),
    "graph.run_ahead_fraction": ("value", 0.1825, 0.9875, 0.00005),
    "step.lead": ("p50", -550.1e3, 6770.4e3, 0.05e3),
    "graph.lead@draft": ("p50", -550.1e3, 6770.4e3, 0.05e3),
}


COSTS = {
    # metric of rank 0: mean of sync and nosync in µs, to the digit stated
    "host.busy_per_step": (2300.5, 1037.0),
    "gpu.dry_per_step": (1414.0, 486.4),
    "sync.exposed_per_step": (136.8, 30.6),
    "sync.slack_per_step": (5012.2, 5973.8),
    "cost.prepare_for_decode": (800.8, 717.9),
    "cost.process_result": (4.5, 7.5),
}


@pytest.mark.parametrize("metric", COSTS)
def test_rank_0_shows_what_the_host_costs(found, metric):
    for arm, mean in zip(ARMS, COSTS[metric], strict=True):
        assert found[arm, 0, metric]["value"] / 1000 == pytest.approx(mean, abs=0.05)


def test_the_compaction_costs_where_it_is_and_is_gone_without_syncs(found):
    assert found["sync", 0, "cost.rebuild_compact"]["value"] == pytest.approx(1102.8e3, abs=50)
    assert ("nosync", 0, "cost.rebuild_compact") not in found


def test_the_causes_of_dry_time_are_those_stated_and_add_up(document, found):
    """In µs, to the digit stated."""
    stated = {
        "sync": (282_804.0, {
            "dp_agreement · -": 104_596.3, "rebuild_compact · cuLibraryLoadData": 78_551.9,
            "rebuild_compact · -": 57_242.8, "get_last_loc · -": 8_931.1,
            "rebuild_compact · cudaStreamSynchronize": 4_243.5,
        }),
        "nosync": (97_271.7, {
            "dp_agreement · -": 41_206.1, "- · -": 38_093.9, "get_last_loc · cuLibraryLoadData": 15_180.1,
        }),
    }  # fmt: skip
    for arm, (total, causes) in stated.items():
        rows = [r for r in document["tables"]["dry.by_cause"] if r["run"] == f"h200x2_{arm}" and r["rank"] == 0]
        assert sum(r["total_ns"] for r in rows) / 1000 == pytest.approx(total, abs=0.05)
        assert sum(r["share"] for r in rows) == pytest.approx(1)
        dry = found[arm, 0, "gpu.dry_per_step"]
        assert sum(r["total_ns"] for r in rows) == pytest.approx(dry["value"] * dry["n"], abs=1)
        own = {r["cause"]: r["total_ns"] / 1000 for r in rows}
        assert {cause: own[cause] for cause in causes} == pytest.approx(causes, abs=0.05)


@pytest.mark.parametrize("metric", PUBLISHED)
def test_rank_0_shows_the_published_figure(found, metric):
    field, sync, nosync, digits = PUBLISHED[metric]
    assert found["sync", 0, metric][field] == pytest.approx(sync, abs=digits)
    assert found["nosync", 0, metric][field] == pytest.approx(nosync, abs=digits)


def test_the_published_numbers_of_samples(found):
    assert found["sync", 0, "launch.run_ahead_fraction"]["n"] == 3211
    assert found["nosync", 0, "launch.run_ahead_fraction"]["n"] == 876
    assert found["sync", 0, "sync.cudaStreamSynchronize"]["n"] == 758


def test_the_compaction_sync_heads_the_stalls_of_the_sync_arm(document):
    rows = [r for r in document["tables"]["stall.by_cause"] if r["run"] == "h200x2_sync" and r["rank"] == 0]
    row = next(r for r in rows if r["cause"] == "rebuild_compact · cudaStreamSynchronize")
    assert row["launches"] == 597
    assert rows.index(row) < 5


def test_the_clock_of_rank_1_and_the_allocations_on_the_critical_path(found):
    assert found["sync", 1, "clock.offset"]["value"] == pytest.approx(22_164e3, abs=0.5e3)
    assert found["nosync", 1, "clock.offset"]["value"] == pytest.approx(-122.7e3, abs=0.05e3)
    assert found["sync", None, "dp.alloc_on_critical_path"]["value"] == pytest.approx(0.645)
    assert found["nosync", None, "dp.alloc_on_critical_path"]["value"] == pytest.approx(0.02)


IN_SQL = ("cost.", "host.busy", "gpu.dry", "sync.exposed", "sync.slack")
"""What is recomputed in SQL (`test_sql_oracle`)."""

# ── everything, recomputed ──────────────────────────────────────────────────────────────────────────────────────────


@pytest.mark.parametrize("arm", ARMS)
@pytest.mark.parametrize("rank", [0, 1])
def test_every_metric_of_a_rank_equals_its_recomputation(found, captures, arm, rank):
    own = captures[arm][rank]
    per_rank, _, clocks = meeting_of(captures[arm])
    samples = samples_of(own) | per_rank[rank]
    scalars = scalars_of(own) | clocks[rank] | {"coverage.open_ranges": (0, 1)}
    for name, values in samples.items():
        same_samples(found[arm, rank, name], values, (arm, rank, name))
    for name, (value, n) in scalars.items():
        row = found[arm, rank, name]
        assert (row["value"], row["n"]) == (pytest.approx(value, abs=1e-9), n), name
    shown = {m for a, r, m in found if (a, r) == (arm, rank) and not m.startswith(IN_SQL)}
    assert shown == {*samples, *scalars}, "a metric that nobody recomputed"


@pytest.mark.parametrize("arm", ARMS)
def test_pooled_figures_come_from_the_same_samples(found, captures, arm):
    parts = [samples_of(c) for c in captures[arm]]
    per_rank, shared, _ = meeting_of(captures[arm])
    names = {*parts[0], *parts[1]}
    for name in names:
        same_samples(found[arm, None, name], [v for p in parts for v in p.get(name, [])], (arm, name))
    for name in ("dp.wait", "dp.lateness"):
        same_samples(found[arm, None, name], [v for p in per_rank for v in p[name]], (arm, name))
    for name, values in shared.items():
        same_samples(found[arm, None, name], values, (arm, name))
    counts = [scalars_of(c) for c in captures[arm]]
    for name in counts[0].keys() - {"alloc.step_cost"}:
        row = found[arm, None, name]
        assert (row["value"], row["n"]) == (sum(s[name][0] for s in counts), sum(s[name][1] for s in counts)), name


@pytest.mark.parametrize("arm", ARMS)
def test_the_pooled_allocation_cost_is_the_median_of_all_ranks_samples(found, captures, arm):
    with_alloc, without = [], []
    for c in captures[arm]:
        alloc = c.alloc_steps()
        for r in c.own:
            if r["name"] == "prepare_for_decode" and (k := c.step_of(r["start"])) is not None:
                (with_alloc if k in alloc else without).append(r["end"] - r["start"])
    cost = statistics.median(with_alloc) - statistics.median(without)
    assert found[arm, None, "alloc.step_cost"]["value"] == pytest.approx(cost, abs=1e-9)


@pytest.mark.parametrize("arm", ARMS)
@pytest.mark.parametrize("rank", [0, 1])
def test_every_row_of_the_cause_tables_equals_its_recomputation(document, captures, arm, rank):
    for name, expected in tables_of(captures[arm][rank]).items():
        rows = [r for r in document["tables"][name] if r["run"] == f"h200x2_{arm}" and r["rank"] == rank]
        rows = [tuple(v for k, v in r.items() if k not in ("run", "arm", "rank", "exposed_ns")) for r in rows]
        totals = [r[-2] for r in rows]
        assert totals == sorted(totals, reverse=True), "the largest total comes first"
        assert len(rows) == len(expected)
        for *label, count, total, last in rows:
            assert (count, total, pytest.approx(last, abs=1e-9)) == expected[tuple(label)]


@pytest.mark.parametrize("arm", ARMS)
def test_the_causes_of_lateness_equal_their_recomputation_and_add_up(document, captures, arm):
    both = captures[arm]
    met = [[r for r in c.own if r["name"] == "dp_agreement"] for c in both]
    n = min(map(len, met))
    shift = [statistics.median(m[k]["end"] - met[0][k]["end"] for k in range(n)) for m in met]
    parts = [defaultdict(list) for _ in both]
    for k in range(n):
        steps = [c.steps[c.step_of(m[k]["start"])] for c, m in zip(both, met, strict=True)]
        work = [work_before(c, m[k], s) for c, m, s in zip(both, met, steps, strict=True)]
        late = [s["start"] - o for s, o in zip(steps, shift, strict=True)]
        for r in range(2):
            parts[r]["late start"].append(late[r] - statistics.median(late))
            for name in {*work[0], *work[1]}:
                parts[r].setdefault(name, [0.0] * k)
            for name in [p for p in parts[r] if p != "late start"]:
                parts[r][name] += [0.0] * (k - len(parts[r][name]))
                parts[r][name].append(work[r].get(name, 0) - statistics.median(w.get(name, 0) for w in work))
    rows = [r for r in document["tables"]["dp.lateness_by_cause"] if r["run"] == f"h200x2_{arm}"]
    lateness, _, _ = meeting_of(both)
    for rank in (0, 1):
        own = {r["cause"]: r for r in rows if r["rank"] == rank}
        for name, values in parts[rank].items():
            values += [0.0] * (n - len(values))
            if any(values):
                assert own[name]["mean_ns"] == pytest.approx(sum(values) / n, abs=1e-6), name
                assert own[name]["p50_ns"] == pytest.approx(statistics.median(values), abs=1e-6), name
        total = sum(r["mean_ns"] for r in own.values())
        assert total == pytest.approx(sum(lateness[rank]["dp.lateness"]) / n, abs=1e-6)


def test_runs_and_ranks_are_those_of_the_marks(document):
    assert {(r["arm"], r["rank_source"]) for r in document["runs"]} == {("sync", "mark"), ("nosync", "mark")}
    assert [r["ranks"] for r in document["runs"]] == [[0, 1], [0, 1]]
    assert {r["run"] for r in document["runs"]} == {"h200x2_sync", "h200x2_nosync"}


def test_each_capture_holds_one_process(captures):
    assert [c.processes for both in captures.values() for c in both] == [1, 1, 1, 1]
