"""What SGLang's table asks. Its objects come as arguments; its modules are looked up once they are loaded."""

from __future__ import annotations

import sys
import time
from types import SimpleNamespace
from typing import Any

_SRT = "sglang.srt."
END_S = 30.0
"""How long a scheduler is given to end before the engine kills it."""


def has_work(scheduler: Any, running_batch: Any = None, last_batch: Any = None, *_: Any, **__: Any) -> bool:
    """Whether an iteration of the loop will run a batch.

    Requests wait, or one of the running batch or of the last prefill has a token to go. The overlapped loop leaves out
    those whose last token is computed and not yet read (``_reqs_finishing_inflight``, from 0.5.20 on).
    """
    if scheduler.waiting_queue or getattr(scheduler, "chunked_req", None) is not None:
        return True
    if running_batch is None:
        running_batch, last_batch = scheduler.running_batch, scheduler.last_batch
    batches = [running_batch]
    if last_batch is not None and last_batch is not running_batch and last_batch.forward_mode.is_extend():
        batches.append(last_batch)
    ending = getattr(scheduler, "_reqs_finishing_inflight", None)
    return any(  # mostly the first: not all of them are asked in every step
        not request.finished() and (ending is None or not ending(SimpleNamespace(reqs=[request])))
        for batch in batches
        for request in batch.reqs
    )


def pass_of(runner: Any, forward_batch: Any, *_: Any, **__: Any) -> str:
    """What a forward pass of a model is. The verification of drafts is an extension to SGLang too."""
    mode = forward_batch.forward_mode
    if mode.is_extend() and not mode.is_target_verify():
        return "draft_extend" if runner.is_draft_worker else "prefill"
    return "draft" if runner.is_draft_worker else "verify"


def rank(scheduler: Any, *_: Any, **__: Any) -> int:
    """Of a scheduler process: with DP attention the replicas share one tensor-parallel group and are ranks of it."""
    return _places(scheduler)[0]


def world(scheduler: Any, *_: Any, **__: Any) -> int:
    return _places(scheduler)[1]


def _places(scheduler: Any) -> tuple[int, int]:
    context = sys.modules.get(_SRT + "runtime_context")
    parallel = context.get_parallel() if context is not None else scheduler  # the scheduler had them before
    return int(parallel.tp_rank), int(parallel.tp_size)


def end_in_order(engine: Any, *_: Any, **__: Any) -> None:
    """Has the schedulers end by SGLang's own request, and waits until they have."""
    schedulers = sys.modules[_SRT + "utils.cudacore_pyspy_dump_utils"].collect_scheduler_processes
    if not schedulers():  # shutdown is called once more at exit, and nobody would take the message
        return
    manager = engine.tokenizer_manager
    manager._subprocess_watchdog.stop()
    request = sys.modules[_SRT + "managers.io_struct"].ShutdownReq()
    engine.loop.run_until_complete(manager._async_dispatch_to_scheduler(request))
    until = time.monotonic() + END_S
    while schedulers() and time.monotonic() < until:
        time.sleep(0.05)
