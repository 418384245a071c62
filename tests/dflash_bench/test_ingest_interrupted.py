"""An ingest that is killed, starved of disk, or run twice at once leaves a whole profile or none, and no litter."""

from __future__ import annotations

import random
import resource
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
from generator import Spec, write_export

from dflash_bench.errors import DataError
from dflash_bench.ingest.sources import IngestOptions, ingest
from dflash_bench.layout import Events
from dflash_bench.profile import open_profile

ROWS = 30_000


@pytest.fixture(scope="module")
def export(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_export(tmp_path_factory.mktemp("export") / "run.sqlite", Spec(rows=ROWS))


def command(export: Path, profiles: Path) -> list[str]:
    return [sys.executable, "-m", "dflash_bench", "ingest", str(export), "--run", "r", "--profiles", str(profiles)]


def rows_in(profiles: Path) -> int:
    profile = open_profile(profiles / "r")
    return sum(profile.events(t, p).num_rows for t in Events for p in profile.info.processes)


@pytest.fixture(scope="module")
def wanted(export: Path, tmp_path_factory: pytest.TempPathFactory) -> int:
    profiles = tmp_path_factory.mktemp("wanted")
    ingest([export], IngestOptions(profiles=profiles, run="r"))
    return rows_in(profiles)


def kill_at_random(export: Path, profiles: Path, rng: random.Random) -> bool:
    """Start an ingest, kill it at some moment of its work. Returns whether a profile is there."""
    process = subprocess.Popen(command(export, profiles), stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    # the work begins when its folder appears; before that there is nothing to interrupt
    while process.poll() is None and not (profiles.exists() and any(profiles.iterdir())):
        time.sleep(0.002)
    time.sleep(rng.random() * 0.3)
    process.kill()
    process.wait()
    return (profiles / "r").exists()


def check_killed(export: Path, tmp_path: Path, wanted: int, seeds: range) -> None:
    for seed in seeds:
        profiles = tmp_path / str(seed)
        if kill_at_random(export, profiles, random.Random(seed)):
            assert rows_in(profiles) == wanted
        ingest([export], IngestOptions(profiles=profiles, run="r"))
        assert rows_in(profiles) == wanted
        assert [p.name for p in profiles.iterdir()] == ["r"]


def test_a_killed_ingest_leaves_a_whole_profile_or_none_and_the_next_one_clears_up(
    export: Path, tmp_path: Path, wanted: int
) -> None:
    check_killed(export, tmp_path, wanted, range(4))


@pytest.mark.soak
@pytest.mark.parametrize("part", range(10))
def test_fifty_killed_ingests_leave_whole_profiles_or_none(
    export: Path, tmp_path: Path, wanted: int, part: int
) -> None:
    check_killed(export, tmp_path, wanted, range(100 + 5 * part, 105 + 5 * part))


def test_what_another_running_ingest_is_writing_is_not_cleared_away(export: Path, tmp_path: Path) -> None:
    first = subprocess.Popen(command(export, tmp_path), stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    while first.poll() is None and not any(tmp_path.iterdir()):
        time.sleep(0.002)
    first.send_signal(signal.SIGSTOP)
    being_written = {p.name for p in tmp_path.iterdir()}
    ingest([export], IngestOptions(profiles=tmp_path, run="other"))
    assert being_written <= {p.name for p in tmp_path.iterdir()}
    first.send_signal(signal.SIGCONT)
    assert first.wait() == 0
    assert {p.name for p in tmp_path.iterdir()} == {"r", "other"}


def test_two_ingests_of_one_capture_at_once_give_one_whole_profile(export: Path, tmp_path: Path, wanted: int) -> None:
    both = [subprocess.Popen(command(export, tmp_path), stdout=subprocess.DEVNULL) for _ in range(2)]
    assert [p.wait() for p in both] == [0, 0]
    assert rows_in(tmp_path) == wanted
    assert [p.name for p in tmp_path.iterdir()] == ["r"]


@pytest.mark.parametrize("limit", [0, 1_000, 20_000])
def test_a_full_disk_is_one_sentence_and_leaves_nothing(export: Path, tmp_path: Path, limit: int) -> None:
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    old = signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
    resource.setrlimit(resource.RLIMIT_FSIZE, (limit, hard))
    try:
        with pytest.raises(DataError, match="could not be written"):
            ingest([export], IngestOptions(profiles=tmp_path / "p", run="r"))
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))
        signal.signal(signal.SIGXFSZ, old)
    assert not any((tmp_path / "p").iterdir())
