"""Puts an arm under the engine's `prepare_for_decode`, and takes it away again when anything is wrong."""

from __future__ import annotations

import contextlib
import inspect
import json
import os
import sys
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from time import perf_counter_ns
from types import FunctionType, ModuleType
from typing import Any

from dflash_prep.sglang.fingerprint import UnknownEngineError, find_engine
from dflash_prep.sglang.preparation import PlugArm, Preparation
from dflash_prep.sglang.shadow import DifferenceError, compare, run_upstream
from dflash_prep.sglang.turns import LiveTurns, default_refill

VARIABLE = "DFLASH_PREP_SGLANG"
"""Carries the options to every process of the engine, as JSON."""

MODULE = "sglang.srt.speculative.dflash_info_v2"
"""What is waited for: the module of the draft input."""


@dataclass(frozen=True, slots=True)
class PlugOptions:
    """arm, K (None: the environment's), steps that are compared first, counted steps of a turn (0: no turns), uncounted
    ones (None: `default_refill`), a file that what the plug-in says is added to, and one for the times
    of turns (`Times`)."""

    arm: str
    topup_pages: int | None = None
    shadow: int = 0
    duet: int = 0
    refill: int | None = None
    log: str | None = None
    times: str | None = None

    def to_environment(self) -> str:
        return json.dumps(asdict(self))

    @classmethod
    def from_environment(cls, environment: Mapping[str, str]) -> PlugOptions | None:
        """The options that a parent process set; None without any."""
        text = environment.get(VARIABLE)
        return None if not text else cls(**json.loads(text))


class Times:
    """A line for each counted step of a duet, written at the end of its block: pair, arm, start and length of the
    preparation in ns, requests, and the sum of their committed lengths, by which tokens are counted.

    Two arms can be told apart by it without a profiler."""

    def __init__(self, file: Path) -> None:
        self._file, self._lines = file, ["pair,arm,start_ns,prepare_ns,requests,seq_lens_sum"]

    def add(self, turns: LiveTurns, start_ns: int, prepare_ns: int, batch: Any) -> None:
        if turns.is_counted:
            self._lines.append(
                f"{turns.pair},{turns.label},{start_ns},{prepare_ns},{len(batch.reqs)},{batch.seq_lens_sum}"
            )
        elif self._lines:
            with self._file.open("a", encoding="utf-8") as file:
                file.write("\n".join(self._lines) + "\n")
            self._lines = []


class Plug:
    """What stands in place of the engine's function: decides step by step whose preparation runs.

    A difference in the shadow, or an error before anything is written, gives the engine its own function back for good:
    it goes on as if nothing had been there, and ``off`` says why.
    """

    def __init__(
        self,
        original: FunctionType,
        preparation: Preparation,
        shadow: int = 0,
        turns: LiveTurns | None = None,
        times: Times | None = None,
    ) -> None:
        self.original, self.preparation = original, preparation
        self.shadow, self.turns, self.times = shadow, turns, times
        self.off: str | None = None
        self.compared = 0

    def prepare_for_decode(self, draft: Any, batch: Any) -> None:
        started = perf_counter_ns()
        if self._is_arms(batch):
            self._prepare(draft, batch)
        else:
            self.original(draft, batch)
        if self.turns is not None and self.off is None and batch.batch_size():
            try:
                if self.times is not None:
                    self.times.add(self.turns, started, perf_counter_ns() - started, batch)
                self.turns.advance()
            except Exception as error:  # the disk is full, or whoever takes the marks is wrong: not the engine's affair
                self._turn_off(f"{type(error).__name__}: {error}")

    def _is_arms(self, batch: Any) -> bool:
        if self.off is not None or self.preparation.arm is PlugArm.OFF or batch.batch_size() == 0:
            return False
        return self.turns is None or self.turns.is_arms()

    def _prepare(self, draft: Any, batch: Any) -> None:
        batch.maybe_evict_swa()
        try:
            plan = self.preparation.plan(batch)
            if self.compared < self.shadow:
                self._compare(plan, draft, batch)
        except DifferenceError as difference:
            self._turn_off(f"step {self.compared}: {difference}")
        except Exception as error:  # somebody's server: whatever is wrong with us, it must go on
            self._turn_off(f"{type(error).__name__}: {error}")
        if self.off is None:
            self.preparation.carry_out(draft, batch, plan)
        else:
            self.original(draft, batch)

    def _compare(self, plan: Any, draft: Any, batch: Any) -> None:
        reserve = 2 * int(self.preparation.upstream.get_spec().speculative_num_draft_tokens)
        compare(
            plan,
            run_upstream(self.original, draft, batch),
            topup_pages=self.preparation.topup_pages,
            page_size=batch.token_to_kv_pool_allocator.page_size,
            reserve=reserve,
            width=batch.req_to_token_pool.req_to_token.shape[1],
        )
        self.compared += 1
        if self.compared == self.shadow:
            say(f"{self.shadow} steps compared with the engine's own: no difference")

    def _turn_off(self, why: str) -> None:
        self.off = why
        say(f"the engine goes on with its own preparation: {why}")


def install(module: ModuleType, options: PlugOptions, mark: Callable[[str], None] | None = None) -> Plug | None:
    """Put the arm under `module.DFlashDraftInputV2.prepare_for_decode`; None, and a sentence, for an unknown engine.

    The function object itself gets other code: whoever wrapped it, before or after, keeps wrapping what now runs.
    """
    assert module.__file__ is not None
    folder = Path(module.__file__).parents[2]
    try:
        engine = find_engine(folder)
    except UnknownEngineError as error:
        say(f"{error}; the engine keeps its own preparation")
        return None
    target = inspect.unwrap(vars(module.DFlashDraftInputV2)["prepare_for_decode"])
    original = FunctionType(
        target.__code__, target.__globals__, target.__name__, target.__defaults__, target.__closure__
    )
    preparation = Preparation(PlugArm(options.arm), module, options.topup_pages)  # type: ignore[arg-type]
    turns = None
    if options.duet:
        refill = options.refill
        if refill is None:
            refill = default_refill(preparation.topup_pages, _page_size())
        turns = LiveTurns(preparation.arm, options.duet, refill, mark or _mark())
    times = Times(Path(f"{options.times}.{os.getpid()}.csv")) if options.times and turns is not None else None
    plug = Plug(original, preparation, options.shadow, turns, times)
    target.__globals__["_dflash_prep_plug"] = plug

    def prepare_for_decode(self, batch):  # type: ignore[no-untyped-def]
        return _dflash_prep_plug.prepare_for_decode(self, batch)  # type: ignore[name-defined] # noqa: F821

    target.__code__ = prepare_for_decode.__code__
    say(f"arm {preparation.arm} in place of prepare_for_decode of SGLang {engine.version}")
    return plug


def _page_size() -> int:
    from sglang.srt.mem_cache.allocation_sizing import get_alloc_page_size  # type: ignore[import-not-found]

    return int(get_alloc_page_size())


def _mark() -> Callable[[str], None]:
    """Where the engine's processes are annotated (`dflash-bench capture --annotate`), marks go where its ranges go."""
    from dflash_prep import ranges

    ranges.use(ranges.choose_sink(int(os.environ.get("RANK", "0")), int(os.environ.get("WORLD_SIZE", "1"))))

    def mark(text: str) -> None:
        annotate = sys.modules.get("dflash_bench.annotate.process")
        ((annotate and annotate.annotation()) or ranges).mark(text)

    return mark


def say(text: str) -> None:
    """One line on stderr, where the engine logs, and in the file of ``--log``."""
    line = f"dflash_prep.sglang: {text}\n"
    sys.stderr.write(line)
    sys.stderr.flush()
    options = PlugOptions.from_environment(os.environ)
    if options is not None and options.log is not None:
        with contextlib.suppress(OSError), Path(options.log).open("a", encoding="utf-8") as file:
            file.write(line)
