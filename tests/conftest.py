"""Makes the plain packages beside the tests importable, Ctrl-C what it is at a terminal, and a process use one core."""

from __future__ import annotations

import os
import signal
import sys
from pathlib import Path

import pytest
from hypothesis import settings

# at the end: nothing here may hide an installed package (tests/dflash_bench is no package of that name)
sys.path.append(str(Path(__file__).parent))

# files of tests run side by side (`make test`), and arrays are tiny: a pool of threads would wait for its neighbours
os.environ.setdefault("OMP_NUM_THREADS", "1")

# how long a draw takes says nothing about what is right, on a machine that others use too
settings.register_profile("here", deadline=None)
settings.load_profile("here")

# a shell starts background jobs with SIGINT ignored, and every child would inherit that: tests of Ctrl-C need it heard
if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
    signal.signal(signal.SIGINT, signal.default_int_handler)


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """What takes longest begins first: side by side, the last file would else be waited for by all."""
    items.sort(key=lambda item: "e2e" not in item.path.parts)
