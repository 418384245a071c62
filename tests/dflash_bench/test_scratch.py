"""The folder for samples: gone afterwards, and gone at the next start where its owner was killed."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import tempfile
from pathlib import Path

import pytest

from dflash_bench.metrics.scratch import PREFIX, clear_up, sample_folder

HOLD = """
import sys
from dflash_bench.metrics.scratch import sample_folder
with sample_folder() as folder:
    (folder / "0").write_bytes(bytes(1000))
    print(folder, flush=True)
    sys.stdin.read()
"""


@pytest.fixture(autouse=True)
def place(tmp_path, monkeypatch):
    """A folder for temporary files of our own, for the processes that we start too."""
    monkeypatch.setenv("TMPDIR", str(tmp_path))
    monkeypatch.setattr(tempfile, "tempdir", None)
    return tmp_path


@pytest.fixture
def holder():
    """A process that holds a folder with a file in it, until it is told to end."""
    with subprocess.Popen([sys.executable, "-c", HOLD], stdin=subprocess.PIPE, stdout=subprocess.PIPE) as process:
        yield process
        process.kill()


def test_a_folder_is_gone_after_its_block(place):
    with sample_folder() as folder:
        (folder / "0").write_bytes(b"samples")
        assert folder.parent == place
    assert list(place.iterdir()) == []


def test_a_folder_is_gone_when_its_block_fails(place):
    with pytest.raises(ZeroDivisionError), sample_folder():
        1 / 0  # noqa: B018
    assert list(place.iterdir()) == []


def test_what_a_killed_process_left_goes_when_the_next_begins(place, holder):
    left = holder.stdout.readline().decode().strip()
    os.kill(holder.pid, signal.SIGKILL)
    holder.wait()
    assert [str(each) for each in place.iterdir()] == [left]
    with sample_folder() as folder:
        assert list(place.iterdir()) == [folder]
    assert list(place.iterdir()) == []


def test_what_a_living_process_holds_stays(place, holder):
    left = holder.stdout.readline().decode().strip()
    with sample_folder():
        pass
    assert [str(each) for each in place.iterdir()] == [left]
    assert len(list(Path(left).iterdir())) == 1
    assert holder.communicate(b"")[0] == b""
    assert list(place.iterdir()) == []


def test_nothing_else_is_cleared_up(place, tmp_path_factory):
    """Neither folders of other names, nor files of ours, nor what a link leads to."""
    elsewhere = tmp_path_factory.mktemp("elsewhere")
    (elsewhere / "kept").write_text("")
    (place / f"{PREFIX}link").symlink_to(elsewhere)
    (place / "dflash-bench-other").mkdir()
    (place / f"{PREFIX}file").write_text("")
    before = sorted(place.iterdir())
    clear_up()
    assert sorted(place.iterdir()) == before
    assert (elsewhere / "kept").exists()
