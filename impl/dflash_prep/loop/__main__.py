"""The decode loop as a program: ``python -m dflash_prep.loop --arm topup --workload smoke --steps 200 --out DIR``.

Started by itself it is rank 0 of 1; started by torchrun it is the rank that the environment says. With several
``--arm`` it is a duet, with ``--turns`` somebody else says which block comes next (`duet.py`). Every rank writes
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
from dflash_prep.errors import ResultOverrunError, SettingError
from dflash_prep.loop.checksum import ModelKind
from dflash_prep.loop.faults import Delay, Fault, FaultError
from dflash_prep.workload import Workload

if TYPE_CHECKING:
    from dflash_prep.loop.assembly import RunSpec
    from dflash_prep.loop.decode_device import DecodeDevice
    from dflash_prep.loop.duet import Duet
    from dflash_prep.loop.engine import Engine
    from dflash_prep.loop.launch import Ranks

_EXIT_USAGE = 2
_DEFAULT_STEPS = 200
_EXIT_WRONG = 5
_PROGRESS_INTERVAL_S = 0.05


class _WrongRunError(RuntimeError):
    """The run finished and what it did was wrong; the message is one sentence."""


@dataclass(frozen=True, slots=True)
class _LoopOptions:
    """The command line, checked. Several arms are a duet of `pairs` blocks of `block` steps each; one decodes `steps`,
    or what it is told over the sockets in `turns`.
    """

    arms: tuple[Arm, ...]
    workload: Workload
    steps: int
    block: int
    pairs: int
    order_seed: int
    turns: Path | None
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

    @property
    def has_blocks(self) -> bool:
        """Whether marks and rows say which block of which arm a step belongs to."""
        return len(self.arms) > 1 or self.turns is not None


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


class _StopFlag:
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
        if self._file is not None and self._clock() - self._at >= _PROGRESS_INTERVAL_S:
            self._write(num_done)

    def _write(self, num_done: int) -> None:
        self._file.write(b"." * (num_done - self._written))
        self._written, self._at = num_done, self._clock()

    def close(self, num_done: int) -> None:
        if self._file is not None:
            self._write(num_done)
            self._file.close()


def run(options: _LoopOptions, place: Place) -> None:
    """Run this rank to its end and write its ledger. Raises FaultError, SettingError and _WrongRunError."""
    if options.fault is not None:
        options.fault.check(options.arms)
    if options.delay is not None:
        options.delay.check(place.world, [arm.name for arm in options.arms])
    sink = ranges.choose_sink(place.rank, place.world)
    stop = _StopFlag()
    try:
        _decode(options, place, stop, sink)
    finally:
        sink.close()


def _decode(options: _LoopOptions, place: Place, stop: _StopFlag, sink: ranges.Sink) -> None:
    from dflash_prep.loop.duet import Duet, Turns, shuffled_blocks
    from dflash_prep.loop.launch import join_ranks, leave_ranks, open_devices, warm_up

    specs = [_spec(options, place, arm) for arm in options.arms]
    devices = open_devices(options.device, place.local_rank, specs)
    for spec, device in zip(specs, devices, strict=True):
        warm_up(spec, device)
    ranges.use(sink)
    named = "" if options.has_blocks else f" arm={options.arms[0].name}"
    ranges.mark(f"dflash_bench rank={place.rank} world={place.world}{named}")
    tp = options.workload.speculation.sampler_tp
    joined = join_ranks(place.rank, place.world, options.backend, tp, devices[0])
    engines = _build_all(specs, devices, joined)
    progress = Progress(options.progress if place.rank == 0 else None)
    duet = Duet(engines, progress)
    if options.turns is not None:
        turns = Turns(options.turns, place.rank, specs[0].arm.name, lambda: stop.is_set)
        interrupted = duet.run(iter(turns), lambda: stop.is_set)
        turns.close()
    elif options.has_blocks:
        blocks = shuffled_blocks(list(engines), options.pairs, options.block, options.order_seed)
        interrupted = duet.run(blocks, lambda: stop.is_set)
    else:
        (engine,) = engines.values()
        interrupted = engine.run(options.steps, lambda: stop.is_set, progress)
        duet.rows = [(row, None, None) for row in engine.rows]
        duet.num_counted = len(engine.rows)
    for engine in engines.values():
        engine.parts.device.resume()
        engine.close()
    progress.close(duet.num_counted)
    wrong = _write_results(options, place, duet, interrupted=interrupted)
    leave_ranks(place.world)
    if wrong:
        raise _WrongRunError(wrong)


def _spec(options: _LoopOptions, place: Place, arm: Arm) -> RunSpec:
    from dflash_prep.loop.assembly import RunSpec

    return RunSpec(
        arm,
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


def _build_all(specs: list[RunSpec], devices: list[DecodeDevice], joined: Ranks) -> dict[str, Engine]:
    """An engine per arm, each with pools of its own. SettingError where these do not fit the device together."""
    from dflash_prep.loop.assembly import build, is_out_of_memory

    engines: dict[str, Engine] = {}
    for spec, device in zip(specs, devices, strict=True):
        device.resume()
        try:
            engines[spec.arm.name] = build(spec, device, joined.agreement, joined.sampler)
        except RuntimeError as error:
            if not is_out_of_memory(error):
                raise
            pools = "the pools" if len(specs) == 1 else f"the pools of {len(specs)} arms at once"
            raise SettingError(f"{pools} do not fit into the memory of this device; give the workload fewer") from error
    return engines


def _write_results(options: _LoopOptions, place: Place, duet: Duet, *, interrupted: bool) -> str | None:
    """Steps and ledger; what was wrong with the run, None if nothing."""
    from dflash_prep.loop.counters import summarise, write_steps
    from dflash_prep.loop.ledger import Ledger

    engines, names = duet.engines, tuple(duet.engines)
    first, is_duet = engines[names[0]], len(names) > 1
    blocks = [(label, pair) for _, label, pair in duet.rows] if options.has_blocks else None
    options.out.mkdir(parents=True, exist_ok=True)
    write_steps([row for row, _, _ in duet.rows], options.out / f"rank{place.rank}.steps.csv", blocks)
    mismatches, verified = {}, 0
    for name, engine in engines.items() if options.verify else ():
        mismatch, compared = engine.first_mismatch()
        verified += compared
        if mismatch is not None:
            mismatches[name] = f"arm {name}, {mismatch}" if is_duet else str(mismatch)
    counters = {name: summarise(each.rows, each.parts.pool_size, each.checks) for name, each in engines.items()}
    switches = {arm.name: asdict(arm.switches) for arm in options.arms}
    leaked = sum(each.leaked_tokens for each in engines.values())
    Ledger(
        rank=place.rank,
        world=place.world,
        arm=None if is_duet else names[0],
        arms=names,
        switches=switches if is_duet else switches[names[0]],
        workload=options.workload.name,
        seed=options.seed,
        steps=len(duet.rows),
        interrupted=interrupted,
        device=first.parts.device.kind,
        counters=counters if is_duet else counters[names[0]],
        settings={
            "needs_cpu_seq_lens": first.needs_cpu,
            "workload": asdict(options.workload),
            "model": str(first.parts.model.kind),
            "sampler_vocab": first.worker.head.shard.num_org,
        },
        checks={
            "verified_tokens": verified,
            "mismatch": next(iter(mismatches.values()), None),
            "leaked_tokens": leaked,
        },
        delay=None if options.delay is None else str(options.delay),
    ).write(options.out)
    if mismatches:
        return f"rank {place.rank} left the oracle at {next(iter(mismatches.values()))}"
    if leaked:
        return f"rank {place.rank} leaked {leaked} tokens of its KV pool"
    num_checks, num_bad = (sum(each.checks[i] for each in engines.values()) for i in range(2))
    return f"rank {place.rank} failed {num_bad} of {num_checks} allocation checks" if num_bad else None


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="python -m dflash_prep.loop", description="One rank of the decode loop.")
    parser.add_argument("--list", action="store_true", help="print the arms and workloads as JSON and exit")
    parser.add_argument("--arm", action="append", help="NAME[,switch=value...] (default: control); several: a duet")
    parser.add_argument("--workload", default="smoke", help="a name, or FILE.toml (default: smoke)")
    parser.add_argument("--steps", type=int, help="decode steps of a run of one arm (default: 200)")
    parser.add_argument("--block", type=int, default=20, help="steps of a block of a duet (default: 20)")
    parser.add_argument("--pairs", type=int, default=30, help="blocks of every arm of a duet (default: 30)")
    parser.add_argument("--order-seed", type=int, help="of the order of arms in each pair (default: the seed)")
    parser.add_argument("--turns", type=Path, metavar="DIR", help="decode the blocks told over DIR/rank{R}.sock")
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
        "--delay", metavar="RANK:MICROSECONDS[:ARM]", help="keep this rank's host busy so long in prepare_for_decode"
    )
    return parser


_AS_GIVEN = ("block", "pairs", "turns", "seed", "out", "progress", "backend", "device", "check")


def _options(arguments: argparse.Namespace) -> _LoopOptions:
    chosen = tuple(arms.parse_arm(text) for text in arguments.arm or ["control"])
    counts = [arguments.block, arguments.pairs, 1 if arguments.steps is None else arguments.steps]
    if arguments.seed < 0 or min(counts) < 1:
        raise SettingError("--steps, --block and --pairs must be at least 1 and --seed not negative")
    if len({arm.name for arm in chosen}) < len(chosen):
        raise SettingError("a duet needs arms of different names; `control` and `counts` are the same switches")
    if len(chosen) > 1 and arguments.turns is not None:
        raise SettingError("--turns hands out blocks of one arm")
    if arguments.steps is not None and (len(chosen) > 1 or arguments.turns is not None):
        raise SettingError("a duet decodes --pairs blocks of --block steps; --steps is for a run of one arm")
    return _LoopOptions(
        arms=chosen,
        workload=workload.load(arguments.workload),
        steps=arguments.steps or _DEFAULT_STEPS,
        order_seed=arguments.seed if arguments.order_seed is None else arguments.order_seed,
        verify=arguments.verify or arguments.plant is not None,
        fault=None if arguments.plant is None else Fault.parse(arguments.plant),
        delay=None if arguments.delay is None else Delay.parse(arguments.delay),
        model=ModelKind(arguments.model),
        **{name: getattr(arguments, name) for name in _AS_GIVEN},
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
        return _EXIT_USAGE
    except (_WrongRunError, ResultOverrunError) as error:
        sys.stderr.write(f"{error}\n")
        return _EXIT_WRONG
    return 0


if __name__ == "__main__":
    sys.exit(main())
