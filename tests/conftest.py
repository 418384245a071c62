"""Makes the plain packages beside the tests importable, and Ctrl-C what it is at a terminal."""

from __future__ import annotations

import signal
import sys
from pathlib import Path

# at the end: nothing here may hide an installed package (tests/dflash_bench is no package of that name)
sys.path.append(str(Path(__file__).parent))

# a shell starts background jobs with SIGINT ignored, and every child would inherit that: tests of Ctrl-C need it heard
if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
    signal.signal(signal.SIGINT, signal.default_int_handler)
