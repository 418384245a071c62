"""Makes the plain packages beside the tests importable: ``generator``."""

from __future__ import annotations

import sys
from pathlib import Path

# at the end: nothing here may hide an installed package (tests/dflash_bench is no package of that name)
sys.path.append(str(Path(__file__).parent))
