"""The committed reference profiles: readable by this version, and shown without contradiction."""

from __future__ import annotations

from pathlib import Path

import pytest
from simulated_runs import compare_both

from dflash_bench.metrics.measure import measure
from dflash_bench.metrics.summary import figure
from dflash_bench.profile import open_profile

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
        assert len(profile.steps(rank)) == profile.info.settings["steps_asked"]


def test_what_is_committed_stays_small():
    assert sum(path.stat().st_size for path in REFERENCE.rglob("*") if path.is_file()) <= 10_000_000


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
