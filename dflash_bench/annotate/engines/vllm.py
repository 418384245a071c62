"""What vLLM's table asks: that processes end in order. It kills them after 5 s, and what is killed writes nothing."""

from __future__ import annotations

import time
from typing import Any

_PATIENCE_S = 30.0
"""How long a process is given before vLLM goes on to kill it."""


def end_processes(procs: Any, *_: Any, **__: Any) -> None:
    """Asks processes to end as vLLM does next, and waits until they have."""
    for process in procs:
        if process.is_alive():
            process.terminate()
    wait_for(procs)


def wait_for(worker_procs: Any, *_: Any, **__: Any) -> None:
    """Waits for processes that have been told to end."""
    until = time.monotonic() + _PATIENCE_S
    for process in worker_procs:
        process.join(max(0.0, until - time.monotonic()))
