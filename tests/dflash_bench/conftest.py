"""What several test modules of the harness share."""

from __future__ import annotations

from pathlib import Path

import pytest
from typer.testing import CliRunner


@pytest.fixture(scope="session")
def h200() -> Path:
    """The folder of the four H200 captures."""
    return Path(__file__).parents[1] / "data" / "h200"


@pytest.fixture
def cli():
    """The command line in this process: ``cli("metrics", path)`` → a result with exit_code, stdout and stderr.

    A crash is raised again, so that no test takes its exit code 1 for an answer.
    """
    from dflash_bench.cli import app

    def run(*words: object):
        found = CliRunner().invoke(app, [str(word) for word in words])
        if found.exception is not None and not isinstance(found.exception, SystemExit):
            raise found.exception
        return found

    return run


@pytest.fixture
def store():
    """An empty store in memory, ``memory://``."""
    fsspec = pytest.importorskip("fsspec", reason="files at URLs need the extra remote")
    fs = fsspec.filesystem("memory")
    fs.store.clear()
    fs.pseudo_dirs[:] = [""]
    return fs
