"""What the host of the arm `floor` does in a step: calls and array operators counted, and its pure host time, no GPU.

    python tests/benchmarks/floor_calls.py [--arm floor] [--workload short …] [--steps 600]

The engine runs on the simulated device; what that does itself, the graph's work among it, is not counted and not timed,
nor is the wait for the result. Counted per step, by part: calls of Python functions, calls of C functions (NumPy, torch
and builtins alike), and operators and subscripts (an array expression is one of these). Medians over steps, those that
allocate apart from those that do not; steps that admit, finish or retract are left out.
"""

from __future__ import annotations

import argparse
import dis
import statistics
import sys
from collections import Counter
from time import perf_counter_ns

from dflash_prep import workload as workloads
from dflash_prep.arms import parse_arm
from dflash_prep.loop.agreement import AgreementGroup
from dflash_prep.loop.assembly import RunSpec, build
from dflash_prep.loop.engine import Engine
from dflash_prep.loop.simulated_device import SimulatedClock, SimulatedDevice

PARTS = {"update": "update", "prepare": "prepare", "_agree": "agree", "launch": "launch", "_process": "process"}
OPERATORS = {
    "BINARY_OP",
    "BINARY_SUBSCR",
    "STORE_SUBSCR",
    "COMPARE_OP",
    "BINARY_SLICE",
    "STORE_SLICE",
    "UNARY_NEGATIVE",
}
KINDS = ("Python calls", "C calls", "operators")


class Count:
    """A tracer: events of one step by the part of it that they lie in."""

    def __init__(self) -> None:
        self.found: Counter[tuple[str, str]] = Counter()
        self.part, self.depth, self.outside = "rest", 0, 0
        self.operators: dict[object, frozenset[int]] = {}

    def profile(self, frame, event: str, argument: object) -> None:
        if event == "call":
            self.depth += 1
            code = frame.f_code
            if self.outside == 0 and code.co_filename.endswith("simulated_device.py"):
                self.outside = self.depth
            if self.depth == 2:
                self.part = PARTS.get(code.co_name, "rest")
            if not self.outside:
                self.found[self.part, "Python calls"] += 1
        elif event == "return":
            if self.outside == self.depth:
                self.outside = 0
            self.depth -= 1
            if self.depth == 1:
                self.part = "rest"
        elif event == "c_call" and not self.outside and argument is not sys.setprofile:
            self.found[self.part, "C calls"] += 1

    def trace(self, frame, event: str, _argument: object):
        frame.f_trace_opcodes, frame.f_trace_lines = True, False
        if event == "opcode" and not self.outside:
            code = frame.f_code
            if code not in self.operators:
                names = dis.get_instructions(code)
                self.operators[code] = frozenset(each.offset for each in names if each.opname in OPERATORS)
            self.found[self.part, "operators"] += frame.f_lasti in self.operators[code]
        return self.trace


class Clock:
    """Host time of a step without what the simulated device does in it."""

    def __init__(self, device: SimulatedDevice) -> None:
        self.away = 0
        for name in ("launch", "block", "still_ns", "stand_still", "fence"):
            setattr(device, name, self.apart(getattr(device, name)))

    def apart(self, function):
        def timed(*args: object, **named: object) -> object:
            started, before = perf_counter_ns(), self.away
            try:
                return function(*args, **named)
            finally:
                self.away = before + perf_counter_ns() - started

        return timed


def start(arm: str, workload: str) -> tuple[Engine, Clock]:
    spec = RunSpec(parse_arm(arm), workloads.load(workload), 0, rank=0, world=1, check=False, verify=False)
    device = SimulatedDevice(SimulatedClock(sleep_s=lambda _s: None))
    engine = build(spec, device, AgreementGroup(1))
    clock = Clock(device)
    for graph in engine.worker._graphs.values():
        graph.replay = clock.apart(graph.replay)
    return engine, clock


def is_plain(engine: Engine, before: int) -> bool:
    return len(engine.running) == before and not engine.running.has_finished and not engine.rows[-1].retracted


def kind_of(engine: Engine) -> str:
    return "allocating" if engine.rows[-1].allocated_tokens else "other"


def count_calls(arm: str, workload: str, steps: int) -> dict[str, list[Counter]]:
    engine, _ = start(arm, workload)
    plain, found = engine._step, {"allocating": [], "other": []}
    count = Count()

    def step(*args: object) -> object:
        count.found.clear()
        count.depth = count.outside = 0
        sys.settrace(count.trace)
        sys.setprofile(count.profile)
        try:
            return plain(*args)
        finally:
            sys.setprofile(None)
            sys.settrace(None)

    engine._step = step
    for k in range(steps):
        before, was_finished = len(engine.running), engine.running.has_finished
        engine.run(1, lambda: False, lambda _done: None)
        if k > 5 and not was_finished and is_plain(engine, before):
            found[kind_of(engine)].append(count.found.copy())
    return found


def time_steps(arm: str, workload: str, steps: int) -> dict[str, dict[str, list[float]]]:
    engine, clock = start(arm, workload)
    found = {kind: {"step": [], "prepare": []} for kind in ("allocating", "other")}
    plain_step, plain_prepare, prepared = engine._step, engine.prep.prepare, []

    def prepare(batch: object) -> object:
        started = perf_counter_ns()
        try:
            return plain_prepare(batch)
        finally:
            prepared.append(perf_counter_ns() - started)

    def step(*args: object) -> object:
        started, away = perf_counter_ns(), clock.away
        try:
            return plain_step(*args)
        finally:
            took.append(perf_counter_ns() - started - (clock.away - away))

    took: list[int] = []
    engine._step, engine.prep.prepare = step, prepare
    for k in range(steps):
        before, was_finished = len(engine.running), engine.running.has_finished
        engine.run(1, lambda: False, lambda _done: None)
        if k > 5 and not was_finished and is_plain(engine, before):
            found[kind_of(engine)]["step"].append(took[-1] / 1e3)
            found[kind_of(engine)]["prepare"].append(prepared[-1] / 1e3)
    return found


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--arm", default="floor", help="floor, or floor,topup_pages=0: many steps that allocate")
    parser.add_argument("--workload", nargs="+", default=["short", "short-bs192"])
    parser.add_argument("--steps", type=int, default=600)
    args = parser.parse_args()
    for workload in args.workload:
        calls, times = count_calls(args.arm, workload, min(args.steps, 600)), time_steps(args.arm, workload, args.steps)
        for kind, steps in calls.items():
            if not steps:
                continue
            print(f"{workload}, {len(steps)} steps, {kind}: {' / '.join(KINDS)}")
            for part in ("update", "prepare", "agree", "launch", "process", "rest"):
                print(f"  {part:8}", *(f"{statistics.median(s[part, each] for s in steps):5.0f}" for each in KINDS))
            sums = [
                statistics.median(sum(s[p, each] for p in (*PARTS.values(), "rest")) for s in steps) for each in KINDS
            ]
            print(f"  {'step':8}", *(f"{each:5.0f}" for each in sums))
            for name, took in times[kind].items():
                print(f"  {name}: {statistics.median(took):.1f} µs p50 ({len(took)} steps)")


if __name__ == "__main__":
    main()
