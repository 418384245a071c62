"""What vLLM's table asks."""

from __future__ import annotations

from typing import Any


def holds_its_worker(core: Any, *_: Any, **__: Any) -> bool:
    """Whether an engine core runs its worker in its own process."""
    return any(each.__name__ == "UniProcExecutor" for each in type(core.model_executor).__mro__)


def has_worker_processes(core: Any, *_: Any, **__: Any) -> bool:
    return not holds_its_worker(core)
