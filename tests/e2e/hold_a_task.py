"""Preloaded by the Dask workers of test_cluster.py: makes one task stop in the middle of its work.

Where the folder in ``HOLD_FOLDER`` has a file ``hold``, the next task takes it away, leaves its process id in ``held``
and goes no further: its Parquet files are begun and have no end.
"""

from __future__ import annotations

import os
import time
from pathlib import Path

from dflash_bench.ingest.writers import Writers


def dask_setup(worker) -> None:
    folder, real = Path(os.environ["HOLD_FOLDER"]), Writers.close

    def close(self) -> None:
        real(self)
        try:
            (folder / "hold").rename(folder / "taken")
        except FileNotFoundError:
            return
        (folder / "pid").write_text(str(os.getpid()))
        (folder / "pid").rename(folder / "held")
        while True:
            time.sleep(0.01)

    Writers.close = close
