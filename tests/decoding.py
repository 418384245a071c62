"""Engines of one rank on the simulated device, with a clock that makes no test wait."""

from __future__ import annotations

from dflash_prep.arms import parse_arm
from dflash_prep.loop.agreement import Agreement, AgreementGroup, ForwardMode, Proposal, reduce
from dflash_prep.loop.assembly import RunSpec, build
from dflash_prep.loop.engine import Engine
from dflash_prep.loop.faults import Delay, Fault
from dflash_prep.loop.simulated_device import SimulatedClock, SimulatedDevice
from dflash_prep.workload import Workload


class FakeTime:
    """A clock that moves by sleeping and a little, 1 us, with every look: a host whose work takes next to no time."""

    def __init__(self) -> None:
        self.ns = 0

    def now(self) -> int:
        self.ns += 1000
        return self.ns

    def sleep(self, seconds: float) -> None:
        self.ns += round(seconds * 1e9)


def simulated_device(time: FakeTime | None = None) -> SimulatedDevice:
    time = time or FakeTime()
    return SimulatedDevice(SimulatedClock(time.now, time.sleep))


class FullPeers(AgreementGroup):
    """The agreement as one rank of many sees it, the others always being full: every batch is padded to the limit."""

    def __init__(self, rank: int, world: int, concurrency: int) -> None:
        super().__init__(1)
        self.world, self._rank = world, rank
        self._peer = Proposal(concurrency, concurrency, forward_mode=ForwardMode.TARGET_VERIFY)

    def agree(self, proposal: Proposal) -> Agreement:
        rows = [proposal if rank == self._rank else self._peer for rank in range(self.world)]
        return reduce([[int(value) for value in row] for row in rows])


def decode(
    workload: Workload,
    arm: str,
    steps: int,
    *,
    seed: int = 0,
    rank: int = 0,
    world: int = 1,
    fault: Fault | None = None,
    delay: Delay | None = None,
) -> Engine:
    """Decode checked and verified, to the end: the engine is closed, its rows and sequences are there to look at."""
    spec = RunSpec(parse_arm(arm), workload, seed, rank, world, check=True, verify=True, fault=fault, delay=delay)
    group = AgreementGroup(1) if world == 1 else FullPeers(rank, world, workload.requests.concurrency)
    engine = build(spec, simulated_device(), group)
    assert engine.run(steps, lambda: False, lambda _done: None) is False
    engine.close()
    return engine


def assert_right(engine: Engine) -> None:
    """The oracle's tokens, every allocation sound, every page back."""
    mismatch, compared = engine.first_mismatch()
    assert mismatch is None
    assert compared > 0
    assert engine.leaked_tokens == 0
    assert engine.prep.consistency.bad == 0
    assert engine.prep.consistency.checks == sum(row.allocated_tokens > 0 for row in engine.rows)


def given(engine: Engine) -> list[tuple[int, list[int]]]:
    """Each request that was given tokens, and these; who still waits is noticed by some arms sooner than by others."""
    return [(each.shape.index, each.tokens) for each in engine.parts.arrivals.all if each.tokens]
