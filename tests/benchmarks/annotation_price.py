"""What annotation costs a real engine: rounds with it and without it in turn, in one process.

    E=~/.cache/dflash-bench/engines/vllm-0.32.0/bin/python
    VLLM_ENABLE_V1_MULTIPROCESSING=0 OMP_NUM_THREADS=1 PYTHONPATH=tests/engines:. \
      nsys profile -t nvtx -s none --cpuctxsw=none -o price \
      python -m dflash_bench.annotate vllm -- $E tests/benchmarks/annotation_price.py --rounds 100 --tokens 50

Without nsys around it, what a range costs when no tool listens; with DFLASH_BENCH_RECORD=FOLDER the recorder. First the
price of an empty range is measured, hot (again and again) and cold (32 MB of other memory read in between, as a step of
an engine does). Then a step's: the difference of the lower deciles of the rounds, which programs beside it disturb
least, in processor time of the whole process, what nsys does in it included.
"""

import inspect
import json
import os
import statistics
import sys
import tempfile
import threading
import time
from pathlib import Path

import vllm_tiny

from dflash_bench.annotate.process import KIND_VARIABLE, TABLE_VARIABLE
from dflash_bench.annotate.sinks import SinkKind, make_sink
from dflash_bench.annotate.table import read_table

COLD = memoryview(bytearray(32 << 20))


def empty_range_ns():
    """(hot, cold): medians of an empty range, less what the two readings of the clock take."""
    push, pop = make_sink(SinkKind(os.environ[KIND_VARIABLE])).range("empty", is_step=False)
    clock = time.perf_counter_ns

    def one(is_cold, is_open):
        if is_cold:
            sum(COLD[::64])
        begun = clock()
        if is_open:
            push()
            pop()
        return clock() - begun

    found = []
    for is_cold, repeats in ((False, 5000), (True, 100)):
        with_range, without = (
            statistics.median(one(is_cold, is_open) for _ in range(repeats)) for is_open in (True, False)
        )
        found.append(with_range - without)
    return found


def collector():
    """What threads of the tool in this process do while ranges come every 2 ms, as in a step: (wake-ups a second,
    processor time of each in µs); None where it has none."""
    push, pop = make_sink(SinkKind(os.environ[KIND_VARIABLE])).range("empty", is_step=False)
    own = threading.get_native_id()

    def others():
        found = {}
        for task in Path("/proc/self/task").iterdir():
            if int(task.name) != own:
                status = (task / "status").read_text()
                found[task.name] = int(status.split("voluntary_ctxt_switches:")[1].split()[0])
        return found

    before, wall = others(), time.perf_counter()
    cpu = time.process_time() - time.thread_time()
    for _ in range(500):
        until = time.perf_counter() + 0.002
        while time.perf_counter() < until:
            pass
        push()
        pop()
    seconds = time.perf_counter() - wall
    wakes = sum(count - before.get(name, 0) for name, count in others().items())
    cpu = time.process_time() - time.thread_time() - cpu
    return {"wakes_per_s": round(wakes / seconds), "cpu_us_each": round(cpu / wakes * 1e6)} if wakes else None


class Switch:
    """Takes the wrappers off the engine's functions and puts them on again."""

    def __init__(self, table, core):
        self.core, self.places = core, []
        for target in {target for entry in table.ranges for target in entry.targets}:
            if (owner := sys.modules.get(target.module)) is None:
                continue
            *classes, name = target.path.split(".")
            for each in classes:
                owner = getattr(owner, each)
            wrapped = inspect.getattr_static(owner, name)
            self.places.append((owner, name, wrapped, inspect.unwrap(wrapped)))

    def __call__(self, is_on):
        for owner, name, wrapped, plain in self.places:
            setattr(owner, name, wrapped if is_on else plain)
        self.core.step_fn = self.core.step  # bound when the engine was built


def main():
    args = vllm_tiny.arguments()
    hot, cold = empty_range_ns()
    tool = collector()
    prompts = vllm_tiny.made_up_prompts(args.requests)
    with tempfile.TemporaryDirectory() as folder:
        llm = vllm_tiny.engine_of(Path(folder), args)
        core = llm.llm_engine.engine_core.engine_core
        switch = Switch(read_table(Path(os.environ[TABLE_VARIABLE])), core)
        for _ in range(3):
            vllm_tiny.generate(llm, prompts, args.tokens)
        rounds = {True: [], False: []}
        for k in range(args.rounds):
            for is_on in (k % 2 == 0, k % 2 == 1):
                switch(is_on)
                begun = time.process_time()
                vllm_tiny.generate(llm, prompts, args.tokens)
                rounds[is_on].append((time.process_time() - begun) / args.tokens * 1e6)
        low = {is_on: statistics.quantiles(values, n=10)[0] for is_on, values in rounds.items()}
        found = {
            "sink": os.environ[KIND_VARIABLE],
            "empty_range_ns": {"hot": round(hot), "cold": round(cold)},
            "threads_of_the_tool": tool,
            "step_cpu_us": {"without": round(low[False], 1), "with": round(low[True], 1)},
            "difference_us": round(low[True] - low[False], 1),
            "of_medians_us": round(statistics.median(rounds[True]) - statistics.median(rounds[False]), 1),
            "rounds": args.rounds,
        }
        print(json.dumps(found), flush=True)
        del llm


if __name__ == "__main__":
    main()
