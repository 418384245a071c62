"""Arms: the ladder, the texts that name an arm, and the combinations that are refused."""

from __future__ import annotations

import itertools
import subprocess
import sys
from dataclasses import asdict, fields, replace

import pytest

from dflash_prep.arms import ARMS, ArmError, Switches, parse_arm


def test_each_rung_only_adds_to_the_one_before() -> None:
    ladder = ["legacy", "syncfree", "aligned", "bulk", "glue", "counts", "topup"]
    for lower, upper in itertools.pairwise(ladder):
        below, above = asdict(ARMS[lower].switches), asdict(ARMS[upper].switches)
        assert below != above
        assert all(above[key] >= below[key] for key in below), (lower, upper)


def test_control_is_counts_and_topup_differs_from_control_by_two_pages_alone() -> None:
    control = ARMS["control"].switches
    assert control == ARMS["counts"].switches
    assert ARMS["topup"].switches == replace(control, topup_pages=2)


def test_legacy_has_every_change_off() -> None:
    assert not any(asdict(ARMS["legacy"].switches).values())


def test_every_switch_names_its_source_and_what_it_removes() -> None:
    for each in fields(Switches):
        assert each.metadata["pr"].startswith(("#", "SGLANG_", "this package")), each.name
        assert each.metadata["removes"], each.name


def test_changes_apply_to_the_named_arm_and_the_name_reads_back() -> None:
    arm = parse_arm(" control , topup_pages = 4 , bulk_fill=off")
    assert arm.switches == replace(ARMS["control"].switches, topup_pages=4, bulk_fill=False)
    assert arm.name == "control,topup_pages=4,bulk_fill=off"
    assert parse_arm(arm.name) == arm


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("fast", "unknown arm 'fast'"),
        ("", "unknown arm ''"),
        ("control,topup=4", "is no switch=value"),
        ("control,topup_pages", "is no switch=value"),
        ("control,topup_pages=two", "whole number"),
        ("control,topup_pages=-1", "whole number"),
        ("control,topup_pages=9", "0 to 8"),
        ("control,bulk_fill=maybe", "on or off"),
        ("control,topup_pages=1,topup_pages=2", "twice"),
        ("legacy,topup_pages=2", "needs page_aligned"),
        ("legacy,staging_ring=on", "needs bulk_fill"),
        ("legacy,glue_graph=on", "needs static_bounds"),
        ("legacy,fused_rebuild=on", "needs host_bound"),
    ],
)
def test_a_text_that_is_no_arm_is_refused_with_the_reason(text, says) -> None:
    with pytest.raises(ArmError, match=says):
        parse_arm(text)


def test_arms_and_workloads_import_without_torch_or_numpy() -> None:
    code = "import sys, dflash_prep.arms, dflash_prep.workload; print({'torch', 'numpy'} & set(sys.modules))"
    assert subprocess.run([sys.executable, "-c", code], capture_output=True, text=True).stdout.strip() == "set()"
