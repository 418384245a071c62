"""The decode loop as a program: ``python -m dflash_prep.loop --arm topup --workload smoke --steps 200 --out DIR``.

Started by itself it is rank 0 of 1; started by torchrun it is the rank that the environment says. Every rank writes
``DIR/rank{R}.json`` (see `ledger.py`) and ``DIR/rank{R}.steps.csv`` (see `counters.py`). Exit code 2: unknown arm or
workload or wrong usage; 5: the run was wrong (tokens differ from the oracle, a bad allocation, a leak).

torch is imported when a run starts, not before, so that ``--list`` answers at once.
"""

from __future__ import annotations

import argparse
import json
import logging
import os
import signal
import sys
from collections.abc import Callable
from dataclasses import asdict, dataclass
from pathlib import Path
from time import monotonic
from types import FrameType
from typing import TYPE_CHECKING

from dflash_prep import arms, ranges, workload
from dflash_prep.arms import Arm
from dflash_prep.errors import SettingError
from dflash_prep.loop.checksum import ModelKind
from dflash_prep.loop.faults import Delay, Fault, FaultError
from dflash_prep.workload import Workload

if TYPE_CHECKING:
    from dflash_prep.loop.engine import Engine

EXIT_USAGE = 2
EXIT_WRONG = 5
PROGRESS_INTERVAL_S = 0.05


class WrongRunError(RuntimeError):
    """The run finished and what it did was wrong; the message is one sentence."""


@dataclass(frozen=True, slots=True)
class LoopOptions:
    """The command line, checked."""

    arm: Arm
    workload: Workload
    steps: int
    seed: int
    out: Path
    progress: Path | None
    backend: str
    device: str
    check: bool
    verify: bool
    fault: Fault | None
    delay: Delay | None
    model: ModelKind


@dataclass(frozen=True, slots=True)
class Place:
    """Which rank this process is, from torchrun's environment."""

    rank: int
    world: int
    local_rank: int

    @classmethod
    def of_environment(cls) -> Place:
        rank, world, local = (int(os.environ.get(name, other)) for name, other in _TORCHRUN)
        return cls(rank, world, local)


_TORCHRUN = (("RANK", "0"), ("WORLD_SIZE", "1"), ("LOCAL_RANK", "0"))


class StopFlag:
    """Set by SIGINT or SIGTERM. The second signal acts as if nobody had caught the first."""

    def __init__(self) -> None:
        self.is_set = False
        for number in (signal.SIGINT, signal.SIGTERM):
            signal.signal(number, self._on_signal)

    def _on_signal(self, _number: int, _frame: FrameType | None) -> None:
        self.is_set = True
        signal.signal(signal.SIGINT, signal.default_int_handler)
        signal.signal(signal.SIGTERM, signal.SIG_DFL)


class Progress:
    """One byte per finished step, written at most every 50 ms: the size of the file is the number of steps done."""

    def __init__(self, path: Path | None, clock: Callable[[], float] = monotonic) -> None:
        self._file = None if path is None else path.open("ab", buffering=0)
        self._clock, self._written, self._at = clock, 0, clock()

    def __call__(self, num_done: int) -> None:
        if self._file is not None and self._clock() - self._at >= PROGRESS_INTERVAL_S:
            self._write(num_done)

    def _write(self, num_done: int) -> None:
        self._file.write(b"." * (num_done - self._written))
        self._written, self._at = num_done, self._clock()

    def close(self, num_done: int) -> None:
        if self._file is not None:
            self._write(num_done)
            self._file.close()


def run(options: LoopOptions, place: Place) -> None:
    """Run this rank to its end and write its ledger. Raises FaultError, SettingError and WrongRunError."""
    if options.delay is not None:
        options.delay.check_rank(place.world)
    sink = ranges.choose_sink(place.rank, place.world)
    stop = StopFlag()
    try:
        _decode(options, place, stop, sink)
    finally:
        sink.close()


def _decode(options: LoopOptions, place: Place, stop: StopFlag, sink: ranges.Sink) -> None:
    from dflash_prep.loop.assembly import RunSpec, build
    from dflash_prep.loop.launch import join_ranks, leave_ranks, open_device, warm_up

    device = open_device(options.device, place.local_rank, reuse_events=options.arm.switches.event_ring)
    spec = RunSpec(
        options.arm,
        options.workload,
        options.seed,
        place.rank,
        place.world,
        check=options.check,
        verify=options.verify,
        fault=options.fault,
        delay=options.delay,
        model=options.model,
    )
    warm_up(spec, device)
    ranges.use(sink)
    ranges.mark(f"dflash_bench rank={place.rank} world={place.world} arm={options.arm.name}")
    tp = options.workload.speculation.sampler_tp
    joined = join_ranks(place.rank, place.world, options.backend, tp, device)
    engine = build(spec, device, joined.agreement, joined.sampler)
    progress = Progress(options.progress if place.rank == 0 else None)
    interrupted = engine.run(options.steps, lambda: stop.is_set, progress)
    engine.close()
    progress.close(len(engine.rows))
    wrong = _write_results(options, place, engine, interrupted=interrupted)
    leave_ranks(place.world)
    if wrong:
        raise WrongRunError(wrong)


def _write_results(options: LoopOptions, place: Place, engine: Engine, *, interrupted: bool) -> str | None:
    """Steps and ledger; what was wrong with the run, None if nothing."""
    from dflash_prep.loop.counters import summarise, write_steps
    from dflash_prep.loop.ledger import Ledger

    consistency = engine.prep.consistency
    checks = (0, 0) if consistency is None else (consistency.checks, consistency.bad)
    mismatch, verified = engine.first_mismatch() if options.verify else (None, 0)
    options.out.mkdir(parents=True, exist_ok=True)
    write_steps(engine.rows, options.out / f"rank{place.rank}.steps.csv")
    Ledger(
        rank=place.rank,
        world=place.world,
        arm=options.arm.name,
        switches=asdict(options.arm.switches),
        workload=options.workload.name,
        seed=options.seed,
        steps=len(engine.rows),
        interrupted=interrupted,
        device=engine.parts.device.kind,
        counters=summarise(engine.rows, engine.parts.pool_size, checks),
        settings={
            "needs_cpu_seq_lens": engine.needs_cpu,
            "workload": asdict(options.workload),
            "model": str(engine.parts.model.kind),
            "sampler_vocab": engine.worker.head.shard.num_org,
        },
        checks={
            "verified_tokens": verified,
            "mismatch": None if mismatch is None else str(mismatch),
            "leaked_tokens": engine.leaked_tokens,
        },
        delay=None if options.delay is None else str(options.delay),
    ).write(options.out)
    if mismatch is not None:
        return f"rank {place.rank} left the oracle at {mismatch}"
    if engine.leaked_tokens:
        return f"rank {place.rank} leaked {engine.leaked_tokens} tokens of its KV pool"
    if checks[1]:
        return f"rank {place.rank} failed {checks[1]} of {checks[0]} allocation checks"
    return None


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="python -m dflash_prep.loop", description="One rank of the decode loop.")
    parser.add_argument("--list", action="store_true", help="print the arms and workloads as JSON and exit")
    parser.add_argument("--arm", default="control", help="NAME[,switch=value...] (default: control)")
    parser.add_argument("--workload", default="smoke", help="a name, or FILE.toml (default: smoke)")
    parser.add_argument("--steps", type=int, default=200, help="decode steps (default: 200)")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--out", type=Path, default=Path("decode-loop"), help="folder for rank{R}.json and .steps.csv")
    parser.add_argument("--progress", type=Path, help="file that grows by one byte per finished step")
    parser.add_argument("--backend", choices=["gloo", "nccl"], default="gloo", help="of the DP agreement")
    parser.add_argument("--device", choices=["auto", "simulated", "cuda"], default="auto")
    parser.add_argument(
        "--model",
        choices=[str(each) for each in ModelKind],
        default=str(ModelKind.AUTO),
        help="auto: Triton kernels on a GPU, torch elsewhere",
    )
    parser.add_argument("--check", action="store_true", help="verify every allocation step; the host waits for it")
    parser.add_argument("--verify", action="store_true", help="compare all tokens with the oracle after the run")
    parser.add_argument("--plant", metavar="KIND@STEP", help="damage something on purpose, see faults.py")
    parser.add_argument(
        "--delay", metavar="RANK:MICROSECONDS", help="keep this rank's host busy for so long in prepare_for_decode"
    )
    return parser


def _options(arguments: argparse.Namespace) -> LoopOptions:
    if arguments.steps < 1 or arguments.seed < 0:
        raise workload.WorkloadError("--steps must be at least 1 and --seed not negative")
    return LoopOptions(
        arm=arms.parse_arm(arguments.arm),
        workload=workload.load(arguments.workload),
        steps=arguments.steps,
        seed=arguments.seed,
        out=arguments.out,
        progress=arguments.progress,
        backend=arguments.backend,
        device=arguments.device,
        check=arguments.check,
        verify=arguments.verify or arguments.plant is not None,
        fault=None if arguments.plant is None else Fault.parse(arguments.plant),
        delay=None if arguments.delay is None else Delay.parse(arguments.delay),
        model=ModelKind(arguments.model),
    )


def main(argv: list[str] | None = None) -> int:
    """Exit code of the program; see the module's text."""
    logging.basicConfig(format="%(levelname)s %(name)s: %(message)s")
    arguments = _parser().parse_args(argv)
    if arguments.list:
        listing = {"arms": arms.listing(), "workloads": workload.descriptions()}
        sys.stdout.write(json.dumps(listing, indent=1) + "\n")
        return 0
    try:
        run(_options(arguments), Place.of_environment())
    except (arms.ArmError, workload.WorkloadError, FaultError, SettingError) as error:
        sys.stderr.write(f"{error}\n")
        return EXIT_USAGE
    except WrongRunError as error:
        sys.stderr.write(f"{error}\n")
        return EXIT_WRONG
    return 0


if __name__ == "__main__":
    sys.exit(main())
