"""Predict more ranks than were measured, where no rank has a core or a GPU to wait for: every host mostly sleeps.

    python tests/benchmarks/predict_ranks.py FOLDER [--ranks 2 4 8 14] [--steps 200] [--sleep-ms 100] [--spread 0.3]

Ranks of the built-in loop on the simulated device, as many processes as ranks on however few cores. In every
`prepare_for_decode` the host of a rank sleeps instead of working, so long as its own draws say (lognormal about
`--sleep-ms`): what is predicted is how the slowest of many decides, and what the agreement over gloo takes beside it.
From the run with the fewest ranks the others are predicted, the time of an agreement given from the predicted run.
"""

from __future__ import annotations

import argparse
import os
import random
import socket
import subprocess
import sys
import time
from pathlib import Path

import numpy as np

from dflash_bench.capture.recorder import FOLDER_VARIABLE, ORIGIN_VARIABLE
from dflash_bench.ingest.sources import IngestOptions, ingest
from dflash_bench.metrics.measure import measure
from dflash_bench.predict.communication import measure_communication
from dflash_bench.predict.prediction import Redraws, Scenario, predict
from dflash_bench.predict.trace import read_traces
from dflash_bench.profile import Profile
from dflash_bench.run.launch import SINK, SINK_VARIABLE

WORKLOAD = """
description = "few small requests: the host's own work is next to nothing"
[requests]
concurrency = 4
prompt = { low = 8, high = 64 }
output = { low = 1000, high = 2000 }
[kv]
page_size = 16
pool_pages = 1200
context_len = 4096
[speculation]
block = 4
window = 64
accept_mean = 2.0
[device]
draft_us = 100
verify_us = 200
"""


def decode_as_rank(arguments: list[str], sleep_s: float, spread: float) -> int:
    """One rank, its hosts' delay asleep."""
    from dflash_prep.loop.__main__ import main as decode
    from dflash_prep.state import decode_prep

    drawn = random.Random(f"sleeps of rank {os.environ['RANK']} of {os.environ['WORLD_SIZE']}")
    decode_prep.busy_wait = lambda _us: time.sleep(sleep_s * drawn.lognormvariate(0.0, spread))
    return decode([*arguments, "--delay", f"{os.environ['RANK']}:1"])


def record(folder: Path, ranks: int, args: argparse.Namespace) -> Profile:
    """A profile of so many ranks."""

    raw, name = folder / f"raw{ranks}", f"sleepers{ranks}"
    raw.mkdir(parents=True, exist_ok=True)
    (folder / "sleepers.toml").write_text(WORKLOAD)
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    own = ["--as-rank", "--sleep-ms", str(args.sleep_ms), "--spread", str(args.spread)]
    loop = [
        "--arm",
        "control",
        "--workload",
        str(folder / "sleepers.toml"),
        "--steps",
        str(args.steps),
        "--out",
        str(raw),
    ]
    spread = {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(port), "WORLD_SIZE": str(ranks), "OMP_NUM_THREADS": "1"}
    shared = {
        **os.environ,
        **spread,
        SINK_VARIABLE: SINK,
        FOLDER_VARIABLE: str(raw),
        ORIGIN_VARIABLE: f"{time.monotonic_ns()},{time.time_ns()}",
    }
    processes = [
        subprocess.Popen(
            [sys.executable, __file__, *own, str(folder), *loop], env={**shared, "RANK": str(r), "LOCAL_RANK": str(r)}
        )
        for r in range(ranks)
    ]
    if sum(process.wait() for process in processes):  # all of them are waited for
        raise SystemExit(f"a rank of {ranks} failed")
    return ingest([raw], IngestOptions(profiles=folder, run=name, arm="control", is_replace=True))[0]


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("folder", type=Path)
    parser.add_argument("--ranks", type=int, nargs="+", default=[2, 4, 8, 14])
    parser.add_argument("--steps", type=int, default=200)
    parser.add_argument("--sleep-ms", type=float, default=100)
    parser.add_argument("--spread", type=float, default=0.3)
    parser.add_argument("--as-rank", action="store_true", help=argparse.SUPPRESS)
    args, loop = parser.parse_known_args()
    if args.as_rank:
        sys.argv = sys.argv[:1]
        return decode_as_rank(loop, args.sleep_ms / 1e3, args.spread)
    profiles = {ranks: record(args.folder.resolve(), ranks, args) for ranks in args.ranks}
    first = args.ranks[0]
    traces = {ranks: read_traces(profile) for ranks, profile in profiles.items()}
    print(
        f"{'ranks':>5} {'figure':24} {'predicted ms':>12} {'90 % interval':>19} {'measured':>9} {'error':>8} meeting µs"
    )
    for ranks in args.ranks[1:]:
        agreement_us = float(measure_communication(traces[ranks]).mean()) / 1e3
        scenario = Scenario(ranks, given_us={ranks: agreement_us})
        found = predict([traces[first]], scenario, redraws=Redraws(steps=traces[ranks][0].num_steps))
        tax = measure(profiles[ranks]).find("dp.agreement_tax", None)
        truths = {
            "step.period": np.median(np.concatenate([t.period for t in traces[ranks]])),
            "step.period (mean)": np.mean([t.period.mean() for t in traces[ranks]]),
            "dp.agreement_tax": np.median(tax.values),
        }
        for name, truth in truths.items():
            figure = found.figure(name)
            interval = f"{figure.low / 1e6:.2f} … {figure.high / 1e6:.2f}"
            error = f"{100 * (figure.value / truth - 1):+.1f} %" + (
                "" if figure.low <= truth <= figure.high else " outside"
            )
            print(
                f"{ranks:5} {name:24} {figure.value / 1e6:12.2f} {interval:>19} {truth / 1e6:9.2f} {error:>8}"
                f" {agreement_us:.0f}"
            )
    return 0


if __name__ == "__main__":
    sys.exit(main())
