"""Files and folders that are whole or not there; the scratch folder: gone afterwards, and gone at the next start where
its owner was killed."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import tempfile
from pathlib import Path

import pytest

from dflash_bench.errors import DataError
from dflash_bench.whole import scratch_folder, whole_file, write_text

HOLD = """
import sys
from dflash_bench.whole import scratch_folder
with scratch_folder() as folder:
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
    with scratch_folder() as folder:
        (folder / "0").write_bytes(b"samples")
        assert folder.parent == place
    assert list(place.iterdir()) == []


def test_a_folder_is_gone_when_its_block_fails(place):
    with pytest.raises(ZeroDivisionError), scratch_folder():
        1 / 0  # noqa: B018
    assert list(place.iterdir()) == []


def test_what_a_killed_process_left_goes_when_the_next_begins(place, holder):
    left = holder.stdout.readline().decode().strip()
    os.kill(holder.pid, signal.SIGKILL)
    holder.wait()
    assert [str(each) for each in place.iterdir()] == [left]
    with scratch_folder() as folder:
        assert list(place.iterdir()) == [folder]
    assert list(place.iterdir()) == []


def test_what_a_living_process_holds_stays(place, holder):
    left = holder.stdout.readline().decode().strip()
    with scratch_folder():
        pass
    assert [str(each) for each in place.iterdir()] == [left]
    assert len(list(Path(left).iterdir())) == 1
    assert holder.communicate(b"")[0] == b""
    assert list(place.iterdir()) == []


def test_nothing_else_is_cleared_up(place, tmp_path_factory):
    """Neither folders of other names, nor files of ours, nor what a link leads to."""
    elsewhere = tmp_path_factory.mktemp("elsewhere")
    (elsewhere / "kept").write_text("")
    (place / ".dflash-bench.link.partial").symlink_to(elsewhere)
    (place / "dflash-bench-other").mkdir()
    (place / ".dflash-bench.file.partial").write_text("")
    before = sorted(place.iterdir())
    with scratch_folder():
        pass
    assert sorted(place.iterdir()) == before
    assert (elsewhere / "kept").exists()


def test_a_file_takes_its_place_when_it_is_whole(tmp_path):
    target = tmp_path / "folder" / "out.txt"
    write_text(target, "first")
    with whole_file(target) as partial:
        partial.write_text("second")
        assert target.read_text() == "first"
    assert target.read_text() == "second"
    assert [path.name for path in target.parent.iterdir()] == ["out.txt"]


def test_a_file_that_fails_half_way_changes_nothing(tmp_path):
    target = tmp_path / "out.txt"
    write_text(target, "first")
    with pytest.raises(ZeroDivisionError), whole_file(target) as partial:  # noqa: PT012
        partial.write_text("half")
        raise ZeroDivisionError
    assert target.read_text() == "first"
    assert [path.name for path in tmp_path.iterdir()] == ["out.txt"]


def test_a_file_that_cannot_be_written_is_named(tmp_path):
    write_text(tmp_path / "file", "")
    with pytest.raises(DataError, match=r"file/out\.txt could not be written: File exists"):
        write_text(tmp_path / "file" / "out.txt", "")
