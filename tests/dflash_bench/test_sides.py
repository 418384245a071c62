"""Which runs the words of a comparison name."""

from __future__ import annotations

import io
import json
import shlex
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
from handmade import Range, write
from rich.console import Console

from dflash_bench.cli import console
from dflash_bench.cli.sides import both_sides, describe_sides, measure_all, resolve_side
from dflash_bench.errors import ExitCode, UsageError
from dflash_bench.ingest.sources import IngestOptions, resolve, resolve_all
from dflash_bench.metrics.reading import Reading
from dflash_bench.profile import open_profile

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


# ── what is compared when nobody says it in full ─────────────────────────────────────────────────────────────────────


def copied(folder: Path, source: str, name: str, **changes):
    """A reference profile under another name, with other facts in its run.json."""
    shutil.copytree(REFERENCE / source, folder / name)
    file = folder / name / "run.json"
    content = json.loads(file.read_text("utf-8")) | {"run": name} | changes
    file.write_text(json.dumps(content), "utf-8")


def test_without_names_all_repeats_of_the_newest_two_arms_are_compared(tmp_path) -> None:
    """Three repeats of each arm, in turns, and an older run of one of them: its repeats do not go on into it."""
    settings = json.loads((REFERENCE / "h200-control-r1" / "run.json").read_text("utf-8"))["settings"]
    copied(tmp_path, "h200-topup-r1", "old", created_utc="2026-01-01T00:00:00", settings=settings | {"repeat": 1})
    for k in (1, 2, 3):
        for arm in ("control", "topup"):
            own = settings | {"repeat": k}
            at = f"2026-01-02T00:0{k}:0{'01'[arm == 'topup']}"
            copied(tmp_path, f"h200-{arm}-r1", f"{arm}-r{k}", created_utc=at, settings=own)
    base, candidate = both_sides(None, None, IngestOptions(profiles=tmp_path))
    assert [p.info.run for p in base] == ["control-r1", "control-r2", "control-r3"]
    assert [p.info.run for p in candidate] == ["topup-r1", "topup-r2", "topup-r3"]


def test_a_folder_without_two_arms_says_how_to_make_them(tmp_path) -> None:
    copied(tmp_path, "h200-topup-r1", "only")
    with pytest.raises(UsageError, match="no two arms"):
        both_sides(None, None, IngestOptions(profiles=tmp_path))


def test_of_two_runs_that_a_pattern_finds_the_one_captured_first_is_the_base(tmp_path) -> None:
    """By name "after" comes before "before"; when they were read says nothing either."""
    for name, captured, read in (("run_before", 10, "2026-01-03"), ("run_after", 20, "2026-01-02")):
        captures = json.loads((REFERENCE / "h200-control-r1" / "run.json").read_text("utf-8"))["captures"]
        own = [c | {"session_start_utc_ns": captured} for c in captures]
        copied(tmp_path, "h200-control-r1", name, captures=own, created_utc=f"{read}T00:00:00")
    base, candidate = both_sides("run_*", None, IngestOptions(profiles=tmp_path))
    assert (base[0].info.run, candidate[0].info.run) == ("run_before", "run_after")
    assert "by time of capture" in describe_sides(base, candidate, is_chosen=False)
    assert "time" not in describe_sides(base, candidate, is_chosen=True)


def test_runs_without_a_common_figure_are_bad_data_and_no_pass(cli, tmp_path) -> None:
    one = write(tmp_path / "one.sqlite", [Range("fill", 0, 5)])
    other = write(tmp_path / "other.sqlite", [Range("drain", 0, 5)])
    for command in ("compare", "report"):
        found = cli(
            command,
            one,
            other,
            "--profiles",
            tmp_path / "profiles",
            *(["-o", tmp_path / "r.html"] * (command == "report")),
        )
        assert found.exit_code == ExitCode.BAD_DATA
        assert "have no figure in common" in found.stderr
    assert not (tmp_path / "r.html").exists()


# ── what the terminal says ───────────────────────────────────────────────────────────────────────────────────────────


def test_a_metric_that_is_not_there_is_answered_with_the_near_one(cli) -> None:
    for words in (["metrics", "h200-control-r1"], ["compare", "h200-control-r1", "h200-topup-r1"]):
        found = cli(*words, "--metric", "step.perod", "--profiles", REFERENCE)
        assert found.exit_code == ExitCode.USAGE
        assert "no metric of these runs fits 'step.perod'" in found.stderr
        assert "--metric step.period" in found.stderr


def test_a_pattern_is_said_back_as_it_was_typed(cli) -> None:
    found = cli("metrics", "h200-control-r1", "--metric", r"step\d(", "--profiles", REFERENCE)
    assert found.exit_code == ExitCode.USAGE
    assert r"fits 'step\d('" in found.stderr


def test_a_command_to_type_next_finds_the_profiles_where_they_lie(cli, tmp_path) -> None:
    place = tmp_path / "my profiles"
    copied(place, "h200-control-r1", "one")
    (line,) = [k for k in cli("metrics", "one", "--profiles", place).stdout.splitlines() if k.startswith("next: ")]
    assert shlex.split(line)[1:] == ["dflash-bench", "report", "one", "--profiles", str(place)]


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="no /dev/full here")
def test_a_full_standard_output_is_one_sentence_and_bad_data() -> None:
    words = [sys.executable, "-m", "dflash_bench", "metrics", "h200-control-r1", "--profiles", str(REFERENCE)]
    with Path("/dev/full").open("w") as full:
        found = subprocess.run(words, stdout=full, stderr=subprocess.PIPE, text=True, check=False)
    assert found.returncode == ExitCode.BAD_DATA
    assert found.stderr.strip() == "error: no space left on the device"


@pytest.mark.parametrize("is_terminal", [True, False])
def test_which_run_is_measured_is_said_on_a_terminal_only(monkeypatch, is_terminal):
    screen = io.StringIO()
    monkeypatch.setattr(console, "stderr", Console(file=screen, force_terminal=is_terminal, width=80))
    profile = open_profile(REFERENCE / "h200-floor-short")
    (run,) = measure_all([profile], Reading())
    assert run.info.run == "h200-floor-short"
    assert ("measuring h200-floor-short" in screen.getvalue()) == is_terminal
