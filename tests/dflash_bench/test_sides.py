"""Which runs the words of a comparison name."""

from __future__ import annotations

from pathlib import Path

import pytest

from dflash_bench.cli.sides import resolve_side
from dflash_bench.errors import UsageError
from dflash_bench.ingest.sources import IngestOptions, resolve, resolve_all

REFERENCE = Path(__file__).parents[2] / "profiles" / "reference"
TOPUP = sorted(path.parent.name for path in REFERENCE.glob("h200-topup*/run.json"))


@pytest.mark.parametrize(
    "pattern",
    [
        pytest.param("h200-topup*", id="names of profiles"),
        pytest.param("reference/h200-topup*", id="a path from here"),
        pytest.param(f"{REFERENCE}/h200-topup*", id="a path from the root"),
        pytest.param("h200-topup**", id="what a shell takes and pathlib does not"),
    ],
)
def test_a_pattern_is_one_of_names_or_of_paths(monkeypatch, pattern) -> None:
    monkeypatch.chdir(REFERENCE.parent)
    found = resolve_side(pattern, IngestOptions(profiles=REFERENCE))
    assert sorted(profile.info.run for profile in found) == TOPUP
    assert TOPUP


@pytest.mark.parametrize("pattern", ["nothing-*", "/nothing/*", "[", "**"])
def test_a_pattern_that_matches_no_profile_is_told(tmp_path, monkeypatch, pattern) -> None:
    monkeypatch.chdir(tmp_path)
    with pytest.raises(UsageError, match="matches"):
        resolve_side(pattern, IngestOptions(profiles=tmp_path))


def test_runs_of_two_arms_are_no_side() -> None:
    with pytest.raises(UsageError, match="several arms: control, topup"):
        resolve_side("h200-[ct]o[np]*", IngestOptions(profiles=REFERENCE))


def test_a_folder_of_profiles_is_all_of_them_oldest_first() -> None:
    found = resolve_all([str(REFERENCE)], IngestOptions(profiles=REFERENCE.parent))
    created = [profile.info.created_utc for profile in found]
    assert created == sorted(created)
    assert {profile.info.run for profile in found} == {path.parent.name for path in REFERENCE.glob("*/run.json")}


def test_a_pattern_may_be_of_captures(tmp_path) -> None:
    captures = Path(__file__).parents[1] / "data" / "h200"
    (found,) = resolve(f"{captures}/*_sync_rank*.sqlite", IngestOptions(profiles=tmp_path / "profiles"))
    assert found.info.run == "h200x2_sync"
    assert found.info.ranks == (0, 1)
