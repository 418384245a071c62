"""The committed reference profiles: readable by this version, and shown without contradiction."""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest
from simulated_runs import compare_both

from dflash_bench.cli.sides import measured, resolve_side
from dflash_bench.compare import compare
from dflash_bench.ingest.sources import IngestOptions
from dflash_bench.metrics.measure import measure
from dflash_bench.metrics.reading import Reading
from dflash_bench.metrics.summary import figure
from dflash_bench.model import Sides
from dflash_bench.profile import open_profile
from dflash_bench.report.as_json import comparison_json
from dflash_bench.report.headline import sides_headline
from dflash_bench.report.markdown import escaped

REFERENCE = Path(__file__).parents[2] / "profiles" / "reference"
PROFILES = sorted(path.parent.name for path in REFERENCE.glob("*/run.json"))


def test_the_whole_ladder_is_there_and_three_runs_of_the_arms_that_are_compared():
    arms = ("aligned", "bulk", "control", "glue", "legacy", "syncfree", "topup")
    assert {f"h200-{arm}-r1" for arm in arms} <= set(PROFILES)
    assert {f"h200x2-{arm}-r1" for arm in ("legacy", "control", "topup")} <= set(PROFILES)
    assert {f"h200-{arm}-r{repeat}" for arm in ("legacy", "control", "topup") for repeat in (1, 2, 3)} <= set(PROFILES)


@pytest.mark.parametrize("name", PROFILES)
def test_a_reference_profile_opens_and_has_the_steps_of_its_command(name):
    profile = open_profile(REFERENCE / name)
    assert profile.info.run == name
    assert profile.info.device == "NVIDIA H200"
    assert profile.info.world == (2 if name.startswith("h200x2-") else 1)
    for rank in range(profile.info.world):
        steps = profile.steps(rank)
        refills = steps["pair"].null_count if profile.info.arms else 0
        assert len(steps) - refills == profile.info.settings["steps_asked"]


def test_what_is_committed_stays_small():
    files = [path for path in REFERENCE.rglob("*") if path.is_file() and "figures" not in path.parts]  # not committed
    assert sum(path.stat().st_size for path in files) <= 16_000_000


def test_one_rank_is_shown_with_the_interval_of_its_verdict():
    """Pooled over one rank would be the same samples with another interval, beside the verdict's."""
    base, candidate = (measure(open_profile(REFERENCE / f"h200-{arm}-r1")) for arm in ("control", "topup"))
    found, judgements = compare_both([base], [candidate])
    assert judgements is not None
    shown = {(c.metric, c.rank): c.interval for c in found.changes}
    for name in ("step.period", "step.lead"):
        assert shown[name, 0] == judgements.find(name, 0).interval is not None
    assert figure(base.find("alloc.step_share", 0)) == pytest.approx(0.386)
    assert figure(candidate.find("alloc.step_share", 0)) == pytest.approx(0.008)


# ── the worked examples in reports/reference ─────────────────────────────────────────────────────────────────────────

REPORTS = Path(__file__).parents[2] / "reports" / "reference"
COMPARISONS = {
    "h200-aligned-bulk": ("h200-aligned-r1", "h200-bulk-r1"),
    "h200-control-topup": ("h200-control-*", "h200-topup-*"),
    "h200-legacy-control": ("h200-legacy-*", "h200-control-*"),
    "h200-legacy-topup": ("h200-legacy-*", "h200-topup-*"),
    "h200x2-control-topup": ("h200x2-control-r1", "h200x2-topup-r1"),
    "h200x2-legacy-control": ("h200x2-legacy-r1", "h200x2-control-r1"),
    "h200-ladder-short-legacy-floor": ("h200-ladder-short-*:legacy", "h200-ladder-short-*:floor"),
    "h200-ladder-short-topup-floor": ("h200-ladder-short-*:topup", "h200-ladder-short-*:floor"),
}
WORDS = {
    "Faster": "improved",
    "Slower": "regressed",
    "As fast as before": "unchanged",
    "Cannot tell yet": "inconclusive",
    "Described, not judged": "described",
}
NAMES = {"host busy": "host.busy_per_step", "GPU dry": "gpu.dry_per_step", "launch lead": "step.lead"}
NAMES |= {"prepare_for_decode": "cost.prepare_for_decode", "steps that allocate": "alloc.step_share"}
FIGURE = r"[−+]?[\d,]+(?:\.\d+)?"
STEP = re.compile(rf"step ({FIGURE}) → ({FIGURE}) ms \(({FIGURE}) %, 95 % ({FIGURE}) … ({FIGURE})\)")
OTHER = re.compile(rf"(?:but )?(.+?) ({FIGURE}) → ({FIGURE}) (ms|µs|%)(?: a step)?")
CAUSE = re.compile(r"(gone|new): the (GPU running dry|wait) in (.+) \((\d+(?:\.\d+)?) % of (?:dry time|waits)\)")
SCALE = {"ms": 1e-6, "µs": 1e-3, "%": 100.0}


def is_rounded(shown, value):
    """Whether a text is this number to as many digits as it has."""
    plain = shown.replace("−", "-").replace(",", "")
    return abs(float(plain) - value) <= 0.5001 * 10.0 ** -len(plain.partition(".")[2])


@pytest.mark.parametrize("name", COMPARISONS)
def test_the_headline_of_a_reference_comparison_is_right(name):
    """Every word and number of it, read against the JSON of the comparison: verdicts, figures, intervals, causes."""
    options = IngestOptions(profiles=REFERENCE)
    sides = [resolve_side(word, options) for word in COMPARISONS[name]]
    (_, base), (_, candidate) = (measured(side, Reading()) for side in sides)
    found = compare(Sides(base, candidate))
    document = json.loads(comparison_json(found, found.judgements))
    headline = sides_headline(found.sides, found.judgements, found.findings)
    rank = 0 if len(base[0].info.ranks) == 1 else None
    verdicts = {v["metric"]: v for v in document["verdicts"] if v["rank"] == rank}
    clauses = [clause.rpartition(": ")[::2] for clause in headline.what.split("; ")]
    [(word, first)] = [(word, clause) for word, clause in clauses if STEP.fullmatch(clause)]
    others = [clause for _, clause in clauses if clause != first]
    step = verdicts["step.period"]
    assert step["verdict"] == WORDS[word.capitalize()]
    assert (
        clauses[0][0].capitalize() in WORDS
        or {"Better": "improved", "Worse": "regressed"}[clauses[0][0]]
        == (verdicts[NAMES[OTHER.fullmatch(others[0])[1]]]["verdict"])
    )
    old, new, change, low, high = STEP.fullmatch(first).groups()
    assert is_rounded(old, step["base"] / 1e6)
    assert is_rounded(new, step["candidate"] / 1e6)
    for shown, value in ((change, step["shift"]), (low, step["low"]), (high, step["high"])):
        assert is_rounded(shown, 100 * value / step["base"])
    for other in others:
        label, old, new, unit = OTHER.fullmatch(other).groups()
        judged = verdicts[NAMES[label]]
        assert judged["verdict"] in ("improved", "regressed")
        assert is_rounded(old, judged["base"] * SCALE[unit])
        assert is_rounded(new, judged["candidate"] * SCALE[unit])
    for line in headline.why:
        word, what, names, share = CAUSE.fullmatch(line).groups()
        table, column = ("dry.by_cause", "total_ns") if "dry" in what else ("sync.by_range", "exposed_ns")
        run = document["base" if word == "gone" else "candidate"]["run"]
        rows = [r for r in document["tables"][table] if r["run"] == run and r["rank"] is None]
        total = sum(r[column] for r in rows)
        largest = max(rows, key=lambda r: r[column])
        code = (largest.get("path") or largest["cause"].rpartition(" · ")[0]).rpartition(" > ")[2]
        assert code in names or float(share) < 100 * largest[column] / total
    runs = f"{len(base)} processes × " if base[0].info.arms else f"{len(base)} + {len(candidate)} runs"
    assert runs in headline.basis or len(base) == 1
    assert escaped(headline.what) in (REPORTS / f"{name}.md").read_text("utf-8"), "make reports/reference anew"
